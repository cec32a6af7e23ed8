//! The scheduler: which sequences are in the next step, and what each result means.
//!
//! A pure state machine without clock, I/O or threads: [`Input`]s in ([`Scheduler::handle`]), [`Effect`]s
//! and steps ([`Scheduler::plan`]) out. Whoever drives it tells everything that arrived, asks for a plan,
//! submits its [`batch`](Scheduler::batch), and tells what came of it:
//!
//! ```text
//! handle(Submit, Cancel, ...)* ─ plan ─ { next_copy ─ handle(Copied) }* ─ handle(Submitted | SubmitFailed) ─ handle(Collected | CollectFailed)
//! ```
//!
//! What stays true:
//! - Every request ends with exactly one `Finished` or `Failed`, or with its `Cancel`; its tokens are emitted once.
//! - Requests are admitted in the order of their ids; the youngest gives way when blocks run out, so the
//!   oldest always advances.
//! - A block that is written to is in one table; one that is full and computed may be in several, and is kept for
//!   later requests that begin alike until it is needed. The blocks of a step in flight stay with their sequence
//!   until the step comes back.
//! - While steps are in flight, a sequence knows its tokens up to `pending` ones, which are still on the
//!   device; they reach the next step as [`SampledBy`].

mod limits;
mod outcome;
mod pace;
mod park;
mod plan;
mod pool;
mod prefix;
mod sequence;
#[cfg(test)]
pub(crate) mod simulation;
#[cfg(test)]
mod tests;

pub use limits::{Limits, MAX_TOP_LOGPROBS};
pub use park::Copy;

use crate::request::{Event, Failure, Request, Stage};
use met_backend_api::{Error, RowOutput, Ticket, TokenLogprob, abi::SampledBy};
use pace::Pace;
use pool::BlockPool;
use sequence::{Sequence, State};
use std::{collections::VecDeque, time::Duration};

/// Names a request within a generation. Counts up in the order of arrival, which is the order of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What the scheduler is told.
#[derive(Debug)]
pub enum Input<'a> {
    /// A request joins the line. Its id is greater than every earlier one.
    Submit {
        /// Its name.
        id: RequestId,
        /// What is asked for; [`Limits::check`] holds, else it fails at once.
        request: Request,
    },
    /// The client left: nothing more is emitted.
    Cancel {
        /// Which request.
        id: RequestId,
    },
    /// The request is given up; it is told why.
    GiveUp {
        /// Which request.
        id: RequestId,
        /// What its client is told.
        failure: Failure,
    },
    /// The client's channel has no room: the sequence leaves the batch.
    Pause {
        /// Which request.
        id: RequestId,
    },
    /// It has room again.
    Resume {
        /// Which request.
        id: RequestId,
    },
    /// The planned step is on the device.
    Submitted {
        /// Its ticket.
        ticket: Ticket,
    },
    /// The planned step was not taken; nothing of it happened.
    SubmitFailed {
        /// Why.
        error: &'a Error,
    },
    /// The oldest step in flight came back.
    Collected {
        /// One a row of the step.
        rows: &'a [RowOutput],
        /// The top log-probabilities, for each row as many as it asked for.
        top: &'a [TokenLogprob],
        /// How long the device worked on it.
        elapsed: Duration,
    },
    /// The oldest step in flight failed: what it wrote is not to be used.
    CollectFailed {
        /// Why.
        error: &'a Error,
    },
    /// A copy that was to be made is made, or failed.
    Copied {
        /// Whose.
        id: RequestId,
        /// Whether it was made.
        succeeded: bool,
        /// How long it took.
        elapsed: Duration,
    },
    /// Every request leaves with what it has, to go on in another generation. No step may be in flight.
    MoveOut,
    /// The deadline has passed: every request is given up.
    Abort {
        /// What the clients are told.
        failure: Failure,
    },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Hand an event to a request's client.
    Emit {
        /// Whose.
        id: RequestId,
        /// What.
        event: Event,
    },
}

