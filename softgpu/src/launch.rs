//! The machine: memory, workers, launches.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use crate::execute::access::{note_load, note_store};
use crate::execute::{Block, End, Launched, Outcome, Registry, StopReason};
use crate::fault::{Fault, FaultKind, Index3};
use crate::memory::{Allocation, Memory, MemoryError, MemoryKind, PAGE_BYTES, Span, pieces};
use crate::module::{Constant, Module, Strength};
use crate::race::{Access, BlockClock, Clock, HOST, Scope};
use crate::types::{Lanes, WARP_THREADS};

/// Threads that a block may have.
const BLOCK_THREADS_MAX: u64 = 1024;

/// Shared memory that a block may have: what the largest devices offer.
const SHARED_BYTES_MAX: u32 = 227 * 1024;

/// Devices that there may be; the race detector numbers them in a byte.
const DEVICES_MAX: u32 = 250;

/// How a kernel is launched.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// Blocks.
    pub grid: Index3,
    /// Threads of a block.
    pub block: Index3,
    /// Shared memory that the launch adds to what the kernel declares, in bytes.
    pub dynamic_shared_bytes: u32,
    /// The kernel's parameters, laid out as [`Module::parameters`] says; see [`Arguments`].
    pub arguments: Vec<u8>,
    /// Whether races are looked for.
    pub races: bool,
    /// Whether reads of bytes that nobody wrote are looked for.
    pub uninitialised: bool,
    /// Whether votes, shuffles and matches of a warp order memory among their lanes. CUDA's documentation says that they do not;
    /// only `bar.warp.sync` does.
    pub votes_order_memory: bool,
    /// Other devices whose own memory may be touched; `None` for all.
    pub peers: Option<Vec<u32>>,
    /// What the accesses to other devices' own memory meet on their way.
    pub links: Vec<Link>,
    /// Thread instructions after which the launch is ended.
    pub instructions_max: u64,
    /// Time after which the launch is ended.
    pub deadline: Option<Duration>,
    /// Blocks that are in progress at once; those that wait for each other must all be.
    pub resident_blocks_max: u32,
    /// Faults that are kept.
    pub faults_max: usize,
    /// What else comes before the launch, besides what the launching thread did.
    pub after: Vec<Moment>,
}

impl Default for LaunchOptions {
    fn default() -> LaunchOptions {
        LaunchOptions {
            grid: 1.into(),
            block: 32.into(),
            dynamic_shared_bytes: 0,
            arguments: Vec::new(),
            races: true,
            uninitialised: true,
            votes_order_memory: false,
            peers: None,
            links: Vec::new(),
            instructions_max: u64::MAX / 2,
            deadline: Some(Duration::from_secs(60)),
            resident_blocks_max: 256,
            faults_max: 32,
            after: Vec::new(),
        }
    }
}

/// A link to another device that is slow, or bad.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// Whose memory lies behind it.
    pub device: u32,
    /// How much longer each access takes.
    pub delay: Duration,
    /// A bit of the first element of every so-many-th store is flipped; the counter may be shared by several launches.
    pub corrupt_every: Option<(u64, Arc<AtomicU64>)>,
}

/// The bytes of a kernel's parameters, each aligned to its size.
#[derive(Clone, Debug, Default)]
pub struct Arguments(Vec<u8>);

impl Arguments {
    /// No parameters yet.
    pub fn new() -> Arguments {
        Arguments::default()
    }

    /// The next parameter, as its bytes.
    #[must_use]
    pub fn bytes<const N: usize>(mut self, bytes: [u8; N]) -> Arguments {
        self.0.resize(self.0.len().next_multiple_of(N.max(1)), 0);
        self.0.extend(bytes);
        self
    }

    /// The next parameter.
    #[must_use]
    pub fn u64(self, value: u64) -> Arguments {
        self.bytes(value.to_le_bytes())
    }

    /// The next parameter.
    #[must_use]
    pub fn u32(self, value: u32) -> Arguments {
        self.bytes(value.to_le_bytes())
    }

    /// The next parameter.
    #[must_use]
    pub fn f32(self, value: f32) -> Arguments {
        self.bytes(value.to_le_bytes())
    }

