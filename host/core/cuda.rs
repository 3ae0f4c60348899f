//! One rank that a CUDA device runs: a call is one launch, which the host only watches.
//!
//! The host posts a call on the board when it issues it, as a CPU rank does, so that ranks whose calls differ hear of it before
//! their kernels meet. Captured calls are the exception: of those only the kernels know how often they are launched, so what
//! they report is copied to the board by whoever looks ([`Flight::mirror`]).

use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tutti_kernels::layout::{
    Call, Fingerprint, ISSUE_WORDS, Issue, Launch, REPORTED_PROGRAMS, StepTime, Trace, issue_flag, launch_status,
};

use super::traces::{Clock, Traces};
use super::watch::Watch;
use super::{Budgeted, MemoryReport, Polled, Request, TimedStep, World};
use crate::board::Missing;
use crate::buffer::Memory;
use crate::device::cuda::bind::Bound;
use crate::device::cuda::ranks::{BoundKey, Ranks, address};
use crate::device::cuda::symmetric::Place;
use crate::device::cuda::{Event, Failure, Grid, KernelKey, Stream};
use crate::dtype::{Reduction, average_factors};
use crate::error::{Error, Result};
use crate::options::{Options, Overrides};
use crate::plan::select::Capabilities;
use crate::plan::{Algorithm, Collective, MULTICAST_ALIGNMENT_BYTES};
use crate::plan_cache::{PlanKey, SharedPlan};
use crate::presence;
use crate::sync::lock;
use crate::transport::ConnectionKey;

/// Plans that a rank remembers.
const PLANS_KEPT: usize = 256;

/// How long it may take until a peer's part in a disagreement that a kernel has seen is known here.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(2);

/// What buffers of the host are aligned to where they are staged, but for what they are off by themselves.
const STAGE_ALIGNMENT: usize = 64;

/// One rank of a communicator.
pub(crate) struct CudaRank {
    pub(crate) world: Arc<World>,
    pub(crate) rank: usize,
    options: Options,
    ranks: Arc<Ranks>,
    /// The last call; see `CpuRank`. Once calls have been captured, nobody here knows it.
    last: Fingerprint,
    /// Whether this rank could finish its last call before everybody had come to it.
    unconfirmed: bool,
    /// For calls that are waited for.
    stream: Stream,
    /// Whether the last call was queued on a stream of a caller's: whatever comes next waits for it.
    was_queued: bool,
    plans: HashMap<BoundKey, Arc<Bound>>,
    /// Those whose launches may be replayed.
    captured: Vec<Arc<Bound>>,
    connections: HashSet<ConnectionKey>,
    active: Option<Active>,
    traces: Option<Traces>,
    /// The first step that was timed, by the device's clock, and about when that was.
    trace_base: Option<(u64, Duration)>,
    held: Arc<Mutex<MemoryReport>>,
}

// SAFETY: its addresses are those of memory that belongs to no thread; whichever single thread drives the rank uses them.
unsafe impl Send for CudaRank {}

/// A call that is waited for.
struct Active {
    flight: Arc<Flight>,
    /// Where the result goes from where the kernel leaves it.
    result: Option<CopyBack>,
    /// Where the kernel leaves when steps ran, a [`Trace`] for each program; null if nobody asked. And when it was launched.
    traces: (*mut Trace, Duration),
}

/// A copy of results that were staged.
struct CopyBack {
    from: *const u8,
    to: *mut u8,
    bytes: usize,
}

/// Buffers as a kernel sees them.
struct Placed {
    input: u64,
    output: u64,
    result: Option<CopyBack>,
    traces: *mut Trace,
}

/// How a call is run.
struct Chosen {
    kernel_key: KernelKey,
    switched: Option<Switched>,
    key: PlanKey,
    bound_key: BoundKey,
}

/// Buffers that a switch reaches.
#[derive(Clone, Copy)]
struct Switched {
    /// Input and output; zero for what the switch does not touch.
    multicast: [u64; 2],
    /// A word that differs where the places do; not zero.
    places: u64,
}

/// A call that has been launched.
pub(crate) struct Flight {
    world: Arc<World>,
    ranks: Arc<Ranks>,
    rank: usize,
    /// None where only the kernels know.
    fingerprint: Option<Fingerprint>,
    /// Zero for one that was captured; of those that are replayed nobody knows.
    ticket: u64,
    programs: usize,
    state: Mutex<FlightState>,
    /// The end of its launch, where others may have been queued behind it.
    end: Option<Event>,
    /// What the kernel runs.
    _bound: Option<Arc<Bound>>,
}

struct FlightState {
    watch: Watch,
    unconfirmed: bool,
    /// When a kernel's failure was first seen whose reason is not known yet.
    failed: Option<Instant>,
    outcome: Option<Result<()>>,
}

