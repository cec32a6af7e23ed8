//! Work in stream order: what there is, and doing it.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

use super::Driver;
use super::call::as_host_function;
use super::state::Context;
use super::stream::{LEGACY, Mark};
use crate::arena::WRITTEN;
use crate::code::Code;
use crate::exec::{self, Launch, Limits};

/// Most work that waits in a stream; more than that is done at once.
const MOST_WAITING: usize = 1024;

/// A function of the program.
pub(super) type HostFunction = extern "C" fn(*mut c_void);

/// A piece of work.
#[derive(Clone)]
pub(crate) enum Op {
    /// Host to device; the host's memory is read when this is done.
    Upload {
        to: u64,
        from: usize,
        bytes: u64,
    },
    /// The same for memory that was copied when this was asked for.
    UploadCopy {
        to: u64,
        from: Arc<[u8]>,
    },
    Download {
        to: usize,
        from: u64,
        bytes: u64,
    },
    Move {
        to: u64,
        from: u64,
        bytes: u64,
    },
    /// `count` elements with the first `width` bytes of `pattern`.
    Fill {
        to: u64,
        pattern: [u8; 4],
        width: u8,
        count: u64,
    },
    Launch(Launch),
    Free(u64),
    Record(usize),
    Wait(Mark),
    Graph(Arc<[Op]>),
    Host {
        run: HostFunction,
        data: usize,
    },
}

impl Driver {
    /// Adds work to a stream, or to the graph that the stream records.
    pub(super) fn submit(&mut self, handle: usize, op: Op) -> Result<(), Code> {
        let lazy = self.settings.lazy;
        let context = self.context()?;
        let stream = context.stream(handle)?;
        if let Some(capture) = stream.capture {
            return context.capture(capture)?.add(handle, op);
        }
        if handle == LEGACY {
            context.refuse_legacy_while_capturing()?;
            self.drain_blocking();
        }
        let stream = self.context()?.stream(handle)?;
        stream.queue.push_back(op);
        stream.submitted += 1;
        let end = stream.submitted;
        if !lazy || handle == LEGACY || stream.queue.len() > MOST_WAITING {
            self.drain(Mark {
                stream: handle,
                place: end,
            });
        }
        Ok(())
    }

    /// Does a stream's work up to a mark, and what it waits for in other streams.
    pub(super) fn drain(&mut self, mark: Mark) {
        while self.advance(mark) {}
    }

    /// Does the next piece of work before a mark; `false` where there is none.
    pub(super) fn advance(&mut self, mark: Mark) -> bool {
        let Some(context) = &mut self.context else {
            return false;
        };
        let Some(stream) = context.streams.get_mut(&mark.stream) else {
            return false;
        };
        if stream.done >= mark.place {
            return false;
        }
        let Some(op) = stream.queue.pop_front() else {
            return false;
        };
        stream.done += 1;
        self.perform(op);
        true
    }

    /// Does all work of all streams.
    pub(super) fn drain_all(&mut self) {
        for mark in self.ends(|_| true) {
            self.drain(mark);
        }
    }

    /// Does all work of the streams that the legacy stream waits for.
    pub(super) fn drain_blocking(&mut self) {
        for mark in self.ends(|non_blocking| !non_blocking) {
            self.drain(mark);
        }
    }

    fn ends(&self, wanted: impl Fn(bool) -> bool) -> Vec<Mark> {
        let Some(context) = &self.context else {
            return Vec::new();
        };
        let streams = context
            .streams
            .iter()
            .filter(|(_, stream)| wanted(stream.non_blocking));
        streams
            .map(|(handle, stream)| Mark {
                stream: *handle,
                place: stream.submitted,
            })
            .collect()
    }

    fn perform(&mut self, op: Op) {
        let Some(context) = &mut self.context else { return };
        // A dead context does nothing more; what waits for an event must still end.
        if context.poison.is_some() && !matches!(op, Op::Record(_)) {
            return;
        }
        match op {
            Op::Wait(mark) => self.drain(mark),
            Op::Graph(ops) => ops.iter().for_each(|op| self.perform(op.clone())),
            Op::Record(event) => {
                if let Some(event) = context.events.get_mut(&event) {
                    event.happened = Some(Instant::now());
                }
            }
            Op::Host { run, data } => as_host_function(|| run(data as *mut c_void)),
            Op::Launch(launch) => self.run_kernel(&launch),
            Op::Free(address) => {
                if context.release(address).is_err() {
                    self.poison(
                        Code::ILLEGAL_ADDRESS,
                        format!("{address:#x} was freed before its release in a stream"),
                    );
                }
            }
            op => {
                if let Err(what) = context.transfer(&op) {
                    self.poison(Code::ILLEGAL_ADDRESS, what);
                }
            }
        }
    }

