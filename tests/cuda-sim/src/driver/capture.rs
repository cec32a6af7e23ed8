//! The recording of work into a graph.

use std::thread::ThreadId;

use super::Driver;
use super::queue::Op;
use super::state::Context;
use super::stream::LEGACY;
use crate::code::Code;

/// Which calls that may synchronise are refused during a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// Those of every thread.
    Global,
    /// Those of the thread that captures.
    ThreadLocal,
    /// None.
    Relaxed,
}

/// A capture under way.
pub(super) struct Capture {
    pub(super) origin: usize,
    pub(super) mode: Mode,
    pub(super) thread: ThreadId,
    /// The work, in the order in which it was asked for, which keeps every dependency.
    pub(super) ops: Vec<Op>,
    /// Streams that joined, and whether another stream has waited for all of their work.
    pub(super) joined: Vec<(usize, bool)>,
    pub(super) broken: bool,
}

impl Capture {
    /// Records work of a stream.
    pub(super) fn add(&mut self, stream: usize, op: Op) -> Result<(), Code> {
        if self.broken {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        // A release is kept out of graphs: it would be the program's, once a launch.
        if matches!(op, Op::Free(_) | Op::Graph(_)) {
            self.broken = true;
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        self.ops.push(op);
        if let Some((_, known)) = self.joined.iter_mut().find(|(joined, _)| *joined == stream) {
            *known = false;
        }
        Ok(())
    }
}

impl Context {
    pub(super) fn capture(&mut self, id: usize) -> Result<&mut Capture, Code> {
        self.captures.get_mut(&id).ok_or(Code::STREAM_CAPTURE_INVALIDATED)
    }

    /// Work in the legacy stream would wait for a blocking stream that records.
    pub(super) fn refuse_legacy_while_capturing(&mut self) -> Result<(), Code> {
        let blocking = self
            .streams
            .values()
            .find(|stream| stream.capture.is_some() && !stream.non_blocking);
        let Some(id) = blocking.and_then(|stream| stream.capture) else {
            return Ok(());
        };
        self.capture(id)?.broken = true;
        Err(Code::STREAM_CAPTURE_IMPLICIT)
    }
}

impl Driver {
    /// Refuses what a stream that records cannot do, which also breaks the capture.
    pub(super) fn refuse_capture(&mut self, stream: usize) -> Result<(), Code> {
        let context = self.context()?;
        let Some(id) = context.stream(stream)?.capture else {
            return Ok(());
        };
        context.capture(id)?.broken = true;
        Err(Code::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses a call that may synchronise where a capture forbids it.
    pub(super) fn refuse_while_capturing(&mut self) -> Result<(), Code> {
        let thread = std::thread::current().id();
        let context = self.context()?;
        let forbids = |capture: &&mut Capture| match capture.mode {
            Mode::Global => true,
            Mode::ThreadLocal => capture.thread == thread,
            Mode::Relaxed => false,
        };
        let Some(capture) = context.captures.values_mut().find(forbids) else {
            return Ok(());
        };
        capture.broken = true;
        Err(Code::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// A wait of `stream` for an event that was recorded in stream `from` of capture `id`: the stream joins.
    pub(super) fn wait_captured(&mut self, stream: usize, id: usize, from: usize) -> Result<(), Code> {
        let context = self.context()?;
        let state = context.stream(stream)?;
        match state.capture {
            Some(own) if own != id => return Err(Code::STREAM_CAPTURE_MERGE),
            Some(_) => {
                let joined = &mut context.capture(id)?.joined;
                if let Some((_, known)) = joined
                    .iter_mut()
                    .find(|(joined, _)| *joined == from && from != stream)
                {
                    *known = true;
                }
            }
            None if stream == LEGACY => return Err(Code::STREAM_CAPTURE_IMPLICIT),
            None => {
                state.capture = Some(id);
                context.capture(id)?.joined.push((stream, false));
            }
        }
        Ok(())
    }

    /// Begins to record a stream.
    pub(super) fn begin_capture(&mut self, stream: usize, mode: Mode) -> Result<(), Code> {
        let id = self.handle();
        let context = self.context()?;
        if stream <= 2 {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let state = context.stream(stream)?;
        if state.capture.is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        state.capture = Some(id);
        let thread = std::thread::current().id();
        let capture = Capture {
            origin: stream,
            mode,
            thread,
            ops: Vec::new(),
            joined: Vec::new(),
            broken: false,
        };
        context.captures.insert(id, capture);
        Ok(())
    }

    /// Ends the recording of a stream; the work.
    pub(super) fn end_capture(&mut self, stream: usize) -> Result<Vec<Op>, Code> {
        let context = self.context()?;
        let id = context.stream(stream)?.capture.ok_or(Code::ILLEGAL_STATE)?;
        let capture = context.capture(id)?;
        if capture.origin != stream || stream == LEGACY {
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let Some(capture) = context.captures.remove(&id) else {
            return Err(Code::UNKNOWN);
        };
        for stream in context
            .streams
            .values_mut()
            .filter(|stream| stream.capture == Some(id))
        {
            stream.capture = None;
        }
        for event in context
            .events
            .values_mut()
            .filter(|event| event.captured.is_some_and(|(of, _)| of == id))
        {
            event.captured = None;
        }
        if capture.broken {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        if capture.joined.iter().any(|(_, known)| !known) {
            return Err(Code::STREAM_CAPTURE_UNJOINED);
        }
        Ok(capture.ops)
    }
}