    /// All of them.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Why a launch did not begin, or did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The kernel broke rules.
    #[error("{}", list(.faults, *.dropped))]
    Faults {
        /// What it did, each rule and line once, in the order in which it was seen.
        faults: Vec<Fault>,
        /// Further ones that were not kept.
        dropped: u64,
    },
    /// It was told to end.
    #[error("the launch of {kernel} was aborted")]
    Aborted {
        /// Which kernel.
        kernel: String,
    },
    /// It took too long.
    #[error("the launch of {kernel} was ended by its deadline")]
    Deadline {
        /// Which kernel.
        kernel: String,
    },
    /// The interpreter panicked, and has said why on the standard error.
    #[error("softgpu itself failed in the launch of {kernel}")]
    Internal {
        /// Which kernel.
        kernel: String,
    },
    /// It executed too many instructions.
    #[error("the launch of {kernel} was ended after {instructions} thread instructions")]
    Budget {
        /// Which kernel.
        kernel: String,
        /// How many it executed.
        instructions: u64,
    },
}

fn list(faults: &[Fault], dropped: u64) -> String {
    let mut lines: Vec<String> = faults.iter().map(Fault::to_string).collect();
    if dropped > 0 {
        lines.push(format!("and {dropped} more"));
    }
    lines.join("\n")
}

/// What a launch that ended well came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Instructions, counted once for each thread that executed them.
    pub thread_instructions: u64,
    /// Instructions, counted once for each group of lanes that executed them together.
    pub warp_instructions: u64,
    /// Accesses through a multicast group, one for each thread and instruction.
    pub multimem_accesses: u64,
    /// Blocks that ran.
    pub blocks: u64,
}

/// A point in the order of events, for launches and host threads that come after it.
#[derive(Clone, Debug)]
pub struct Moment(Arc<Clock>);

/// A module whose variables have addresses on a device.
#[derive(Clone, Debug)]
pub struct LoadedModule {
    module: Arc<Module>,
    device: u32,
    addresses: Vec<u64>,
    first_sites: Vec<u32>,
}

impl LoadedModule {
    /// The module.
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// The device that it is on.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// The address and size in bytes of a variable in global or constant memory.
    pub fn variable(&self, name: &str) -> Option<(u64, u64)> {
        let at = self.module.variables.iter().position(|variable| variable.name == name)?;
        Some((self.addresses[at], self.module.variables[at].size))
    }
}

/// Devices in software: one memory, workers that execute blocks. Clones are the same machine.
#[derive(Clone)]
pub struct Machine(Arc<Inner>);

struct Inner {
    memory: Arc<Memory>,
    registry: Arc<Registry>,
    hosts: Mutex<Hosts>,
    host_races: AtomicBool,
    launches: AtomicU64,
    queue: Arc<Queue>,
    workers: Vec<JoinHandle<()>>,
}

/// The clocks of host threads.
#[derive(Default)]
struct Hosts {
    own: HashMap<ThreadId, Arc<Mutex<BlockClock>>>,
    /// The clock of all threads that have none of their own, if they are taken for one.
    common: Option<Arc<Mutex<BlockClock>>>,
    /// Threads that have been forgotten, by their numbers, with the last time at which they did anything.
    retired: HashMap<u32, u32>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        {
            // Under the lock, so that no worker looks before and sleeps after.
            let _tasks = lock(&self.queue.tasks);
            self.queue.closed.store(true, Ordering::Release);
        }
        self.queue.changed.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has said so on the standard error.
            let _ = worker.join();
        }
    }
}

impl Default for Machine {
    fn default() -> Machine {
        Machine::new()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    /// A machine with as many workers as this computer has cores.
    pub fn new() -> Machine {
        Machine::with_workers(std::thread::available_parallelism().map_or(1, |count| count.get()))
    }

    /// A machine with that many workers.
    pub fn with_workers(count: usize) -> Machine {
        let queue = Arc::new(Queue::default());
        let worker = |_| {
            let queue = queue.clone();
            std::thread::Builder::new().name("softgpu".to_owned()).spawn(move || queue.work())
        };
        let workers: Vec<JoinHandle<()>> = (0..count.max(1)).filter_map(|index| worker(index).ok()).collect();
        Machine(Arc::new(Inner {
            memory: Arc::default(),
            registry: Arc::default(),
            hosts: Mutex::default(),
            host_races: AtomicBool::new(true),
            launches: AtomicU64::new(0),
            queue,
            workers,
        }))
    }

    /// Allocates memory of a device (or pinned memory of the host); its bytes count as not written.
    ///
    /// # Errors
    /// The system has no more.
    pub fn allocate(&self, bytes: u64, kind: MemoryKind, device: u32) -> Result<u64, MemoryError> {
        self.0.memory.allocate(bytes, kind, device)
    }

    /// Makes memory of the host usable by kernels, at its own address.
    ///
    /// # Errors
    /// It is empty or overlaps what is known already.
    ///
    /// # Safety
    /// The memory stays valid for reads and writes until [`Machine::free`] has been called for it and no launch that may touch it
    /// is running any more; while one is running, whoever else touches it does so with atomics.
    #[allow(unsafe_code)]
    pub unsafe fn register(&self, base: *mut u8, bytes: u64) -> Result<(), MemoryError> {
        // SAFETY: passed on from the caller.
        unsafe { self.0.memory.register(base, bytes) }
    }

    /// Frees an allocation, a registration or a multicast group. A kernel that still uses it is at fault.
    ///
    /// # Errors
    /// Nothing begins at that address.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        self.0.memory.free(address)
    }

