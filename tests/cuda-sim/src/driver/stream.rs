//! Streams.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};

use super::Driver;
use super::pointer::put;
use super::queue::{HostFunction, Op};
use super::state::Context;
use crate::code::Code;

/// The default stream that other streams wait for.
pub(super) const LEGACY: usize = 0;

/// A stream. Its work is numbered from 1 in the order in which it was asked for.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) non_blocking: bool,
    pub(super) priority: c_int,
    pub(super) queue: VecDeque<Op>,
    pub(super) submitted: u64,
    pub(super) done: u64,
    /// The capture that takes its work.
    pub(super) capture: Option<usize>,
}

/// A place in a stream's work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub(super) stream: usize,
    pub(super) place: u64,
}

impl Context {
    /// The stream with a handle; 0 and 1 name the legacy stream.
    pub(super) fn stream(&mut self, handle: usize) -> Result<&mut Stream, Code> {
        match handle {
            2 => Err(Code::NOT_SUPPORTED),
            _ => self.streams.get_mut(&legacy(handle)).ok_or(Code::INVALID_HANDLE),
        }
    }

    /// The end of a stream's work as it is now.
    pub(super) fn end(&mut self, handle: usize) -> Result<Mark, Code> {
        let place = self.stream(handle)?.submitted;
        Ok(Mark {
            stream: legacy(handle),
            place,
        })
    }

    /// Whether all work before `mark` is done.
    pub(super) fn is_done(&self, mark: Mark) -> bool {
        self.streams
            .get(&mark.stream)
            .is_none_or(|stream| stream.done >= mark.place)
    }
}

fn legacy(handle: usize) -> usize {
    if handle == 1 { LEGACY } else { handle }
}

impl Driver {
    fn create(&mut self, stream: *mut usize, flags: c_uint, priority: c_int) -> Result<(), Code> {
        self.context()?;
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let handle = self.handle();
        let made = Stream {
            non_blocking: flags == 1,
            priority: priority.clamp(-5, 0),
            ..Stream::default()
        };
        self.context()?.streams.insert(handle, made);
        put(stream, handle)
    }
}

api! {
    /// Makes a stream; flag 1: the legacy stream does not wait for it.
    fn cuStreamCreate(stream: *mut usize, flags: c_uint) |d| {
        d.create(stream, flags, 0)
    }

    /// The same with a priority, which makes no difference here.
    fn cuStreamCreateWithPriority(stream: *mut usize, flags: c_uint, priority: c_int) |d| {
        d.create(stream, flags, priority)
    }

    /// Destroys a stream; its work is done first.
    fn cuStreamDestroy_v2(stream: usize) |d| {
        let context = d.context()?;
        if stream <= 2 {
            return Err(Code::INVALID_HANDLE);
        }
        let end = context.end(stream)?;
        if let Some(capture) = context.stream(stream)?.capture {
            context.captures.remove(&capture);
            context.streams.values_mut().filter(|other| other.capture == Some(capture)).for_each(|other| {
                other.capture = None;
            });
        }
        d.drain(end);
        if let Some(context) = &mut d.context {
            context.streams.remove(&stream);
        }
        Ok(())
    }

    /// Waits for a stream's work.
    fn cuStreamSynchronize(stream: usize) |d| {
        let end = d.context()?.end(stream)?;
        d.refuse_capture(stream)?;
        if end.stream == LEGACY {
            d.context()?.refuse_legacy_while_capturing()?;
            d.drain_blocking();
        }
        d.drain(end);
        d.context()?.trim_pools();
        Ok(())
    }

    /// Whether a stream's work is done. A little of it is done at each call, so that polling ends.
    fn cuStreamQuery(stream: usize) |d| {
        let end = d.context()?.end(stream)?;
        d.refuse_capture(stream)?;
        d.advance(end);
        if d.context()?.is_done(end) { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// A stream's flags.
    fn cuStreamGetFlags(stream: usize, flags: *mut c_uint) |d| {
        put(flags, d.context()?.stream(stream)?.non_blocking as c_uint)
    }

    /// A stream's priority.
    fn cuStreamGetPriority(stream: usize, priority: *mut c_int) |d| {
        put(priority, d.context()?.stream(stream)?.priority)
    }

    /// Calls a function of the program in stream order; it may not call the driver.
    fn cuLaunchHostFunc(stream: usize, function: Option<HostFunction>, data: *mut c_void) |d| {
        let run = function.ok_or(Code::INVALID_VALUE)?;
        d.submit(stream, Op::Host { run, data: data as usize })
    }
}