impl CudaRank {
    pub(crate) fn new(world: Arc<World>, ranks: Arc<Ranks>, rank: usize, options: Options) -> Result<CudaRank> {
        Ok(CudaRank {
            stream: ranks.gpu(rank).device.stream()?,
            was_queued: false,
            world,
            rank,
            options,
            ranks,
            last: Fingerprint::default(),
            unconfirmed: false,
            plans: HashMap::new(),
            captured: Vec::new(),
            connections: HashSet::new(),
            active: None,
            traces: None,
            trace_base: None,
            held: Arc::default(),
        })
    }

    /// Where the rank says what it holds.
    pub(crate) fn held(&self) -> Arc<Mutex<MemoryReport>> {
        Arc::clone(&self.held)
    }

    /// The sequence number of the last call.
    pub(crate) fn sequence(&self) -> u64 {
        self.last.sequence
    }

    /// See [`super::Core::start`].
    pub(crate) fn begin(&mut self, request: &Request, overrides: &Overrides) -> Result<()> {
        self.active = None;
        let place = |rank: &mut CudaRank, bound: &Bound| rank.place(request, bound);
        let launched = self.traces.as_ref().map_or(Duration::ZERO, |traces| traces.begun().elapsed());
        let (flight, placed) = self.issue(request, overrides, None, place)?;
        self.active = Some(Active { flight, result: placed.result, traces: (placed.traces, launched) });
        Ok(())
    }

    /// Sees to it that beginning this call allocates nothing, which may wait for kernels that run then. What cannot be done now is left
    /// to the beginning, which says why.
    pub(crate) fn prepare(&mut self, request: &Request, overrides: &Overrides) {
        // Who has come further than this rank has prepared what all need; and if that is another call, a kernel may be waiting.
        let board = &self.world.board;
        if (0..board.rank_count()).any(|peer| board.sequence(peer) > self.last.sequence) {
            return;
        }
        let _ = self.try_to_prepare(request, overrides);
    }

    fn try_to_prepare(&mut self, request: &Request, overrides: &Overrides) -> Result<()> {
        let Chosen { kernel_key, bound_key, .. } = self.choose(request, overrides, None)?;
        let (known, shared) = self.plan(bound_key)?;
        let bound = match known {
            Some(bound) => bound,
            None => self.bind(bound_key, &shared)?,
        };
        self.ranks.kernel(self.rank, kernel_key)?;
        let stage_bytes = self.stage_bytes(request, &bound);
        self.ranks.stages(self.rank, stage_bytes).map(drop)
    }

    /// Which kernel runs a call, by which plan.
    fn choose(&self, request: &Request, overrides: &Overrides, stream: Option<&Stream>) -> Result<Chosen> {
        let exposed = self.check_memory(request, stream)?;
        let element_bytes = request.dtype.map_or(1, |dtype| dtype.bytes() as u32);
        let (dtype, reduction) = request.kernel();
        let kernel_key = (dtype, request.collective.reduces().then_some(reduction));
        let switched = if exposed { self.switched(request, kernel_key) } else { None };
        let able = Capabilities { windows: exposed && self.reaches(), switch: switched.is_some() };
        let algorithm = self.algorithm(request, element_bytes, overrides, able)?;
        let switched = switched.filter(|_| algorithm == Algorithm::Nvls);
        let key = PlanKey { collective: request.collective, algorithm, count: request.count, element_bytes };
        Ok(Chosen { kernel_key, switched, key, bound_key: (key, switched.is_some()) })
    }

    /// A plan, and where it is laid out, if this rank remembers.
    fn plan(&self, bound_key: BoundKey) -> Result<(Option<Arc<Bound>>, Arc<SharedPlan>)> {
        if let Some(bound) = self.plans.get(&bound_key) {
            return Ok((Some(Arc::clone(bound)), Arc::clone(&bound.shared)));
        }
        let (key, _) = bound_key;
        Ok((None, self.world.plans.take(key, self.world.board.rank_count(), || self.world.plan(key))?))
    }

    /// Queues a call on a stream of the caller's, on the same device; its buffers are the device's.
    pub(crate) fn enqueue(&mut self, request: &Request, overrides: &Overrides, stream: &Stream) -> Result<Arc<Flight>> {
        let placed = Placed {
            input: request.input.expose_provenance() as u64,
            output: request.output.expose_provenance() as u64,
            result: None,
            traces: std::ptr::null_mut(),
        };
        let (flight, _) = self.issue(request, overrides, Some(stream), |_, _| Ok(placed))?;
        watch(&self.world, (!flight.is_captured()).then(|| Arc::clone(&flight)))?;
        Ok(flight)
    }

