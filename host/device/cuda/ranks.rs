//! What the ranks of one communicator keep on their devices: the state that their kernels carry from call to call, the ends of their
//! connections, the memory of slots and plans, their code; and in memory of the host the reports and the abort word.
//!
//! Plans and code are prepared for all ranks by whichever rank comes first: a driver may let an allocation wait until the device
//! is idle, and a rank that waited so for a peer's kernel, which waits for that rank, would wait for ever.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use tutti_kernels::layout::{
    Counter, Fingerprint, HISTORY, LINE_BYTES, RankState, ReceiveEnd, Report, SLOT_HEADER_BYTES, SendEnd, Window,
};

use super::bind::{Bound, bind};
use super::code::{KernelKey, LoadedKernel};
use super::heap::{Chunk, Heap};
use super::paths::{Path, Paths};
use super::result::Failure;
use super::retired::Launches;
use super::safe::{Device, DeviceMemory, Event, PinnedMemory, Stream};
use super::symmetric::Symmetric;
use crate::board::Board;
use crate::device::program::Ends;
use crate::error::{Error, Result};
use crate::plan::Geometry;
use crate::plan_cache::{PlanKey, SharedPlan};
use crate::sync::lock;
use crate::transport::{ConnectionKey, Guarantees, NoMemory, Transport};

/// Ends that a rank has room for at first; there is more when it is needed.
const ENDS_AT_FIRST: usize = 256;

/// Bytes in front of the first slot, so that its data, behind the header, is aligned for a GPU's widest access.
const SLOT_SHIFT_BYTES: usize = LINE_BYTES - SLOT_HEADER_BYTES;

/// Memory of the host for buffers that a rank has at first.
const STAGE_AT_FIRST_BYTES: usize = 64 << 10;

/// How long kernels may take to end once the abort word is raised.
const END_WITHIN: Duration = Duration::from_secs(10);

/// One device, however many ranks it has.
pub(crate) struct Gpu {
    pub(crate) device: Device,
    heap: Mutex<Heap<DeviceMemory>>,
    /// Where memory is filled before a launch.
    uploads: Stream,
}

impl Chunk for DeviceMemory {
    fn address(&self) -> u64 {
        DeviceMemory::address(self)
    }
}

impl Chunk for PinnedMemory {
    fn address(&self) -> u64 {
        PinnedMemory::address(self)
    }
}

impl Gpu {
    fn open(device: &Device) -> Result<Gpu> {
        Ok(Gpu { heap: Mutex::default(), uploads: device.stream()?, device: device.clone() })
    }

    /// A piece of the device's memory, of which nothing is known.
    pub(crate) fn take(&self, bytes: usize) -> Result<u64, Failure> {
        lock(&self.heap).take(bytes, |bytes| self.device.allocate(bytes))
    }

    /// Gives a piece back, of which nobody knows any more.
    pub(crate) fn give(&self, address: u64, bytes: usize) {
        lock(&self.heap).give(address, bytes);
    }

    /// Fills memory of the device that no kernel uses yet.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Failure> {
        // SAFETY: the caller has just taken the memory, and the bytes outlive the copy, which is waited for.
        unsafe { self.uploads.upload(address, bytes.as_ptr(), bytes.len())? };
        self.uploads.wait()
    }

    /// Memory that holds these values.
    fn holding<T: Copy>(&self, values: &[T], room: usize) -> Result<u64, Failure> {
        let address = self.take(size_of::<T>() * room.max(values.len()))?;
        self.write(address, bytes_of(values))?;
        Ok(address)
    }
}

/// What kernels and their host share, as bytes.
fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: the layouts are made of integers and addresses, and any padding in them is spelled out.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// One rank's own.
pub(crate) struct RankMemory {
    /// Its [`RankState`].
    pub(crate) state: u64,
    /// Its table of windows.
    pub(crate) windows: u64,
    ends: Mutex<EndsThere>,
    pub(crate) launches: Arc<Launches>,
    /// Events that nobody uses, for calls on streams.
    events: Mutex<Vec<Event>>,
    /// Calls of the host's that it has launched.
    pub(crate) tickets: AtomicU64,
    /// Memory of the host through which buffers of the host go.
    stage: Mutex<Vec<PinnedMemory>>,
}

