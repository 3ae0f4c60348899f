//! cust's buffers and streams, by the feature `cust`: with the driver that cust is linked with.

mod common;

use common::{
    COUNT, Number, alone, device, expected_and_came, number, numbers_of, on_threads, ranks_on, sum_of_two, sums_of_two,
};
use cust::context::{Context, legacy};
use cust::device::Device;
use cust::memory::{CopyDestination, DeviceBuffer, DeviceCopy, DevicePointer, DeviceSlice};
use cust::stream::{Stream, StreamFlags};
use tutti::{BufferMut, Reduction};

common::numbers!(half_1::f16 => |number| half_1::f16::from_f32(number.into()), half_1::bf16 => |number| half_1::bf16::from_f32(number.into()));

/// Makes the device's primary context this thread's.
fn primary(ordinal: usize) -> Context {
    cust::init(cust::CudaFlags::empty()).expect("the driver starts");
    Context::new(Device::get_device(ordinal as u32).expect("there is such a device")).expect("it has a context")
}

/// A context of its own on a device, which is this thread's.
fn another(ordinal: usize) -> legacy::Context {
    cust::init(cust::CudaFlags::empty()).expect("the driver starts");
    let device = Device::get_device(ordinal as u32).expect("there is such a device");
    legacy::Context::create_and_push(legacy::ContextFlags::MAP_HOST, device).expect("it has a context")
}

fn stream() -> Stream {
    Stream::new(StreamFlags::DEFAULT, None).expect("there is a stream")
}

fn holding<T: DeviceCopy>(elements: &[T]) -> DeviceBuffer<T> {
    DeviceBuffer::from_slice(elements).expect("there is room")
}

fn read<T: Number + DeviceCopy>(slice: &DeviceSlice<T>) -> Vec<T> {
    let mut elements = vec![T::of(0); slice.len()];
    slice.copy_to(&mut elements[..]).expect("it can be read");
    elements
}

#[test]
fn two_ranks_reduce_buffers_of_cust_on_its_streams() {
    let _alone = alone();
    on_threads(ranks_on(&[0, 1]), |communicator| {
        let rank = communicator.rank();
        let _context = primary(rank);
        let input = holding(&numbers_of::<f32>(rank));
        let mut output = holding(&[f32::NAN; COUNT]);
        let stream = stream();
        let on = device(rank).cust_stream(&stream).expect("it is the device's");
        communicator.on(&on).all_reduce(&input, &mut output, Reduction::Sum).expect("it is queued");
        // What is queued behind the call sees its result: in place, the other way round.
        let handle = communicator.on(&on).all_reduce_in_place(&mut output, Reduction::Avg).expect("it is queued");
        stream.synchronize().expect("both calls are done");
        assert_eq!(handle.is_done(), Ok(true));
        assert_eq!(read(&output), sums_of_two::<f32>());
        assert_eq!(read(&input), numbers_of::<f32>(rank));
    });
}

#[test]
fn two_ranks_on_one_device_reduce_parts_of_buffers() {
    let _alone = alone();
    let first = 5;
    // Both ranks' copies come before either's call: see the module's documentation.
    let communicators = ranks_on(&[0, 0]);
    let _context = primary(0);
    let buffers: Vec<DeviceBuffer<i32>> = (0..2).map(|rank| holding(&numbers_of::<i32>(rank))).collect();
    let streams = [stream(), stream()];
    on_threads(communicators, |communicator| {
        let rank = communicator.rank();
        let mut part = buffers[rank].index(first..COUNT - 1);
        let on = device(0).cust_stream(&streams[rank]).expect("it is the device's");
        let handle = communicator.on(&on).all_reduce_in_place(&mut part, Reduction::Sum).expect("it is queued");
        handle.wait().expect("the other rank calls too");
    });
    for (rank, buffer) in buffers.iter().enumerate() {
        let is_part = |index| (first..COUNT - 1).contains(&index);
        let expected = (0..COUNT).map(|index| if is_part(index) { sum_of_two(index) } else { number(rank, index) });
        assert_eq!(read(buffer), expected.map(i32::from).collect::<Vec<_>>());
    }
}

/// An all-reduce of two ranks' buffers, waited for, and another one that owns its buffer.
fn reduces<T: Number + DeviceCopy + Send + Sync + 'static>()
where
    DeviceBuffer<T>: BufferMut,
{
    on_threads(ranks_on(&[0, 1]), |communicator| {
        let _context = primary(communicator.rank());
        let mut buffer = holding(&numbers_of::<T>(communicator.rank()));
        communicator.all_reduce_in_place(&mut buffer, Reduction::Sum).expect("both ranks call");
        assert_eq!(read(&buffer), sums_of_two::<T>());
        let buffer = communicator.all_reduce_async(buffer, Reduction::Max).expect("it is queued");
        assert_eq!(read(&buffer.wait().expect("both ranks call")), sums_of_two::<T>());
    });
}