    fn run_kernel(&mut self, launch: &Launch) {
        let limits = Limits {
            threads: self.settings.threads,
            budget: 1 << 32,
            reversed: self.settings.reversed,
        };
        let Some(context) = &mut self.context else { return };
        match exec::launch(launch, context.arena.space(), limits) {
            Ok(issued) => self.issued += issued,
            Err(fault) => {
                let more = context.explain(fault.code, fault.address);
                self.poison(fault.code, format!("{fault}{more}"));
            }
        }
    }
}

impl Context {
    /// Copies and fills.
    fn transfer(&mut self, op: &Op) -> Result<(), String> {
        let inside = |context: &Context, address, bytes| {
            if context.arena.contains(address, bytes) {
                return Ok(());
            }
            let more = context.explain(Code::ILLEGAL_ADDRESS, address);
            Err(format!(
                "a copy or fill of {bytes} bytes at {address:#x} is outside of what is allocated{more}"
            ))
        };
        match op {
            Op::Upload { to, from, bytes } => {
                inside(self, *to, *bytes)?;
                // SAFETY: the program keeps the host's memory valid until the copy is done, as the driver
                // demands; the device's range was checked.
                unsafe { (*from as *const u8).copy_to(*to as *mut u8, *bytes as usize) };
                self.arena.mark(*to, *bytes, WRITTEN);
            }
            Op::UploadCopy { to, from } => {
                inside(self, *to, from.len() as u64)?;
                // SAFETY: the device's range was checked.
                unsafe { from.as_ptr().copy_to(*to as *mut u8, from.len()) };
                self.arena.mark(*to, from.len() as u64, WRITTEN);
            }
            Op::Download { to, from, bytes } => {
                inside(self, *from, *bytes)?;
                // SAFETY: as for `Upload`.
                unsafe { (*from as *const u8).copy_to(*to as *mut u8, *bytes as usize) };
            }
            Op::Move { to, from, bytes } => {
                inside(self, *from, *bytes)?;
                inside(self, *to, *bytes)?;
                // SAFETY: both ranges were checked.
                unsafe { (*from as *const u8).copy_to(*to as *mut u8, *bytes as usize) };
                self.arena.copy_marks(*to, *from, *bytes);
            }
            Op::Fill {
                to,
                pattern,
                width,
                count,
            } => {
                let (width, count) = (*width as usize, *count as usize);
                inside(self, *to, (width * count) as u64)?;
                // SAFETY: the range was checked, and nothing else refers to it while the driver is locked.
                let target = unsafe { std::slice::from_raw_parts_mut(*to as *mut u8, width * count) };
                match width {
                    1 => target.fill(pattern[0]),
                    _ => target
                        .chunks_exact_mut(width)
                        .for_each(|element| element.copy_from_slice(&pattern[..width])),
                }
                self.arena.mark(*to, (width * count) as u64, WRITTEN);
            }
            _ => {}
        }
        Ok(())
    }

    /// What is known of an address that was refused, as the end of a sentence.
    fn explain(&self, code: Code, address: u64) -> String {
        use crate::arena::Whereabouts;
        if code != Code::ILLEGAL_ADDRESS {
            return match self.arena.allocation(address) {
                Some((start, bytes)) => format!(", byte {} of an allocation of {bytes}", address - start),
                None => String::new(),
            };
        }
        match self.arena.whereabouts(address) {
            Whereabouts::Freed(start, bytes) => {
                format!(
                    ", byte {} of an allocation of {bytes} that was freed",
                    address - start
                )
            }
            Whereabouts::After(start, bytes) => {
                format!(
                    ", byte {} from the start of an allocation of {bytes}",
                    address - start
                )
            }
            Whereabouts::Nowhere => String::new(),
        }
    }
}
