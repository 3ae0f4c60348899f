//! Stream capture and graphs.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use super::raw::Out;
use super::{Handle, functions};
use crate::code::Code;
use crate::{capture, graph};

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GraphInstantiateParams {
    /// Flags.
    pub flags: u64,
    /// A stream for uploading.
    pub upload_stream: Handle,
    /// The node that went wrong.
    pub error_node: Handle,
    /// What went wrong.
    pub result: c_int,
}

fn capture_information(stream: Handle, status: Out<c_int>, id: Out<u64>, graph: Out<Handle>) -> crate::code::Result {
    status.check()?;
    let found = capture::information(stream)?;
    status.put(found.status)?;
    if found.status != 0 {
        id.put_if(found.id);
        graph.put_if(found.graph);
    }
    Ok(())
}

functions! { list:
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) {
        capture::begin(stream, mode)
    }
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        graph.check()?;
        graph.put(0)?;
        graph.put(capture::end(stream)?)
    }
    fn cuStreamIsCapturing(stream: Handle, status: Out<c_int>) {
        status.check()?;
        status.put(capture::information(stream)?.status)
    }
    fn cuStreamGetCaptureInfo(stream: Handle, status: Out<c_int>, id: Out<u64>) {
        capture_information(stream, status, id, Out::NULL)
    }
    fn cuStreamGetCaptureInfo_v2(
        stream: Handle, status: Out<c_int>, id: Out<u64>, graph: Out<Handle>, nodes: Out<Out<Handle>>,
        node_count: Out<usize>
    ) {
        nodes.put_if(Out::NULL);
        node_count.put_if(0);
        capture_information(stream, status, id, graph)
    }
    fn cuStreamGetCaptureInfo_v3(
        stream: Handle, status: Out<c_int>, id: Out<u64>, graph: Out<Handle>, nodes: Out<Out<Handle>>,
        edges: Out<Out<c_void>>, node_count: Out<usize>
    ) {
        nodes.put_if(Out::NULL);
        edges.put_if(Out::NULL);
        node_count.put_if(0);
        capture_information(stream, status, id, graph)
    }
    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        let new = mode.get().ok_or(Code::INVALID_VALUE)?;
        mode.put(capture::exchange_mode(new)?)
    }
    fn cuGraphCreate(graph: Out<Handle>, flags: c_uint) {
        graph.check()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        graph.put(graph::create()?)
    }
    fn cuGraphInstantiate_v2(
        exec: Out<Handle>, graph: Handle, _error_node: Out<Handle>, log: Out<c_char>, log_bytes: usize
    ) {
        exec.check()?;
        log.put_text(b"", log_bytes);
        exec.put(graph::instantiate(graph)?)
    }
    fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, _flags: c_ulonglong) {
        exec.check()?;
        exec.put(graph::instantiate(graph)?)
    }
    fn cuGraphInstantiateWithParams(exec: Out<Handle>, graph: Handle, parameters: Out<GraphInstantiateParams>) {
        exec.check()?;
        let given = parameters.get().ok_or(Code::INVALID_VALUE)?;
        exec.put(graph::instantiate(graph)?)?;
        parameters.put(GraphInstantiateParams { error_node: 0, result: 0, ..given })
    }
    fn cuGraphUpload(exec: Handle, stream: Handle) {
        graph::upload(exec, stream)
    }
    fn cuGraphLaunch(exec: Handle, stream: Handle) {
        graph::launch(exec, stream)
    }
    fn cuGraphExecDestroy(exec: Handle) {
        graph::destroy_exec(exec)
    }
    fn cuGraphDestroy(graph: Handle) {
        graph::destroy(graph)
    }
    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let capacity = count.get().ok_or(Code::INVALID_VALUE)?;
        let handles = graph::node_handles(graph)?;
        if nodes.check().is_ok() {
            for at in 0..capacity {
                nodes.add(at).put_if(handles.get(at).copied().unwrap_or(0));
            }
            return count.put(handles.len().min(capacity));
        }
        count.put(handles.len())
    }
}