    /// Launches a call: on this rank's stream, or on the caller's.
    fn issue(
        &mut self,
        request: &Request,
        overrides: &Overrides,
        stream: Option<&Stream>,
        place: impl FnOnce(&mut CudaRank, &Bound) -> Result<Placed>,
    ) -> Result<(Arc<Flight>, Placed)> {
        if let Some(error) = self.world.board.verdict() {
            return Err(error);
        }
        let (dtype, reduction) = request.kernel();
        let Chosen { kernel_key, switched, key, bound_key } = self.choose(request, overrides, stream)?;
        let is_capturing = match stream {
            Some(stream) => {
                stream.is_capturing().map_err(|failure| failure.during("asking a stream whether it captures"))?
            }
            None => false,
        };
        let memory = &self.ranks.ranks[self.rank];
        if is_capturing {
            memory.launches.is_replayed.store(true, Ordering::Release);
        }
        let is_replayed = memory.launches.is_replayed.load(Ordering::Acquire);
        let (known, shared) = self.plan(bound_key)?;
        // Ranks whose buffers are at different places must not go on: to a switch there is one place.
        let places = switched.as_ref().map_or(0, |switched| switched.places);
        let asked = request.fingerprint(key.algorithm, shared.digest.wrapping_add(places));
        let rooted = request.collective.root().is_some();
        let was_unconfirmed = std::mem::replace(&mut self.unconfirmed, rooted);
        presence::drive(&self.world, self.rank);
        let mut fingerprint = None;
        if !is_replayed {
            let posted = asked.after(&self.last);
            self.last = posted;
            self.world.board.post(self.rank, &posted);
            fingerprint = Some(posted);
            // Before anything is allocated: a driver may let that wait for a peer's kernel, and that one for this rank.
            if let Some(error) = self.world.board.mismatch_seen(self.rank, &posted) {
                return Err(error);
            }
        }
        let prepare = |rank: &mut CudaRank| {
            let bound = match known {
                Some(bound) => bound,
                None => rank.bind(bound_key, &shared)?,
            };
            rank.ranks.kernel(rank.rank, kernel_key).map(|kernel| (bound, kernel))
        };
        let (bound, kernel) = if is_capturing {
            let device = self.ranks.gpu(self.rank).device.clone();
            let prepared = device.beside_capture(|| prepare(self));
            prepared.map_err(|failure| failure.during("preparing a call while a stream captures"))??
        } else {
            prepare(self)?
        };
        let gpu = self.ranks.gpu(self.rank);
        let here = &bound.ranks[self.rank];
        let blocks = bound.blocks_of_device[self.ranks.place(self.rank)];
        gpu.device.check_resident(&kernel, blocks, bound.threads)?;
        let placed = place(self, &bound)?;

        let (mut scale, finish) = average_factors(dtype, self.world.board.rank_count());
        if reduction == Reduction::ScaledSum {
            scale = request.scale;
        }
        let flag = |is_so, flag| if is_so { flag } else { 0 };
        let memory = &self.ranks.ranks[self.rank];
        let ticket = if is_capturing { 0 } else { 1 + memory.tickets.fetch_add(1, Ordering::Relaxed) };
        let issue = Issue {
            launch: address(here.launch),
            input: address(placed.input),
            output: address(placed.output),
            multicast: switched.map_or([0; 2], |switched| switched.multicast).map(address),
            fingerprint: asked,
            scale,
            finish,
            ticket,
            flags: flag(shared.uses_windows, issue_flag::EXPOSES)
                | flag(rooted, issue_flag::ROOTED)
                | flag(here.sends_first, issue_flag::SENDS_FIRST)
                | flag(!here.receives, issue_flag::LOOKS),
        };
        const { assert!(size_of::<Issue>() == 8 * ISSUE_WORDS) };
        // Blocks wait for each other, if only by way of other ranks.
        let grid = Grid { blocks: here.blocks, threads: bound.threads, cooperative: here.blocks > 1 };
        let on = stream.unwrap_or(&self.stream);
        let end = match stream {
            Some(_) if !is_capturing => {
                Some(self.ranks.take_event(self.rank).map_err(|failure| failure.during("making an event"))?)
            }
            _ => None,
        };
        let launch = || -> Result<(), Failure> {
            let _launching = on.device().launching();
            let may_differ = self.was_queued || stream.is_some();
            if !is_capturing && may_differ && memory.launches.has_launched.load(Ordering::Acquire) {
                on.wait_event(&memory.launches.end)?;
            }
            let traces = placed.traces.expose_provenance() as u64;
            if here.traces.swap(traces, Ordering::Relaxed) != traces {
                let to = here.launch + (offset_of!(Launch, call) + offset_of!(Call, traces)) as u64;
                if is_capturing {
                    // Once, and not at each replay. Who was timed was waited for, and nobody has used the launch since.
                    let gpu = self.ranks.gpu(self.rank);
                    gpu.device.beside_capture(|| gpu.write(to, &traces.to_ne_bytes()))??;
                } else {
                    // SAFETY: it is a word of the launch, which no kernel reads before those behind it on this stream; the
                    // driver copies it before it returns.
                    unsafe { on.upload(to, (&raw const traces).cast(), size_of::<u64>())? };
                }
            }
            // SAFETY: the kernel is of this device, and takes an issue; the plan is a right one for this rank (the planner's
            // plans are proved so by the verifier), laid out by `bind`; whoever asks vouches for the buffers.
            unsafe { on.launch(kernel.kernel, &grid, &issue)? };
            if !is_capturing {
                memory.launches.end.record(on)?;
                if let Some(end) = &end {
                    end.record(on)?;
                }
                memory.launches.has_launched.store(true, Ordering::Release);
            }
            Ok(())
        };
        launch().map_err(|failure| {
            failure.during(format_args!("launching {} of rank {}", request.collective.name(), self.rank))
        })?;
        if is_capturing {
            self.captured.push(Arc::clone(&bound));
        } else {
            self.was_queued = stream.is_some();
        }
        let flight = Flight {
            world: Arc::clone(&self.world),
            ranks: Arc::clone(&self.ranks),
            rank: self.rank,
            fingerprint,
            ticket,
            programs: here.blocks as usize,
            state: Mutex::new(FlightState {
                watch: Watch::new(&self.options, overrides),
                unconfirmed: was_unconfirmed && rooted && here.sends_first,
                failed: None,
                outcome: None,
            }),
            end,
            _bound: Some(bound),
        };
        Ok((Arc::new(flight), placed))
    }