    /// A multicast group: `multimem` instructions at the address that this answers reach the same offset of every member.
    ///
    /// # Errors
    /// A member is not `bytes` bytes of one allocation, or the system has no memory.
    pub fn multicast(&self, bytes: u64, members: &[u64]) -> Result<u64, MemoryError> {
        for &member in members {
            self.0.memory.find_range(member, bytes)?;
        }
        let address = self.0.memory.allocate(bytes, MemoryKind::Multicast, 0)?;
        let group = self.0.memory.find_range(address, bytes)?;
        *group.members.write().unwrap_or_else(PoisonError::into_inner) = members.to_vec();
        Ok(address)
    }

    /// Kind and owning device of the allocation in which an address lies, its start and its bytes.
    pub fn allocation(&self, address: u64) -> Option<(MemoryKind, u32, u64, u64)> {
        self.0.memory.find(address).map(|found| (found.kind, found.device, found.base, found.bytes))
    }

    /// This thread's clock, with what it needs.
    fn with_host<T>(&self, body: impl FnOnce(&mut BlockClock) -> T) -> T {
        let clock = {
            let mut hosts = lock(&self.0.hosts);
            let Hosts { own, common, .. } = &mut *hosts;
            match (own.get(&std::thread::current().id()), common) {
                (Some(own), _) => own.clone(),
                (None, Some(common)) => common.clone(),
                (None, None) => own.entry(std::thread::current().id()).or_insert(self.new_host_clock()).clone(),
            }
        };
        let mut clock = lock(&clock);
        body(&mut clock)
    }

    fn new_host_clock(&self) -> Arc<Mutex<BlockClock>> {
        let block = self.0.registry.add_blocks(1.into(), 1.into(), 0);
        let clock = BlockClock::new(block, HOST, 1, Arc::default());
        Arc::new(Mutex::new(clock.with_alias_fences(self.0.registry.alias_fences.clone())))
    }

    /// Takes all host threads that have no clock of their own for one from now on: what one of them has waited for, all know. For
    /// threads that order themselves by means that the machine does not see.
    pub fn share_host_clock(&self) {
        let clock = self.new_host_clock();
        lock(&self.0.hosts).common.get_or_insert(clock);
    }

    /// Gives this host thread a clock of its own; it knows nothing that it does not join.
    pub fn own_clock(&self) {
        let clock = self.new_host_clock();
        lock(&self.0.hosts).own.insert(std::thread::current().id(), clock);
    }

    /// Those who share the host clock come after that moment from now on.
    pub fn tell_hosts(&self, moment: &Moment) {
        let common = lock(&self.0.hosts).common.clone();
        if let Some(common) = common {
            lock(&common).learn_clock(&moment.0);
        }
    }

    /// Forgets this host thread, which has a clock of its own and is about to end. What others learned of it they keep.
    pub fn forget_this_thread(&self) {
        let mut hosts = lock(&self.0.hosts);
        if let Some(clock) = hosts.own.remove(&std::thread::current().id()) {
            let clock = lock(&clock);
            hosts.retired.insert(clock.block, clock.time - 1);
        }
    }

    /// Whether races between host threads' accesses and kernels are looked for. They are, unless this says otherwise.
    pub fn look_for_host_races(&self, looks: bool) {
        self.0.host_races.store(looks, Ordering::Relaxed);
    }

    /// Notes an access by this thread, as of now; answers the fault if it races.
    fn host_access(
        &self,
        address: u64,
        bytes: u32,
        is_write: bool,
        strength: Strength,
        also: impl FnOnce(),
    ) -> Result<(), MemoryError> {
        let allocation = self.0.memory.find_range(address, bytes.into())?;
        if strength == Strength::Weak {
            return self.host_span(&allocation, address, bytes.into(), is_write, also);
        }
        let conflict = self.with_host(|clock| {
            let mut page = lock(allocation.page(address));
            let strong = if strength == Strength::Weak { None } else { Some(Scope::System) };
            let access = Access {
                block: clock.block,
                time: clock.time,
                site: 0,
                thread: 0,
                device: HOST,
                bytes: bytes as u8,
                strong,
                alias: false,
            };
            let note = if is_write { note_store } else { note_load };
            let conflict = note(&mut page, clock, (address % PAGE_BYTES) as usize, bytes, 1, access, strength);
            also();
            conflict
        });
        self.host_conflict(address, bytes.into(), is_write, conflict)
    }

