//! Graphs: recorded work, launched as one.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::Arc;

use super::capture::Mode;
use super::pointer::put;
use super::queue::Op;
use crate::code::Code;

api! {
    /// Begins to record a stream's work. Mode 0: global, 1: thread-local, 2: relaxed.
    fn cuStreamBeginCapture_v2(stream: usize, mode: c_uint) |d| {
        let mode = match mode {
            0 => Mode::Global,
            1 => Mode::ThreadLocal,
            2 => Mode::Relaxed,
            _ => return Err(Code::INVALID_VALUE),
        };
        d.begin_capture(stream, mode)
    }

    /// Ends the recording; the graph.
    fn cuStreamEndCapture(stream: usize, graph: *mut usize) |d| {
        put(graph, 0)?;
        let ops = d.end_capture(stream)?;
        let handle = d.handle();
        d.context()?.graphs.insert(handle, ops.into());
        put(graph, handle)
    }

    /// Whether a stream records: 0 no, 1 yes, 2 yes but the recording is broken.
    fn cuStreamIsCapturing(stream: usize, status: *mut c_int) |d| {
        let context = d.context()?;
        let state = match context.stream(stream)?.capture {
            None => 0,
            Some(id) => 1 + context.capture(id)?.broken as c_int,
        };
        put(status, state)
    }

    /// Makes a graph ready to launch.
    fn cuGraphInstantiateWithFlags(executable: *mut usize, graph: usize, flags: c_ulonglong) |d| {
        // Free on launch, upload, and node priorities; launches from the device are not there.
        if flags & !(1 | 2 | 8) != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let ops: Arc<[Op]> = d.context()?.graphs.get(&graph).ok_or(Code::INVALID_HANDLE)?.clone();
        let handle = d.handle();
        d.context()?.executables.insert(handle, ops);
        put(executable, handle)
    }

    /// Launches a graph in stream order.
    fn cuGraphLaunch(executable: usize, stream: usize) |d| {
        let ops = d.context()?.executables.get(&executable).ok_or(Code::INVALID_HANDLE)?.clone();
        d.submit(stream, Op::Graph(ops))
    }

    /// Prepares a launch, for which there is nothing to do here.
    fn cuGraphUpload(executable: usize, stream: usize) |d| {
        let context = d.context()?;
        context.stream(stream)?;
        context.executables.get(&executable).map(drop).ok_or(Code::INVALID_HANDLE)
    }

    /// Destroys a graph; executables made from it stay.
    fn cuGraphDestroy(graph: usize) |d| {
        d.context()?.graphs.remove(&graph).map(drop).ok_or(Code::INVALID_HANDLE)
    }

    /// Destroys an executable; its launches are done first.
    fn cuGraphExecDestroy(executable: usize) |d| {
        d.context()?.executables.remove(&executable).map(drop).ok_or(Code::INVALID_HANDLE)
    }

    /// How many nodes a graph has; the nodes themselves have no handles here.
    fn cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) |d| {
        let length = d.context()?.graphs.get(&graph).ok_or(Code::INVALID_HANDLE)?.len();
        if !nodes.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        put(count, length)
    }
}
