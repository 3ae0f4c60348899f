//! Streams: queues of operations, each with a worker of its own; events; what operations do.
//!
//! An operation carries what it waits for: the completions of earlier operations, all of which were given to their streams before it,
//! so that no circle can arise. Its worker takes over what those knew (happens-before), and what the host thread that
//! asked for it knew, does it, and leaves what it knows with its own completion.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Instant;

use softgpu::Moment;

use crate::capture::{Capture, CapturedAt};
use crate::code::{Code, Result};
use crate::driver::{Context, Driver, HandleKind, driver, lock};
use crate::launch::KernelLaunch;
use crate::memory::{Copy, Fill};

/// How a stream stands to the legacy one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// The NULL stream.
    Legacy,
    /// A thread's default stream.
    PerThread,
    /// One that waits for the legacy stream, and it for this one.
    Blocking,
    NonBlocking,
    /// A branch of a graph in progress.
    Branch,
}

/// A stream.
pub(crate) struct Stream {
    pub(crate) handle: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) kind: StreamKind,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) id: u64,
    queue: Mutex<Queue>,
    changed: Condvar,
    pub(crate) capture: Mutex<Option<Arc<Capture>>>,
    this: Weak<Stream>,
}

#[derive(Default)]
struct Queue {
    operations: VecDeque<Operation>,
    last: Option<Arc<Completion>>,
    has_worker: bool,
    is_closing: bool,
}

/// The end of an operation.
#[derive(Default)]
pub(crate) struct Completion {
    done: Mutex<Option<Done>>,
    changed: Condvar,
}

/// When an operation ended, and what comes before all that knows it.
#[derive(Clone)]
pub(crate) struct Done {
    pub(crate) moment: Moment,
    pub(crate) at: Instant,
}

impl Completion {
    /// Waits for it. Whoever synchronises joins the moment.
    pub(crate) fn wait(&self) -> Done {
        let mut done = lock(&self.done);
        loop {
            if let Some(done) = &*done {
                return done.clone();
            }
            done = self.changed.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn done(&self) -> Option<Done> {
        lock(&self.done).clone()
    }

    pub(crate) fn is_done(&self) -> bool {
        lock(&self.done).is_some()
    }

    fn finish(&self, moment: Moment) {
        *lock(&self.done) = Some(Done { moment, at: Instant::now() });
        self.changed.notify_all();
    }
}

/// What an operation does.
#[derive(Clone)]
pub(crate) enum Work {
    /// Nothing: an event, or a point at which others meet.
    Mark,
    Kernel(Arc<KernelLaunch>),
    Copy(Arc<Copy>),
    Fill(Fill),
    HostFunction(HostFunction),
    /// Memory of a pool goes back.
    Free(u64),
}

/// A callback.
#[derive(Clone, Copy)]
pub(crate) struct HostFunction {
    pub(crate) function: unsafe extern "C" fn(*mut std::ffi::c_void),
    pub(crate) data: usize,
}

struct Operation {
    context: Arc<Context>,
    work: Work,
    dependencies: Vec<Arc<Completion>>,
    after: Moment,
    completion: Arc<Completion>,
}

/// An event.
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    pub(crate) flags: u32,
    pub(crate) recorded: Mutex<Recorded>,
}

/// What an event was recorded as last.
#[derive(Clone, Default)]
pub(crate) enum Recorded {
    #[default]
    Never,
    Completion(Arc<Completion>),
    Captured(CapturedAt),
}

impl Stream {
    pub(crate) fn new(
        driver: &Driver,
        context: &Arc<Context>,
        kind: StreamKind,
        flags: u32,
        priority: i32,
    ) -> Arc<Stream> {
        let handle = match kind {
            StreamKind::Legacy => 1,
            StreamKind::PerThread => 2,
            _ => driver.new_handle(HandleKind::Stream),
        };
        Arc::new_cyclic(|this| Stream {
            handle,
            context: context.clone(),
            kind,
            flags,
            priority,
            id: driver.next_number(),
            queue: Mutex::default(),
            changed: Condvar::new(),
            capture: Mutex::default(),
            this: this.clone(),
        })
    }

    /// Whether it and the legacy stream wait for each other.
    fn is_blocking(&self) -> bool {
        matches!(self.kind, StreamKind::Blocking | StreamKind::PerThread)
    }