    fn host_conflict(
        &self,
        address: u64,
        bytes: u64,
        is_write: bool,
        conflict: Option<(Access, bool)>,
    ) -> Result<(), MemoryError> {
        match conflict {
            None => Ok(()),
            Some((other, writes)) => {
                let place = crate::Place {
                    kernel: None,
                    line: 0,
                    device: 0,
                    block: Index3::default(),
                    thread: Index3::default(),
                };
                let detail = format!(
                    "{} of {bytes} bytes that a thread {}",
                    if is_write { "store" } else { "load" },
                    if writes { "writes" } else { "reads" }
                );
                let other = Some(self.0.registry.place(&other));
                Err(MemoryError::Race(Box::new(Fault {
                    kind: FaultKind::Race,
                    place,
                    address: Some(address),
                    detail,
                    other,
                })))
            }
        }
    }

    /// Notes an access by this thread to bytes of one page, as of now, and makes it.
    fn host_span(
        &self,
        allocation: &Allocation,
        address: u64,
        bytes: u64,
        is_write: bool,
        also: impl FnOnce(),
    ) -> Result<(), MemoryError> {
        if !self.0.host_races.load(Ordering::Relaxed) {
            also();
            return Ok(());
        }
        let conflict = self.with_host(|clock| {
            let mut page = lock(allocation.page(address));
            let access = Access {
                block: clock.block,
                time: clock.time,
                site: 0,
                thread: 0,
                device: HOST,
                bytes: 0,
                strong: None,
                alias: false,
            };
            let note = if is_write { note_store } else { note_load };
            let offset = (address % PAGE_BYTES) as usize;
            let conflict = note(&mut page, clock, offset, bytes as u32, 1, access, Strength::Weak);
            also();
            conflict
        });
        self.host_conflict(address, bytes, is_write, conflict)
    }

    /// Goes through a range page by page, as this host thread: `each` gets the offset in the range, and the address and bytes of a part.
    fn host_pages(
        &self,
        address: u64,
        bytes: u64,
        is_write: bool,
        mut each: impl FnMut(&Allocation, u64, u64, u64),
    ) -> Result<(), MemoryError> {
        if bytes == 0 {
            return Ok(());
        }
        let allocation = self.0.memory.find_range(address, bytes)?;
        let mut offset = 0;
        while offset < bytes {
            let at = address + offset;
            let part = (PAGE_BYTES - at % PAGE_BYTES).min(bytes - offset);
            self.host_span(&allocation, at, part, is_write, || each(&allocation, offset, at, part))?;
            offset += part;
        }
        Ok(())
    }