/// A rank's ends, here and on its device.
struct EndsThere {
    ends: Ends,
    sends: Table,
    receives: Table,
}

/// An array on a device.
struct Table {
    address: u64,
    capacity: usize,
    filled: usize,
}

/// A plan, and whether what it has a switch do is done by one: otherwise each rank does it with an operand for each rank.
pub(crate) type BoundKey = (PlanKey, bool);

/// Where a plan is, once it is laid out.
type BoundPlace = Arc<Mutex<Option<Arc<Bound>>>>;

/// See the module.
pub(crate) struct Ranks {
    pub(crate) gpus: Vec<Gpu>,
    /// By rank, which of them is its.
    places: Vec<usize>,
    pub(crate) ranks: Vec<RankMemory>,
    /// The abort word, and behind it the reports.
    shared: PinnedMemory,
    /// Memory of the host for slots.
    pinned: Mutex<Heap<PinnedMemory>>,
    paths: Paths,
    /// Memory that a switch reaches on all devices at once, where there is one.
    symmetric: Option<Arc<Symmetric>>,
    geometry: Geometry,
    connections: Mutex<HashMap<ConnectionKey, (u64, u64)>>,
    bound: Mutex<HashMap<BoundKey, BoundPlace>>,
    making: Mutex<()>,
    /// How much memory for buffers of the host every rank has, at least.
    staged_bytes: AtomicUsize,
    mirroring: Mutex<()>,
    /// After all that is above it.
    _gives_back: GivesBack,
}

/// When it goes, memory that nobody uses any more is given back.
struct GivesBack(Device);

impl Drop for GivesBack {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

// SAFETY: the ends hold addresses of device memory, which belongs to no thread and is never dereferenced here.
unsafe impl Send for Ranks {}
// SAFETY: as above; the rest is locked or atomic.
unsafe impl Sync for Ranks {}

/// Where the reports begin, behind the abort word.
const REPORTS_AT: usize = 128;

impl Ranks {
    /// For ranks on these devices.
    pub(crate) fn new(devices: &[Device], paths: &Paths, geometry: Geometry) -> Result<Ranks> {
        let mut gpus: Vec<Gpu> = Vec::new();
        let mut places = Vec::with_capacity(devices.len());
        for device in devices {
            let place = match gpus.iter().position(|gpu| gpu.device == *device) {
                Some(place) => place,
                None => {
                    gpus.push(Gpu::open(device)?);
                    gpus.len() - 1
                }
            };
            places.push(place);
        }
        let make = || {
            let rank_count = devices.len();
            let shared = devices[0].allocate_pinned(REPORTS_AT + rank_count * size_of::<Report>())?;
            let reports = shared.address() + REPORTS_AT as u64;
            let windows = places
                .iter()
                .map(|place| gpus[*place].holding(&vec![EMPTY_WINDOW; rank_count], 0))
                .collect::<Result<Vec<u64>, Failure>>()?;
            let rank = |(rank, place): (usize, &usize)| {
                let gpu = &gpus[*place];
                let table = |bytes| {
                    gpu.take(ENDS_AT_FIRST * bytes).map(|address| Table { address, capacity: ENDS_AT_FIRST, filled: 0 })
                };
                let (sends, receives) = (table(size_of::<SendEnd>())?, table(size_of::<ReceiveEnd>())?);
                let state = RankState {
                    last: Fingerprint::default(),
                    sends: address(sends.address),
                    receives: address(receives.address),
                    reports: address(reports),
                    window_tables: address(gpu.holding(&windows, 0)?),
                    rank: rank as u32,
                    rank_count: rank_count as u32,
                    blocks_done: 0,
                    status: 0,
                    unconfirmed: 0,
                    reserved: 0,
                };
                Ok(RankMemory {
                    state: gpu.holding(&[state], 0)?,
                    windows: windows[rank],
                    ends: Mutex::new(EndsThere { ends: Ends::default(), sends, receives }),
                    launches: gpu.device.functions().retired.watch(gpu.device.ordinal(), gpu.device.event()?),
                    events: Mutex::default(),
                    tickets: AtomicU64::new(0),
                    // Small calls find theirs here; a driver may let what is allocated later wait for kernels.
                    stage: Mutex::new(vec![gpu.device.allocate_pinned(STAGE_AT_FIRST_BYTES)?]),
                })
            };
            let ranks = places.iter().enumerate().map(rank).collect::<Result<Vec<RankMemory>, Failure>>()?;
            Ok((shared, ranks))
        };
        let (shared, ranks) =
            make().map_err(|failure: Failure| failure.during("making a communicator on CUDA devices"))?;
        let symmetric = paths.switches(devices).then(|| Symmetric::new(devices)).transpose();
        let symmetric = symmetric.map_err(|failure| failure.during("asking for what a switch reaches"))?;
        Ok(Ranks {
            symmetric: symmetric.map(Arc::new),
            gpus,
            places,
            ranks,
            shared,
            pinned: Mutex::default(),
            paths: paths.clone(),
            geometry,
            connections: Mutex::default(),
            bound: Mutex::default(),
            making: Mutex::default(),
            staged_bytes: AtomicUsize::new(STAGE_AT_FIRST_BYTES),
            mirroring: Mutex::default(),
            _gives_back: GivesBack(devices[0].clone()),
        })
    }

