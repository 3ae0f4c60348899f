//! The driver's state: devices, contexts, and the tables in which handles are looked up.
//!
//! A handle is a number that is never used again; it is looked up, never followed. The lock on the tables is held only while
//! they are looked at: nobody waits under it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::ThreadId;
use std::time::Duration;

use softgpu::{Machine, Stopper};

use crate::capture::Capture;
use crate::code::{Code, Result};
use crate::graph::{Graph, GraphExec};
use crate::module::{Function, LoadedModule, Texts};
use crate::stream::{Completion, Event, Stream, StreamKind};
use crate::topology::{Faults, Topology};
use crate::virtual_memory::VirtualMemory;

/// Locks, whatever happened to the last one who did.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What kind of thing a handle names; it is part of the number.
#[derive(Clone, Copy)]
pub(crate) enum HandleKind {
    Context = 1,
    Stream,
    Event,
    Module,
    Function,
    Graph,
    GraphExec,
    GraphNode,
    Pool,
    Physical,
}

/// A context, primary or not.
pub(crate) struct Context {
    pub(crate) handle: u64,
    pub(crate) device: usize,
    pub(crate) is_primary: bool,
    is_alive: AtomicBool,
    error: AtomicI32,
    pub(crate) state: Mutex<ContextState>,
}

/// What changes of a context.
#[derive(Default)]
pub(crate) struct ContextState {
    /// Devices whose memory it has asked to reach.
    pub(crate) peers: Vec<usize>,
    /// All streams, the legacy one too.
    pub(crate) streams: Vec<Arc<Stream>>,
    pub(crate) legacy: Option<Arc<Stream>>,
    per_thread: HashMap<ThreadId, Arc<Stream>>,
    /// Kernels in progress, by the number of their launch.
    running: HashMap<u64, Stopper>,
}

/// A device's share of the state.
pub(crate) struct Device {
    pub(crate) primary: Mutex<Primary>,
    /// What the device's multiprocessors are busy with.
    pub(crate) residency: Mutex<u64>,
    pub(crate) residency_changed: Condvar,
    /// Kernels that have been given to a stream and may not be over.
    pub(crate) pending: Mutex<Vec<Arc<Completion>>>,
    pub(crate) used_bytes: AtomicU64,
    lost: AtomicI32,
    pub(crate) launches: AtomicU64,
    pub(crate) thread_instructions: AtomicU64,
    pub(crate) multimem_accesses: AtomicU64,
    pub(crate) running: AtomicU64,
}

/// The primary context of a device.
#[derive(Default)]
pub(crate) struct Primary {
    pub(crate) handle: u64,
    pub(crate) references: u32,
    pub(crate) flags: u32,
}

/// Memory that the host asked for.
#[derive(Clone)]
pub(crate) struct Region {
    pub(crate) bytes: u64,
    pub(crate) kind: RegionKind,
    pub(crate) context: Arc<Context>,
    pub(crate) flags: u32,
    pub(crate) id: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionKind {
    Device,
    /// From a pool, in the order of a stream.
    Pooled,
    Pinned,
    Registered,
}

/// The tables of handles.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) contexts: HashMap<u64, Arc<Context>>,
    pub(crate) streams: HashMap<u64, Arc<Stream>>,
    pub(crate) events: HashMap<u64, Arc<Event>>,
    pub(crate) modules: HashMap<u64, Arc<LoadedModule>>,
    pub(crate) functions: HashMap<u64, Arc<Function>>,
    pub(crate) graphs: HashMap<u64, Arc<Graph>>,
    pub(crate) graph_execs: HashMap<u64, Arc<GraphExec>>,
    pub(crate) memory: BTreeMap<u64, Region>,
}

/// The whole driver.
pub(crate) struct Driver {
    pub(crate) machine: Machine,
    pub(crate) topology: Topology,
    pub(crate) devices: Vec<Device>,
    pub(crate) faults: RwLock<Faults>,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) captures: Mutex<Vec<Arc<Capture>>>,
    /// Captures in progress, so that calls that need not look at them do not.
    pub(crate) capture_count: AtomicU64,
    pub(crate) virtual_memory: Mutex<VirtualMemory>,
    pub(crate) texts: Texts,
    fault_texts: Mutex<VecDeque<String>>,
    pub(crate) host_bytes: AtomicU64,
    next: AtomicU64,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
static CONFIGURATION: Mutex<Option<String>> = Mutex::new(None);

/// Texts of faults that are kept.
const FAULT_TEXTS_MAX: usize = 4096;