    /// Copies bytes within memory, as this host thread. Those that nobody wrote count as not written at their new place either.
    ///
    /// # Errors
    /// As for [`Machine::write`].
    pub fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), MemoryError> {
        let mut result = Ok(());
        // Whatever lies inside one page of each side at a time. A range that overlaps its own copy is the caller's affair, as it is CUDA's.
        let mut offset = 0;
        while offset < bytes && result.is_ok() {
            let (source, target) = (from + offset, to + offset);
            let part = (PAGE_BYTES - source % PAGE_BYTES).min(PAGE_BYTES - target % PAGE_BYTES).min(bytes - offset);
            let (mut values, mut written) = ([0u8; PAGE_BYTES as usize], [true; PAGE_BYTES as usize]);
            result = self.host_pages(source, part, false, |allocation, _, at, part| {
                load_part(allocation, at, &mut values[..part as usize]);
                if !is_part_written(allocation, at, part) {
                    for (byte, written) in written[..part as usize].iter_mut().enumerate() {
                        *written = allocation.is_written(at + byte as u64, 1);
                    }
                }
            });
            if result.is_ok() {
                result = self.host_pages(target, part, true, |allocation, _, at, part| {
                    store_part(allocation, at, &values[..part as usize]);
                    for (byte, written) in written[..part as usize].iter().enumerate() {
                        if !written {
                            allocation.mark_unwritten(at + byte as u64, 1);
                        }
                    }
                });
            }
            offset += part;
        }
        result
    }

    /// Fills memory with copies of a value of 1, 2 or 4 bytes, as this host thread.
    ///
    /// # Errors
    /// As for [`Machine::write`].
    pub fn fill(&self, address: u64, value: &[u8], count: u64) -> Result<(), MemoryError> {
        let mut pattern = [0u8; PAGE_BYTES as usize];
        self.host_pages(address, count * value.len() as u64, true, |allocation, offset, at, part| {
            for (byte, pattern) in pattern[..part as usize].iter_mut().enumerate() {
                *pattern = value[(offset as usize + byte) % value.len()];
            }
            store_part(allocation, at, &pattern[..part as usize]);
        })
    }

    /// Addresses in which memory can be placed later, with [`Machine::place`].
    ///
    /// # Errors
    /// The system has no memory.
    pub fn reserve(&self, bytes: u64, alignment: u64) -> Result<Reservation, MemoryError> {
        Ok(Reservation(Arc::new(Span::new(bytes, alignment)?)))
    }

    /// Allocates memory at an offset of a reservation. It has access rights of its own, and no device, not even its own, has any
    /// until [`Machine::grant`] gives some. A group of [`MemoryKind::Multicast`] has no members until [`Machine::set_members`].
    ///
    /// # Errors
    /// The range is not in the reservation, or memory has been placed there already.
    pub fn place(
        &self,
        reservation: &Reservation,
        offset: u64,
        bytes: u64,
        kind: MemoryKind,
        device: u32,
    ) -> Result<u64, MemoryError> {
        self.0.memory.place(&reservation.0, offset, bytes, kind, device)
    }

    /// Says whether a device below 64 may touch memory that was placed.
    ///
    /// # Errors
    /// No such memory is there.
    pub fn grant(&self, address: u64, device: u32, allowed: bool) -> Result<(), MemoryError> {
        if self.0.memory.find_range(address, 1)?.grant(device, allowed) {
            Ok(())
        } else {
            Err(MemoryError::NotAStart { address })
        }
    }

    /// Says which memory the `multimem` instructions at a multicast group's addresses reach.
    ///
    /// # Errors
    /// No such group is there.
    pub fn set_members(&self, group: u64, members: &[u64]) -> Result<(), MemoryError> {
        let found = self.0.memory.find_range(group, 1)?;
        if found.kind != MemoryKind::Multicast || found.base != group {
            return Err(MemoryError::NotAStart { address: group });
        }
        *found.members.write().unwrap_or_else(PoisonError::into_inner) = members.to_vec();
        Ok(())
    }

    /// Whether a device may touch the memory at an address, by the rights that placed memory has or, for all other memory, always.
    pub fn is_granted(&self, address: u64, device: u32) -> bool {
        self.0.memory.find(address).is_some_and(|found| found.is_granted(device, || true))
    }

    /// Copies bytes to memory, as this host thread.
    ///
    /// # Errors
    /// The range is not inside one allocation, or a kernel that nothing orders with this thread uses it.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        self.host_pages(address, bytes.len() as u64, true, |allocation, offset, at, part| {
            store_part(allocation, at, &bytes[offset as usize..(offset + part) as usize]);
        })
    }

    /// Copies bytes from memory, as this host thread; whether anybody wrote them is not asked.
    ///
    /// # Errors
    /// As for [`Machine::write`].
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        self.host_pages(address, bytes.len() as u64, false, |allocation, offset, at, part| {
            load_part(allocation, at, &mut bytes[offset as usize..(offset + part) as usize]);
        })
    }

    /// Stores a flag of 1, 2, 4 or 8 bytes with release semantics at system scope, as this host thread.
    ///
    /// # Errors
    /// As for [`Machine::write`].
    pub fn store_release(&self, address: u64, bytes: u32, value: u64) -> Result<(), MemoryError> {
        let allocation = self.0.memory.find_range(address, bytes.into())?;
        self.host_access(address, bytes, true, Strength::Ordered(Scope::System), || {
            allocation.mark_written(address, bytes);
            allocation.store(address, bytes, value);
        })
    }

    /// Loads a flag of 1, 2, 4 or 8 bytes with acquire semantics at system scope, as this host thread.
    ///
    /// # Errors
    /// As for [`Machine::write`].
    pub fn load_acquire(&self, address: u64, bytes: u32) -> Result<u64, MemoryError> {
        let allocation = self.0.memory.find_range(address, bytes.into())?;
        let mut value = 0;
        self.host_access(address, bytes, false, Strength::Ordered(Scope::System), || {
            value = allocation.load(address, bytes)
        })?;
        Ok(value)
    }

    /// Marks bytes that were written behind the machine's back (through a pointer) as written.
    ///
    /// # Errors
    /// The range is not inside one allocation.
    pub fn mark_written(&self, address: u64, bytes: u64) -> Result<(), MemoryError> {
        let allocation = self.0.memory.find_range(address, bytes)?;
        let (mut at, end) = (address, address + bytes);
        while at < end {
            // As much at once as the notes take: 32 aligned bytes.
            let width = if at.is_multiple_of(32) && end - at >= 32 { 32 } else { 1 };
            allocation.mark_written(at, width);
            at += u64::from(width);
        }
        Ok(())
    }

    /// All that this host thread has done and knows.
    pub fn now(&self) -> Moment {
        self.with_host(|clock| {
            if clock.base.is_large() {
                clock.forget_retired(&lock(&self.0.hosts).retired);
            }
            Moment(clock.hand_over())
        })
    }

    /// From here on, this host thread comes after that moment.
    pub fn join(&self, moment: &Moment) {
        self.with_host(|clock| clock.learn_clock(&moment.0));
    }

    /// Gives a module's variables addresses on a device.
    ///
    /// # Errors
    /// The system has no memory for them.
    pub fn load(&self, module: &Arc<Module>, device: u32) -> Result<LoadedModule, MemoryError> {
        let mut addresses = Vec::new();
        for variable in &module.variables {
            addresses.push(self.allocate(variable.size, MemoryKind::Device, device)?);
        }
        for (variable, &address) in module.variables.iter().zip(&addresses) {
            if !variable.initialised || variable.size == 0 {
                continue;
            }
            let mut bytes = variable.bytes.clone();
            bytes.resize(variable.size as usize, 0);
            for &(at, which, offset) in &variable.addresses {
                let target = addresses[which].wrapping_add(offset as u64);
                bytes[at as usize..at as usize + 8].copy_from_slice(&target.to_le_bytes());
            }
            // No clock is asked: whoever can know the module comes after its loading.
            let allocation = self.0.memory.find_range(address, variable.size)?;
            pieces(address, variable.size, |at, width| {
                let from = (at - address) as usize;
                let mut value = [0; 8];
                value[..width as usize].copy_from_slice(&bytes[from..from + width as usize]);
                allocation.mark_written(at, width);
                allocation.store(at, width, u64::from_le_bytes(value));
            });
        }
        let first_sites = module.kernels.iter().map(|kernel| self.0.registry.add_kernel(kernel)).collect();
        Ok(LoadedModule { module: module.clone(), device, addresses, first_sites })
    }

    /// Takes a module's variables away again.
    ///
    /// # Errors
    /// Somebody has freed one of them.
    pub fn unload(&self, module: &LoadedModule) -> Result<(), MemoryError> {
        module.addresses.iter().try_for_each(|&address| self.0.memory.free(address))
    }

    /// Begins a launch. It comes after all that this host thread has done and knows, and after [`LaunchOptions::after`].
    ///
    /// # Errors
    /// [`LaunchError::Invalid`]: no such kernel, or a configuration that no device takes.
    pub fn launch(&self, module: &LoadedModule, kernel: &str, options: LaunchOptions) -> Result<Running, LaunchError> {
        let invalid = |text: String| Err(LaunchError::Invalid(text));
        let Some(at) = module.module.kernels.iter().position(|candidate| &*candidate.name == kernel) else {
            let names: Vec<&str> = module.module.kernel_names().collect();
            return invalid(format!("expected a kernel of the module ({}), found {kernel}", names.join(", ")));
        };
        let decoded = module.module.kernels[at].clone();
        let (grid, block) = (options.grid, options.block);
        let threads = block.volume();
        if threads == 0 || threads > BLOCK_THREADS_MAX || grid.volume() == 0 || grid.volume() > 1 << 24 {
            return invalid(format!(
                "expected 1 to {BLOCK_THREADS_MAX} threads and 1 to 2^24 blocks, found blocks {grid} of threads {block}"
            ));
        }
        if decoded.required_threads.is_some_and(|required| Index3::from(required) != block)
            || decoded.threads_max.is_some_and(|most| threads > most)
        {
            return invalid(format!("expected a block as {kernel} declares it, found {block}"));
        }
        if options.arguments.len() != decoded.parameter_bytes as usize {
            return invalid(format!(
                "expected {} argument bytes for {kernel}, found {}",
                decoded.parameter_bytes,
                options.arguments.len()
            ));
        }
        if module.device >= DEVICES_MAX {
            return invalid(format!("expected a device below {DEVICES_MAX}, found {}", module.device));
        }
        let static_shared_bytes = decoded.shared_bytes.next_multiple_of(16);
        let shared_bytes = static_shared_bytes.saturating_add(options.dynamic_shared_bytes);
        if shared_bytes > SHARED_BYTES_MAX {
            return invalid(format!(
                "expected at most {SHARED_BYTES_MAX} bytes of shared memory, found {shared_bytes}"
            ));
        }
        let constants: Vec<Lanes> = decoded
            .constants
            .iter()
            .map(|constant| {
                let value = match *constant {
                    Constant::Value(value) => value,
                    Constant::Variable(which, offset) => module.addresses[which].wrapping_add(offset as u64),
                    Constant::DynamicShared => static_shared_bytes.into(),
                };
                [value; WARP_THREADS]
            })
            .collect();
        let mut clock = self.with_host(BlockClock::hand_over);
        for moment in &options.after {
            Arc::make_mut(&mut clock).join(&moment.0);
        }
        let tickets = grid.volume().min(u64::from(options.resident_blocks_max.max(1))) as usize;
        let launched = Arc::new(Launched {
            first_site: module.first_sites[at],
            kernel: decoded,
            constants: Arc::new(constants),
            parameters: options.arguments,
            grid,
            block,
            shared_bytes: if options.dynamic_shared_bytes == 0 && static_shared_bytes == 0 { 0 } else { shared_bytes },
            dynamic_shared_bytes: options.dynamic_shared_bytes,
            device: module.device,
            races: options.races,
            uninitialised: options.uninitialised,
            votes_order_memory: options.votes_order_memory,
            reachable: options.peers.map(HashSet::from_iter),
            links: options.links,
            budget: options.instructions_max,
            deadline: options.deadline.map(|deadline| Instant::now() + deadline),
            faults_max: options.faults_max,
            memory: self.0.memory.clone(),
            number: self.0.launches.fetch_add(1, Ordering::Relaxed),
            first_block: self.0.registry.add_blocks(grid, block, module.device),
            registry: self.0.registry.clone(),
            clock,
            next_block: AtomicU64::new(0),
            tickets: AtomicUsize::new(tickets),
            stopped: AtomicBool::new(false),
            instructions: AtomicU64::new(0),
            warp_instructions: AtomicU64::new(0),
            multimem_accesses: AtomicU64::new(0),
            end: Mutex::new(End::default()),
            ended: Condvar::new(),
        });
        self.0.queue.add((0..tickets).map(|_| Task::Start(launched.clone())));
        Ok(Running { machine: self.clone(), launched })
    }

    /// Launches and waits.
    ///
    /// # Errors
    /// As for [`Machine::launch`] and [`Running::wait`].
    pub fn run(&self, module: &LoadedModule, kernel: &str, options: LaunchOptions) -> Result<Statistics, LaunchError> {
        self.launch(module, kernel, options)?.wait()
    }
}