    /// Whether the buffers lie where this rank's device and its peers reach them in place.
    fn check_memory(&self, request: &Request, stream: Option<&Stream>) -> Result<bool> {
        let device = &self.ranks.gpu(self.rank).device;
        let (own, primary) = (device.ordinal(), device.context().addr());
        let call = request.collective.name();
        let argument = |what, expected: String, came: String| Error::Argument { call, what, expected, came };
        let mut all_exposed = true;
        for (what, memory, bytes) in [
            ("input", request.memory[0], self.input_bytes(request)),
            ("output", request.memory[1], self.output_bytes(request)),
        ] {
            match memory {
                _ if bytes == 0 => {}
                Memory::Host if stream.is_some() => {
                    let expected = format!("memory of device {own}, where a call is queued on a stream");
                    return Err(argument(what, expected, "memory of the host".to_owned()));
                }
                Memory::Host => {}
                Memory::Cuda { device, .. } | Memory::CudaContext { device, .. } if device != own => {
                    let expected = format!("memory of device {own}, which runs rank {}", self.rank);
                    return Err(argument(what, expected, format!("memory of device {device}")));
                }
                Memory::Cuda { exposed, .. } => all_exposed &= exposed,
                Memory::CudaContext { context, .. } if context != 0 && context != primary => {
                    let expected =
                        format!("memory of the primary context of device {own}, which runs rank {}", self.rank);
                    return Err(argument(what, expected, "memory of another context of that device".to_owned()));
                }
                Memory::CudaContext { .. } => all_exposed = false,
                Memory::Unknown { code } => {
                    let expected = format!("memory of device {own}, which runs rank {}", self.rank);
                    return Err(argument(what, expected, format!("memory about which the driver gave error {code}")));
                }
            }
        }
        if let Some(stream) = stream
            && stream.device().ordinal() != own
        {
            let expected = format!("a stream of device {own}, which runs rank {}", self.rank);
            return Err(argument("stream", expected, format!("a stream of device {}", stream.device().ordinal())));
        }
        Ok(all_exposed)
    }

    /// Whether each rank's device reaches the others' memory.
    fn reaches(&self) -> bool {
        self.world.transport.guarantees().windows
    }

    /// Where a switch reaches what it would read and write in this call, if one does and does such calls.
    fn switched(&self, request: &Request, kernel_key: KernelKey) -> Option<Switched> {
        let symmetric = self.ranks.symmetric()?;
        let collective = request.collective;
        let reads = collective.reduces();
        let writes = match collective {
            Collective::AllReduce | Collective::AllGather | Collective::Broadcast { .. } => true,
            Collective::ReduceScatter | Collective::Reduce { .. } | Collective::Barrier => false,
        };
        let place = |is_used: bool, buffer: u64, bytes: usize| {
            if !is_used {
                return Some(Place::default());
            }
            let place = symmetric.place(self.rank, buffer, bytes)?;
            place.multicast.is_multiple_of(MULTICAST_ALIGNMENT_BYTES).then_some(place)
        };
        let input = place(reads, request.input.expose_provenance() as u64, self.input_bytes(request))?;
        let output = place(writes, request.output.expose_provenance() as u64, self.output_bytes(request))?;
        if request.count == 0 || !(reads || writes) || !self.ranks.switches(kernel_key) {
            return None;
        }
        // Mixed, so that the two do not make up for each other.
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |seed: u64, word: u64| (seed ^ word).wrapping_mul(ODD).rotate_left(31);
        let places = mix(mix(1, input.name), output.name) | 1;
        Some(Switched { multicast: [input.multicast, output.multicast], places })
    }

