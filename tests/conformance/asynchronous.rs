//! Calls that return at once and own their buffers.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use half::bf16;
use tutti::{Algorithm, Buffer, BufferMut, Error, ErrorKind, Reduction};

use super::Make;
use super::ranks::{SOON, each_on_a_thread, on_threads, options, within};

pub(crate) fn asynchronous_calls_do_what_blocking_ones_do(make: Make) {
    within(SOON, move || {
        on_threads(make(3, options(|_| {})).unwrap(), |communicator| {
            let rank = communicator.rank();
            let input: Vec<f32> = (0..999).map(|index| (index * (rank + 2)) as f32).collect();
            macro_rules! same {
                ($blocking:ident, $asynchronous:ident($($argument:expr),*)) => {
                    let mut expected = input.clone();
                    communicator.$blocking(&mut expected $(, $argument)*).unwrap();
                    let came = communicator.$asynchronous(input.clone() $(, $argument)*).unwrap().wait().unwrap();
                    assert_eq!(came, expected, stringify!($asynchronous));
                };
            }
            same!(all_reduce_in_place, all_reduce_async(Reduction::Sum));
            same!(reduce_scatter_in_place, reduce_scatter_async(Reduction::Max));
            same!(all_gather_in_place, all_gather_async());
            same!(broadcast_in_place, broadcast_async(1));
            same!(reduce_in_place, reduce_async(Reduction::Sum, 2));
        });
    });
}

pub(crate) fn blocking_calls_come_after_asynchronous_ones_that_were_issued_before(make: Make) {
    within(SOON, move || {
        on_threads(make(2, options(|_| {})).unwrap(), |communicator| {
            for round in 0..100 {
                // Other counts, so that another order would be a mismatch.
                let first = communicator.all_reduce_async(vec![1.0_f32; 100], Reduction::Sum).unwrap();
                let second = communicator.broadcast_async(vec![round as f32; 10], 1).unwrap();
                let mut buffer = [2.0_f32; 3];
                communicator.all_reduce_in_place(&mut buffer, Reduction::Prod).unwrap();
                assert!(first.is_done() && second.is_done());
                assert_eq!(buffer, [4.0; 3]);
                assert_eq!(second.wait().unwrap(), [round as f32; 10]);
                assert_eq!(first.wait().unwrap(), [2.0; 100]);
            }
        });
    });
}

pub(crate) fn a_thousand_calls_can_be_outstanding(make: Make) {
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        let pending: Vec<Vec<_>> = communicators
            .iter()
            .map(|communicator| {
                let rank = communicator.rank();
                (0..1000)
                    .map(|index| {
                        communicator.all_reduce_async(vec![(index * (rank + 1)) as f32; 1 + index % 9], Reduction::Sum)
                    })
                    .map(Result::unwrap)
                    .collect()
            })
            .collect();
        for calls in pending {
            for (index, call) in calls.into_iter().enumerate() {
                assert_eq!(call.wait().unwrap(), vec![(3 * index) as f32; 1 + index % 9]);
            }
        }
    });
}

pub(crate) fn a_dropped_pending_call_is_made_all_the_same(make: Make) {
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        drop(communicators[0].all_reduce_async(vec![5.0_f32; 50_000], Reduction::Sum).unwrap());
        let mut buffer = vec![6.0_f32; 50_000];
        communicators[1].all_reduce_in_place(&mut buffer, Reduction::Sum).unwrap();
        assert_eq!(buffer, vec![11.0; 50_000]);
    });
}