fn load_part(allocation: &Allocation, address: u64, bytes: &mut [u8]) {
    pieces(address, bytes.len() as u64, |at, width| {
        let from = (at - address) as usize;
        let value = allocation.load(at, width).to_le_bytes();
        bytes[from..from + width as usize].copy_from_slice(&value[..width as usize]);
    });
}

fn store_part(allocation: &Allocation, address: u64, bytes: &[u8]) {
    pieces(address, bytes.len() as u64, |at, width| {
        let from = (at - address) as usize;
        let mut value = [0; 8];
        value[..width as usize].copy_from_slice(&bytes[from..from + width as usize]);
        allocation.mark_written(at, width);
        allocation.store(at, width, u64::from_le_bytes(value));
    });
}

fn is_part_written(allocation: &Allocation, address: u64, bytes: u64) -> bool {
    let mut all = true;
    pieces(address, bytes, |at, width| all &= allocation.is_written(at, width));
    all
}

/// Addresses in which memory can be placed. They are given back when this and all memory placed in it are gone.
#[derive(Clone, Debug)]
pub struct Reservation(Arc<Span>);

impl Reservation {
    /// The first address.
    pub fn address(&self) -> u64 {
        self.0.base
    }

    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

/// Ends a launch, from whichever thread.
#[derive(Clone)]
pub struct Stopper(Arc<Launched>);

impl Stopper {
    /// Ends the launch soon.
    pub fn abort(&self) {
        self.0.stop(StopReason::Aborted);
    }