    /// The algorithm: the caller's if it can be had.
    fn algorithm(
        &self,
        request: &Request,
        element_bytes: u32,
        overrides: &Overrides,
        able: Capabilities,
    ) -> Result<Algorithm> {
        let (collective, count) = (request.collective, request.count);
        let algorithm = self.world.algorithm(collective, count, element_bytes, able, &self.options, overrides);
        if able.windows || !algorithm.needs_windows() {
            return Ok(algorithm);
        }
        let expected = if self.reaches() {
            "one that needs no peer to reach these buffers, or buffers from `alloc`, or registered"
        } else {
            "one that needs no windows: these ranks' devices do not reach each other's memory"
        };
        let (expected, came) = (expected.to_owned(), algorithm.name().to_owned());
        Err(Error::Argument { call: collective.name(), what: "algorithm", expected, came })
    }

    /// A plan that this rank has not used yet, within its budget.
    fn bind(&mut self, key: BoundKey, shared: &Arc<SharedPlan>) -> Result<Arc<Bound>> {
        let own = |connection: &&ConnectionKey| connection.to == self.rank;
        let new: Vec<ConnectionKey> = shared
            .connections
            .iter()
            .filter(own)
            .filter(|connection| !self.connections.contains(*connection))
            .copied()
            .collect();
        let new_bytes = new.len() as u64 * self.world.transport.connection_bytes();
        let scratch_bytes = shared.plan.ranks[self.rank].scratch_bytes;
        self.make_room_for_plan(new_bytes, scratch_bytes)?;
        let bound = self.ranks.bound(key, || Ok(Arc::clone(shared)))?;
        self.connections.extend(new);
        self.make_room("a plan", bound.ranks[self.rank].bytes)?;
        if self.plans.len() >= PLANS_KEPT {
            self.plans.clear();
            self.ranks.forget_plans(PLANS_KEPT);
        }
        self.plans.insert(key, Arc::clone(&bound));
        self.publish_memory();
        Ok(bound)
    }

    fn input_bytes(&self, request: &Request) -> usize {
        let one = request.count as usize * request.dtype.map_or(1, |dtype| dtype.bytes());
        match request.collective {
            Collective::ReduceScatter => one * self.world.board.rank_count(),
            Collective::Broadcast { root } if root.index() != self.rank => 0,
            Collective::Barrier => 0,
            _ => one,
        }
    }

    fn output_bytes(&self, request: &Request) -> usize {
        let one = request.count as usize * request.dtype.map_or(1, |dtype| dtype.bytes());
        match request.collective {
            Collective::AllGather => one * self.world.board.rank_count(),
            Collective::Reduce { root } if root.index() != self.rank => 0,
            Collective::Barrier => 0,
            _ => one,
        }
    }

    /// Bytes to stage the buffers of a call, and when its steps ran if they are timed: as much as any rank needs, wherever its buffers
    /// lie, so that all ranks have theirs before any of them launches.
    fn stage_bytes(&self, request: &Request, bound: &Bound) -> usize {
        let one = request.count as usize * request.dtype.map_or(1, |dtype| dtype.bytes());
        let blocks = match request.collective {
            Collective::ReduceScatter | Collective::AllGather => 1 + self.world.board.rank_count(),
            _ => 2,
        };
        let trace_bytes = match self.traces {
            Some(_) => bound.ranks.iter().map(|rank| trace_bytes(&rank.step_counts)).max().unwrap_or(0),
            None => 0,
        };
        blocks * one + 4 * STAGE_ALIGNMENT + trace_bytes
    }

