//! The slot protocol under a model checker: the interpreter itself, run in every order in which its threads can come to the
//! words that they share. Built with `--cfg loom` only (see `./test`).
//!
//! Where a model would take too long, the number of preemptions in one run is bounded: what goes wrong at all goes wrong with
//! few of them (Musuvathi and Qadeer, "Iterative context bounding for systematic testing", 2007). Loads give every value that
//! they could, bounded or not.
#![cfg(loom)]

use std::ptr;

use tutti_kernels::interpreter::{Progress, State, advance};
use tutti_kernels::layout::{
    Call, Completed, Counter, Fingerprint, Loop, NO_PROGRAM, Operand, Program, ReceiveEnd, SendEnd, SlotHeader, Step,
    buffer, operand_kind, slot_format, step_flag,
};
use tutti_kernels::model::atomic::{AtomicU32, Ordering};
use tutti_kernels::model::{self, Weakened};
use tutti_kernels::table::{Isa, row};

/// Floats of one chunk, and so of one slot.
const CHUNK_FLOATS: usize = 2;
const CHUNK_BYTES: usize = 4 * CHUNK_FLOATS;
const SLOT_STRIDE_BYTES: usize = 64;

const FINGERPRINT: Fingerprint = Fingerprint { sequence: 1, call: 2, count: 3, plan: 4, scale: 5 };

/// What a thread of a model takes along: addresses of memory that outlives it, used as the interpreter's protocol has it.
struct Sent<T>(T);

// SAFETY: loom's threads run one at a time, on one thread of the system.
unsafe impl<T> Send for Sent<T> {}

/// Memory of a model's threads; it outlives them, as they are joined before it goes.
#[derive(Default)]
struct Arena {
    lines: Vec<Box<[Line]>>,
}

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line {
    _words: [u64; 8],
}

impl Arena {
    fn bytes(&mut self, bytes: usize) -> *mut u8 {
        let mut lines = vec![Line { _words: [0; 8] }; bytes.div_ceil(64).max(1)].into_boxed_slice();
        let address = lines.as_mut_ptr().cast();
        self.lines.push(lines);
        address
    }

    /// Plain memory that begins as these floats.
    fn floats(&mut self, floats: &[f32]) -> *mut u8 {
        let address = self.bytes(size_of_val(floats));
        // SAFETY: there is room for them.
        unsafe { ptr::copy_nonoverlapping(floats.as_ptr(), address.cast(), floats.len()) };
        model::share_plain(address, size_of_val(floats));
        address
    }

    /// A connection that has carried `carried` slots before, counted on from 0.
    fn connection(&mut self, slot_count: u32, carried: u64) -> (SendEnd, ReceiveEnd) {
        let empty = self.bytes(size_of::<Counter>()).cast::<Counter>();
        let slots = self.bytes(slot_count as usize * SLOT_STRIDE_BYTES);
        // SAFETY: the memory is there, zeroed.
        unsafe {
            (*empty).value = carried;
            // What the last slots that were carried, or that would have been, have left.
            for back in 0..u64::from(slot_count) {
                let number = carried.wrapping_sub(back);
                let place = number.wrapping_sub(1) & u64::from(slot_count - 1);
                let header = slots.add(place as usize * SLOT_STRIDE_BYTES).cast::<SlotHeader>();
                (*header).full = number;
            }
            model::share_connection(empty, slots, SLOT_STRIDE_BYTES, slot_count as usize, CHUNK_BYTES);
        }
        let slot_stride_bytes = SLOT_STRIDE_BYTES as u64;
        let send = SendEnd { slots, slot_stride_bytes, empty, sent: carried, credit: carried, slot_count, peer: 1 };
        let receive = ReceiveEnd { slots, slot_stride_bytes, empty, received: carried, slot_count, peer: 0 };
        (send, receive)
    }

