//! What the scheduler is told, and what it wants done.

use super::{DeviceOp, RequestId};
use crate::request::{Event, Failure, Request};
use met_backend_api::{Error, RowOutput, Ticket, TokenLogprob};
use std::time::Duration;

/// What the scheduler is told.
#[derive(Debug)]
pub enum Input<'a> {
    /// A request joins the line. Its id is greater than every earlier one.
    Submit {
        /// Its name.
        id: RequestId,
        /// What is asked for; [`Limits::check`](super::Limits::check) holds, else it fails at once.
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
    /// The oldest step in flight failed: what it wrote is not to be used, and the recurrent states of its rows are
    /// undefined.
    CollectFailed {
        /// Why.
        error: &'a Error,
    },
    /// What was to be done between two steps is done, or failed.
    OpDone {
        /// What it was.
        op: &'a DeviceOp,
        /// Whether it was done.
        succeeded: bool,
        /// How long it took.
        elapsed: Duration,
    },
    /// The device was lost outside of a step.
    Lost {
        /// Why.
        error: &'a Error,
    },
    /// Time has passed.
    Tick {
        /// Since some moment before the first input; never less than before.
        now: Duration,
    },
    /// Every session ends.
    EndSessions,
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