    /// The buffers where the device reaches them: those of the host are copied to memory that it does.
    fn place(&mut self, request: &Request, bound: &Bound) -> Result<Placed> {
        let (input_bytes, output_bytes) = (self.input_bytes(request), self.output_bytes(request));
        let [input_memory, output_memory] = request.memory;
        let mut placed = Placed {
            input: request.input.expose_provenance() as u64,
            output: request.output.expose_provenance() as u64,
            result: None,
            traces: std::ptr::null_mut(),
        };
        let steps = &bound.ranks[self.rank].step_counts;
        let trace_bytes = if self.traces.is_some() { trace_bytes(steps) } else { 0 };
        let stages = |memory, bytes| memory == Memory::Host && bytes > 0;
        let (stages_input, stages_output) = (stages(input_memory, input_bytes), stages(output_memory, output_bytes));
        if !stages_input && !stages_output && trace_bytes == 0 {
            return Ok(placed);
        }
        // Where the two overlap, as in calls in place, they do so there too.
        let (input, output) = (request.input.addr(), request.output.addr());
        let overlap = stages_input && stages_output && input < output + output_bytes && output < input + input_bytes;
        let off = |address: usize| address % STAGE_ALIGNMENT;
        let (input_at, output_at, bytes) = if overlap {
            let start = input.min(output);
            let end = (input + input_bytes).max(output + output_bytes);
            (off(start) + (input - start), off(start) + (output - start), off(start) + (end - start))
        } else {
            let input_end = off(input) + if stages_input { input_bytes } else { 0 };
            let output_at = input_end.next_multiple_of(STAGE_ALIGNMENT) + off(output);
            (off(input), output_at, output_at + if stages_output { output_bytes } else { 0 })
        };
        let traces_at = bytes.next_multiple_of(STAGE_ALIGNMENT);
        let stage_bytes = self.stage_bytes(request, bound);
        debug_assert!(traces_at + trace_bytes <= stage_bytes);
        let stage = self.ranks.stages(self.rank, stage_bytes)?;
        // SAFETY: the stage has room for both; the caller vouches for the buffers; and no kernel of this rank runs, since its last
        // call was waited for.
        unsafe {
            if stages_input {
                stage.add(input_at).copy_from_nonoverlapping(request.input, input_bytes);
                placed.input = stage.add(input_at).expose_provenance() as u64;
            }
            if stages_output {
                if !overlap {
                    // A call that fails leaves what was there, or not; it does not leave what others had in theirs.
                    stage.add(output_at).copy_from_nonoverlapping(request.output, output_bytes);
                }
                placed.output = stage.add(output_at).expose_provenance() as u64;
                placed.result = Some(CopyBack { from: stage.add(output_at), to: request.output, bytes: output_bytes });
            }
            if trace_bytes > 0 {
                // First the headers, then the entries.
                placed.traces = stage.add(traces_at).cast();
                let mut entries = placed.traces.add(steps.len()).cast::<StepTime>();
                for (program, steps) in steps.iter().enumerate() {
                    placed.traces.add(program).write(Trace { entries, capacity: *steps, count: 0 });
                    entries = entries.add(*steps as usize);
                }
            }
        }
        if trace_bytes > 0 {
            let budget_bytes = self.options.memory_budget_bytes.unwrap_or(u64::MAX);
            let room_bytes = budget_bytes.saturating_sub(self.memory().total_bytes());
            if let Some(traces) = &mut self.traces {
                traces.reserve(steps.iter().copied(), room_bytes);
            }
            self.publish_memory();
        }
        Ok(placed)
    }

    /// Keeps when the steps of a call that is over ran.
    ///
    /// # Safety
    /// `headers` is null, or what [`CudaRank::place`] made for this call, whose kernel is done.
    unsafe fn keep_times(&mut self, programs: usize, headers: *const Trace, launched: Duration) {
        let Some(traces) = self.traces.as_mut().filter(|_| !headers.is_null()) else { return };
        for program in 0..programs {
            // SAFETY: passed on from the caller.
            let times = unsafe {
                let header = &*headers.add(program);
                std::slice::from_raw_parts(header.entries, header.count.min(header.capacity) as usize)
            };
            for time in times {
                let (base, at) = *self.trace_base.get_or_insert((time.start, launched));
                let since = |moment: u64| (at.as_nanos() as u64).saturating_add(moment.saturating_sub(base));
                traces.keep(program, StepTime { start: since(time.start), end: since(time.end), ..*time });
            }
        }
    }

    /// See [`super::Core::poll`].
    pub(crate) fn poll(&mut self) -> Result<Polled> {
        let Some(active) = &mut self.active else {
            return Err(Error::Internal { what: "a call that was not begun".to_owned() });
        };
        if !active.flight.poll()? {
            return Ok(Polled::Waiting);
        }
        let (headers, launched) = active.traces;
        if let Some(CopyBack { from, to, bytes }) = active.result.take() {
            // SAFETY: the kernel is done; the caller vouches for the buffer, and the stage is this rank's.
            unsafe { to.copy_from_nonoverlapping(from, bytes) };
        }
        let programs = active.flight.programs;
        self.active = None;
        // SAFETY: the kernel is done.
        unsafe { self.keep_times(programs, headers, launched) };
        self.ranks.gpu(self.rank).device.give_back();
        Ok(Polled::Done)
    }

