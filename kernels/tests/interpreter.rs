//! The step interpreter on programs that are laid out by hand: when a step fires, when it waits and for what, and what it leaves.

use std::ptr;

use tutti_kernels::interpreter::{NO_OPERAND, Progress, State, advance};
use tutti_kernels::layout::{
    Call, Completed, Counter, Fingerprint, Loop, NO_PROGRAM, Operand, Program, ReceiveEnd, SLOT_HEADER_BYTES, SendEnd,
    SlotHeader, Step, StepTime, Trace, Window, buffer, operand_kind, slot_format, step_flag,
};
use tutti_kernels::table::{Isa, row};

const SLOTS: usize = 2;
const SLOT_FLOATS: usize = 16;
const SLOT_LINES: usize = (SLOT_HEADER_BYTES + SLOT_FLOATS * 4).div_ceil(64);

/// Sixteen floats, aligned as slots are.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line {
    _floats: [f32; 16],
}

/// A connection's memory and both of its ends.
struct Wire {
    _slots: Box<[Line]>,
    _empty: Box<Counter>,
    send: SendEnd,
    receive: ReceiveEnd,
}

impl Wire {
    fn new() -> Wire {
        let mut slots = vec![Line { _floats: [0.0; 16] }; SLOTS * SLOT_LINES].into_boxed_slice();
        let mut empty = Box::new(Counter::default());
        let (address, counter) = (slots.as_mut_ptr().cast::<u8>(), &raw mut *empty);
        let slot_stride_bytes = (SLOT_LINES * 64) as u64;
        let slot_count = SLOTS as u32;
        let send =
            SendEnd { slots: address, slot_stride_bytes, empty: counter, sent: 0, credit: 0, slot_count, peer: 1 };
        let receive =
            ReceiveEnd { slots: address, slot_stride_bytes, empty: counter, received: 0, slot_count, peer: 0 };
        Wire { _slots: slots, _empty: empty, send, receive }
    }
}

/// One program and the tables that it points at.
struct Laid {
    loops: Vec<Loop>,
    steps: Vec<Step>,
    operands: Vec<Operand>,
    resolved: Vec<*mut u8>,
    index: u32,
    state: State,
}

/// A step before it is laid out: bytes, sources, destinations.
struct Draft {
    bytes: u64,
    sources: Vec<Operand>,
    destinations: Vec<Operand>,
    flags: u32,
    after: Option<(u32, u64, u64)>,
}

fn step(bytes: u64, sources: &[Operand], destinations: &[Operand]) -> Draft {
    Draft { bytes, sources: sources.to_vec(), destinations: destinations.to_vec(), flags: 0, after: None }
}

fn local(index: u32, offset: u64) -> Operand {
    Operand { kind: operand_kind::LOCAL, flags: 0, index, buffer: 0, offset }
}

fn slot(index: u32) -> Operand {
    Operand { kind: operand_kind::SLOT, flags: 0, index, buffer: 0, offset: 0 }
}

fn window(rank: u32, buffer: u32, offset: u64) -> Operand {
    Operand { kind: operand_kind::WINDOW, flags: 0, index: rank, buffer, offset }
}

impl Laid {
    /// Loops of `(iterations, chunk_bytes, steps)`.
    fn new(index: u32, loops: Vec<(u64, u32, Vec<Draft>)>) -> Laid {
        let mut laid = Laid {
            loops: Vec::new(),
            steps: Vec::new(),
            operands: Vec::new(),
            resolved: vec![ptr::null_mut(); 16],
            index,
            state: State::default(),
        };
        let mut steps_before = 0;
        for (iterations, chunk_bytes, drafts) in loops {
            laid.loops.push(Loop {
                iterations,
                chunk_bytes,
                first_step: laid.steps.len() as u32,
                step_count: drafts.len() as u32,
                reserved: 0,
                steps_before,
            });
            steps_before += iterations * drafts.len() as u64;
            for draft in drafts {
                let (after_program, after_first, after_stride) = draft.after.unwrap_or((NO_PROGRAM, 0, 0));
                laid.steps.push(Step {
                    bytes: draft.bytes,
                    after_first,
                    after_stride,
                    first_operand: laid.operands.len() as u32,
                    source_count: draft.sources.len() as u32,
                    destination_count: draft.destinations.len() as u32,
                    flags: draft.flags,
                    after_program,
                    reserved: 0,
                });
                laid.operands.extend(draft.sources.into_iter().chain(draft.destinations));
            }
        }
        laid
    }

