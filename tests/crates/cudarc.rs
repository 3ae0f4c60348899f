//! cudarc's slices and streams, by the feature `cudarc`: with the driver that cudarc finds.

mod common;

use std::sync::Arc;

use common::{
    COUNT, Number, alone, device, expected_and_came, number, numbers_of, on_threads, ranks_on, sum_of_two, sums_of_two,
};
use cudarc::driver::{CudaContext, CudaSlice, DeviceRepr, sys};
use float8::F8E4M3;
use tutti::{Element, Reduction};

common::numbers!(
    half::f16 => |number| half::f16::from_f32(number.into()),
    half::bf16 => |number| half::bf16::from_f32(number.into()),
    F8E4M3 => |number| F8E4M3::from_f32(number.into()),
);

fn primary(ordinal: usize) -> Arc<CudaContext> {
    CudaContext::new(ordinal).expect("there is such a device")
}

/// A context of its own on a device.
fn another(ordinal: usize) -> Arc<CudaContext> {
    let device = primary(ordinal).cu_device();
    let mut context = std::ptr::null_mut();
    // SAFETY: the driver writes one handle; the context that holds it destroys it.
    unsafe {
        sys::cuCtxCreate_v4(&raw mut context, std::ptr::null_mut(), 0, device).result().expect("it has a context");
        CudaContext::from_raw_context(ordinal, device, context).expect("cudarc takes it")
    }
}

/// The call is right only if it waits for what other streams have queued, and they for the call; the software driver fails what
/// nothing orders.
#[test]
fn two_ranks_reduce_slices_of_cudarc_between_its_streams() {
    let _alone = alone();
    on_threads(ranks_on(&[0, 1]), |communicator| {
        let rank = communicator.rank();
        let context = primary(rank);
        let [before, during, after] = [(); 3].map(|()| context.new_stream().expect("there is a stream"));
        let input = before.clone_htod(&numbers_of::<f32>(rank)).expect("it is queued");
        let mut output = before.clone_htod(&[f32::NAN; COUNT]).expect("it is queued");
        let on = device(rank).cudarc_stream(&during).expect("it is the device's");
        {
            let input = on.input(&input).expect("the stream waits");
            let mut output = on.output(&mut output).expect("the stream waits");
            communicator.on(&on).all_reduce(&input, &mut output, Reduction::Sum).expect("it is queued");
        }
        let sums = after.clone_dtod(&output).expect("it is queued");
        // Written while the call may be reading it, if this did not wait.
        let mut input = input;
        before.memset_zeros(&mut input).expect("it is queued");
        assert_eq!(after.clone_dtoh(&sums).expect("it can be read"), sums_of_two::<f32>());
        assert_eq!(after.clone_dtoh(&input).expect("it can be read"), [0.0; COUNT]);
        assert_eq!(context.check_err(), Ok(()));
    });
}

#[test]
fn two_ranks_on_one_device_reduce_views() {
    let _alone = alone();
    let first = 5;
    let context = primary(0);
    on_threads(ranks_on(&[0, 0]), |communicator| {
        let rank = communicator.rank();
        let stream = context.new_stream().expect("there is a stream");
        let mut slice = stream.clone_htod(&numbers_of::<i32>(rank)).expect("it is queued");
        let on = device(0).cudarc_stream(&stream).expect("it is the device's");
        let mut view = slice.slice_mut(first..COUNT - 1);
        let mut part = on.output(&mut view).expect("the stream waits");
        let handle = communicator.on(&on).all_reduce_in_place(&mut part, Reduction::Sum).expect("it is queued");
        drop(part);
        handle.wait().expect("both ranks call");
        let is_part = |index| (first..COUNT - 1).contains(&index);
        let expected = (0..COUNT).map(|index| if is_part(index) { sum_of_two(index) } else { number(rank, index) });
        assert_eq!(stream.clone_dtoh(&slice).expect("it can be read"), expected.map(i32::from).collect::<Vec<_>>());
    });
}

/// All-reduces of two ranks' slices that are waited for, of views of them, and one that owns its slice. The copies that come before
/// them are only queued.
fn reduces<T: Number + Element + DeviceRepr>() {
    on_threads(ranks_on(&[0, 1]), |communicator| {
        let rank = communicator.rank();
        let context = primary(rank);
        let stream = context.new_stream().expect("there is a stream");
        let read = |slice: &CudaSlice<T>| stream.clone_dtoh(slice).expect("it can be read");
        let mut slice = stream.clone_htod(&numbers_of::<T>(rank)).expect("it is queued");
        let mut other = stream.clone_htod(&vec![T::of(1); COUNT]).expect("it is queued");
        communicator.all_reduce(&slice.slice(1..), &mut other.slice_mut(1..), Reduction::Sum).expect("both ranks call");
        communicator.all_reduce_in_place(&mut slice, Reduction::Sum).expect("both ranks call");
        assert_eq!(read(&slice), sums_of_two::<T>());
        assert_eq!(read(&other)[0], T::of(1));
        assert_eq!(read(&other)[1..], sums_of_two::<T>()[1..]);
        let pending = communicator.all_reduce_async(slice, Reduction::Max).expect("it is queued");
        assert_eq!(read(&pending.wait().expect("both ranks call")), sums_of_two::<T>());
    });
}