    pub(crate) fn rank_count(&self) -> usize {
        self.places.len()
    }

    /// The device of a rank.
    pub(crate) fn gpu(&self, rank: usize) -> &Gpu {
        &self.gpus[self.places[rank]]
    }

    /// The place of a rank's device among [`Ranks::gpus`].
    pub(crate) fn place(&self, rank: usize) -> usize {
        self.places[rank]
    }

    /// How two ranks reach each other.
    pub(crate) fn path(&self, one: usize, other: usize) -> Path {
        self.paths.between(&self.gpu(one).device, &self.gpu(other).device)
    }

    /// How devices reach each other, those of these ranks among them.
    pub(crate) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Memory that a switch reaches on all devices at once, where there is one.
    pub(crate) fn symmetric(&self) -> Option<&Arc<Symmetric>> {
        self.symmetric.as_ref()
    }

    /// The abort word, as kernels read it.
    pub(crate) fn abort_address(&self) -> u64 {
        self.shared.address()
    }

    /// Raises the abort word: every kernel of these ranks ends soon.
    pub(crate) fn raise_abort(&self) {
        // SAFETY: the word is in memory that this owns, and only ever accessed atomically.
        unsafe { AtomicU32::from_ptr(self.shared.as_ptr().cast()) }.store(1, Ordering::SeqCst);
    }

    /// What the kernels of a rank say, a word of it.
    fn report_word(&self, rank: usize, offset: usize) -> u64 {
        let at = REPORTS_AT + rank * size_of::<Report>() + offset;
        debug_assert!(at + 8 <= self.shared.bytes());
        // SAFETY: the word is in memory that this owns, and kernels store it whole.
        unsafe { AtomicU64::from_ptr(self.shared.as_ptr().add(at).cast()) }.load(Ordering::Acquire)
    }

    /// The last call that a rank's kernels have come to.
    pub(crate) fn sequence(&self, rank: usize) -> u64 {
        self.report_word(rank, std::mem::offset_of!(Report, sequence))
    }

    /// The last call that a rank's kernels have finished.
    pub(crate) fn finished(&self, rank: usize) -> u64 {
        self.report_word(rank, std::mem::offset_of!(Report, finished))
    }

    /// The last call of the host's that a rank's kernels have finished.
    pub(crate) fn finished_ticket(&self, rank: usize) -> u64 {
        self.report_word(rank, std::mem::offset_of!(Report, ticket))
    }

    /// One of `launch_status`.
    pub(crate) fn status(&self, rank: usize) -> u32 {
        self.report_word(rank, std::mem::offset_of!(Report, status)) as u32
    }

    /// What a rank's kernels said that they do as call `sequence`, which is one of the last they have come to.
    pub(crate) fn fingerprint(&self, rank: usize, sequence: u64) -> Fingerprint {
        let place = std::mem::offset_of!(Report, history) + sequence as usize % HISTORY * size_of::<Fingerprint>();
        let word = |index: usize| self.report_word(rank, place + 8 * index);
        Fingerprint { sequence: word(0), call: word(1), count: word(2), plan: word(3), scale: word(4) }
    }