    /// The steps completed of `programs` programs.
    fn completed(&mut self, programs: usize) -> *mut Completed {
        let completed = self.bytes(programs * size_of::<Completed>()).cast::<Completed>();
        for program in 0..programs {
            // SAFETY: the memory is there, zeroed.
            unsafe { model::share_word(&raw const (*completed.add(program)).steps) };
        }
        completed
    }

    fn send_end(&mut self, end: SendEnd) -> *mut SendEnd {
        let address = self.bytes(size_of::<SendEnd>()).cast();
        // SAFETY: there is room.
        unsafe { ptr::write(address, end) };
        address
    }

    fn receive_end(&mut self, end: ReceiveEnd) -> *mut ReceiveEnd {
        let address = self.bytes(size_of::<ReceiveEnd>()).cast();
        // SAFETY: there is room.
        unsafe { ptr::write(address, end) };
        address
    }
}

/// A call in which there is nothing yet but the abort word.
fn call(abort: &AtomicU32) -> Call {
    Call {
        fingerprint: FINGERPRINT,
        buffers: [ptr::null_mut(); buffer::COUNT],
        windows: ptr::null(),
        multicast: ptr::null(),
        sends: ptr::null_mut(),
        receives: ptr::null_mut(),
        completed: ptr::null_mut(),
        abort: abort.as_ptr(),
        touching: ptr::null_mut(),
        traces: ptr::null_mut(),
        scale: 0,
        finish: 0,
        slot_format: slot_format::SIMPLE,
        reserved: 0,
    }
}

fn local(index: u32) -> Operand {
    Operand { kind: operand_kind::LOCAL, flags: 0, index, buffer: 0, offset: 0 }
}

fn slot(index: u32) -> Operand {
    Operand { kind: operand_kind::SLOT, flags: 0, index, buffer: 0, offset: 0 }
}

/// One step from one operand to another, over some chunks.
struct OneStep {
    index: u32,
    chunks: u64,
    operands: [Operand; 2],
    flags: u32,
    after: Option<u32>,
}

fn one_step(chunks: u64, source: Operand, destination: Operand) -> OneStep {
    OneStep { index: 0, chunks, operands: [source, destination], flags: 0, after: None }
}

impl OneStep {
    /// Advances the program to its end, giving way while it waits.
    fn run(&self, call: &Call) -> Progress {
        let (after_program, after_first, after_stride) = self.after.map_or((NO_PROGRAM, 0, 0), |after| (after, 1, 1));
        let step = Step {
            bytes: self.chunks * CHUNK_BYTES as u64,
            after_first,
            after_stride,
            first_operand: 0,
            source_count: 1,
            destination_count: 1,
            flags: self.flags,
            after_program,
            reserved: 0,
        };
        let (iterations, chunk_bytes) = (self.chunks, CHUNK_BYTES as u32);
        let looped = Loop { iterations, chunk_bytes, first_step: 0, step_count: 1, reserved: 0, steps_before: 0 };
        let mut resolved = [ptr::null_mut(); 2];
        let program = Program {
            loops: &raw const looped,
            steps: &raw const step,
            operands: self.operands.as_ptr(),
            resolved: resolved.as_mut_ptr(),
            loop_count: 1,
            index: self.index,
        };
        // SAFETY: every processor has the baseline.
        let sum = unsafe { row(0, 0, Isa::Baseline) }.expect("the table begins with sums of f32");
        let mut state = State::default();
        loop {
            // SAFETY: the program is the one just laid out; `call` points at what its operands name, in an arena.
            match unsafe { advance(sum, &program, &mut state, call) } {
                Progress::Fired => {}
                Progress::Waiting { .. } => model::yield_now(),
                ended => return ended,
            }
        }
    }
}

/// Different floats for `chunks` chunks.
fn floats(chunks: u64) -> Vec<f32> {
    (1..=chunks as usize * CHUNK_FLOATS).map(|number| number as f32).collect()
}