pub(crate) fn failed_calls_give_their_buffers_back(make: Make) {
    within(SOON, move || {
        let communicators = make(3, options(|_| {})).unwrap();
        // A mistake is reported at once.
        let failed = communicators[0].all_gather_async(vec![1.0_f32; 4]).unwrap_err();
        assert_eq!((failed.error.kind(), failed.buffer), (ErrorKind::Caller, vec![1.0; 4]));
        let failed = communicators[0].broadcast_async(vec![1.0_f32; 4], 3).unwrap_err();
        assert_eq!(failed.buffer, [1.0; 4]);
        assert_eq!(Error::from(failed).kind(), ErrorKind::Caller);
        // What happens later is reported by waiting; calls behind it fail too.
        let address_of = |buffer: &Vec<f32>| buffer.as_ptr().addr();
        let buffers = [vec![1.0_f32; 1000], vec![2.0; 7]];
        let addresses = buffers.each_ref().map(address_of);
        let calls = buffers.map(|buffer| communicators[0].all_reduce_async(buffer, Reduction::Sum).unwrap());
        std::thread::sleep(Duration::from_millis(10));
        assert!(!calls[0].is_done());
        communicators[1].abort_handle().abort("no more");
        for (call, address) in calls.into_iter().zip(addresses) {
            let failed = call.wait().unwrap_err();
            assert_eq!(failed.error, Error::Aborted { rank: 1, reason: "no more".to_owned() });
            assert_eq!(failed.to_string(), failed.error.to_string());
            assert_eq!(address_of(&failed.buffer), address, "another buffer came back");
        }
    });
}

pub(crate) fn asynchronous_calls_go_on_when_their_communicator_is_dropped(make: Make) {
    within(SOON, move || {
        let pending = on_threads(make(3, options(|_| {})).unwrap(), |communicator| {
            let call = communicator.all_reduce_async(vec![1.0_f32; 200_000], Reduction::Sum).unwrap();
            if communicator.rank() == 1 {
                std::thread::sleep(Duration::from_millis(30));
            }
            drop(communicator);
            call
        });
        for call in pending {
            assert!(call.wait().unwrap().iter().all(|element| *element == 3.0));
        }
    });
}

/// As when a thread that holds all ranks returns early, with a call of one of them under way.
pub(crate) fn dropping_all_ranks_with_a_call_under_way_ends_it(make: Make) {
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        let call = communicators[0].all_reduce_async(vec![1.0_f32; 5], Reduction::Sum).unwrap();
        drop(communicators);
        let failed = call.wait().expect_err("rank 1 never came");
        assert!(matches!(failed.error, Error::Left { rank: 1, panicked: false, .. }), "{failed}");
    });
}

pub(crate) fn any_owned_buffer_can_be_lent(make: Make) {
    within(SOON, move || {
        on_threads(make(2, options(|_| {})).unwrap(), |communicator| {
            let boxed: Box<[bf16]> = vec![bf16::from_f32(1.5); 33].into();
            let array = [1.0_f32, 2.0];
            let empty: Vec<f32> = Vec::new();
            let calls = (
                communicator.all_reduce_async(boxed, Reduction::Sum).unwrap(),
                communicator.all_reduce_async(array, Reduction::Avg).unwrap(),
                communicator.all_reduce_async(empty, Reduction::Min).unwrap(),
            );
            assert_eq!(*calls.0.wait().unwrap(), [bf16::from_f32(3.0); 33]);
            assert_eq!(calls.1.wait().unwrap(), [1.0, 2.0]);
            assert_eq!(calls.2.wait().unwrap(), [0.0_f32; 0]);
        });
    });
}

pub(crate) fn an_asynchronous_call_has_settings_of_its_own(make: Make) {
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        let call = communicators[0].call().arrival_timeout(Duration::from_millis(50)).algorithm(Algorithm::Chain);
        let failed = call.broadcast_async(vec![1.0_f32], 1).unwrap().wait().unwrap_err();
        assert!(matches!(failed.error, Error::Late { .. }), "{}", failed.error);
        assert!(failed.error.to_string().contains("by chain"), "{}", failed.error);
        let call = communicators[1].call().algorithm(Algorithm::Ring);
        let failed = call.broadcast_async(vec![7.0_f32], 1).unwrap_err();
        assert_eq!((failed.error.kind(), failed.buffer), (ErrorKind::Caller, vec![7.0]));
    });
}