    /// How far a rank's kernels have come in all, and whether one of their programs is waiting.
    pub(crate) fn progress(&self, rank: usize, programs: usize) -> (u64, bool) {
        let base = std::mem::offset_of!(Report, programs);
        let programs = programs.clamp(1, tutti_kernels::layout::REPORTED_PROGRAMS);
        let word = |program: usize, index: usize| self.report_word(rank, base + 16 * program + 8 * index);
        let sum = (0..programs).fold(0_u64, |sum, program| sum.wrapping_add(word(program, 0)));
        (sum, (0..programs).any(|program| word(program, 1) != 0))
    }

    /// The plan of `key`, laid out for every rank.
    pub(crate) fn bound(
        self: &Arc<Ranks>,
        key: BoundKey,
        plan: impl FnOnce() -> Result<Arc<SharedPlan>>,
    ) -> Result<Arc<Bound>> {
        let place = Arc::clone(lock(&self.bound).entry(key).or_default());
        let make = || {
            let bound = Arc::new(bind(self, &plan()?, key.1)?);
            *lock(&place) = Some(Arc::clone(&bound));
            Ok(bound)
        };
        self.prepared(|| lock(&place).clone(), make)
    }

    /// What is there, or is made now, for all ranks, one thing at a time.
    ///
    /// Who waits for another rank to make something does not wait for the lock: a rank that has it may by then be making something for
    /// a later call, and wait for kernels that wait for this rank.
    fn prepared<T>(&self, there: impl Fn() -> Option<T>, make: impl FnOnce() -> Result<T>) -> Result<T> {
        loop {
            if let Some(there) = there() {
                return Ok(there);
            }
            let Some(_making) = self.try_to_make() else {
                std::thread::sleep(Duration::from_micros(50));
                continue;
            };
            return match there() {
                Some(there) => Ok(there),
                None => make(),
            };
        }
    }

    /// Leave to make something, if nobody else does.
    fn try_to_make(&self) -> Option<MutexGuard<'_, ()>> {
        match self.making.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The kernels of every rank's device for a type and a reduction; this rank's.
    pub(crate) fn kernel(&self, rank: usize, key: KernelKey) -> Result<LoadedKernel> {
        let there = || {
            let loaded = self.gpu(rank).device.loaded(key)?;
            self.gpus.iter().all(|gpu| gpu.device.loaded(key).is_some()).then_some(loaded)
        };
        self.prepared(there, || {
            for gpu in &self.gpus {
                gpu.device.kernel(key)?;
            }
            self.gpu(rank).device.kernel(key)
        })
    }

    /// Whether the kernels of every rank's device for a type and a reduction have steps that a switch does.
    pub(crate) fn switches(&self, key: KernelKey) -> bool {
        self.gpus.iter().all(|gpu| gpu.device.switches(key))
    }

    /// Opens the ends that `lay_out` asks for, and puts them where the rank's kernels look for them.
    pub(crate) fn with_ends<T>(
        &self,
        rank: usize,
        lay_out: impl FnOnce(&mut Ends) -> Result<T, NoMemory>,
    ) -> Result<T> {
        let mut there = lock(&self.ranks[rank].ends);
        let laid_out = lay_out(&mut there.ends).map_err(|NoMemory { needed_bytes }| Error::OutOfMemory {
            rank,
            what: "a connection",
            needed_bytes,
        })?;
        let EndsThere { ends, sends, receives } = &mut *there;
        let gpu = self.gpu(rank);
        let offset = std::mem::offset_of!(RankState, sends) as u64;
        let fill = |failure: Failure| failure.during(format_args!("laying out the connections of rank {rank}"));
        self.fill(rank, gpu, sends, &ends.sends, offset).map_err(fill)?;
        self.fill(rank, gpu, receives, &ends.receives, offset + 8).map_err(fill)?;
        Ok(laid_out)
    }