/// The floats at an address that no other thread uses any more.
fn read(address: *mut u8, chunks: u64) -> Vec<f32> {
    let count = chunks as usize * CHUNK_FLOATS;
    model::note_read(address, 4 * count);
    // SAFETY: the memory is that of an arena, and has so many floats.
    unsafe { std::slice::from_raw_parts(address.cast::<f32>(), count) }.to_vec()
}

/// A producer and a consumer of `chunks` chunks, on a connection that has carried some slots before; a third thread raises the
/// abort word at some time, if it is to.
fn pipe(slot_count: u32, carried: u64, chunks: u64, aborts: bool) {
    let mut arena = Arena::default();
    let abort = AtomicU32::new(0);
    let (send, receive) = arena.connection(slot_count, carried);
    let (send, receive) = (arena.send_end(send), arena.receive_end(receive));
    let (input, output) = (arena.floats(&floats(chunks)), arena.floats(&vec![0.0; chunks as usize * CHUNK_FLOATS]));
    let mut from = call(&abort);
    from.buffers[buffer::INPUT as usize] = input;
    from.sends = send;
    let mut to = call(&abort);
    to.buffers[buffer::OUTPUT as usize] = output;
    to.receives = receive;
    let from = Sent(from);
    let producer = model::spawn(move || {
        let from = from;
        one_step(chunks, local(buffer::INPUT), slot(0)).run(&from.0)
    });
    let aborter = aborts.then(|| {
        let abort = abort.clone();
        model::spawn(move || abort.store(1, Ordering::SeqCst))
    });
    let received = one_step(chunks, slot(0), local(buffer::OUTPUT)).run(&to);
    let sent = producer.join().expect("the producer ends");
    if let Some(aborter) = aborter {
        aborter.join().expect("the aborter ends");
    }
    // SAFETY: nobody else uses the ends any more.
    let (sent_count, received_count) =
        unsafe { ((*send).sent.wrapping_sub(carried), (*receive).received.wrapping_sub(carried)) };
    assert!(received_count <= sent_count && sent_count <= received_count + u64::from(slot_count));
    let there = read(output, chunks);
    let received_floats = received_count as usize * CHUNK_FLOATS;
    assert_eq!(there[..received_floats], floats(chunks)[..received_floats]);
    assert_eq!(there[received_floats..], vec![0.0; there.len() - received_floats]);
    for (ended, count) in [(sent, sent_count), (received, received_count)] {
        let expected = if count == chunks { Progress::Done } else { Progress::Aborted };
        assert_eq!(ended, expected, "after {count} of {chunks} chunks");
    }
    assert!(aborts || (sent, received) == (Progress::Done, Progress::Done));
}

fn report(model: &str, runs: usize) {
    println!("{model}: {runs} runs");
    assert!(runs > 1, "a model with one run has not modelled anything");
}

#[test]
fn one_slot_carries_more_chunks_than_slots() {
    report("1 slot, 3 chunks", model::check(None, None, || pipe(1, 0, 3, false)));
}

#[test]
fn two_slots_carry_more_chunks_than_slots() {
    report("2 slots, 4 chunks", model::check(Some(3), None, || pipe(2, 0, 4, false)));
}

#[test]
fn counters_wrap_around() {
    for slot_count in [1, 2] {
        report("counters wrap", model::check(Some(3), None, move || pipe(slot_count, u64::MAX - 1, 4, false)));
    }
}

#[test]
fn an_abort_at_any_time_ends_both_sides_and_what_has_arrived_is_right() {
    for slot_count in [1, 2] {
        report("an abort", model::check(Some(2), None, move || pipe(slot_count, 0, 3, true)));
    }
}