thread_local! {
    /// The thread's contexts, the current one last. Never dropped, so that the driver can be called until the very end of a thread.
    static CURRENT: RefCell<ManuallyDrop<Vec<u64>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    /// Whether the thread runs a callback of a stream.
    pub(crate) static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Sets the topology's text, before `cuInit`.
pub(crate) fn configure(text: String) -> Result {
    if DRIVER.get().is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    if let Err(error) = Topology::parse(&text) {
        eprintln!("softcuda: the topology given to softgpu_configure: {error}");
        return Err(Code::INVALID_VALUE);
    }
    *lock(&CONFIGURATION) = Some(text);
    Ok(())
}

/// Makes the driver, once.
pub(crate) fn initialise() -> Result {
    static BUSY: Mutex<()> = Mutex::new(());
    let _busy = lock(&BUSY);
    if DRIVER.get().is_some() {
        return Ok(());
    }
    let given = lock(&CONFIGURATION).clone();
    let text = match (given, std::env::var("SOFTGPU_TOPOLOGY")) {
        (Some(text), _) => text,
        (None, Ok(path)) => std::fs::read_to_string(&path).map_err(|error| {
            eprintln!("softcuda: the topology file {path}: {error}");
            Code::FILE_NOT_FOUND
        })?,
        (None, Err(_)) => String::new(),
    };
    let (topology, faults) = Topology::parse(&text).map_err(|error| {
        eprintln!("softcuda: the topology: {error}");
        Code::INVALID_VALUE
    })?;
    let machine = topology.workers.map_or_else(Machine::new, Machine::with_workers);
    // Threads of the host order themselves by means that nobody sees here: what one has synchronised with, all know.
    machine.share_host_clock();
    machine.look_for_host_races(topology.race_detector);
    let device = |_| Device {
        primary: Mutex::default(),
        residency: Mutex::new(0),
        residency_changed: Condvar::new(),
        pending: Mutex::default(),
        used_bytes: AtomicU64::new(0),
        lost: AtomicI32::new(0),
        launches: AtomicU64::new(0),
        thread_instructions: AtomicU64::new(0),
        multimem_accesses: AtomicU64::new(0),
        running: AtomicU64::new(0),
    };
    let driver = Driver {
        machine,
        devices: (0..topology.devices.len()).map(device).collect(),
        topology,
        faults: RwLock::new(faults),
        tables: Mutex::default(),
        captures: Mutex::default(),
        capture_count: AtomicU64::new(0),
        virtual_memory: Mutex::default(),
        texts: Texts::default(),
        fault_texts: Mutex::default(),
        host_bytes: AtomicU64::new(0),
        next: AtomicU64::new(1),
    };
    // Nobody else can have set it, under the lock.
    let _ = DRIVER.set(driver);
    Ok(())
}

/// The driver, once it has been initialised.
pub(crate) fn driver() -> Result<&'static Driver> {
    DRIVER.get().ok_or(Code::NOT_INITIALIZED)
}

impl Driver {
    pub(crate) fn new_handle(&self, kind: HandleKind) -> u64 {
        ((kind as u64) << 40) | (self.next.fetch_add(1, Ordering::Relaxed) << 4)
    }

    pub(crate) fn device(&self, ordinal: i32) -> Result<usize> {
        usize::try_from(ordinal).ok().filter(|&device| device < self.devices.len()).ok_or(Code::INVALID_DEVICE)
    }

    pub(crate) fn faults(&self) -> std::sync::RwLockReadGuard<'_, Faults> {
        self.faults.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a text for `softgpu_faults`, and says it on the standard error.
    pub(crate) fn say_fault(&self, text: &str) {
        eprintln!("softcuda: {text}");
        let mut texts = lock(&self.fault_texts);
        for line in text.lines() {
            if texts.len() == FAULT_TEXTS_MAX {
                texts.pop_front();
            }
            texts.push_back(line.to_owned());
        }
    }

    pub(crate) fn fault_texts(&self) -> Vec<String> {
        lock(&self.fault_texts).iter().cloned().collect()
    }

    /// Forgets what was injected, what was lost by it, and what was said about it.
    pub(crate) fn clear(&self) {
        *self.faults.write().unwrap_or_else(PoisonError::into_inner) = Faults::default();
        for device in &self.devices {
            device.lost.store(0, Ordering::Release);
        }
        lock(&self.fault_texts).clear();
    }

    /// The device has gone away: nothing on it works any more.
    pub(crate) fn lose_device(&self, device: usize, code: i32) {
        let _ = self.devices[device].lost.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
        let contexts: Vec<Arc<Context>> =
            lock(&self.tables).contexts.values().filter(|context| context.device == device).cloned().collect();
        for context in contexts {
            self.fail(&context, code);
        }
    }