#[test]
fn every_element_type_that_both_know_is_reduced() {
    let _alone = alone();
    reduces::<f32>();
    reduces::<f64>();
    reduces::<half_1::f16>();
    reduces::<half_1::bf16>();
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
fn memory_that_a_stream_allocates_is_taken() {
    let _alone = alone();
    on_threads(ranks_on(&[0, 1]), |communicator| {
        let rank = communicator.rank();
        let _context = primary(rank);
        let stream = stream();
        // SAFETY: all of it is written before anything is read.
        let mut buffer = unsafe { DeviceBuffer::<f32>::uninitialized_async(COUNT, &stream) }.expect("there is room");
        stream.synchronize().expect("the memory is there");
        buffer.copy_from(&numbers_of::<f32>(rank)[..]).expect("it can be written");
        let on = device(rank).cust_stream(&stream).expect("it is the device's");
        let handle = communicator.on(&on).all_reduce_in_place(&mut buffer, Reduction::Sum).expect("it is queued");
        handle.wait().expect("both ranks call");
        assert_eq!(read(&buffer), sums_of_two::<f32>());
        buffer.drop_async(&stream).expect("it is freed");
    });
}

#[test]
fn buffers_and_streams_of_another_device_are_refused() {
    let _alone = alone();
    let communicator = ranks_on(&[1]).remove(0);
    let _context = primary(0);
    let mut buffer = holding(&numbers_of::<f32>(0));
    let (expected, came) = expected_and_came(communicator.all_reduce_in_place(&mut buffer, Reduction::Sum));
    assert_eq!(expected, "memory of device 1, which runs rank 0");
    assert_eq!(came, "memory of device 0");

    let stream = stream();
    let (expected, came) = expected_and_came(device(1).cust_stream(&stream));
    assert_eq!(expected, "a stream of the primary context of device 1");
    assert_eq!(came, "a stream of device 0");
    let on = device(0).cust_stream(&stream).expect("it is device 0's");
    let (expected, came) = expected_and_came(communicator.on(&on).barrier());
    assert_eq!(expected, "a stream of device 1, which runs rank 0");
    assert_eq!(came, "a stream of device 0");

    // None of this was a call.
    communicator.all_reduce_in_place(&mut [1.0_f32], Reduction::Sum).expect("the communicator is as good as before");
}

#[test]
fn buffers_and_streams_of_another_context_are_refused() {
    let _alone = alone();
    let communicator = ranks_on(&[0]).remove(0);
    let _context = another(0);
    let mut buffer = holding(&numbers_of::<f32>(0));
    let (expected, came) = expected_and_came(communicator.all_reduce_in_place(&mut buffer, Reduction::Sum));
    assert_eq!(expected, "memory of the primary context of device 0, which runs rank 0");
    assert_eq!(came, "memory of another context of that device");

    let stream = stream();
    let (expected, came) = expected_and_came(device(0).cust_stream(&stream));
    assert_eq!(expected, "a stream of the primary context of device 0");
    assert_eq!(came, "a stream of another context of that device");
}

#[test]
fn memory_that_is_gone_is_refused() {
    let _alone = alone();
    let communicator = ranks_on(&[0]).remove(0);
    let _context = primary(0);
    // SAFETY: nobody reads or writes it: that is what is tested.
    let mut slice = unsafe { DeviceSlice::<f32>::from_raw_parts_mut(DevicePointer::from_raw(4096), COUNT) };
    let (expected, came) = expected_and_came(communicator.all_reduce_in_place(&mut slice, Reduction::Sum));
    assert_eq!(expected, "memory of device 0, which runs rank 0");
    assert_eq!(came, "memory about which the driver gave error 1");
}

#[test]
fn nothing_is_read_of_an_empty_buffer() {
    let _alone = alone();
    let communicator = ranks_on(&[0]).remove(0);
    let _context = primary(0);
    let mut nothing = holding::<f32>(&[]);
    communicator.all_reduce_in_place(&mut nothing, Reduction::Sum).expect("there is nothing to reach");
}

#[test]
fn ranks_that_a_cpu_runs_refuse_memory_of_a_device() {
    let _alone = alone();
    let communicator = tutti::local(1).expect("there is a rank").remove(0);
    let _context = primary(0);
    let mut buffer = holding(&numbers_of::<f32>(0));
    let (expected, came) = expected_and_came(communicator.all_reduce_in_place(&mut buffer, Reduction::Sum));
    assert_eq!(expected, "memory of the host, since a CPU runs these ranks");
    assert!(came.starts_with("CudaContext { device: 0"), "{came}");
}