    /// Brings new ends to the device; `pointer` is the place in the rank's state that says where they are.
    fn fill<T: Copy>(
        &self,
        rank: usize,
        gpu: &Gpu,
        table: &mut Table,
        ends: &[T],
        pointer: u64,
    ) -> Result<(), Failure> {
        if ends.len() == table.filled {
            return Ok(());
        }
        let bytes = size_of::<T>();
        if ends.len() > table.capacity {
            // The counters in the old table are those of the last launch.
            self.wait_for(rank);
            let capacity = ends.len().next_power_of_two();
            let address = gpu.take(capacity * bytes)?;
            let mut old = vec![0; table.filled * bytes];
            // SAFETY: the memory is taken, and both copies are waited for.
            unsafe { gpu.uploads.download(old.as_mut_ptr(), table.address, old.len())? };
            gpu.uploads.wait()?;
            gpu.write(address, &old)?;
            gpu.write(self.ranks[rank].state + pointer, &address.to_ne_bytes())?;
            gpu.give(table.address, table.capacity * bytes);
            (table.address, table.capacity) = (address, capacity);
        }
        gpu.write(table.address + (table.filled * bytes) as u64, bytes_of(&ends[table.filled..]))?;
        table.filled = ends.len();
        Ok(())
    }

    /// Memory of the host for buffers of a rank's calls, so many bytes at least; every rank gets as much, since each would ask
    /// for it in the same call.
    pub(crate) fn stages(&self, rank: usize, bytes: usize) -> Result<*mut u8> {
        // Not just this rank's: it might launch while the others' are still being found.
        let there = || (self.staged_bytes.load(Ordering::Acquire) >= bytes).then_some(());
        let what = || format!("finding {bytes} bytes of memory to stage buffers");
        self.prepared(there, || {
            for rank in 0..self.rank_count() {
                self.stage(rank, bytes).map_err(|failure| failure.during(what()))?;
            }
            self.staged_bytes.fetch_max(bytes, Ordering::Release);
            Ok(())
        })?;
        self.stage(rank, bytes).map_err(|failure| failure.during(what()))
    }

    /// Copies what the kernels of a rank report to the board, where the host has not posted it itself.
    pub(crate) fn mirror(&self, rank: usize, board: &Board) {
        if !self.ranks[rank].launches.is_replayed.load(Ordering::Acquire) {
            return;
        }
        let _one = lock(&self.mirroring);
        let (before, now) = (board.sequence(rank), self.sequence(rank));
        for sequence in (before + 1).max((now + 1).saturating_sub(HISTORY as u64))..=now {
            board.post(rank, &self.fingerprint(rank, sequence));
        }
        board.finish(rank, self.finished(rank));
    }

    /// Forgets plans that no rank remembers any more, where there are more than so many.
    pub(crate) fn forget_plans(&self, kept: usize) {
        // Who makes something has the memory that goes back; the next one forgets.
        let Some(_making) = self.try_to_make() else { return };
        let mut bound = lock(&self.bound);
        if bound.len() <= kept {
            return;
        }
        bound.retain(|_, place| {
            let mut place = lock(place);
            match &*place {
                // Who runs it holds it.
                Some(bound) if Arc::strong_count(bound) == 1 => {
                    bound.give_back(self);
                    *place = None;
                    false
                }
                _ => true,
            }
        });
    }

    /// Memory of the host for buffers of a rank's calls, so many bytes at least.
    fn stage(&self, rank: usize, bytes: usize) -> Result<*mut u8, Failure> {
        let mut stages = lock(&self.ranks[rank].stage);
        if let Some(stage) = stages.last()
            && stage.bytes() >= bytes
        {
            return Ok(stage.as_ptr());
        }
        // The smaller ones are not given back before all is: a driver may let that wait for kernels.
        let stage = self.gpu(rank).device.allocate_pinned(bytes.next_power_of_two().max(4096))?;
        let address = stage.as_ptr();
        stages.push(stage);
        Ok(address)
    }

    /// An event for a call of a rank's that is queued on a stream.
    pub(crate) fn take_event(&self, rank: usize) -> Result<Event, Failure> {
        let free = lock(&self.ranks[rank].events).pop();
        free.map_or_else(|| self.gpu(rank).device.event(), Ok)
    }

    /// Gives an event back; what it was recorded for is over, or nobody asks for it any more.
    pub(crate) fn give_event(&self, rank: usize, event: Event) {
        lock(&self.ranks[rank].events).push(event);
    }