#[test]
fn every_element_type_that_both_know_is_reduced() {
    let _alone = alone();
    reduces::<f32>();
    reduces::<f64>();
    reduces::<half::f16>();
    reduces::<half::bf16>();
    reduces::<i8>();
    reduces::<u8>();
    reduces::<i16>();
    reduces::<u16>();
    reduces::<i32>();
    reduces::<u32>();
    reduces::<i64>();
    reduces::<u64>();
}

#[test]
fn floats_of_8_bits_are_gathered() {
    let _alone = alone();
    on_threads(ranks_on(&[0, 1]), |communicator| {
        let rank = communicator.rank();
        let stream = primary(rank).new_stream().expect("there is a stream");
        let own = |rank| [F8E4M3::of(3 + rank as u8); 5];
        let input = stream.clone_htod(&own(rank)).expect("it is queued");
        let mut output = stream.clone_htod(&[F8E4M3::of(0); 10]).expect("it is queued");
        communicator.all_gather(&input, &mut output).expect("both ranks call");
        assert_eq!(stream.clone_dtoh(&output).expect("it can be read"), [own(0), own(1)].concat());
    });
}

#[test]
fn slices_and_streams_of_another_device_are_refused() {
    let _alone = alone();
    let communicator = ranks_on(&[1]).remove(0);
    let streams = [0, 1].map(|ordinal| primary(ordinal).new_stream().expect("there is a stream"));
    let mut slice = streams[0].clone_htod(&numbers_of::<f32>(0)).expect("it is queued");
    let (expected, came) = expected_and_came(communicator.all_reduce_in_place(&mut slice, Reduction::Sum));
    assert_eq!(expected, "memory of device 1, which runs rank 0");
    assert_eq!(came, "memory of device 0");

    let (expected, came) = expected_and_came(device(1).cudarc_stream(&streams[0]));
    assert_eq!(expected, "a stream of the primary context of device 1");
    assert_eq!(came, "a stream of device 0");

    let on = device(1).cudarc_stream(&streams[1]).expect("it is the device's");
    let refused = [expected_and_came(on.input(&slice)), expected_and_came(on.output(&mut slice))];
    for (expected, came) in refused {
        assert_eq!(expected, "memory of the stream's context, of device 1");
        assert_eq!(came, "memory of another context, of device 0");
    }

    // None of this was a call.
    communicator.all_reduce_in_place(&mut [1.0_f32], Reduction::Sum).expect("the communicator is as good as before");
}

#[test]
fn slices_and_streams_of_another_context_are_refused() {
    let _alone = alone();
    let communicator = ranks_on(&[0]).remove(0);
    let stream = another(0).new_stream().expect("there is a stream");
    let mut slice = stream.clone_htod(&numbers_of::<f32>(0)).expect("it is queued");
    let (expected, came) = expected_and_came(communicator.all_reduce_in_place(&mut slice, Reduction::Sum));
    assert_eq!(expected, "memory of the primary context of device 0, which runs rank 0");
    assert_eq!(came, "memory of another context of that device");

    let (expected, came) = expected_and_came(device(0).cudarc_stream(&stream));
    assert_eq!(expected, "a stream of the primary context of device 0");
    assert_eq!(came, "a stream of another context of that device");
}

#[test]
fn a_default_stream_is_taken_unless_each_thread_has_its_own() {
    let _alone = alone();
    let communicator = ranks_on(&[0]).remove(0);
    let context = primary(0);
    let stream = context.default_stream();
    let mut slice = stream.clone_htod(&numbers_of::<f32>(0)).expect("it is queued");
    let on = device(0).cudarc_stream(&stream).expect("it is the device's");
    let mut output = on.output(&mut slice).expect("the stream waits");
    communicator.on(&on).all_reduce_in_place(&mut output, Reduction::Sum).expect("it is queued");
    drop(output);
    assert_eq!(stream.clone_dtoh(&slice).expect("it can be read"), numbers_of::<f32>(0));

    let stream = context.per_thread_stream();
    let (expected, came) = expected_and_came(device(0).cudarc_stream(&stream));
    assert_eq!(expected, "a stream that is the same for every thread");
    assert_eq!(came, "the default stream that each thread has of its own");
}

/// What cudarc could tell nobody is the error of the next call that asks.
#[test]
fn what_failed_before_is_said() {
    let _alone = alone();
    let communicator = ranks_on(&[0]).remove(0);
    let context = primary(0);
    let stream = context.new_stream().expect("there is a stream");
    let mut slice = stream.clone_htod(&numbers_of::<f32>(0)).expect("it is queued");
    let failed = || Err::<(), _>(cudarc::driver::DriverError(sys::CUresult::CUDA_ERROR_LAUNCH_FAILED));
    let on = device(0).cudarc_stream(&stream).expect("it is the device's");
    context.record_err(failed());
    let error = on.input(&slice).expect_err("something failed").to_string();
    assert!(error.starts_with("waiting for what writes a slice of cudarc's: "), "{error}");
    assert!(error.contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "{error}");

    stream.synchronize().expect("nothing is noted any more");
    context.record_err(failed());
    let (expected, came) = expected_and_came(communicator.all_reduce_in_place(&mut slice, Reduction::Sum));
    assert_eq!(expected, "memory of device 0, which runs rank 0");
    assert_eq!(came, "memory about which the driver gave error 719");
}
