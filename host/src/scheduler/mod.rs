//! The scheduler: which sequences are in the next step, and what each result means.
//!
//! A pure state machine without clock, I/O or threads: [`Input`]s in ([`Scheduler::handle`]), [`Effect`]s
//! and steps ([`Scheduler::plan`]) out. Whoever drives it tells everything that arrived, asks for a plan,
//! submits its [`batch`](Scheduler::batch), and tells what came of it:
//!
//! ```text
//! handle(Submit, Cancel, ...)* ─ plan ─ { next_op ─ handle(OpDone) }* ─ handle(Submitted | SubmitFailed) ─ { next_op ─ handle(OpDone) }* ─ handle(Collected | CollectFailed)
//! ```
//!
//! What stays true:
//! - Every request ends with exactly one `Finished` or `Failed`, or with its `Cancel`; its tokens are emitted once.
//! - Requests are admitted in the order of their ids; the youngest gives way when blocks run out, so the
//!   oldest always advances.
//! - A block that is written to is in one table; one that is full and computed may be in several, and is kept for
//!   later requests that begin alike until it is needed. The blocks of a step in flight stay with their sequence
//!   until the step comes back.
//! - Of a model with recurrent state, a sequence that holds blocks holds a slot, whose state has seen the tokens that
//!   are placed, or will be begun anew.
//! - While steps are in flight, a sequence knows its tokens up to `pending` ones, which are still on the
//!   device; they reach the next step as [`SampledBy`].

mod counts;
mod input;
mod limits;
mod ops;
mod outcome;
mod pace;
mod park;
mod plan;
mod pool;
mod prefix;
mod recurrent;
mod sequence;
mod sessions;
#[cfg(test)]
pub(crate) mod simulation;
mod snapshots;
#[cfg(test)]
mod tests;

pub use counts::Counts;
pub use input::{Effect, Input};
pub use limits::{Limits, MAX_SESSIONS, MAX_TOP_LOGPROBS, SESSION_TTL};
pub use ops::DeviceOp;

use crate::request::{Event, Failure, Request, Stage};
use met_backend_api::abi::SampledBy;
use pace::Pace;
use pool::BlockPool;
use sequence::{Sequence, State};
use sessions::Sessions;
use std::collections::VecDeque;

/// Names a request within a generation. Counts up in the order of arrival, which is the order of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

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
    /// Rows of a batch that the backend called invalid: each is tried alone until it is past where it was.
    suspects: Vec<(RequestId, u32)>,
    sessions: Sessions,
    /// Slots of recurrent state that nobody holds: as many as sequences may run, so that each of these has one.
    free_slots: Vec<u32>,
    /// What is to be done before the next step, in this order.
    ops: VecDeque<DeviceOp>,
    /// Steps in a row for which the device had no memory.
    exhausted: u32,
    /// Rows in a row whose logits were not finite.
    not_finite: u32,
    /// Bytes a second of a copy between the device and host memory.
    copy_rate: f64,
    /// After a step without memory nothing is admitted beside an older sequence until one leaves.
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
    /// Whether its end is where a snapshot is to be taken, and the one that was.
    is_border: bool,
    snapshot: Option<u32>,
    top: u32,
}

impl Scheduler {
    /// A scheduler over an empty pool.
    pub fn new(limits: Limits) -> Self {
        let pool = BlockPool::new(limits.block_count, limits.block_size);
        Self {
            pool: match limits.state_slots {
                0 => pool,
                _ => pool.with_state(limits.snapshot_slots),
            },
            sessions: Sessions::new(limits.block_count),
            free_slots: (0..limits.state_slots).rev().collect(),
            ops: VecDeque::new(),
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
            Input::OpDone {
                op,
                succeeded,
                elapsed,
            } => self.op_done(op, succeeded, elapsed),
            Input::Lost { error } => self.fence(error, effects),
            Input::Tick { now } => self.tick(now),
            Input::EndSessions => self.end_sessions(),
            Input::MoveOut => self.move_out(effects),
            Input::Abort { failure } => self.abort(failure, effects),
        }
    }

    /// Whether a step is planned and to be submitted.
    pub fn has_plan(&self) -> bool {
        self.planned.is_some()
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

    fn join(&mut self, id: RequestId, request: Request, effects: &mut Vec<Effect>) {
        let failure = if let Some(reason) = &self.fenced {
            Failure::Backend(reason.clone())
        } else if let Err(refused) = self.limits.check(&request) {
            Failure::Invalid(refused.to_string())
        } else {
            if let Some(session) = &request.session {
                self.renew_session(session);
            }
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
            let sequence = &mut self.running[at];
            // Cut off by its client, it has said what the next turn goes on from.
            sequence.keeps_session = match &last {
                None => sequence.is_started,
                Some(event) => matches!(event, Event::Finished(_)),
            };
            sequence.state = State::Leaving;
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

    /// Lets a running sequence that is to give its blocks back do so, and one whose state was lost begin again, once no
    /// step in flight uses them.
    fn settle(&mut self, at: usize) {
        let sequence = &self.running[at];
        if sequence.is_copying() || sequence.in_flight > 0 {
            return;
        }
        if sequence.is_admitted() {
            if sequence.is_lost {
                self.restart(at);
            }
            return;
        }
        let mut sequence = self.running.remove(at);
        if sequence.state == State::Leaving {
            self.hold = false;
            self.keep_session(&sequence);
            self.give_back(&mut sequence);
        } else {
            self.give_back(&mut sequence);
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