/// How many sequences are in which state, blocks in use, and totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// In the line, never admitted.
    pub waiting: u32,
    /// Being put into the cache.
    pub prefilling: u32,
    /// Generating.
    pub active: u32,
    /// Put back into the line; their blocks are computed again.
    pub preempted: u32,
    /// Put back into the line; their blocks are kept in host memory.
    pub swapped: u32,
    /// Of all of these, those whose client is slow.
    pub paused: u32,
    /// Blocks held.
    pub blocks_used: u32,
    /// Blocks in all.
    pub blocks_total: u32,
    /// Prompt tokens computed, each once.
    pub prompt_tokens: u64,
    /// Prompt tokens that were found in the cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Times that a sequence was put back.
    pub preemptions: u64,
    /// Of these, times that its blocks were kept.
    pub swaps: u64,
    /// Rows whose logits were not finite.
    pub not_finite: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: BlockPool,
    pace: Pace,
    /// Those that hold blocks, in order of id.
    running: Vec<Sequence>,
    /// The line: those that hold none, in order of id.
    waiting: VecDeque<Sequence>,
    /// Steps on the device, oldest first.
    flights: VecDeque<Flight>,
    planned: Option<Flight>,
    spare_rows: Vec<Vec<FlightRow>>,
    /// Rows of a batch that the backend called invalid: each is tried alone.
    suspects: Vec<RequestId>,
    /// Steps in a row for which the device had no memory.
    exhausted: u32,
    /// Rows in a row whose logits were not finite.
    not_finite: u32,
    /// Bytes a second of a copy between the device and host memory.
    copy_rate: f64,
    /// After a step without memory nothing is admitted until a sequence leaves.
    hold: bool,
    /// Why the device is not used any more.
    fenced: Option<String>,
    totals: Counts,
}

/// A step.
#[derive(Debug, Default)]
struct Flight {
    rows: Vec<FlightRow>,
    /// An earlier step failed, so what this one computed is not to be used.
    void: bool,
}

/// A sequence's part of a step: its tokens `start .. start + tokens`.
#[derive(Clone, Copy, Debug)]
struct FlightRow {
    id: RequestId,
    start: u32,
    tokens: u32,
    input: Option<SampledBy>,
    /// Whether it reaches the end of what is known, and so samples the next token.
    samples: bool,
    prefill: bool,
    top: u32,
}

impl Scheduler {
    /// A scheduler over an empty pool.
    pub fn new(limits: Limits) -> Self {
        Self {
            pool: BlockPool::new(limits.block_count, limits.block_size),
            pace: Pace::new(limits.max_batch_tokens),
            limits,
            running: Vec::new(),
            waiting: VecDeque::new(),
            flights: VecDeque::new(),
            planned: None,
            spare_rows: Vec::new(),
            suspects: Vec::new(),
            exhausted: 0,
            not_finite: 0,
            copy_rate: Self::first_rate(),
            hold: false,
            fenced: None,
            totals: Counts::default(),
        }
    }

    /// Takes note of `input`; what is to be done is appended to `effects`.
    pub fn handle(&mut self, input: Input<'_>, effects: &mut Vec<Effect>) {
        match input {
            Input::Submit { id, request } => self.join(id, request, effects),
            Input::Cancel { id } => self.leave(id, None, effects),
            Input::GiveUp { id, failure } => self.leave(id, Some(Event::Failed(failure)), effects),
            Input::Pause { id } => self.set_paused(id, true),
            Input::Resume { id } => self.set_paused(id, false),
            Input::Submitted { ticket } => self.submitted(ticket),
            Input::SubmitFailed { error } => self.submit_failed(error, effects),
            Input::Collected { rows, top, elapsed } => self.collected(rows, top, elapsed, effects),
            Input::CollectFailed { error } => self.collect_failed(error, effects),
            Input::Copied {
                id,
                succeeded,
                elapsed,
            } => self.copied(id, succeeded, elapsed),
            Input::MoveOut => self.move_out(effects),
            Input::Abort { failure } => self.abort(failure, effects),
        }
    }

    /// Steps on the device.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Rows of the oldest step in flight, and how many top log-probabilities they asked for together:
    /// the sizes of what its collection writes.
    pub fn oldest_sizes(&self) -> (usize, usize) {
        self.flights.front().map_or((0, 0), |flight| {
            (
                flight.rows.len(),
                flight.rows.iter().map(|row| row.top as usize).sum(),
            )
        })
    }

    /// Whether the device was lost: no step is planned any more, and every request fails at once.
    pub fn is_fenced(&self) -> bool {
        self.fenced.is_some()
    }

