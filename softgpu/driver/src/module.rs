//! Modules: PTX text that is accepted for a device, its functions and variables.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use softgpu::{Module, Needs};

use crate::code::{Code, Result};
use crate::device::Limits;
use crate::driver::{Context, Driver, HandleKind, driver, lock};

/// A module in a context.
pub(crate) struct LoadedModule {
    pub(crate) context: Arc<Context>,
    pub(crate) loaded: softgpu::LoadedModule,
    functions: Mutex<HashMap<String, u64>>,
}

/// A kernel of a module.
pub(crate) struct Function {
    pub(crate) module: Arc<LoadedModule>,
    pub(crate) name: String,
    pub(crate) needs: Needs,
    /// Dynamic shared memory that launches may ask for, in bytes.
    pub(crate) dynamic_shared_max: AtomicU32,
}

/// Modules by their text, so that what several devices load is decoded once, by whoever comes first.
#[derive(Default)]
pub(crate) struct Texts(Mutex<HashMap<Arc<[u8]>, Entry>>);

type Entry = Arc<OnceLock<Decoded>>;

/// A module, or why the text is none.
type Decoded = std::result::Result<Arc<Module>, String>;

/// Texts that are kept; when there are more, all are forgotten.
const TEXTS_MAX: usize = 256;

impl Texts {
    fn module(&self, text: &[u8]) -> Decoded {
        let entry = {
            let mut texts = lock(&self.0);
            match texts.get(text) {
                Some(entry) => entry.clone(),
                None => {
                    if texts.len() >= TEXTS_MAX {
                        texts.clear();
                    }
                    texts.entry(text.into()).or_default().clone()
                }
            }
        };
        let decode = || {
            let string = std::str::from_utf8(text).map_err(|error| format!("expected UTF-8: {error}"))?;
            Module::parse(string).map(Arc::new).map_err(|error| error.to_string())
        };
        entry.get_or_init(decode).clone()
    }
}

/// The first driver that takes each version of PTX (PTX ISA, "Release Notes").
const PTX_DRIVERS: &[((u32, u32), i32)] = &[
    ((6, 0), 9000),
    ((6, 1), 9010),
    ((6, 2), 9020),
    ((6, 3), 10000),
    ((6, 4), 10010),
    ((6, 5), 10020),
    ((7, 0), 11000),
    ((7, 1), 11010),
    ((7, 2), 11020),
    ((7, 3), 11030),
    ((7, 4), 11040),
    ((7, 5), 11050),
    ((7, 6), 11060),
    ((7, 7), 11070),
    ((7, 8), 11080),
    ((8, 0), 12000),
    ((8, 1), 12010),
    ((8, 2), 12020),
    ((8, 3), 12030),
    ((8, 4), 12040),
    ((8, 5), 12050),
    ((8, 6), 12070),
    ((8, 7), 12080),
    ((8, 8), 12090),
    ((9, 0), 13000),
    ((9, 1), 13010),
];

/// Whether a driver of that version takes PTX of this one.
fn takes_ptx(driver_version: i32, ptx: &str) -> bool {
    let parsed = ptx.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let Some(ptx): Option<(u32, u32)> = parsed else { return false };
    match PTX_DRIVERS.iter().find(|entry| entry.0 >= ptx) {
        Some(entry) => entry.1 <= driver_version,
        None => false,
    }
}

/// Whether a device runs what was made for that architecture.
fn runs_target((major, minor): (i32, i32), target: &str) -> bool {
    let Some(number) = target.strip_prefix("sm_") else { return false };
    let digits = number.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
    let suffix = &number[digits.len()..];
    let Ok(wanted) = digits.parse::<i32>() else { return false };
    let own = major * 10 + minor;
    match suffix {
        "" => wanted <= own,
        "f" => wanted <= own && wanted / 10 == major,
        _ => wanted == own,
    }
}

/// What a load comes to, and what the compiler said.
pub(crate) struct Loading {
    pub(crate) result: Result<u64>,
    pub(crate) log: String,
}

/// `cuModuleLoadData` and `cuModuleLoadDataEx`.
pub(crate) fn load(image: &[u8]) -> Loading {
    let mut log = String::new();
    let result = load_with_log(image, &mut log);
    Loading { result, log }
}

fn load_with_log(image: &[u8], log: &mut String) -> Result<u64> {
    let driver = driver()?;
    let context = driver.current()?;
    crate::capture::check_unsafe_call(driver)?;
    if image.is_empty() || image.starts_with(b"\x7fELF") || image.starts_with(&[0x50, 0xed, 0x55, 0xba]) {
        "expected PTX text, found nothing or a binary".clone_into(log);
        return Err(Code::INVALID_IMAGE);
    }
    let head = header(image);
    if let Some((version, target)) = &head {
        if !takes_ptx(driver.topology.driver_version, version) {
            *log = format!("Unsupported .version {version}; the driver is {}", driver.topology.driver_version);
            return Err(Code::UNSUPPORTED_PTX_VERSION);
        }
        let capability = driver.topology.devices[context.device].capability;
        if !runs_target(capability, target) {
            *log = format!(
                "SM version specified by .target is {target}, the device is sm_{}{}",
                capability.0, capability.1
            );
            return Err(Code::NO_BINARY_FOR_GPU);
        }
    }
    let module = driver.texts.module(image).map_err(|error| {
        *log = format!("ptxas fatal : {error}");
        Code::INVALID_PTX
    })?;
    driver.wait_for_kernels(context.device);
    driver.check(&context)?;
    let loaded = driver.machine.load(&module, context.device as u32).map_err(|_| Code::OUT_OF_MEMORY)?;
    let handle = driver.new_handle(HandleKind::Module);
    let module = LoadedModule { context, loaded, functions: Mutex::default() };
    lock(&driver.tables).modules.insert(handle, Arc::new(module));
    Ok(handle)
}

