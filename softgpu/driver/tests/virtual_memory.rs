//! Virtual memory and multicast objects.

#![allow(
    missing_docs,
    clippy::undocumented_unsafe_blocks,
    reason = "the tests are the caller that the functions ask for"
)]

mod common;

use common::*;

const BYTES: usize = 2 << 20;

fn properties(gpu: Gpu) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: 1,
        requested_handle_types: 0,
        location: CUmemLocation { kind: 1, id: gpu.ordinal },
        win32_handle_meta_data: std::ptr::null_mut(),
        compression: [0; 2],
        usage: 0,
        reserved: [0; 4],
    }
}

fn create(gpu: Gpu) -> Handle {
    let mut handle = 0;
    ok(unsafe { cuMemCreate((&mut handle).into(), BYTES, In::from(&properties(gpu)), 0) });
    handle
}

fn reserve(bytes: usize) -> u64 {
    let mut address = 0;
    ok(unsafe { cuMemAddressReserve((&mut address).into(), bytes, 0, 0, 0) });
    address
}

fn grant(address: u64, gpu: Gpu, flags: i32) -> i32 {
    let access = CUmemAccessDesc { location: CUmemLocation { kind: 1, id: gpu.ordinal }, flags };
    unsafe { cuMemSetAccess(address, BYTES, In::from(&access), 1) }
}

#[test]
fn mapped_memory_is_reached_by_those_who_were_given_access() {
    let (first, second) = (gpu(), gpu());
    let mut bytes = 0;
    ok(unsafe { cuMemGetAllocationGranularity((&mut bytes).into(), In::from(&properties(first)), 0) });
    assert_eq!(bytes, BYTES);
    let handle = create(first);
    let address = reserve(2 * BYTES);
    assert_eq!(address % BYTES as u64, 0);
    ok(unsafe { cuMemMap(address, BYTES, 0, handle, 0) });
    ok(unsafe { cuMemRelease(handle) });
    first.enter();
    ok(grant(address, first, 3));
    put(address, &[5; 32]);
    let add = first.function(KERNELS, "add");
    ok(launch(add, 1, 32, 0, &[address, 1]));
    assert_eq!(get(address, 32), [6; 32]);
    let other = second.function(KERNELS, "add");
    ok(launch(other, 1, 32, 0, &[address, 1]));
    assert_eq!(second.synchronise(), 700);
    ok(unsafe { cuDevicePrimaryCtxReset_v2(second.ordinal) });
    ok(grant(address, second, 3));
    let other = second.function(KERNELS, "add");
    ok(launch(other, 1, 32, 0, &[address, 1]));
    assert_eq!(second.synchronise(), 0);
    first.enter();
    assert_eq!(get(address, 32), [7; 32]);
    assert_eq!(unsafe { cuMemAddressFree(address, 2 * BYTES) }, 1);
    ok(unsafe { cuMemUnmap(address, BYTES) });
    ok(unsafe { cuMemAddressFree(address, 2 * BYTES) });
    let mut numbers = SoftgpuStatistics::default();
    ok(unsafe { softgpu_statistics(first.ordinal, (&mut numbers).into()) });
    assert_eq!(numbers.allocated_bytes, 0);
}

#[test]
fn memory_keeps_its_contents_while_it_is_mapped_elsewhere() {
    let gpu = gpu();
    let handle = create(gpu);
    let address = reserve(2 * BYTES);
    ok(unsafe { cuMemMap(address, BYTES, 0, handle, 0) });
    ok(grant(address, gpu, 3));
    put(address + 400, &[1, 2, 3]);
    assert_eq!(unsafe { cuMemMap(address + BYTES as u64, BYTES, 0, handle, 0) }, 801);
    ok(unsafe { cuMemUnmap(address, BYTES) });
    let mut word = 0u32;
    assert_eq!(unsafe { cuMemcpyDtoH_v2(&raw mut word as u64, address + 400, 4) }, 1);
    let elsewhere = address + BYTES as u64;
    ok(unsafe { cuMemMap(elsewhere, BYTES, 0, handle, 0) });
    ok(grant(elsewhere, gpu, 3));
    assert_eq!(get(elsewhere + 400, 3), [1, 2, 3]);
}

