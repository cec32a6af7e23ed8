//! Events.

use std::ffi::c_uint;
use std::time::Instant;

use super::Driver;
use super::pointer::put;
use super::queue::Op;
use super::stream::Mark;
use crate::code::Code;

/// An event.
#[derive(Default)]
pub(super) struct Event {
    timed: bool,
    /// What it waits for, once it was recorded.
    recorded: Option<Mark>,
    /// The capture and the stream in which it was last recorded, while that capture lasts.
    pub(super) captured: Option<(usize, usize)>,
    /// When the recorded place was last passed.
    pub(super) happened: Option<Instant>,
}

impl Driver {
    fn event(&mut self, handle: usize) -> Result<&mut Event, Code> {
        self.context()?
            .events
            .get_mut(&handle)
            .ok_or(Code::INVALID_HANDLE)
    }

    /// What an event waits for; an error for one of a capture.
    fn recorded(&mut self, handle: usize) -> Result<Option<Mark>, Code> {
        let event = self.event(handle)?;
        if event.captured.is_some() {
            Err(Code::CAPTURED_EVENT)
        } else {
            Ok(event.recorded)
        }
    }
}

api! {
    /// Makes an event; flag 2: without timing.
    fn cuEventCreate(event: *mut usize, flags: c_uint) |d| {
        d.context()?;
        if flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        let handle = d.handle();
        d.context()?.events.insert(handle, Event { timed: flags & 2 == 0, ..Event::default() });
        put(event, handle)
    }

    /// Destroys an event.
    fn cuEventDestroy_v2(event: usize) |d| {
        d.context()?.events.remove(&event).map(drop).ok_or(Code::INVALID_HANDLE)
    }

    /// Records all work of a stream so far.
    fn cuEventRecord(event: usize, stream: usize) |d| {
        d.event(event)?;
        if let Some(capture) = d.context()?.stream(stream)?.capture {
            d.event(event)?.captured = Some((capture, stream));
            return Ok(());
        }
        d.event(event)?.captured = None;
        d.event(event)?.happened = None;
        d.submit(stream, Op::Record(event))?;
        let end = d.context()?.end(stream)?;
        d.event(event)?.recorded = Some(end);
        Ok(())
    }

    /// Waits for what the event recorded.
    fn cuEventSynchronize(event: usize) |d| {
        if let Some(mark) = d.recorded(event)? {
            d.drain(mark);
            d.context()?.trim_pools();
        }
        Ok(())
    }

    /// Whether what the event recorded is done. A little of it is done at each call, so that polling ends.
    fn cuEventQuery(event: usize) |d| {
        let Some(mark) = d.recorded(event)? else { return Ok(()) };
        d.advance(mark);
        if d.context()?.is_done(mark) { Ok(()) } else { Err(Code::NOT_READY) }
    }

    /// Milliseconds between two events.
    fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) |d| {
        for event in [start, end] {
            let mark = d.recorded(event)?.ok_or(Code::INVALID_HANDLE)?;
            if !d.event(event)?.timed {
                return Err(Code::INVALID_HANDLE);
            }
            if !d.context()?.is_done(mark) {
                return Err(Code::NOT_READY);
            }
        }
        let (start, end) = (d.event(start)?.happened, d.event(end)?.happened);
        let (Some(start), Some(end)) = (start, end) else { return Err(Code::NOT_READY) };
        let elapsed = match end.checked_duration_since(start) {
            Some(after) => after.as_secs_f32(),
            None => -start.duration_since(end).as_secs_f32(),
        };
        put(milliseconds, elapsed * 1e3)
    }

    /// Makes a stream's later work wait for what the event has recorded by now.
    fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) |d| {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        d.context()?.stream(stream)?;
        if let Some((capture, from)) = d.event(event)?.captured {
            return d.wait_captured(stream, capture, from);
        }
        let Some(mark) = d.event(event)?.recorded else { return Ok(()) };
        let context = d.context()?;
        if let Some(capture) = context.stream(stream)?.capture {
            context.capture(capture)?.broken = true;
            return Err(Code::STREAM_CAPTURE_ISOLATION);
        }
        if mark.stream == stream { Ok(()) } else { d.submit(stream, Op::Wait(mark)) }
    }
}