    fn advance(&mut self, rank: &mut RankMemory) -> Progress {
        let program = Program {
            loops: self.loops.as_ptr(),
            steps: self.steps.as_ptr(),
            operands: self.operands.as_ptr(),
            resolved: self.resolved.as_mut_ptr(),
            loop_count: self.loops.len() as u32,
            index: self.index,
        };
        let call = rank.call();
        // SAFETY: every processor has the baseline.
        let sum = unsafe { row(0, 0, Isa::Baseline) }.expect("the table begins with sums of f32");
        // SAFETY: the tables are those just given, with indices in range; `rank` holds what the call points at.
        unsafe { advance(sum, &program, &mut self.state, &call) }
    }
}

/// What one rank's call points at.
struct RankMemory {
    fingerprint: Fingerprint,
    input: Vec<f32>,
    output: Vec<f32>,
    scratch: Vec<f32>,
    windows: Vec<Window>,
    sends: Vec<SendEnd>,
    receives: Vec<ReceiveEnd>,
    completed: Vec<Completed>,
    abort: Box<u32>,
    touching: Box<u32>,
    traces: Vec<Trace>,
}

impl RankMemory {
    fn new(input: Vec<f32>, output_count: usize) -> RankMemory {
        RankMemory {
            fingerprint: Fingerprint { sequence: 1, call: 2, count: 3, plan: 4, scale: 5 },
            input,
            output: vec![-1.0; output_count],
            scratch: vec![-2.0; 64],
            windows: Vec::new(),
            sends: Vec::new(),
            receives: Vec::new(),
            completed: vec![Completed::default(), Completed::default()],
            abort: Box::new(0),
            touching: Box::new(0),
            traces: Vec::new(),
        }
    }

    fn call(&mut self) -> Call {
        let mut buffers = [ptr::null_mut(); buffer::COUNT];
        buffers[buffer::INPUT as usize] = self.input.as_mut_ptr().cast();
        buffers[buffer::OUTPUT as usize] = self.output.as_mut_ptr().cast();
        buffers[buffer::SCRATCH as usize] = self.scratch.as_mut_ptr().cast();
        Call {
            fingerprint: self.fingerprint,
            buffers,
            windows: self.windows.as_ptr(),
            multicast: ptr::null(),
            sends: self.sends.as_mut_ptr(),
            receives: self.receives.as_mut_ptr(),
            completed: self.completed.as_mut_ptr(),
            abort: &raw const *self.abort,
            touching: &raw mut *self.touching,
            traces: if self.traces.is_empty() { ptr::null_mut() } else { self.traces.as_mut_ptr() },
            scale: 0,
            finish: 0,
            slot_format: slot_format::SIMPLE,
            reserved: 0,
        }
    }
}

/// `count` floats that differ.
fn floats(count: usize) -> Vec<f32> {
    (0..count).map(|index| index as f32 + 1.0).collect()
}

/// A producer that sends `count` floats in chunks of a slot, a consumer that stores them, and the memory of both.
fn pipe(count: usize) -> (Wire, (Laid, RankMemory), (Laid, RankMemory)) {
    let wire = Wire::new();
    let (bytes, chunk) = (4 * count as u64, 4 * SLOT_FLOATS as u32);
    let iterations = bytes.div_ceil(u64::from(chunk)).max(1);
    let send = Laid::new(0, vec![(iterations, chunk, vec![step(bytes, &[local(buffer::INPUT, 0)], &[slot(0)])])]);
    let receive = Laid::new(0, vec![(iterations, chunk, vec![step(bytes, &[slot(0)], &[local(buffer::OUTPUT, 0)])])]);
    let (mut from, mut to) = (RankMemory::new(floats(count), 0), RankMemory::new(Vec::new(), count));
    from.sends.push(wire.send);
    to.receives.push(wire.receive);
    (wire, (send, from), (receive, to))
}