#[test]
fn wrong_ranges_and_sizes_are_refused() {
    let gpu = gpu();
    let handle = create(gpu);
    let address = reserve(BYTES);
    let mut other = 0;
    assert_eq!(unsafe { cuMemAddressReserve((&mut other).into(), BYTES + 1, 0, 0, 0) }, 1);
    assert_eq!(unsafe { cuMemCreate((&mut other).into(), 4096, In::from(&properties(gpu)), 0) }, 1);
    assert_eq!(unsafe { cuMemMap(address, 2 * BYTES, 0, handle, 0) }, 1);
    assert_eq!(unsafe { cuMemMap(address + 512, BYTES, 0, handle, 0) }, 1);
    assert_eq!(unsafe { cuMemMap(address, BYTES, 0, 77, 0) }, 1);
    assert_eq!(unsafe { cuMemUnmap(address, BYTES) }, 1);
    assert_eq!(grant(address, gpu, 3), 1);
    assert_eq!(unsafe { cuMemRelease(77) }, 1);
}

const MULTIMEM: &str = "
.version 8.1
.target sm_90
.address_size 64
.visible .entry add_everywhere(.param .u64 group, .param .u64 value, .param .u64 sum) {
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [group];
    ld.param.u32 %r1, [value];
    ld.param.u64 %rd2, [sum];
    multimem.red.relaxed.sys.global.add.u32 [%rd1], %r1;
    fence.proxy.alias;
    multimem.ld_reduce.relaxed.sys.global.add.u32 %r2, [%rd1];
    st.global.u32 [%rd2], %r2;
    ret;
}
";

#[test]
fn a_multicast_object_reaches_the_memory_of_all_its_devices() {
    let gpus = [gpu(), gpu(), gpu()];
    let properties = CUmulticastObjectProp { device_count: 3, bytes: BYTES, handle_types: 0, flags: 0 };
    let mut bytes = 0;
    ok(unsafe { cuMulticastGetGranularity((&mut bytes).into(), In::from(&properties), 0) });
    assert_eq!(bytes, BYTES);
    let mut group = 0;
    ok(unsafe { cuMulticastCreate((&mut group).into(), In::from(&properties)) });
    let handles = gpus.map(create);
    assert_eq!(unsafe { cuMulticastBindMem(group, 0, handles[0], 0, BYTES, 0) }, 401);
    for gpu in gpus {
        ok(unsafe { cuMulticastAddDevice(group, gpu.ordinal) });
    }
    assert_eq!(unsafe { cuMulticastAddDevice(group, gpus[0].ordinal) }, 1);
    let addresses = gpus.map(|_| reserve(BYTES));
    for ((gpu, handle), address) in gpus.into_iter().zip(handles).zip(addresses) {
        gpu.enter();
        ok(unsafe { cuMemMap(address, BYTES, 0, handle, 0) });
        ok(grant(address, gpu, 3));
        put(address, &[10 * gpu.ordinal as u32]);
        ok(unsafe { cuMulticastBindMem(group, 0, handle, 0, BYTES, 0) });
    }
    let window = reserve(BYTES);
    ok(unsafe { cuMemMap(window, BYTES, 0, group, 0) });
    gpus[0].enter();
    let sum = gpus[0].words(&[0]);
    let kernel = gpus[0].function(MULTIMEM, "add_everywhere");
    // The group itself wants access too.
    ok(grant(window, gpus[0], 3));
    ok(launch(kernel, 1, 1, 0, &[window, 5, sum]));
    assert_eq!(gpus[0].synchronise(), 0);
    let expected = gpus.map(|gpu| 10 * gpu.ordinal as u32 + 5);
    assert_eq!(get(sum, 1), [expected.iter().sum::<u32>()]);
    for (gpu, (address, expected)) in gpus.into_iter().zip(addresses.into_iter().zip(expected)) {
        gpu.enter();
        assert_eq!(get(address, 1), [expected]);
    }
    ok(unsafe { cuMulticastUnbind(group, gpus[1].ordinal, 0, BYTES) });
    gpus[0].enter();
    ok(launch(kernel, 1, 1, 0, &[window, 5, sum]));
    assert_eq!(gpus[0].synchronise(), 700);
}