    /// A context has failed, for good: its kernels end, its calls answer this code.
    pub(crate) fn fail(&self, context: &Context, code: i32) {
        let _ = context.error.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
        for stopper in lock(&context.state).running.values() {
            stopper.abort();
        }
        let device = &self.devices[context.device];
        let _residency = lock(&device.residency);
        device.residency_changed.notify_all();
    }

    pub(crate) fn lost(&self, device: usize) -> i32 {
        self.devices[device].lost.load(Ordering::Acquire)
    }

    /// Makes a context.
    fn new_context(&self, handle: u64, device: usize, is_primary: bool) -> Arc<Context> {
        let context = Arc::new(Context {
            handle,
            device,
            is_primary,
            is_alive: AtomicBool::new(true),
            error: AtomicI32::new(0),
            state: Mutex::default(),
        });
        let legacy = Stream::new(self, &context, StreamKind::Legacy, 0, 0);
        {
            let mut state = lock(&context.state);
            state.streams.push(legacy.clone());
            state.legacy = Some(legacy);
        }
        lock(&self.tables).contexts.insert(handle, context.clone());
        context
    }

    /// Makes a context that is nobody's primary one.
    pub(crate) fn create_context(&self, device: usize) -> Result<Arc<Context>> {
        self.check_lost(device)?;
        Ok(self.new_context(self.new_handle(HandleKind::Context), device, false))
    }