/// The version and the target that a text names, where it names them as it should.
fn header(image: &[u8]) -> Option<(String, String)> {
    let text = std::str::from_utf8(image).ok()?;
    let (mut version, mut target) = (None, None);
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or("").trim();
        if let Some(rest) = line.strip_prefix(".version") {
            version = Some(rest.trim().to_owned());
        }
        if let Some(rest) = line.strip_prefix(".target") {
            target = rest.split(',').next().map(|first| first.trim().to_owned());
        }
        if version.is_some() && target.is_some() {
            break;
        }
    }
    version.zip(target)
}

/// The module of a handle, which must belong to the current context.
fn module(driver: &Driver, handle: u64) -> Result<Arc<LoadedModule>> {
    let context = driver.current()?;
    let module = lock(&driver.tables).modules.get(&handle).cloned().ok_or(Code::INVALID_HANDLE)?;
    if Arc::ptr_eq(&module.context, &context) { Ok(module) } else { Err(Code::INVALID_CONTEXT) }
}

/// The function of a handle, which must belong to the current context.
pub(crate) fn function(driver: &Driver, handle: u64) -> Result<Arc<Function>> {
    let context = driver.current()?;
    let function = lock(&driver.tables).functions.get(&handle).cloned().ok_or(Code::INVALID_HANDLE)?;
    if Arc::ptr_eq(&function.module.context, &context) { Ok(function) } else { Err(Code::INVALID_CONTEXT) }
}

/// `cuModuleUnload`.
pub(crate) fn unload(handle: u64) -> Result {
    let driver = driver()?;
    let module = module(driver, handle)?;
    crate::capture::check_unsafe_call(driver)?;
    driver.wait_for_kernels(module.context.device);
    {
        let mut tables = lock(&driver.tables);
        tables.modules.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
        tables.functions.retain(|_, function| !Arc::ptr_eq(&function.module, &module));
    }
    driver.machine.unload(&module.loaded).map_err(|_| Code::INVALID_VALUE)
}

/// `cuModuleGetFunction`.
pub(crate) fn get_function(handle: u64, name: &str) -> Result<u64> {
    let driver = driver()?;
    let module = module(driver, handle)?;
    if let Some(&function) = lock(&module.functions).get(name) {
        return Ok(function);
    }
    let needs = module.loaded.module().needs(name).ok_or(Code::NOT_FOUND)?;
    let limits = Limits::of(&driver.topology.devices[module.context.device]);
    let handle = driver.new_handle(HandleKind::Function);
    let function = Function {
        module: module.clone(),
        name: name.to_owned(),
        needs,
        dynamic_shared_max: AtomicU32::new(limits.shared_bytes_default.saturating_sub(needs.shared_bytes)),
    };
    lock(&module.functions).insert(name.to_owned(), handle);
    lock(&driver.tables).functions.insert(handle, Arc::new(function));
    Ok(handle)
}

/// `cuModuleGetGlobal`: address and bytes.
pub(crate) fn get_global(handle: u64, name: &str) -> Result<(u64, u64)> {
    let driver = driver()?;
    module(driver, handle)?.loaded.variable(name).ok_or(Code::NOT_FOUND)
}

/// `cuFuncGetAttribute`.
pub(crate) fn get_attribute(attribute: i32, handle: u64) -> Result<i32> {
    let driver = driver()?;
    let function = function(driver, handle)?;
    let device = &driver.topology.devices[function.module.context.device];
    let number = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
    Ok(match attribute {
        0 => function.threads_max() as i32,
        1 => function.needs.shared_bytes as i32,
        2 => 0,
        3 => function.needs.local_bytes as i32,
        4 => device.registers_per_thread as i32,
        5 => number(function.module.loaded.module().target()),
        6 => device.capability.0 * 10 + device.capability.1,
        7 => 0,
        8 => function.dynamic_shared_max.load(Ordering::Relaxed) as i32,
        9 => -1,
        10..=15 => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// `cuFuncSetAttribute`.
pub(crate) fn set_attribute(handle: u64, attribute: i32, value: i32) -> Result {
    let driver = driver()?;
    let function = function(driver, handle)?;
    let limits = Limits::of(&driver.topology.devices[function.module.context.device]);
    match attribute {
        8 => {
            let bytes = u32::try_from(value).map_err(|_| Code::INVALID_VALUE)?;
            if bytes > limits.shared_bytes_most.saturating_sub(function.needs.shared_bytes) {
                return Err(Code::INVALID_VALUE);
            }
            function.dynamic_shared_max.store(bytes, Ordering::Relaxed);
            Ok(())
        }
        9 if (-1..=100).contains(&value) => Ok(()),
        14 | 15 => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    }
}

impl Function {
    /// The most threads of a block.
    pub(crate) fn threads_max(&self) -> u64 {
        let required = self.needs.required_threads.map(|[x, y, z]| u64::from(x) * u64::from(y) * u64::from(z));
        required.or(self.needs.threads_max).unwrap_or(1024).min(1024)
    }
}