    /// Thread instructions that the launch has executed, as of each block's last turn.
    pub fn thread_instructions(&self) -> u64 {
        self.0.instructions.load(Ordering::Relaxed)
    }

    /// Accesses through multicast groups that the launch has made, as of each block's last turn.
    pub fn multimem_accesses(&self) -> u64 {
        self.0.multimem_accesses.load(Ordering::Relaxed)
    }
}

/// A launch in progress. Dropped without [`Running::wait`], it is aborted.
pub struct Running {
    machine: Machine,
    launched: Arc<Launched>,
}

impl Running {
    /// Ends the launch soon.
    pub fn abort(&self) {
        self.launched.stop(StopReason::Aborted);
    }

    /// What ends it while another thread waits for it.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.launched.clone())
    }

    /// Whether it is over.
    pub fn is_finished(&self) -> bool {
        self.launched.is_over()
    }

    fn wait_for_end(&self) {
        let mut end = lock(&self.launched.end);
        while !end.finished {
            end = self.launched.ended.wait(end).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the end, and answers the moment of it, without making this host thread come after it.
    pub fn finished(&self) -> Moment {
        self.wait_for_end();
        let mut clock = (*self.launched.clock).clone();
        clock.join(&lock(&self.launched.end).clock);
        let first = self.launched.first_block;
        clock.know_ended(first, first + self.launched.grid.volume() as u32);
        Moment(Arc::new(clock))
    }

    /// Waits for the end. This host thread comes after it from then on.
    ///
    /// # Errors
    /// The kernel broke a rule, or the launch was ended before its time.
    pub fn wait(self) -> Result<Statistics, LaunchError> {
        let moment = self.finished();
        self.machine.join(&moment);
        let mut end = lock(&self.launched.end);
        let kernel = self.launched.kernel.name.to_string();
        let instructions = self.launched.instructions.load(Ordering::Relaxed);
        if !end.faults.is_empty() {
            return Err(LaunchError::Faults { faults: std::mem::take(&mut end.faults), dropped: end.faults_dropped });
        }
        match end.reason {
            None => Ok(Statistics {
                thread_instructions: instructions,
                warp_instructions: self.launched.warp_instructions.load(Ordering::Relaxed),
                multimem_accesses: self.launched.multimem_accesses.load(Ordering::Relaxed),
                blocks: self.launched.grid.volume(),
            }),
            Some(StopReason::Deadline) => Err(LaunchError::Deadline { kernel }),
            Some(StopReason::Internal) => Err(LaunchError::Internal { kernel }),
            Some(StopReason::Budget) => Err(LaunchError::Budget { kernel, instructions }),
            Some(StopReason::Aborted | StopReason::Fault) => Err(LaunchError::Aborted { kernel }),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.launched.is_over() {
            self.abort();
            self.wait_for_end();
        }
    }
}

/// What a worker takes from the queue.
enum Task {
    /// Begin the launch's next block.
    Start(Arc<Launched>),
    /// Go on with a block, not before then.
    Continue(Box<Block>, Option<Instant>),
}

#[derive(Default)]
struct Queue {
    tasks: Mutex<VecDeque<Task>>,
    changed: Condvar,
    closed: AtomicBool,
}

impl Queue {
    fn add(&self, tasks: impl Iterator<Item = Task>) {
        lock(&self.tasks).extend(tasks);
        self.changed.notify_all();
    }

    /// The next task that is due; `None` when the machine goes away.
    fn next(&self) -> Option<Task> {
        let mut tasks = lock(&self.tasks);
        loop {
            if self.closed.load(Ordering::Acquire) {
                return None;
            }
            let now = Instant::now();
            let due = tasks.iter().position(|task| match task {
                Task::Start(_) => true,
                Task::Continue(block, wake) => wake.is_none_or(|wake| wake <= now) || block.launched().is_stopped(),
            });
            match due {
                Some(at) => return tasks.remove(at),
                None if tasks.is_empty() => tasks = self.changed.wait(tasks).unwrap_or_else(PoisonError::into_inner),
                None => {
                    let wakes = tasks.iter().filter_map(|task| match task {
                        Task::Start(_) => None,
                        Task::Continue(_, wake) => *wake,
                    });
                    let pause = wakes.min().map_or(Duration::ZERO, |wake| wake.saturating_duration_since(now));
                    tasks = self.changed.wait_timeout(tasks, pause).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            let mut block = match task {
                Task::Continue(block, _) => block,
                Task::Start(launched) => {
                    let index = launched.next_block.fetch_add(1, Ordering::Relaxed);
                    if launched.is_stopped() || index >= launched.grid.volume() {
                        launched.give_back_ticket();
                        continue;
                    }
                    Box::new(Block::new(launched, index))
                }
            };
            let launched = block.launched().clone();
            // A panic here would be a fault of this crate; whoever waits must hear of it all the same.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| block.run())).unwrap_or_else(|_| {
                launched.stop(StopReason::Internal);
                Outcome::Stopped
            });
            match outcome {
                Outcome::Again(wake) => self.add(std::iter::once(Task::Continue(block, wake))),
                Outcome::Finished => self.add(std::iter::once(Task::Start(launched))),
                Outcome::Stopped => launched.give_back_ticket(),
            }
        }
    }
}