#[test]
fn a_step_waits_for_its_full_slots_and_for_its_free_slots() {
    let (_wire, (mut send, mut from), (mut receive, mut to)) = pipe(3 * SLOT_FLOATS);
    assert_eq!(receive.advance(&mut to), Progress::Waiting { operand: 0 });
    assert_eq!(to.output[0], -1.0);
    assert_eq!(send.advance(&mut from), Progress::Fired);
    assert_eq!(send.advance(&mut from), Progress::Fired);
    // Both slots are full: the destination comes after the one source.
    assert_eq!(send.advance(&mut from), Progress::Waiting { operand: 1 });
    assert_eq!(receive.advance(&mut to), Progress::Fired);
    assert_eq!(to.output[..SLOT_FLOATS], floats(SLOT_FLOATS));
    assert_eq!(to.output[SLOT_FLOATS], -1.0);
    assert_eq!(send.advance(&mut from), Progress::Fired);
    assert_eq!(send.advance(&mut from), Progress::Done);
    assert_eq!(send.advance(&mut from), Progress::Done);
    assert_eq!(receive.advance(&mut to), Progress::Fired);
    assert_eq!(receive.advance(&mut to), Progress::Fired);
    assert_eq!(receive.advance(&mut to), Progress::Done);
    assert_eq!(to.output, floats(3 * SLOT_FLOATS));
    assert_eq!((from.sends[0].sent, to.receives[0].received), (3, 3));
}

#[test]
fn slots_wrap_around_for_as_long_as_calls_go_on() {
    let (_wire, (mut send, mut from), (mut receive, mut to)) = pipe(5 * SLOT_FLOATS - 3);
    for round in 0..50_u64 {
        send.state = State::default();
        receive.state = State::default();
        // Each call has its own fingerprint; ends carry on where the last call left them.
        from.fingerprint.sequence = round;
        to.fingerprint.sequence = round;
        from.input.iter_mut().for_each(|element| *element += 1.0);
        to.output.fill(-1.0);
        let mut turns = 0;
        loop {
            // Now one side gets ahead, now the other.
            let sent = if (turns + round) % 3 != 0 { send.advance(&mut from) } else { Progress::Fired };
            let received = if (turns + round) % 5 != 0 { receive.advance(&mut to) } else { Progress::Fired };
            if sent == Progress::Done && received == Progress::Done {
                break;
            }
            turns += 1;
            assert!(turns < 100, "stuck in round {round}");
        }
        assert_eq!(to.output, from.input);
        assert_eq!(from.sends[0].sent, 5 * (round + 1));
    }
}

#[test]
fn the_last_chunk_is_cut_and_shorter_steps_travel_with_nothing() {
    let wire = Wire::new();
    let chunk = 4 * SLOT_FLOATS as u32;
    // The first step has data for two chunks, the second only for a part of one, but both fire three times.
    let send = |bytes, offset| step(bytes, &[local(buffer::INPUT, offset)], &[slot(0)]);
    let receive = |bytes, offset| step(bytes, &[slot(0)], &[local(buffer::OUTPUT, offset)]);
    let mut producer = Laid::new(0, vec![(3, chunk, vec![send(4 * 20, 0), send(4 * 5, 80)])]);
    let mut consumer = Laid::new(0, vec![(3, chunk, vec![receive(4 * 20, 0), receive(4 * 5, 80)])]);
    let (mut from, mut to) = (RankMemory::new(floats(25), 0), RankMemory::new(Vec::new(), 30));
    from.sends.push(wire.send);
    to.receives.push(wire.receive);
    for _ in 0..6 {
        assert_eq!(producer.advance(&mut from), Progress::Fired);
        assert_eq!(consumer.advance(&mut to), Progress::Fired);
    }
    assert_eq!(producer.advance(&mut from), Progress::Done);
    assert_eq!(consumer.advance(&mut to), Progress::Done);
    assert_eq!(to.output[..25], floats(25));
    assert_eq!(to.output[25..], [-1.0; 5]);
    assert_eq!(from.sends[0].sent, 6);
}