    /// Waits until a rank's last launch has ended, or the time in which an abort ends it is over; whether it has.
    pub(crate) fn wait_for(&self, rank: usize) -> bool {
        let launches = &self.ranks[rank].launches;
        let begun = Instant::now();
        while launches.has_launched.load(Ordering::Acquire) && matches!(launches.end.is_done(), Ok(false)) {
            if begun.elapsed() > END_WITHIN {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }

    /// Memory for what lies with a rank, or between two of them.
    fn memory_between(&self, near: usize, far: usize, bytes: usize) -> Result<u64, NoMemory> {
        let taken = match self.path(near, far) {
            Path::Same | Path::Peer => self.gpu(near).take(bytes),
            Path::Host => lock(&self.pinned).take(bytes, |bytes| self.gpu(near).device.allocate_pinned(bytes)),
        };
        let address = taken.map_err(|_| NoMemory { needed_bytes: bytes as u64 })?;
        let cleared = match self.path(near, far) {
            Path::Same | Path::Peer => self.gpu(near).write(address, &vec![0; bytes]),
            // The driver gives it filled with zeros, and slots are never given back.
            Path::Host => Ok(()),
        };
        cleared.map_err(|_| NoMemory { needed_bytes: bytes as u64 })?;
        Ok(address)
    }

    /// The counter and the first slot of a connection: the one near the producer, who polls it, the other near the consumer.
    fn connection(&self, key: ConnectionKey) -> Result<(u64, u64), NoMemory> {
        if let Some(memory) = lock(&self.connections).get(&key) {
            return Ok(*memory);
        }
        let counter = self.memory_between(key.from, key.to, size_of::<Counter>())?;
        let slot_bytes = self.geometry.slots as usize * self.slot_stride_bytes();
        let slots = self.memory_between(key.to, key.from, SLOT_SHIFT_BYTES + slot_bytes)?;
        let memory = (counter, slots + SLOT_SHIFT_BYTES as u64);
        lock(&self.connections).insert(key, memory);
        Ok(memory)
    }

    fn slot_stride_bytes(&self) -> usize {
        (SLOT_HEADER_BYTES + self.geometry.slot_bytes as usize).next_multiple_of(LINE_BYTES)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        // The memory goes now, so nobody may use it any more.
        self.raise_abort();
        for rank in 0..self.rank_count() {
            self.wait_for(rank);
        }
    }
}

/// A rank that exposes nothing.
const EMPTY_WINDOW: Window = Window { buffers: [std::ptr::null_mut(); 3] };

/// A device's address, as the layouts have it.
pub(crate) fn address<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// The transport of a communicator on CUDA devices.
pub(crate) struct CudaTransport(pub(crate) Arc<Ranks>);

impl Transport for CudaTransport {
    fn guarantees(&self) -> Guarantees {
        let gpus = &self.0.gpus;
        let path = |one: &Gpu, other: &Gpu| self.0.paths.between(&one.device, &other.device);
        Guarantees { windows: gpus.iter().all(|one| gpus.iter().all(|other| path(one, other) != Path::Host)) }
    }

    fn connection_bytes(&self) -> u64 {
        let slots = u64::from(self.0.geometry.slots) * self.0.slot_stride_bytes() as u64;
        (size_of::<Counter>() + SLOT_SHIFT_BYTES) as u64 + slots
    }

    fn connect_send(&self, key: ConnectionKey) -> Result<SendEnd, NoMemory> {
        let (counter, slots) = self.0.connection(key)?;
        Ok(SendEnd {
            slots: address(slots),
            slot_stride_bytes: self.0.slot_stride_bytes() as u64,
            empty: address::<Counter>(counter),
            sent: 0,
            credit: 0,
            slot_count: self.0.geometry.slots,
            peer: key.to as u32,
        })
    }

    fn connect_receive(&self, key: ConnectionKey) -> Result<ReceiveEnd, NoMemory> {
        let (counter, slots) = self.0.connection(key)?;
        Ok(ReceiveEnd {
            slots: address(slots),
            slot_stride_bytes: self.0.slot_stride_bytes() as u64,
            empty: address(counter),
            received: 0,
            slot_count: self.0.geometry.slots,
            peer: key.from as u32,
        })
    }
}