    fn check_lost(&self, device: usize) -> Result {
        match self.lost(device) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Another holder of a device's primary context.
    pub(crate) fn retain_primary(&self, device: usize) -> Result<u64> {
        self.check_lost(device)?;
        let mut primary = lock(&self.devices[device].primary);
        if primary.references == 0 {
            if primary.handle == 0 {
                primary.handle = self.new_handle(HandleKind::Context);
            }
            self.new_context(primary.handle, device, true);
        }
        primary.references += 1;
        Ok(primary.handle)
    }

    /// One holder less; the last one takes the context away. With `all`, it goes away at once.
    pub(crate) fn release_primary(&self, device: usize, all: bool) -> Result {
        let mut primary = lock(&self.devices[device].primary);
        if primary.references == 0 {
            return if all { Ok(()) } else { Err(Code::INVALID_CONTEXT) };
        }
        if all {
            // Its holders keep it, as good as new.
            let context = lock(&self.tables).contexts.get(&primary.handle).cloned();
            if let Some(context) = context {
                self.destroy_context(&context);
            }
            self.new_context(primary.handle, device, true);
            return Ok(());
        }
        primary.references -= 1;
        if primary.references == 0 {
            let context = lock(&self.tables).contexts.get(&primary.handle).cloned();
            if let Some(context) = context {
                self.destroy_context(&context);
            }
        }
        Ok(())
    }

    /// Ends a context with all that it has: running kernels are ended, memory is freed.
    pub(crate) fn destroy_context(&self, context: &Arc<Context>) {
        context.is_alive.store(false, Ordering::Release);
        self.fail(context, Code::CONTEXT_IS_DESTROYED.0);
        let streams: Vec<Arc<Stream>> = {
            let mut state = lock(&context.state);
            state.legacy = None;
            state.per_thread.clear();
            std::mem::take(&mut state.streams)
        };
        for stream in &streams {
            if let Some(last) = stream.last() {
                last.wait();
            }
            stream.close();
        }
        let is_own = |other: &Arc<Context>| Arc::ptr_eq(other, context);
        let (regions, modules) = {
            let mut tables = lock(&self.tables);
            tables.streams.retain(|_, stream| !is_own(&stream.context));
            tables.events.retain(|_, event| !is_own(&event.context));
            tables.functions.retain(|_, function| !is_own(&function.module.context));
            let modules: Vec<_> = tables.modules.values().filter(|module| is_own(&module.context)).cloned().collect();
            tables.modules.retain(|_, module| !is_own(&module.context));
            let own = |region: &Region| is_own(&region.context);
            let regions: Vec<(u64, Region)> =
                tables.memory.iter().filter(|entry| own(entry.1)).map(|(&at, region)| (at, region.clone())).collect();
            tables.memory.retain(|_, region| !own(region));
            (regions, modules)
        };
        for module in modules {
            // Whoever freed a variable behind the module's back has had his fault.
            let _ = self.machine.unload(&module.loaded);
        }
        for (address, region) in regions {
            self.release_region(address, &region);
        }
    }

    /// Gives a region's memory back, once it is out of the tables.
    pub(crate) fn release_region(&self, address: u64, region: &Region) {
        let _ = self.machine.free(address);
        match region.kind {
            RegionKind::Device | RegionKind::Pooled => {
                self.devices[region.context.device].used_bytes.fetch_sub(region.bytes, Ordering::AcqRel);
            }
            RegionKind::Pinned => {
                self.host_bytes.fetch_sub(region.bytes, Ordering::AcqRel);
            }
            RegionKind::Registered => {}
        }
    }

    /// The context of a handle.
    pub(crate) fn context(&self, handle: u64) -> Result<Arc<Context>> {
        let context = lock(&self.tables).contexts.get(&handle).cloned().ok_or(Code::INVALID_CONTEXT)?;
        if context.is_alive.load(Ordering::Acquire) { Ok(context) } else { Err(Code::CONTEXT_IS_DESTROYED) }
    }

    /// The current context, whatever has befallen it.
    pub(crate) fn current_unchecked(&self) -> Result<Arc<Context>> {
        let handle = current_handle();
        if handle == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        self.context(handle)
    }

    /// The current context, in which calls can be made.
    pub(crate) fn current(&self) -> Result<Arc<Context>> {
        let context = self.current_unchecked()?;
        self.check(&context)?;
        Ok(context)
    }

    /// What has befallen a context, and its device.
    pub(crate) fn check(&self, context: &Context) -> Result {
        self.check_lost(context.device)?;
        match context.error.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// The stream of a handle, or one of the special ones of the current context.
    pub(crate) fn stream(&self, handle: u64) -> Result<Arc<Stream>> {
        match handle {
            0 | 1 => {
                let context = self.current()?;
                let state = lock(&context.state);
                state.legacy.clone().ok_or(Code::CONTEXT_IS_DESTROYED)
            }
            2 => {
                let context = self.current()?;
                let mut state = lock(&context.state);
                let thread = std::thread::current().id();
                if let Some(stream) = state.per_thread.get(&thread) {
                    return Ok(stream.clone());
                }
                let stream = Stream::new(self, &context, StreamKind::PerThread, 0, 0);
                state.per_thread.insert(thread, stream.clone());
                state.streams.push(stream.clone());
                Ok(stream)
            }
            _ => {
                self.current()?;
                let stream = lock(&self.tables).streams.get(&handle).cloned().ok_or(Code::INVALID_HANDLE)?;
                self.check(&stream.context)?;
                Ok(stream)
            }
        }
    }

    /// The stream of a handle, which must belong to the current context.
    pub(crate) fn own_stream(&self, handle: u64) -> Result<Arc<Stream>> {
        let context = self.current()?;
        let stream = self.stream(handle)?;
        if Arc::ptr_eq(&stream.context, &context) { Ok(stream) } else { Err(Code::INVALID_HANDLE) }
    }

    pub(crate) fn event(&self, handle: u64) -> Result<Arc<Event>> {
        self.current()?;
        lock(&self.tables).events.get(&handle).cloned().ok_or(Code::INVALID_HANDLE)
    }

    /// As a real driver does in the calls that the crate's documentation lists: waits for the kernels that a device has been given.
    pub(crate) fn wait_for_kernels(&self, device: usize) {
        if !self.topology.synchronising {
            return;
        }
        if self.topology.synchronising_ms > 0 {
            std::thread::sleep(Duration::from_millis(self.topology.synchronising_ms));
        }
        let pending = lock(&self.devices[device].pending).clone();
        for kernel in pending {
            kernel.wait();
        }
    }

    pub(crate) fn watchdog(&self) -> Option<Duration> {
        self.topology.watchdog_ms.map(Duration::from_millis)
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn begin_running(&self, context: &Context, number: u64, stopper: Stopper) {
        lock(&context.state).running.insert(number, stopper.clone());
        if self.check(context).is_err() {
            stopper.abort();
        }
    }

    pub(crate) fn end_running(&self, context: &Context, number: u64) {
        lock(&context.state).running.remove(&number);
    }
}

/// The current context's handle, or 0.
pub(crate) fn current_handle() -> u64 {
    CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Replaces the current context; 0 for none.
pub(crate) fn set_current(handle: u64) {
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}

pub(crate) fn push_current(handle: u64) {
    CURRENT.with_borrow_mut(|stack| stack.push(handle));
}

pub(crate) fn pop_current() -> Option<u64> {
    CURRENT.with_borrow_mut(|stack| stack.pop())
}
