//! Stream capture: what streams are given becomes a graph, and what may not be done meanwhile.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use crate::code::{Code, Result};
use crate::driver::{Context, Driver, HandleKind, driver, lock};
use crate::graph::{Graph, Node};
use crate::stream::{Stream, StreamKind, Work};

/// How far a capture forbids calls that could disturb it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    pub(crate) fn new(number: i32) -> Result<Mode> {
        match number {
            0 => Ok(Mode::Global),
            1 => Ok(Mode::ThreadLocal),
            2 => Ok(Mode::Relaxed),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

thread_local! {
    static INTERACTION: std::cell::Cell<Mode> = const { std::cell::Cell::new(Mode::Global) };
}

/// A capture in progress.
pub(crate) struct Capture {
    pub(crate) id: u64,
    origin: Arc<Stream>,
    mode: Mode,
    thread: ThreadId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    graph: u64,
    nodes: Vec<Node>,
    /// Streams that take part, in the order in which they came in, and what comes last in each.
    tips: Vec<(Arc<Stream>, Vec<usize>)>,
    branches: HashMap<u64, usize>,
    is_invalid: bool,
    is_over: bool,
}

/// A point in a capture: an event.
#[derive(Clone)]
pub(crate) struct CapturedAt {
    capture: Arc<Capture>,
    nodes: Vec<usize>,
}

impl CapturedAt {
    pub(crate) fn invalidate(&self) {
        self.capture.invalidate();
    }
}

impl Capture {
    /// What went wrong spoils the graph.
    pub(crate) fn invalidate(&self) {
        lock(&self.state).is_invalid = true;
    }

    fn is_valid(&self) -> bool {
        !lock(&self.state).is_invalid
    }

    /// Adds a node after all that the stream has been given.
    pub(crate) fn add(&self, stream: &Stream, work: Work) -> Result {
        let mut state = lock(&self.state);
        if state.is_invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let at = state.nodes.len();
        let branch = state.branches.get(&stream.id).copied().unwrap_or(0);
        let Some(tip) = state.tips.iter_mut().find(|tip| tip.0.id == stream.id) else { return Err(Code::UNKNOWN) };
        let dependencies = std::mem::replace(&mut tip.1, vec![at]);
        let driver = driver()?;
        state.nodes.push(Node {
            handle: driver.new_handle(HandleKind::GraphNode),
            context: stream.context.clone(),
            work,
            dependencies,
            branch,
        });
        Ok(())
    }

    /// Where the stream is.
    pub(crate) fn position(self: &Arc<Capture>, stream: &Stream) -> Result<CapturedAt> {
        let state = lock(&self.state);
        if state.is_invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        let tip = state.tips.iter().find(|tip| tip.0.id == stream.id).ok_or(Code::UNKNOWN)?;
        Ok(CapturedAt { capture: self.clone(), nodes: tip.1.clone() })
    }
}

/// Whether a stream is capturing.
pub(crate) fn is_capturing(driver: &Driver, stream: &Stream) -> bool {
    driver.capture_count.load(Ordering::Acquire) > 0 && lock(&stream.capture).is_some()
}

/// A stream waits for an event of a capture, and is of the capture from then on.
pub(crate) fn join(stream: &Arc<Stream>, at: &CapturedAt, capturing: Option<Arc<Capture>>) -> Result {
    let mut state = lock(&at.capture.state);
    if state.is_over {
        return Err(Code::CAPTURED_EVENT);
    }
    if stream.kind == StreamKind::Legacy {
        state.is_invalid = true;
        return Err(Code::STREAM_CAPTURE_IMPLICIT);
    }
    if let Some(other) = capturing.filter(|other| !Arc::ptr_eq(other, &at.capture)) {
        state.is_invalid = true;
        drop(state);
        other.invalidate();
        return Err(Code::STREAM_CAPTURE_MERGE);
    }
    if state.is_invalid {
        return Err(Code::STREAM_CAPTURE_INVALIDATED);
    }
    match state.tips.iter_mut().find(|tip| tip.0.id == stream.id) {
        Some(tip) => {
            for &node in &at.nodes {
                if !tip.1.contains(&node) {
                    tip.1.push(node);
                }
            }
        }
        None => {
            let branch = state.tips.len();
            state.branches.insert(stream.id, branch);
            state.tips.push((stream.clone(), at.nodes.clone()));
            *lock(&stream.capture) = Some(at.capture.clone());
        }
    }
    Ok(())
}

/// Nothing may synchronise with, or ask about, a stream that captures.
pub(crate) fn check_synchronisation(driver: &Driver, stream: &Stream) -> Result {
    if driver.capture_count.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    if let Some(capture) = lock(&stream.capture).clone() {
        capture.invalidate();
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    if stream.kind == StreamKind::Legacy {
        check_legacy(driver, &stream.context)?;
    }
    check_unsafe_call(driver)
}

/// What a stream that captures cannot take at all.
pub(crate) fn check_not_capturing(driver: &Driver, stream: &Stream) -> Result {
    if is_capturing(driver, stream) {
        if let Some(capture) = lock(&stream.capture).clone() {
            capture.invalidate();
        }
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    Ok(())
}

/// The legacy stream would have to wait for a blocking stream that captures.
pub(crate) fn check_legacy(driver: &Driver, context: &Arc<Context>) -> Result {
    if driver.capture_count.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let mut is_implied = false;
    for capture in lock(&driver.captures).iter() {
        let mut state = lock(&capture.state);
        let implied = state.tips.iter().any(|(stream, _)| {
            Arc::ptr_eq(&stream.context, context) && matches!(stream.kind, StreamKind::Blocking | StreamKind::PerThread)
        });
        if implied {
            state.is_invalid = true;
            is_implied = true;
        }
    }
    if is_implied { Err(Code::STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
}

/// Nothing may wait for a context in which a stream captures.
pub(crate) fn check_context(driver: &Driver, context: &Arc<Context>) -> Result {
    if driver.capture_count.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let mut is_in_use = false;
    for capture in lock(&driver.captures).iter() {
        let mut state = lock(&capture.state);
        if state.tips.iter().any(|(stream, _)| Arc::ptr_eq(&stream.context, context)) {
            state.is_invalid = true;
            is_in_use = true;
        }
    }
    if is_in_use { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { check_unsafe_call(driver) }
}

/// Calls that could disturb a capture are forbidden as `cuThreadExchangeStreamCaptureMode` documents it.
pub(crate) fn check_unsafe_call(driver: &Driver) -> Result {
    if driver.capture_count.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let own = INTERACTION.get();
    if own == Mode::Relaxed {
        return Ok(());
    }
    let thread = std::thread::current().id();
    let mut is_forbidden = false;
    for capture in lock(&driver.captures).iter() {
        let here = capture.thread == thread && capture.mode != Mode::Relaxed;
        let elsewhere = own == Mode::Global && capture.mode == Mode::Global;
        if here || elsewhere {
            capture.invalidate();
            is_forbidden = true;
        }
    }
    if is_forbidden { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

/// `cuThreadExchangeStreamCaptureMode`: answers the mode before.
pub(crate) fn exchange_mode(mode: i32) -> Result<i32> {
    driver()?;
    Ok(INTERACTION.replace(Mode::new(mode)?) as i32)
}

/// `cuStreamBeginCapture`.
pub(crate) fn begin(handle: u64, mode: i32) -> Result {
    let driver = driver()?;
    let mode = Mode::new(mode)?;
    let stream = driver.stream(handle)?;
    if stream.kind == StreamKind::Legacy {
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut own = lock(&stream.capture);
    if own.is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    let capture = Arc::new(Capture {
        id: driver.next_number(),
        origin: stream.clone(),
        mode,
        thread: std::thread::current().id(),
        state: Mutex::new(State {
            graph: driver.new_handle(HandleKind::Graph),
            tips: vec![(stream.clone(), Vec::new())],
            branches: HashMap::from([(stream.id, 0)]),
            ..State::default()
        }),
    });
    *own = Some(capture.clone());
    drop(own);
    lock(&driver.captures).push(capture);
    driver.capture_count.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// `cuStreamEndCapture`: the graph.
pub(crate) fn end(handle: u64) -> Result<u64> {
    let driver = driver()?;
    let stream = driver.stream(handle)?;
    let capture = lock(&stream.capture).clone().ok_or(Code::ILLEGAL_STATE)?;
    if !Arc::ptr_eq(&capture.origin, &stream) {
        capture.invalidate();
        return Err(Code::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
        capture.invalidate();
        return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
    }
    let (graph, nodes, tips, is_invalid) = {
        let mut state = lock(&capture.state);
        state.is_over = true;
        let tips = std::mem::take(&mut state.tips);
        (state.graph, std::mem::take(&mut state.nodes), tips, state.is_invalid)
    };
    for (stream, _) in &tips {
        *lock(&stream.capture) = None;
    }
    lock(&driver.captures).retain(|other| !Arc::ptr_eq(other, &capture));
    driver.capture_count.fetch_sub(1, Ordering::AcqRel);
    if is_invalid {
        return Err(Code::STREAM_CAPTURE_INVALIDATED);
    }
    if !is_joined(&nodes, &tips) {
        return Err(Code::STREAM_CAPTURE_UNJOINED);
    }
    lock(&driver.tables).graphs.insert(graph, Arc::new(Graph::new(nodes)));
    Ok(graph)
}

/// Whether all that the other streams were given comes before where the first one is.
fn is_joined(nodes: &[Node], tips: &[(Arc<Stream>, Vec<usize>)]) -> bool {
    let mut before = vec![false; nodes.len()];
    let mut left: Vec<usize> = tips.first().map_or_else(Vec::new, |tip| tip.1.clone());
    while let Some(node) = left.pop() {
        if !std::mem::replace(&mut before[node], true) {
            left.extend(&nodes[node].dependencies);
        }
    }
    tips.iter().skip(1).all(|tip| tip.1.iter().all(|&node| before[node]))
}

/// What is known of a stream's capture.
pub(crate) struct Information {
    pub(crate) status: i32,
    pub(crate) id: u64,
    pub(crate) graph: u64,
}

/// `cuStreamIsCapturing` and `cuStreamGetCaptureInfo`.
pub(crate) fn information(handle: u64) -> Result<Information> {
    let driver = driver()?;
    let stream = driver.stream(handle)?;
    if stream.kind == StreamKind::Legacy {
        if driver.capture_count.load(Ordering::Acquire) > 0 {
            check_legacy(driver, &stream.context)?;
        }
        return Ok(Information { status: 0, id: 0, graph: 0 });
    }
    let capture = lock(&stream.capture).clone();
    Ok(match capture {
        None => Information { status: 0, id: 0, graph: 0 },
        Some(capture) => {
            let graph = lock(&capture.state).graph;
            Information { status: if capture.is_valid() { 1 } else { 2 }, id: capture.id, graph }
        }
    })
}
