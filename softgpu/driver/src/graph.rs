//! Graphs: what was captured, and how it is launched again.
//!
//! A launch gives each node to a stream: those of the stream on which the capture began to the stream on which the graph is launched,
//! those of every other stream to a branch of the graph's own. So branches run at once, as they did when they were captured.

use std::sync::{Arc, Mutex};

use crate::code::{Code, Result};
use crate::driver::{Context, HandleKind, driver, lock};
use crate::stream::{Completion, Stream, StreamKind, Work};

/// One operation of a graph.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) handle: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) work: Work,
    pub(crate) dependencies: Vec<usize>,
    /// Which of the streams it was captured from.
    pub(crate) branch: usize,
}

/// A graph: its nodes, each after those that it depends on.
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
}

/// A graph that can be launched.
pub(crate) struct GraphExec {
    nodes: Vec<Node>,
    branches: Vec<Arc<Stream>>,
    /// The end of its last launch: a graph runs once at a time.
    last: Mutex<Vec<Arc<Completion>>>,
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        for branch in &self.branches {
            branch.close();
        }
    }
}

impl Graph {
    pub(crate) fn new(nodes: Vec<Node>) -> Graph {
        Graph { nodes }
    }
}

/// `cuGraphCreate`: an empty one.
pub(crate) fn create() -> Result<u64> {
    let driver = driver()?;
    let handle = driver.new_handle(HandleKind::Graph);
    lock(&driver.tables).graphs.insert(handle, Arc::new(Graph::new(Vec::new())));
    Ok(handle)
}

/// The graph of a handle.
pub(crate) fn graph(handle: u64) -> Result<Arc<Graph>> {
    lock(&driver()?.tables).graphs.get(&handle).cloned().ok_or(Code::INVALID_VALUE)
}

/// `cuGraphDestroy`.
pub(crate) fn destroy(handle: u64) -> Result {
    lock(&driver()?.tables).graphs.remove(&handle).map(drop).ok_or(Code::INVALID_VALUE)
}

/// `cuGraphInstantiate`.
pub(crate) fn instantiate(handle: u64) -> Result<u64> {
    let driver = driver()?;
    let context = driver.current()?;
    let graph = graph(handle)?;
    let count = graph.nodes.iter().map(|node| node.branch).max().unwrap_or(0);
    let branches = (0..count).map(|_| Stream::new(driver, &context, StreamKind::Branch, 1, 0)).collect();
    let handle = driver.new_handle(HandleKind::GraphExec);
    let exec = GraphExec { nodes: graph.nodes.clone(), branches, last: Mutex::default() };
    lock(&driver.tables).graph_execs.insert(handle, Arc::new(exec));
    Ok(handle)
}

fn exec(handle: u64) -> Result<Arc<GraphExec>> {
    lock(&driver()?.tables).graph_execs.get(&handle).cloned().ok_or(Code::INVALID_VALUE)
}

/// `cuGraphExecDestroy`. What has been launched goes on.
pub(crate) fn destroy_exec(handle: u64) -> Result {
    lock(&driver()?.tables).graph_execs.remove(&handle).map(drop).ok_or(Code::INVALID_VALUE)
}

/// `cuGraphUpload`: nothing is to be done.
pub(crate) fn upload(handle: u64, stream: u64) -> Result {
    let driver = driver()?;
    driver.stream(stream)?;
    exec(handle).map(drop)
}

/// `cuGraphLaunch`.
pub(crate) fn launch(handle: u64, stream: u64) -> Result {
    let driver = driver()?;
    let stream = driver.stream(stream)?;
    let exec = exec(handle)?;
    crate::capture::check_not_capturing(driver, &stream)?;
    if stream.kind == StreamKind::Legacy {
        crate::capture::check_legacy(driver, &stream.context)?;
    }
    for node in &exec.nodes {
        driver.check(&node.context)?;
    }
    let mut last = lock(&exec.last);
    // All of the graph comes after what the stream has been given, and after the graph's launch before.
    let begin = stream.submit_node(driver, &stream.context, Work::Mark, std::mem::take(&mut last))?;
    let mut ends: Vec<Arc<Completion>> = Vec::with_capacity(exec.nodes.len());
    let mut is_end = vec![true; exec.nodes.len()];
    for node in &exec.nodes {
        let mut dependencies: Vec<Arc<Completion>> =
            node.dependencies.iter().map(|&before| ends[before].clone()).collect();
        for &before in &node.dependencies {
            is_end[before] = false;
        }
        let on = match node.branch.checked_sub(1) {
            None => &stream,
            Some(branch) => {
                if dependencies.is_empty() {
                    dependencies.push(begin.clone());
                }
                &exec.branches[branch]
            }
        };
        ends.push(on.submit_node(driver, &node.context, node.work.clone(), dependencies)?);
    }
    let rest = ends.into_iter().zip(is_end).filter(|(_, is_end)| *is_end).map(|(end, _)| end).collect();
    *last = vec![stream.submit_node(driver, &stream.context, Work::Mark, rest)?];
    Ok(())
}

/// The handles of a graph's nodes.
pub(crate) fn node_handles(handle: u64) -> Result<Vec<u64>> {
    Ok(graph(handle)?.nodes.iter().map(|node| node.handle).collect())
}
