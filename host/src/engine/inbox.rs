//! The engine's door: requests in the order of arrival, and the signals of those already inside.
//!
//! Nothing here ever waits for the engine: the line is bounded by a refusal, and a request has at most
//! one signal of each kind outstanding.

use super::stream::{Client, EventStream};
use crate::{
    request::{Refused, Request},
    scheduler::RequestId,
};
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

pub(super) struct Inbox {
    state: Mutex<State>,
    bell: Condvar,
    max_waiting: u32,
    channel: usize,
}

#[derive(Default)]
struct State {
    closed: bool,
    last_id: u64,
    mail: Mail,
    /// Requests in the scheduler's line.
    line: u32,
    retry_after_s: u32,
}

/// What arrived since the engine looked last.
#[derive(Default)]
pub(super) struct Mail {
    pub arrivals: Vec<(RequestId, Request, Client)>,
    pub signals: Vec<Signal>,
    /// Let every request go, to go on elsewhere.
    pub move_out: bool,
    /// Finish until then, and tear down.
    pub stop: Option<Instant>,
}

/// Something about a request inside.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    /// Its stream was dropped.
    Left(RequestId),
    /// Its channel has room again.
    Room(RequestId),
}

impl Inbox {
    /// An open door to a line of `max_waiting` requests, whose channels hold `channel` events.
    pub fn new(max_waiting: u32, channel: usize) -> Self {
        let state = State {
            retry_after_s: 1,
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            bell: Condvar::new(),
            max_waiting,
            channel,
        }
    }

    /// Lets requests in, all of them or none. One that comes from another generation has stood in a line
    /// before, so it is never refused for the length of this one.
    pub fn submit(
        self: &Arc<Self>,
        requests: Vec<Request>,
    ) -> Result<Vec<EventStream>, (Refused, Vec<Request>)> {
        let mut state = self.lock();
        if state.closed {
            return Err((Refused::Draining, requests));
        }
        let fresh = requests.iter().filter(|request| request.generated == 0).count();
        let line = state.mail.arrivals.len() + state.line as usize;
        if fresh > 0 && line + fresh > self.max_waiting as usize {
            let retry_after_s = state.retry_after_s;
            return Err((Refused::Full { retry_after_s }, requests));
        }
        let mut streams = Vec::with_capacity(requests.len());
        for request in requests {
            state.last_id += 1;
            let id = RequestId(state.last_id);
            let (client, stream) = super::stream::channel(id, self.channel, Arc::clone(self));
            state.mail.arrivals.push((id, request, client));
            streams.push(stream);
        }
        drop(state);
        self.bell.notify_one();
        Ok(streams)
    }

    /// Tells the engine something about a request.
    pub fn signal(&self, signal: Signal) {
        self.lock().mail.signals.push(signal);
        self.bell.notify_one();
    }

    /// Refuses new requests from now on.
    pub fn close(&self) {
        self.lock().closed = true;
    }

    /// Refuses new requests from now on, and lets go of those that are in.
    pub fn move_out(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.mail.move_out = true;
        drop(state);
        self.bell.notify_one();
    }

    /// Whether new requests are refused.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Tells the engine to finish what it has until `deadline`, and then to tear down. The earliest deadline holds.
    pub fn stop(&self, deadline: Instant) {
        let mut state = self.lock();
        state.closed = true;
        state.mail.stop = Some(state.mail.stop.map_or(deadline, |old| old.min(deadline)));
        drop(state);
        self.bell.notify_one();
    }

    /// Swaps what arrived with `mail`, which must be empty; waits for something for at most `patience`.
    pub fn take(&self, mail: &mut Mail, patience: Duration) {
        let mut state = self.lock();
        if patience > Duration::ZERO && state.mail.is_empty() {
            state = self
                .bell
                .wait_timeout(state, patience)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        // They are on their way into the line.
        state.line += state.mail.arrivals.len() as u32;
        std::mem::swap(&mut state.mail, mail);
    }

    /// How long the scheduler's line is, and when it may be worth asking again if it is full.
    pub fn set_line(&self, line: u32, retry_after_s: u32) {
        let mut state = self.lock();
        state.line = line;
        state.retry_after_s = retry_after_s;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mail {
    fn is_empty(&self) -> bool {
        self.arrivals.is_empty() && self.signals.is_empty() && !self.move_out && self.stop.is_none()
    }
}