/// Four ones that run code of the caller's wherever a buffer can.
struct Unruly {
    elements: [f32; 4],
    when_asked: fn(),
    when_dropped: fn(),
    /// The only thread that may ask.
    asker: ThreadId,
    drops: Arc<AtomicUsize>,
}

impl Unruly {
    fn new(when_asked: fn(), when_dropped: fn(), drops: &Arc<AtomicUsize>) -> Unruly {
        let asker = std::thread::current().id();
        Unruly { elements: [1.0; 4], when_asked, when_dropped, asker, drops: Arc::clone(drops) }
    }

    fn ask(&self) {
        assert_eq!(std::thread::current().id(), self.asker, "another thread than the caller's asks");
        (self.when_asked)();
    }
}

// SAFETY: the elements are a part of the buffer.
unsafe impl Buffer for Unruly {
    type Element = f32;

    fn as_ptr(&self) -> *const f32 {
        self.ask();
        self.elements.as_ptr()
    }

    fn len(&self) -> usize {
        self.ask();
        self.elements.len()
    }
}

// SAFETY: as above, borrowed for writing.
unsafe impl BufferMut for Unruly {
    fn as_mut_ptr(&mut self) -> *mut f32 {
        self.ask();
        self.elements.as_mut_ptr()
    }
}

impl Drop for Unruly {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
        (self.when_dropped)();
    }
}

/// What a panic can carry.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("expected: what a panic carried panics when it is dropped");
    }
}

pub(crate) fn a_buffer_that_panics_when_it_is_dropped_stops_no_later_call(make: Make) {
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        let drops = Arc::new(AtomicUsize::new(0));
        let when_dropped: [fn(); 2] = [|| panic!("expected: a buffer's drop"), || panic_any(PanicsWhenDropped)];
        for (nth, when_dropped) in when_dropped.into_iter().enumerate() {
            // Nobody waits for it, so it is the worker that drops the buffer.
            drop(communicators[0].all_reduce_async(Unruly::new(|| {}, when_dropped, &drops), Reduction::Sum).unwrap());
            communicators[1].all_reduce_in_place(&mut [1.0_f32; 4], Reduction::Sum).unwrap();
            while drops.load(Ordering::SeqCst) == nth {
                std::thread::yield_now();
            }
            let calls =
                [0, 1].map(|rank| communicators[rank].all_reduce_async(vec![1.0_f32; 4], Reduction::Sum).unwrap());
            assert_eq!(calls.map(|call| call.wait().unwrap()), [[2.0; 4], [2.0; 4]]);
            on_both(&communicators);
        }
    });
}

fn on_both(communicators: &[tutti::Communicator]) {
    each_on_a_thread(communicators, |communicator| {
        let mut buffer = [1.0_f32; 9];
        communicator.all_reduce_in_place(&mut buffer, Reduction::Sum).unwrap();
        assert_eq!(buffer, [2.0; 9]);
    });
}

pub(crate) fn a_buffer_that_panics_when_it_is_asked_panics_in_its_callers_thread_and_breaks_nothing(make: Make) {
    within(SOON, move || {
        let communicators = make(2, options(|_| {})).unwrap();
        let drops = Arc::new(AtomicUsize::new(0));
        for round in 1..=3 {
            let unruly = Unruly::new(|| panic!("expected: a buffer is asked"), || {}, &drops);
            let call = || communicators[0].all_reduce_async(unruly, Reduction::Sum).map_err(Error::from);
            assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
            assert_eq!(drops.load(Ordering::SeqCst), round);
            on_both(&communicators);
        }
        // Whatever it answers a second time, and on whichever thread: it is not asked.
        let calls = [0, 1].map(|rank| {
            let buffer = Unruly::new(|| {}, || {}, &drops);
            communicators[rank].all_reduce_async(buffer, Reduction::Sum).unwrap()
        });
        for call in calls {
            assert_eq!(call.wait().map_err(Error::from).unwrap().elements, [2.0; 4]);
        }
        on_both(&communicators);
    });
}