    /// Why the device was lost, where it was.
    pub fn fence_reason(&self) -> Option<&str> {
        self.fenced.as_deref()
    }

    /// Whether no request is left. Steps may still be in flight.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
            && self
                .running
                .iter()
                .all(|sequence| sequence.state == State::Leaving)
    }

    /// The present counts.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts {
            blocks_used: self.pool.total() - self.pool.free(),
            blocks_total: self.pool.total(),
            ..self.totals
        };
        for sequence in self.running.iter().chain(&self.waiting) {
            match sequence.state {
                State::Waiting => counts.waiting += 1,
                State::Prefilling => counts.prefilling += 1,
                State::Active => counts.active += 1,
                State::Preempted => counts.preempted += 1,
                State::SwappingOut | State::Swapped | State::SwappingIn => counts.swapped += 1,
                State::Leaving => continue,
            }
            counts.paused += u32::from(sequence.paused);
        }
        counts
    }

    fn join(&mut self, id: RequestId, request: Request, effects: &mut Vec<Effect>) {
        let failure = if let Some(reason) = &self.fenced {
            Failure::Backend(reason.clone())
        } else if let Err(refused) = self.limits.check(&request) {
            Failure::Invalid(refused.to_string())
        } else {
            self.waiting.push_back(Sequence::new(id, request));
            return;
        };
        effects.push(Effect::Emit {
            id,
            event: Event::Failed(failure),
        });
    }

    /// Ends a request, with a last event unless its client has left.
    fn leave(&mut self, id: RequestId, last: Option<Event>, effects: &mut Vec<Effect>) {
        if let Some(at) = self.running_at(id) {
            if self.running[at].state == State::Leaving {
                return;
            }
            self.running[at].state = State::Leaving;
            self.settle(at);
        } else if let Ok(at) = self.waiting.binary_search_by_key(&id, |sequence| sequence.id) {
            self.waiting.remove(at);
        } else {
            return;
        }
        effects.extend(last.map(|event| Effect::Emit { id, event }));
    }

    fn set_paused(&mut self, id: RequestId, paused: bool) {
        if let Some(at) = self.running_at(id) {
            self.running[at].paused = paused;
        } else if let Ok(at) = self.waiting.binary_search_by_key(&id, |sequence| sequence.id) {
            self.waiting[at].paused = paused;
        }
    }

    fn abort(&mut self, failure: Failure, effects: &mut Vec<Effect>) {
        let sequences = self.running.iter().chain(&self.waiting);
        let mut stages: Vec<(Stage, RequestId)> = sequences
            .filter_map(|sequence| Some((sequence.stage()?, sequence.id)))
            .collect();
        // Those that generate are told first.
        stages.sort_by_key(|(stage, id)| (*stage != Stage::Generating, *stage, *id));
        for (stage, id) in stages {
            let failure = match &failure {
                Failure::Draining => Failure::Cut(stage),
                other => other.clone(),
            };
            self.leave(id, Some(Event::Failed(failure)), effects);
        }
    }

    /// In the order of arrival, in which they enter the line elsewhere.
    fn move_out(&mut self, effects: &mut Vec<Effect>) {
        let sequences = self.running.iter().chain(&self.waiting);
        let mut moved: Vec<(RequestId, Request)> = sequences
            .filter(|sequence| sequence.state != State::Leaving)
            .map(|sequence| (sequence.id, sequence.request()))
            .collect();
        moved.sort_unstable_by_key(|(id, _)| *id);
        for (id, request) in moved {
            self.leave(id, Some(Event::Moved(Box::new(request))), effects);
        }
    }

    /// Lets a running sequence that is to give its blocks back do so, once no step in flight uses them.
    fn settle(&mut self, at: usize) {
        let sequence = &self.running[at];
        if sequence.is_admitted() || sequence.is_copying() || sequence.in_flight > 0 {
            return;
        }
        let mut sequence = self.running.remove(at);
        self.pool.release(&mut sequence.blocks);
        if sequence.state == State::Leaving {
            self.hold = false;
        } else {
            sequence.forget_blocks();
            let at = self.waiting.partition_point(|other| other.id < sequence.id);
            self.waiting.insert(at, sequence);
        }
    }

    fn running_at(&self, id: RequestId) -> Option<usize> {
        self.running
            .binary_search_by_key(&id, |sequence| sequence.id)
            .ok()
    }
}