    pub(crate) fn last(&self) -> Option<Arc<Completion>> {
        lock(&self.queue).last.clone()
    }

    /// Whether it has been destroyed, and has done what it had been given before.
    fn is_over(&self) -> bool {
        let queue = lock(&self.queue);
        queue.is_closing && queue.last.as_ref().is_none_or(|last| last.is_done())
    }

    /// It goes away when its operations are done.
    pub(crate) fn close(&self) {
        lock(&self.queue).is_closing = true;
        self.changed.notify_all();
    }

    /// Puts an operation at the end of the queue. The context's lock makes this one point in the order of all its streams.
    fn enqueue(
        &self,
        driver: &'static Driver,
        context: &Arc<Context>,
        work: Work,
        mut dependencies: Vec<Arc<Completion>>,
    ) -> Result<Arc<Completion>> {
        let completion = Arc::new(Completion::default());
        let after = driver.machine.now();
        let state = lock(&self.context.state);
        match self.kind {
            StreamKind::Legacy => {
                let others = state.streams.iter().filter(|stream| stream.is_blocking());
                dependencies.extend(others.filter_map(|stream| stream.last()));
            }
            StreamKind::Blocking | StreamKind::PerThread => {
                dependencies.extend(state.legacy.as_ref().and_then(|legacy| legacy.last()));
            }
            StreamKind::NonBlocking | StreamKind::Branch => {}
        }
        if let Work::Kernel(_) = &work {
            let mut pending = lock(&driver.devices[context.device].pending);
            pending.retain(|kernel| !kernel.is_done());
            pending.push(completion.clone());
        }
        let operation =
            Operation { context: context.clone(), work, dependencies, after, completion: completion.clone() };
        let mut queue = lock(&self.queue);
        queue.last = Some(completion.clone());
        queue.operations.push_back(operation);
        if !queue.has_worker {
            let this = self.this.upgrade().ok_or(Code::INVALID_HANDLE)?;
            let name = "softcuda stream".to_owned();
            let worker = std::thread::Builder::new().name(name).spawn(move || this.work(driver));
            if worker.is_err() {
                queue.operations.pop_back();
                completion.finish(driver.machine.now());
                return Err(Code::OPERATING_SYSTEM);
            }
            queue.has_worker = true;
        }
        drop(queue);
        drop(state);
        self.changed.notify_one();
        Ok(completion)
    }

    /// Gives the stream an operation, or the graph that it is capturing.
    pub(crate) fn submit(&self, driver: &'static Driver, work: Work) -> Result<Submitted> {
        if driver.capture_count.load(Ordering::Acquire) > 0 {
            if let Some(capture) = lock(&self.capture).clone() {
                return capture.add(self, work).map(|()| Submitted::Captured);
            }
            if self.kind == StreamKind::Legacy {
                crate::capture::check_legacy(driver, &self.context)?;
            }
        }
        self.enqueue(driver, &self.context, work, Vec::new()).map(Submitted::Queued)
    }

    /// Gives the stream an operation of a graph, in the context of the operation.
    pub(crate) fn submit_node(
        &self,
        driver: &'static Driver,
        context: &Arc<Context>,
        work: Work,
        dependencies: Vec<Arc<Completion>>,
    ) -> Result<Arc<Completion>> {
        self.enqueue(driver, context, work, dependencies)
    }

    /// Makes what comes later wait for an operation of another stream.
    pub(crate) fn wait_for(&self, driver: &'static Driver, completion: Arc<Completion>) -> Result {
        self.enqueue(driver, &self.context, Work::Mark, vec![completion]).map(drop)
    }

    /// Waits for all that the stream has been given.
    pub(crate) fn synchronise(&self, driver: &'static Driver) -> Result {
        let last = if self.kind == StreamKind::Legacy {
            Some(self.enqueue(driver, &self.context, Work::Mark, Vec::new())?)
        } else {
            self.last()
        };
        if let Some(last) = last {
            driver.machine.join(&last.wait().moment);
        }
        driver.check(&self.context)
    }