    /// See [`super::Core::look`].
    pub(crate) fn look(&mut self, now: Instant) -> Result<()> {
        match &self.active {
            Some(active) => active.flight.look(now),
            None => Ok(()),
        }
    }

    /// Ends a call of a communicator that is broken: when this returns, no kernel touches the call's buffers any more.
    pub(crate) fn leave(&mut self) {
        self.active = None;
        // The peers' too: they may have been given this rank's windows.
        for rank in 0..self.ranks.rank_count() {
            self.ranks.wait_for(rank);
        }
    }

    /// Begins to time the steps of calls that are waited for; see [`super::Core::start_trace`].
    pub(crate) fn start_trace(&mut self, capacity: usize) {
        self.traces = Some(Traces::new(capacity, Clock::SinceBegun));
        self.trace_base = None;
        self.publish_memory();
    }

    /// Stops timing steps; what was timed.
    pub(crate) fn take_trace(&mut self) -> Vec<TimedStep> {
        let traces = self.traces.take();
        self.publish_memory();
        traces.map_or_else(Vec::new, Traces::finish)
    }
}

/// Bytes for when the steps of programs with so many ran.
fn trace_bytes(steps: &[u64]) -> usize {
    steps.iter().map(|steps| *steps as usize * size_of::<StepTime>() + size_of::<Trace>()).sum()
}

impl Budgeted for CudaRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn budget_bytes(&self) -> Option<u64> {
        self.options.memory_budget_bytes
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport {
            connections: self.connections.len(),
            connection_bytes: self.connections.len() as u64 * self.world.transport.connection_bytes(),
            plans: self.plans.len(),
            plan_bytes: self.plans.values().map(|bound| bound.ranks[self.rank].bytes).sum(),
            trace_bytes: self.traces.as_ref().map_or(0, Traces::bytes),
        }
    }

    fn give_room(&mut self) {
        self.plans.clear();
        if let Some(traces) = &mut self.traces {
            traces.trim();
        }
    }

    fn publish_memory(&self) {
        *lock(&self.held) = self.memory();
    }
}

impl Drop for CudaRank {
    fn drop(&mut self) {
        // Its stream goes, and with it what is queued there must have.
        if self.active.is_some() {
            self.ranks.wait_for(self.rank);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            self.ranks.give_event(self.rank, end);
        }
    }
}

impl Flight {
    /// The call that a rank's kernels are in, which nobody here has made: one that was captured, and is replayed.
    fn replayed(world: &Arc<World>, ranks: &Arc<Ranks>, rank: usize) -> Flight {
        Flight {
            world: Arc::clone(world),
            ranks: Arc::clone(ranks),
            rank,
            fingerprint: None,
            ticket: u64::MAX,
            programs: REPORTED_PROGRAMS,
            state: Mutex::new(FlightState {
                watch: Watch::new(&world.options, &Overrides::default()),
                unconfirmed: false,
                failed: None,
                outcome: None,
            }),
            end: None,
            _bound: None,
        }
    }

    /// Whether the call was captured, and so has not been made.
    pub(crate) fn is_captured(&self) -> bool {
        self.ticket == 0
    }