/// A producer whose consumer never comes, and an abort.
#[test]
fn an_abort_ends_a_wait_that_nothing_else_would_end() {
    let runs = model::check(None, None, || {
        let mut arena = Arena::default();
        let abort = AtomicU32::new(0);
        let (send, _receive) = arena.connection(1, 0);
        let mut from = call(&abort);
        from.buffers[buffer::INPUT as usize] = arena.floats(&floats(2));
        from.sends = arena.send_end(send);
        let aborter = model::spawn(move || abort.store(1, Ordering::SeqCst));
        assert_eq!(one_step(2, local(buffer::INPUT), slot(0)).run(&from), Progress::Aborted);
        aborter.join().expect("the aborter ends");
    });
    report("an abort alone", runs);
}

#[test]
fn a_wait_that_nothing_ends_is_reported() {
    let failure = model::failure(None, None, || {
        let mut arena = Arena::default();
        let abort = AtomicU32::new(0);
        let (send, _receive) = arena.connection(1, 0);
        let mut from = call(&abort);
        from.buffers[buffer::INPUT as usize] = arena.floats(&floats(2));
        from.sends = arena.send_end(send);
        one_step(2, local(buffer::INPUT), slot(0)).run(&from);
    });
    let failure = failure.expect("the producer waits for ever");
    assert!(failure.contains("exceeded maximum number of branches"), "{failure}");
}

/// Two programs of a rank: one fills the scratch chunk by chunk, the other copies each chunk when the first is done with it.
fn dependent(chunks: u64) {
    let mut arena = Arena::default();
    let abort = AtomicU32::new(0);
    let mut call = call(&abort);
    call.buffers[buffer::INPUT as usize] = arena.floats(&floats(chunks));
    // Chunks are memory of their own: each is handed over by itself.
    let scratch = arena.bytes(chunks as usize * CHUNK_BYTES);
    for chunk in 0..chunks as usize {
        model::share_plain(scratch.wrapping_add(chunk * CHUNK_BYTES), CHUNK_BYTES);
    }
    call.buffers[buffer::SCRATCH as usize] = scratch;
    let output = arena.floats(&vec![0.0; chunks as usize * CHUNK_FLOATS]);
    call.buffers[buffer::OUTPUT as usize] = output;
    call.completed = arena.completed(2);
    let shared = Sent(call);
    let first = model::spawn(move || {
        let shared = shared;
        let filled = one_step(chunks, local(buffer::INPUT), local(buffer::SCRATCH));
        OneStep { flags: step_flag::AWAITED, ..filled }.run(&shared.0)
    });
    let copied = one_step(chunks, local(buffer::SCRATCH), local(buffer::OUTPUT));
    assert_eq!(OneStep { index: 1, after: Some(0), ..copied }.run(&call), Progress::Done);
    assert_eq!(first.join().expect("the program ends"), Progress::Done);
    assert_eq!(read(output, chunks), floats(chunks));
}

#[test]
fn a_step_sees_all_that_the_step_it_comes_after_has_written() {
    report("programs in order", model::check(None, None, || dependent(3)));
}

/// Whether the model fails because of a data race, and not because of anything else.
fn is_race(preemptions: Option<usize>, weakened: Weakened, model: impl Fn() + Send + Sync + 'static) -> bool {
    let failure = model::failure(preemptions, Some(weakened), model);
    assert!(failure.as_ref().is_none_or(|failure| failure.contains("Causality violation")), "{failure:?}");
    failure.is_some()
}

/// Planted mistakes: a model must fail without an ordering that it needs.
#[test]
fn a_release_or_an_acquire_that_is_missing_is_reported() {
    for weakened in [Weakened::Release, Weakened::Acquire] {
        for slot_count in [1, 2] {
            assert!(is_race(Some(3), weakened, move || pipe(slot_count, 0, 3, false)), "{weakened:?}");
            assert!(is_race(Some(2), weakened, move || pipe(slot_count, 0, 3, true)), "{weakened:?}");
        }
        assert!(is_race(None, weakened, || dependent(2)), "{weakened:?}");
    }
    // Slots need no fence.
    assert!(!is_race(None, Weakened::Fence, || pipe(1, 0, 3, false)));
}