    fn next(&self) -> Option<Operation> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(operation) = queue.operations.pop_front() {
                return Some(operation);
            }
            if queue.is_closing {
                queue.has_worker = false;
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self, driver: &'static Driver) {
        driver.machine.own_clock();
        while let Some(operation) = self.next() {
            for dependency in &operation.dependencies {
                driver.machine.join(&dependency.wait().moment);
            }
            driver.machine.join(&operation.after);
            if driver.check(&operation.context).is_ok() {
                // A panic would be a fault of this crate; whoever waits must hear of it all the same.
                let run = || run(driver, &operation.context, &operation.work);
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
                let error =
                    result.unwrap_or_else(|_| Err(Failure { code: 999, text: "softcuda itself failed".into() }));
                if let Err(Failure { code, text }) = error {
                    if !text.is_empty() {
                        driver.say_fault(&text);
                    }
                    driver.fail(&operation.context, code);
                }
            }
            operation.completion.finish(driver.machine.now());
        }
        driver.machine.forget_this_thread();
    }
}

/// What became of an operation that was submitted.
pub(crate) enum Submitted {
    Queued(Arc<Completion>),
    Captured,
}

/// How an operation went wrong.
pub(crate) struct Failure {
    pub(crate) code: i32,
    /// What is said about it; nothing if that has been said.
    pub(crate) text: String,
}

fn run(driver: &'static Driver, context: &Arc<Context>, work: &Work) -> std::result::Result<(), Failure> {
    match work {
        Work::Mark => Ok(()),
        Work::Kernel(launch) => crate::launch::run(driver, context, launch),
        Work::Copy(copy) => crate::memory::run_copy(driver, context, copy),
        Work::Fill(fill) => crate::memory::run_fill(driver, context, fill),
        Work::HostFunction(callback) => {
            // Whatever the callback tells the host, it tells that the stream has come so far.
            driver.machine.tell_hosts(&driver.machine.now());
            crate::ffi::raw::call(callback);
            Ok(())
        }
        Work::Free(address) => {
            crate::memory::free_pooled(driver, *address);
            Ok(())
        }
    }
}

/// `cuStreamCreateWithPriority`.
pub(crate) fn create(flags: u32, priority: i32) -> Result<u64> {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let driver = driver()?;
    let context = driver.current()?;
    let kind = if flags == 1 { StreamKind::NonBlocking } else { StreamKind::Blocking };
    let stream = Stream::new(driver, &context, kind, flags, priority.clamp(-5, 0));
    {
        let mut state = lock(&context.state);
        state.streams.retain(|other| !other.is_over());
        state.streams.push(stream.clone());
    }
    lock(&driver.tables).streams.insert(stream.handle, stream.clone());
    Ok(stream.handle)
}

/// `cuStreamDestroy`.
pub(crate) fn destroy(handle: u64) -> Result {
    let driver = driver()?;
    if handle <= 2 {
        return Err(Code::INVALID_HANDLE);
    }
    let stream = driver.stream(handle)?;
    if let Some(capture) = lock(&stream.capture).take() {
        capture.invalidate();
    }
    lock(&driver.tables).streams.remove(&handle);
    // What it has been given goes on, and the legacy stream must wait for it still: the context keeps it until then.
    stream.close();
    Ok(())
}

/// `cuStreamSynchronize`.
pub(crate) fn synchronise(handle: u64) -> Result {
    let driver = driver()?;
    let stream = driver.stream(handle)?;
    crate::capture::check_synchronisation(driver, &stream)?;
    stream.synchronise(driver)
}

/// `cuStreamQuery`.
pub(crate) fn query(handle: u64) -> Result {
    let driver = driver()?;
    let stream = driver.stream(handle)?;
    crate::capture::check_synchronisation(driver, &stream)?;
    let waits: Vec<Arc<Completion>> = if stream.kind == StreamKind::Legacy {
        let state = lock(&stream.context.state);
        let all = state.streams.iter().filter(|other| other.is_blocking() || other.kind == StreamKind::Legacy);
        all.filter_map(|other| other.last()).collect()
    } else {
        stream.last().into_iter().collect()
    };
    for last in waits {
        match last.done() {
            Some(done) => driver.machine.join(&done.moment),
            None => return Err(Code::NOT_READY),
        }
    }
    driver.check(&stream.context)
}

/// `cuStreamWaitEvent`.
pub(crate) fn wait_event(stream: u64, event: u64) -> Result {
    let driver = driver()?;
    let stream = driver.stream(stream)?;
    let event = driver.event(event)?;
    let recorded = lock(&event.recorded).clone();
    if driver.capture_count.load(Ordering::Acquire) > 0 {
        let capturing = lock(&stream.capture).clone();
        match (&recorded, capturing) {
            (Recorded::Captured(at), capturing) => return crate::capture::join(&stream, at, capturing),
            (Recorded::Completion(_), Some(capture)) => {
                capture.invalidate();
                return Err(Code::STREAM_CAPTURE_ISOLATION);
            }
            (Recorded::Never, Some(_)) => return Ok(()),
            (_, None) => {}
        }
    }
    match recorded {
        Recorded::Never => Ok(()),
        Recorded::Completion(completion) => stream.wait_for(driver, completion),
        Recorded::Captured(_) => Err(Code::CAPTURED_EVENT),
    }
}

/// `cuEventCreate`.
pub(crate) fn create_event(flags: u32) -> Result<u64> {
    if flags & !7 != 0 || (flags & 4 != 0 && flags & 2 == 0) {
        return Err(Code::INVALID_VALUE);
    }
    let driver = driver()?;
    let context = driver.current()?;
    let handle = driver.new_handle(HandleKind::Event);
    let event = Event { context, flags, recorded: Mutex::default() };
    lock(&driver.tables).events.insert(handle, Arc::new(event));
    Ok(handle)
}

/// `cuEventDestroy`.
pub(crate) fn destroy_event(handle: u64) -> Result {
    let driver = driver()?;
    driver.event(handle)?;
    lock(&driver.tables).events.remove(&handle);
    Ok(())
}

/// `cuEventRecord`.
pub(crate) fn record(event: u64, stream: u64) -> Result {
    let driver = driver()?;
    let stream = driver.stream(stream)?;
    let event = driver.event(event)?;
    if !Arc::ptr_eq(&event.context, &stream.context) {
        return Err(Code::INVALID_HANDLE);
    }
    if driver.capture_count.load(Ordering::Acquire) > 0
        && let Some(capture) = lock(&stream.capture).clone()
    {
        let at = capture.position(&stream)?;
        *lock(&event.recorded) = Recorded::Captured(at);
        return Ok(());
    }
    match stream.submit(driver, Work::Mark)? {
        Submitted::Queued(completion) => *lock(&event.recorded) = Recorded::Completion(completion),
        Submitted::Captured => {}
    }
    Ok(())
}

/// `cuEventQuery` and `cuEventSynchronize`.
pub(crate) fn reach_event(handle: u64, waits: bool) -> Result {
    let driver = driver()?;
    let event = driver.event(handle)?;
    let recorded = lock(&event.recorded).clone();
    match recorded {
        Recorded::Never => Ok(()),
        Recorded::Captured(at) => {
            at.invalidate();
            Err(Code::CAPTURED_EVENT)
        }
        Recorded::Completion(completion) => {
            crate::capture::check_unsafe_call(driver)?;
            if !waits && !completion.is_done() {
                return Err(Code::NOT_READY);
            }
            driver.machine.join(&completion.wait().moment);
            driver.check(&event.context)
        }
    }
}

/// `cuEventElapsedTime`, in milliseconds.
pub(crate) fn elapsed(start: u64, end: u64) -> Result<f32> {
    let driver = driver()?;
    let (start, end) = (driver.event(start)?, driver.event(end)?);
    if !Arc::ptr_eq(&start.context, &end.context) {
        return Err(Code::INVALID_HANDLE);
    }
    let time = |event: &Event| {
        if event.flags & 2 != 0 {
            return Err(Code::INVALID_HANDLE);
        }
        match &*lock(&event.recorded) {
            Recorded::Completion(completion) => completion.done().map(|done| done.at).ok_or(Code::NOT_READY),
            Recorded::Never | Recorded::Captured(_) => Err(Code::INVALID_HANDLE),
        }
    };
    let (start, end) = (time(&start)?, time(&end)?);
    let signed = match end.checked_duration_since(start) {
        Some(later) => later.as_secs_f64(),
        None => -start.duration_since(end).as_secs_f64(),
    };
    Ok((signed * 1e3) as f32)
}

/// `cuCtxSynchronize`.
pub(crate) fn synchronise_context() -> Result {
    let driver = driver()?;
    let context = driver.current()?;
    crate::capture::check_context(driver, &context)?;
    let lasts: Vec<Arc<Completion>> = lock(&context.state).streams.iter().filter_map(|stream| stream.last()).collect();
    for last in lasts {
        driver.machine.join(&last.wait().moment);
    }
    driver.check(&context)
}
