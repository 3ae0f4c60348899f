//! Modules, functions, launches.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::raw::{HostRange, In, Out};
use super::{CUdeviceptr, Handle, functions};
use crate::code::{Code, Result};
use crate::launch::{self, Asked};
use crate::module::{self, Function};

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchAttribute {
    /// Which.
    pub id: c_int,
    /// Nothing.
    pub padding: c_int,
    /// Its value, of whatever type the attribute has.
    pub value: [c_int; 16],
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchConfig {
    /// Blocks.
    pub grid: [c_uint; 3],
    /// Threads of a block.
    pub block: [c_uint; 3],
    /// Dynamic shared memory.
    pub shared_bytes: c_uint,
    /// Where.
    pub stream: Handle,
    /// How.
    pub attributes: In<CUlaunchAttribute>,
    /// How many of them.
    pub attribute_count: c_uint,
}

/// Copies the parameters of a kernel, from one place for each of them or from one buffer.
fn parameters(function: &Function, each: In<In<c_void>>, extra: In<In<c_void>>) -> Result<Vec<u8>> {
    let total = function.needs.parameter_bytes as usize;
    if !each.is_null() && !extra.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    if !extra.is_null() {
        let (mut buffer, mut bytes) = (None, None);
        let mut at = 0;
        loop {
            match extra.get(at)?.address() {
                0 => break,
                1 => buffer = Some(extra.get(at + 1)?),
                2 => bytes = Some(extra.get(at + 1)?.cast::<usize>().get(0)?),
                _ => return Err(Code::INVALID_VALUE),
            }
            at += 2;
        }
        let (buffer, bytes) = buffer.zip(bytes).ok_or(Code::INVALID_VALUE)?;
        if bytes < total || (buffer.is_null() && total > 0) {
            return Err(Code::INVALID_VALUE);
        }
        return Ok(HostRange::new(buffer.address(), total as u64).read());
    }
    let mut block = vec![0; total];
    let module = function.module.loaded.module();
    for (index, parameter) in module.parameters(&function.name).unwrap_or(&[]).iter().enumerate() {
        let place = each.get(index)?;
        if place.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let from = parameter.offset as usize;
        let bytes = HostRange::new(place.address(), parameter.bytes.into()).read();
        block[from..from + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(block)
}

const INFO_BUFFER: c_int = 3;
const INFO_BYTES: c_int = 4;
const ERROR_BUFFER: c_int = 5;
const ERROR_BYTES: c_int = 6;

fn load(module: Out<Handle>, image: In<c_char>, count: usize, options: In<c_int>, values: Out<Out<c_char>>) -> Result {
    module.check()?;
    let options = if count == 0 { Vec::new() } else { options.all(count)? };
    if options.iter().any(|option| !(0..=33).contains(option)) {
        return Err(Code::INVALID_VALUE);
    }
    let value = |option: c_int| {
        let at = options.iter().position(|&other| other == option)?;
        values.add(at).get().map(|value| (at, value))
    };
    let loading = module::load(image.text()?.to_bytes());
    for (buffer, bytes, log) in [(INFO_BUFFER, INFO_BYTES, ""), (ERROR_BUFFER, ERROR_BYTES, &loading.log[..])] {
        let (Some((_, buffer)), Some((at, capacity))) = (value(buffer), value(bytes)) else { continue };
        let capacity = capacity.address() as usize;
        buffer.put_text(log.as_bytes(), capacity);
        // How much has been filled stands where the capacity stood.
        let filled = if log.is_empty() { 0 } else { (log.len() + 1).min(capacity) };
        values.add(at).put_if(Out::NULL.add(filled));
    }
    module.put(loading.result?)
}

fn name(text: In<c_char>) -> Result<&'static str> {
    text.text()?.to_str().map_err(|_| Code::NOT_FOUND)
}

functions! { list:
    fn cuModuleLoadData(module: Out<Handle>, image: In<c_char>) {
        load(module, image, 0, In::NULL, Out::NULL)
    }
    fn cuModuleLoadDataEx(
        module: Out<Handle>, image: In<c_char>, count: c_uint, options: In<c_int>, values: Out<Out<c_char>>
    ) {
        load(module, image, count as usize, options, values)
    }
    fn cuModuleLoad(module: Out<Handle>, path: In<c_char>) {
        module.check()?;
        let path = path.text()?.to_str().map_err(|_| Code::FILE_NOT_FOUND)?;
        let image = std::fs::read(path).map_err(|_| Code::FILE_NOT_FOUND)?;
        module.put(module::load(&image).result?)
    }
    fn cuModuleUnload(module: Handle) {
        module::unload(module)
    }
    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, text: In<c_char>) {
        function.check()?;
        function.put(module::get_function(module, name(text)?)?)
    }
    fn cuModuleGetGlobal_v2(address: Out<CUdeviceptr>, bytes: Out<usize>, module: Handle, text: In<c_char>) {
        let (found, length) = module::get_global(module, name(text)?)?;
        address.put_if(found);
        bytes.put_if(length as usize);
        Ok(())
    }
    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: Handle) {
        value.put(module::get_attribute(attribute, function)?)
    }
    fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) {
        module::set_attribute(function, attribute, value)
    }
    fn cuFuncSetCacheConfig(function: Handle, _preference: c_int) {
        module::get_attribute(0, function).map(drop)
    }
    fn cuFuncSetSharedMemConfig(function: Handle, _preference: c_int) {
        module::get_attribute(0, function).map(drop)
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, function: Handle, threads: c_int, shared_bytes: usize
    ) {
        blocks.put(launch::occupancy(function, threads, shared_bytes as u64)? as c_int)
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, function: Handle, threads: c_int, shared_bytes: usize, _flags: c_uint
    ) {
        blocks.put(launch::occupancy(function, threads, shared_bytes as u64)? as c_int)
    }
    fn cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: Handle, each: In<In<c_void>>, extra: In<In<c_void>>
    ) {
        let asked = Asked {
            function,
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared_bytes: shared_bytes,
            stream,
            is_cooperative: false,
        };
        launch::launch(&asked, |function| parameters(function, each, extra))
    }
    fn cuLaunchCooperativeKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: Handle, each: In<In<c_void>>
    ) {
        let asked = Asked {
            function,
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic_shared_bytes: shared_bytes,
            stream,
            is_cooperative: true,
        };
        launch::launch(&asked, |function| parameters(function, each, In::NULL))
    }
    fn cuLaunchKernelEx(
        configuration: In<CUlaunchConfig>, function: Handle, each: In<In<c_void>>, extra: In<In<c_void>>
    ) {
        let configuration = configuration.get(0)?;
        let mut is_cooperative = false;
        let count = configuration.attribute_count as usize;
        let attributes = if count == 0 { Vec::new() } else { configuration.attributes.all(count)? };
        for attribute in attributes {
            match attribute.id {
                2 => is_cooperative = attribute.value[0] != 0,
                // A cluster is one block here.
                4 if attribute.value[..3].iter().any(|&length| length > 1) => return Err(Code::NOT_SUPPORTED),
                0 | 1 | 3..=14 => {}
                _ => return Err(Code::INVALID_VALUE),
            }
        }
        let asked = Asked {
            function,
            grid: configuration.grid,
            block: configuration.block,
            dynamic_shared_bytes: configuration.shared_bytes,
            stream: configuration.stream,
            is_cooperative,
        };
        launch::launch(&asked, |function| parameters(function, each, extra))
    }
}