#[test]
fn a_step_of_zero_bytes_carries_only_its_slots() {
    let (_wire, (mut send, mut from), (mut receive, mut to)) = pipe(0);
    // Not even the addresses of the buffers need to be any good.
    assert_eq!(receive.advance(&mut to), Progress::Waiting { operand: 0 });
    assert_eq!(send.advance(&mut from), Progress::Fired);
    assert_eq!(receive.advance(&mut to), Progress::Fired);
    assert_eq!((send.advance(&mut from), receive.advance(&mut to)), (Progress::Done, Progress::Done));
    assert_eq!((from.sends[0].sent, to.receives[0].received), (1, 1));
}

#[test]
fn one_step_reduces_slots_and_memory_into_slots_and_memory() {
    let (left, right, onward) = (Wire::new(), Wire::new(), Wire::new());
    let mut rank = RankMemory::new(floats(10), 10);
    rank.receives.extend([left.receive, right.receive]);
    rank.sends.push(onward.send);
    let mut joined = Laid::new(
        0,
        vec![(
            1,
            64,
            vec![step(40, &[slot(0), local(buffer::INPUT, 0), slot(1)], &[local(buffer::OUTPUT, 0), slot(0)])],
        )],
    );
    let mut producers = [left, right].map(|wire| {
        let mut from = RankMemory::new(vec![100.0; 10], 0);
        from.sends.push(wire.send);
        (Laid::new(0, vec![(1, 64, vec![step(40, &[local(buffer::INPUT, 0)], &[slot(0)])])]), from, wire)
    });
    assert_eq!(joined.advance(&mut rank), Progress::Waiting { operand: 0 });
    assert_eq!(producers[0].0.advance(&mut producers[0].1), Progress::Fired);
    assert_eq!(joined.advance(&mut rank), Progress::Waiting { operand: 2 });
    // Waiting has taken nothing.
    assert_eq!(rank.receives[0].received, 0);
    assert_eq!(producers[1].0.advance(&mut producers[1].1), Progress::Fired);
    assert_eq!(joined.advance(&mut rank), Progress::Fired);
    let expected: Vec<f32> = floats(10).iter().map(|element| element + 200.0).collect();
    assert_eq!(rank.output, expected);
    let mut last = RankMemory::new(Vec::new(), 10);
    last.receives.push(onward.receive);
    let mut store = Laid::new(0, vec![(1, 64, vec![step(40, &[slot(0)], &[local(buffer::OUTPUT, 0)])])]);
    assert_eq!(store.advance(&mut last), Progress::Fired);
    assert_eq!(last.output, expected);
}

#[test]
fn a_step_comes_after_the_step_of_another_program_that_it_waits_on() {
    let mut rank = RankMemory::new(floats(32), 32);
    let copy = |from, to| step(128, &[local(from, 0)], &[local(to, 0)]);
    // Program 0 fills the scratch in two chunks of two steps; program 1 copies each chunk once its second step is done.
    let awaited =
        Draft { flags: step_flag::AWAITED, ..step(0, &[local(buffer::INPUT, 0)], &[local(buffer::OUTPUT, 0)]) };
    let mut first = Laid::new(0, vec![(2, 64, vec![copy(buffer::INPUT, buffer::SCRATCH), awaited])]);
    let after = Draft { after: Some((0, 2, 2)), ..copy(buffer::SCRATCH, buffer::OUTPUT) };
    let mut second = Laid::new(1, vec![(2, 64, vec![after])]);
    let waits = Progress::Waiting { operand: NO_OPERAND };
    assert_eq!(second.advance(&mut rank), waits);
    assert_eq!(first.advance(&mut rank), Progress::Fired);
    assert_eq!(rank.completed[0].steps, 0, "a step that nobody awaits publishes nothing");
    assert_eq!(second.advance(&mut rank), waits);
    assert_eq!(first.advance(&mut rank), Progress::Fired);
    assert_eq!(rank.completed[0].steps, 2);
    assert_eq!(second.advance(&mut rank), Progress::Fired);
    assert_eq!(rank.output[..16], floats(16));
    assert_eq!(rank.output[16], -1.0);
    assert_eq!(second.advance(&mut rank), waits);
    assert_eq!(first.advance(&mut rank), Progress::Fired);
    assert_eq!(second.advance(&mut rank), waits);
    assert_eq!(first.advance(&mut rank), Progress::Fired);
    assert_eq!(second.advance(&mut rank), Progress::Fired);
    assert_eq!((first.advance(&mut rank), second.advance(&mut rank)), (Progress::Done, Progress::Done));
    assert_eq!(rank.output, floats(32));
    assert_eq!(rank.completed[0].steps, 4);
}