    /// Whether the call is over; an error if it failed.
    pub(crate) fn poll(&self) -> Result<bool> {
        let mut state = lock(&self.state);
        if let Some(outcome) = &state.outcome {
            return outcome.clone().map(|()| true);
        }
        let outcome = if self.ranks.finished_ticket(self.rank) >= self.ticket {
            // The kernel has said so; when the driver does, it comes before whatever is queued next, on any stream.
            match self.end.as_ref().unwrap_or(&self.ranks.ranks[self.rank].launches.end).is_done() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(failure) => {
                    let doing = format!("running the kernels of rank {}", self.rank);
                    return Err(self.world.board.fail(failure.during(doing)));
                }
            }
            if let Some(fingerprint) = &self.fingerprint {
                self.world.board.finish(self.rank, fingerprint.sequence);
            }
            self.world.board.note_waiting(self.rank, None);
            Ok(())
        } else {
            match self.failure(&mut state) {
                None => return Ok(false),
                Some(error) => Err(self.world.board.fail(error)),
            }
        };
        state.outcome = Some(outcome.clone());
        outcome.map(|()| true)
    }

    /// Why the rank's kernels failed, if they did and it is known.
    fn failure(&self, state: &mut FlightState) -> Option<Error> {
        let status = self.ranks.status(self.rank);
        if status == launch_status::GOOD {
            return None;
        }
        if let Some(error) = self.world.board.verdict() {
            return Some(error);
        }
        self.mirror();
        if let Some(error) = self.latest().and_then(|mine| self.world.board.disagreement(self.rank, &mine)) {
            return Some(error);
        }
        let since = *state.failed.get_or_insert_with(Instant::now);
        (since.elapsed() > EXPLAINED_WITHIN).then(|| {
            let what = match status {
                launch_status::MISMATCH => "a kernel met another call's data, but no rank made another call",
                _ => "a kernel saw the abort word raised, but nobody said why",
            };
            Error::Internal { what: format!("rank {}: {what}", self.rank) }
        })
    }

    /// What the rank is doing.
    fn latest(&self) -> Option<Fingerprint> {
        self.fingerprint.or_else(|| {
            let sequence = self.ranks.sequence(self.rank);
            (sequence > 0).then(|| self.ranks.fingerprint(self.rank, sequence))
        })
    }

    /// Copies what the kernels report to the board.
    fn mirror(&self) {
        for rank in 0..self.ranks.rank_count() {
            self.ranks.mirror(rank, &self.world.board);
        }
    }

    /// Looks around on behalf of a call that is not over.
    pub(crate) fn look(&self, now: Instant) -> Result<()> {
        self.mirror();
        let board = &self.world.board;
        // What the stream says of a kernel that ended without saying anything itself.
        if let Err(failure) = self.ranks.ranks[self.rank].launches.end.is_done() {
            return Err(board.fail(failure.during(format_args!("running the kernels of rank {}", self.rank))));
        }
        if self.poll()? {
            return Ok(());
        }
        // Of a call whose number only its kernel knows, there is one under way if the rank has finished less than it has come to.
        let sequence = self.ranks.sequence(self.rank);
        let has_begun = |mine: &Fingerprint| match self.fingerprint {
            Some(_) => mine.sequence <= sequence,
            None => self.ranks.finished(self.rank) < sequence,
        };
        let Some(mine) = self.latest().filter(has_begun) else {
            // The kernel has yet to begin: the stream has something else to do. Time counts from when it does; but who gave up
            // meanwhile has.
            return board.verdict().map_or(Ok(()), Err);
        };
        let (progress, is_waiting) = self.ranks.progress(self.rank, self.programs);
        board.note_fired(self.rank, progress);
        let mut state = lock(&self.state);
        let unconfirmed = state.unconfirmed;
        let peer = is_waiting.then_some(self.rank);
        state.watch.look(board, self.rank, &mine, unconfirmed, peer, now)?;
        if unconfirmed && board.missing(mine.sequence - 1) == Missing::Nobody {
            state.unconfirmed = false;
        }
        Ok(())
    }
}

/// Calls that nobody may be waiting for, and who watches their deadlines.
#[derive(Default)]
pub(crate) struct Watched {
    flights: Vec<Arc<Flight>>,
    has_watcher: bool,
}

/// How often their deadlines are looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(10);

/// Sees to it that somebody watches the calls of a communicator, this one too if there is one.
fn watch(world: &Arc<World>, flight: Option<Arc<Flight>>) -> Result<()> {
    let mut watched = lock(&world.watched);
    watched.flights.extend(flight);
    if !watched.has_watcher {
        let world = Arc::downgrade(world);
        let thread = std::thread::Builder::new().name("tutti-watcher".to_owned());
        thread
            .spawn(move || watch_until_it_goes(&world))
            .map_err(|error| Error::Thread { reason: error.to_string() })?;
        watched.has_watcher = true;
    }
    Ok(())
}

/// Watches a communicator's calls for as long as it lives. What fails breaks it, and then whoever asks hears of it.
fn watch_until_it_goes(world: &Weak<World>) {
    // By rank: a call that was captured and is being made.
    let mut replays: HashMap<usize, Flight> = HashMap::new();
    loop {
        std::thread::sleep(WATCH_INTERVAL);
        let Some(world) = world.upgrade() else { return };
        let Some(ranks) = &world.cuda else { return };
        let mut flights = std::mem::take(&mut lock(&world.watched).flights);
        let now = Instant::now();
        flights.retain(|flight| flight.poll() == Ok(false) && flight.look(now).is_ok());
        lock(&world.watched).flights.append(&mut flights);
        for rank in
            (0..ranks.rank_count()).filter(|rank| ranks.ranks[*rank].launches.is_replayed.load(Ordering::Acquire))
        {
            ranks.mirror(rank, &world.board);
            let is_under_way = ranks.sequence(rank) > ranks.finished(rank);
            if !is_under_way && ranks.status(rank) == launch_status::GOOD {
                replays.remove(&rank);
                continue;
            }
            let flight = replays.entry(rank).or_insert_with(|| Flight::replayed(&world, ranks, rank));
            // The error has been told to the board.
            let _ = flight.look(now);
        }
        // It must not keep alive what it watches.
        if Arc::strong_count(&world) == 1 + replays.len() {
            return;
        }
    }
}