#[test]
fn a_slot_of_another_call_is_a_mismatch_and_nothing_is_touched() {
    for field in 0..5 {
        let (_wire, (mut send, mut from), (mut receive, mut to)) = pipe(4);
        let words = &mut from.fingerprint;
        *[&mut words.sequence, &mut words.call, &mut words.count, &mut words.plan, &mut words.scale][field] += 1 << 40;
        assert_eq!(send.advance(&mut from), Progress::Fired);
        for _ in 0..2 {
            assert_eq!(receive.advance(&mut to), Progress::Mismatch { operand: 0 });
        }
        assert_eq!((to.output[0], to.receives[0].received, receive.state), (-1.0, 0, State::default()));
        // The header is there to be read.
        // SAFETY: the slot was published, and its memory is the wire's.
        let header = unsafe { *to.receives[0].slots.cast::<SlotHeader>() };
        assert_eq!(header.fingerprint, from.fingerprint);
    }
}

#[test]
fn a_step_that_waits_notices_an_abort_and_a_step_that_is_ready_runs() {
    let (_wire, (mut send, mut from), (mut receive, mut to)) = pipe(SLOT_FLOATS);
    *to.abort = 1;
    *from.abort = 1;
    assert_eq!(receive.advance(&mut to), Progress::Aborted);
    assert_eq!(send.advance(&mut from), Progress::Fired);
    assert_eq!(receive.advance(&mut to), Progress::Fired);
    assert_eq!(receive.advance(&mut to), Progress::Done);
}

#[test]
fn windows_are_touched_under_the_guard_and_never_after_an_abort() {
    let mut peer = RankMemory::new(floats(8), 8);
    let mut rank = RankMemory::new(Vec::new(), 8);
    rank.windows.push(Window { buffers: peer.call().buffers });
    let pull = || Draft {
        flags: step_flag::TOUCHES_WINDOWS,
        ..step(16, &[window(0, buffer::INPUT, 16)], &[local(buffer::OUTPUT, 0), window(0, buffer::OUTPUT, 4)])
    };
    let mut program = Laid::new(0, vec![(1, 64, vec![pull()])]);
    assert_eq!(program.advance(&mut rank), Progress::Fired);
    assert_eq!(rank.output[..4], [5.0, 6.0, 7.0, 8.0]);
    assert_eq!(peer.output, [-1.0, 5.0, 6.0, 7.0, 8.0, -1.0, -1.0, -1.0]);
    assert_eq!(*rank.touching, 0);
    let (mut program, before) = (Laid::new(0, vec![(1, 64, vec![pull()])]), peer.output.clone());
    peer.input.fill(0.0);
    *rank.abort = 1;
    assert_eq!(program.advance(&mut rank), Progress::Aborted);
    assert_eq!((program.state, peer.output, *rank.touching), (State::default(), before, 0));
}

#[test]
fn a_trace_keeps_the_first_steps_and_counts_them_all() {
    let (_wire, (mut send, mut from), (mut receive, mut to)) = pipe(4 * SLOT_FLOATS);
    let mut entries = vec![StepTime::default(); 3];
    send.index = 1;
    let unused = Trace { entries: ptr::null_mut(), capacity: 0, count: 0 };
    from.traces = vec![unused, Trace { entries: entries.as_mut_ptr(), capacity: 3, count: 0 }];
    for _ in 0..4 {
        assert_eq!(send.advance(&mut from), Progress::Fired);
        assert_eq!(receive.advance(&mut to), Progress::Fired);
    }
    assert_eq!((from.traces[0].count, from.traces[1].count), (0, 4));
    for (iteration, time) in entries.iter().enumerate() {
        assert_eq!((time.program, time.step, time.iteration), (1, 0, iteration as u64));
        assert!(time.start <= time.end);
        assert!(iteration == 0 || entries[iteration - 1].end <= time.start);
    }
}

#[test]
fn a_program_without_steps_is_done() {
    assert_eq!(Laid::new(0, Vec::new()).advance(&mut RankMemory::new(Vec::new(), 0)), Progress::Done);
}
