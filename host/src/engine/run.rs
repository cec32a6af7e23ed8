//! The engine thread's loop: take what arrived, run a step, hand out the results, publish.

use super::{
    DeviceIo, EngineOptions, EngineState,
    inbox::{Inbox, Mail, Signal},
    meter::Meter,
    parked::Parked,
    report::GivenUp,
    snapshot::Board,
    stream::Client,
};
use crate::{
    request::{Event, Failure, Request},
    scheduler::{Counts, DeviceOp, Effect, Input, RequestId, Scheduler},
};
use met_backend_api::{Batch, Error, RowOutput, Ticket, TokenLogprob, sdk::Output};
use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

/// How often memory is read and slow clients are looked for.
const REFRESH: Duration = Duration::from_millis(100);
/// How long an idle engine sleeps before it looks at its memory again.
const IDLE: Duration = Duration::from_secs(1);

pub(super) struct Runner<'a> {
    pub device: Box<dyn DeviceIo>,
    pub(super) scheduler: Scheduler,
    inbox: &'a Inbox,
    pub(super) board: &'a Board,
    meter: Meter,
    options: EngineOptions,
    /// Room that a channel needs for what may still come once its sequence is paused.
    reserve: usize,
    clients: HashMap<RequestId, Client>,
    pub(super) parked: Parked,
    /// What the time of sessions counts from.
    began: Instant,
    /// Steps in flight and when they were submitted.
    tickets: VecDeque<(Ticket, Instant)>,
    last_ticket: Ticket,
    last_collected: Instant,
    last_refresh: Option<Instant>,
    last_counts: Counts,
    retry_after_s: u32,
    stop: Option<Instant>,
    // Kept for their memory.
    mail: Mail,
    effects: Vec<Effect>,
    delivered: Vec<Effect>,
    rows: Vec<RowOutput>,
    top: Vec<TokenLogprob>,
}

impl<'a> Runner<'a> {
    pub fn new(
        device: Box<dyn DeviceIo>,
        scheduler: Scheduler,
        inbox: &'a Inbox,
        board: &'a Board,
        meter: Meter,
        options: EngineOptions,
    ) -> Self {
        let reserve = device.model().max_in_flight as usize + 1;
        Self {
            device,
            scheduler,
            inbox,
            board,
            meter,
            options,
            reserve,
            clients: HashMap::new(),
            parked: Parked::new(options.park_memory, options.park_disk),
            began: Instant::now(),
            tickets: VecDeque::new(),
            last_ticket: 0,
            last_collected: Instant::now(),
            last_refresh: None,
            last_counts: Counts::default(),
            retry_after_s: 1,
            stop: None,
            mail: Mail::default(),
            effects: Vec::new(),
            delivered: Vec::new(),
            rows: Vec::new(),
            top: Vec::new(),
        }
    }

    /// Publishes the state before the first request.
    pub fn begin(&mut self) {
        self.publish();
        self.refresh(Instant::now());
    }

    /// Serves until told to stop.
    pub fn serve(&mut self) {
        let mut patience = Duration::ZERO;
        while self.stop.is_none() {
            patience = self.turn(patience);
        }
    }

    /// Runs what is left until no request is, or the deadline has passed.
    pub fn finish(&mut self) {
        let mut patience = Duration::ZERO;
        while let Some(deadline) = self.stop {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.scheduler.is_empty() && self.tickets.is_empty() || left.is_zero() {
                return;
            }
            patience = self.turn(patience.min(left));
        }
    }

    /// Takes what arrived within `patience`, runs the steps that may be, and hands out what the oldest gave. Returns
    /// how long there is nothing to do but to wait.
    fn turn(&mut self, patience: Duration) -> Duration {
        self.receive(patience);
        // Published before each wait for the device, so that it is true meanwhile.
        loop {
            self.scheduler.plan();
            let has_performed = self.perform();
            if self.scheduler.has_plan() {
                self.publish();
                self.submit();
            } else if !has_performed {
                break;
            }
        }
        self.publish();
        self.refresh(Instant::now());
        let is_idle = self.tickets.is_empty();
        if let Err(error) = self.collect() {
            tracing::warn!(kind = ?error.kind, "a step failed: {error}");
        }
        match self.scheduler.next_session_end() {
            _ if !is_idle => Duration::ZERO,
            Some(end) => IDLE.min(end.saturating_sub(self.began.elapsed())),
            None => IDLE,
        }
    }

    /// Collects the steps in flight. The first error is returned once all are.
    pub fn drain(&mut self) -> Result<(), Error> {
        let mut outcome = Ok(());
        while !self.tickets.is_empty() {
            outcome = outcome.and(self.collect());
        }
        outcome
    }

    /// Ends every session: its blocks and snapshots are free.
    pub fn end_sessions(&mut self) {
        let sessions = self.scheduler.counts().sessions;
        self.tell(Input::EndSessions);
        self.publish();
        self.board.report(|report| report.sessions = sessions);
    }

    /// Collects the steps in flight and gives up every request that is left, each with its own reason.
    pub fn give_up(&mut self, failure: Failure) -> Result<(), Error> {
        let outcome = self.drain();
        let Counts {
            waiting,
            prefilling,
            active,
            preempted,
            swapped,
            ..
        } = self.scheduler.counts();
        self.tell(Input::Abort {
            failure: failure.clone(),
        });
        self.receive(Duration::ZERO);
        self.tell(Input::Abort { failure });
        self.publish();
        self.board.report(|report| {
            report.given_up = GivenUp {
                waiting,
                prefilling,
                active,
                preempted,
                swapped,
            }
        });
        outcome
    }

    /// Lets go of what was kept of parked sequences, in memory and in files.
    pub fn forget_parked(&mut self) {
        self.parked.clear();
    }

    /// Frees the slots of state that sequences held to their end. The first error is returned once all were tried.
    pub fn free_states(&mut self) -> Result<(), Error> {
        let mut outcome = Ok(());
        while let Some(op) = self.scheduler.next_op() {
            if let DeviceOp::FreeState { slot } = op {
                let freed = self.board.calling("free_state", || self.device.free_state(slot));
                outcome = outcome.and(freed);
            }
        }
        outcome
    }

    /// Takes what arrived, waiting for it for at most `patience`.
    fn receive(&mut self, patience: Duration) {
        let mut mail = std::mem::take(&mut self.mail);
        self.inbox.take(&mut mail, patience);
        for (id, mut request, client) in mail.arrivals.drain(..) {
            self.clients.insert(id, client);
            request.kept = request.kept.take_if(|kept| self.adopt(id, kept.clone()));
            self.tell(Input::Submit { id, request });
        }
        for signal in mail.signals.drain(..) {
            match signal {
                Signal::Left(id) => {
                    self.clients.remove(&id);
                    self.parked.release(id);
                    self.tell(Input::Cancel { id });
                }
                Signal::Room(id) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.paused_since = None;
                    }
                    self.tell(Input::Resume { id });
                }
            }
        }
        if std::mem::take(&mut mail.move_out) {
            self.move_out();
        }
        if let Some(deadline) = mail.stop.take() {
            self.stop = Some(deadline);
            if !self.scheduler.is_fenced() {
                self.board.set_state(EngineState::Draining);
            }
        }
        self.mail = mail;
    }

    /// Lets every request go, with the tokens of the steps in flight.
    fn move_out(&mut self) {
        if let Err(error) = self.drain() {
            tracing::warn!(kind = ?error.kind, "a step failed: {error}");
        }
        let moved = self.clients.len() as u32;
        self.keep_all();
        self.tell(Input::MoveOut);
        self.board.report(|report| report.moved += moved);
    }

    fn submit(&mut self) {
        let rows = self.scheduler.batch();
        let batch = Batch {
            rows: rows.as_slice().into(),
        };
        let submitted = Instant::now();
        let outcome = self.board.calling("submit", || self.device.submit(batch));
        drop(rows);
        match outcome {
            Ok(ticket) if ticket != self.last_ticket + 1 => {
                let error = Error::bug(format!(
                    "the backend calls step {} {ticket}",
                    self.last_ticket + 1
                ));
                self.tell(Input::SubmitFailed { error: &error });
            }
            Ok(ticket) => {
                self.last_ticket = ticket;
                self.tickets.push_back((ticket, submitted));
                self.tell(Input::Submitted { ticket });
            }
            Err(error) => {
                tracing::warn!(kind = ?error.kind, "a step was not taken: {error}");
                self.tell(Input::SubmitFailed { error: &error });
            }
        }
    }

    /// Waits for the oldest step in flight, where there is one, and hands out what it gave.
    fn collect(&mut self) -> Result<(), Error> {
        let Some((ticket, submitted)) = self.tickets.pop_front() else {
            return Ok(());
        };
        let (row_count, top_count) = self.scheduler.oldest_sizes();
        let (mut rows, mut top) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.top));
        rows.clear();
        rows.resize(row_count, RowOutput::default());
        top.clear();
        top.resize(top_count, TokenLogprob::default());
        let out = Output {
            rows: &mut rows,
            top: &mut top,
            logits: &mut [],
        };
        let outcome = self.board.calling("collect", || self.device.collect(ticket, out));
        let began = submitted.max(self.last_collected);
        self.last_collected = Instant::now();
        match &outcome {
            Ok(()) => {
                let elapsed = self.last_collected - began;
                self.tell(Input::Collected {
                    rows: &rows,
                    top: &top,
                    elapsed,
                });
            }
            Err(error) => self.tell(Input::CollectFailed { error }),
        }
        (self.rows, self.top) = (rows, top);
        outcome
    }

    /// Tells the scheduler, and does what it wants done.
    pub(super) fn tell(&mut self, input: Input<'_>) {
        let was_fenced = self.scheduler.is_fenced();
        self.scheduler.handle(input, &mut self.effects);
        if let Some(reason) = self.scheduler.fence_reason().filter(|_| !was_fenced) {
            let reason = reason.to_owned();
            tracing::error!("the backend has failed and is not used any more: {reason}");
            self.tickets.clear();
            self.inbox.close();
            self.board.set_state(EngineState::Fenced(reason));
        }
        if !self.effects.is_empty() {
            // Before the events, so that a client who has seen one finds it in the figures.
            self.publish();
        }
        while !self.effects.is_empty() {
            let mut effects = std::mem::replace(&mut self.effects, std::mem::take(&mut self.delivered));
            for Effect::Emit { id, event } in effects.drain(..) {
                self.emit(id, event);
            }
            self.delivered = effects;
        }
    }

    fn emit(&mut self, id: RequestId, event: Event) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let now = self.last_collected;
        if matches!(event, Event::Token(_)) {
            match client.last_token.replace(now) {
                Some(last) => self.meter.next_token(now.saturating_duration_since(last)),
                None => {
                    let waited = now.saturating_duration_since(client.submitted);
                    self.meter.first_token(waited);
                    self.retry_after_s = (waited.as_secs_f32().ceil() as u32).clamp(1, 60);
                }
            }
            let fits = client.send(event);
            if !fits {
                self.scheduler.handle(
                    Input::GiveUp {
                        id,
                        failure: Failure::SlowClient,
                    },
                    &mut self.effects,
                );
            } else if client.paused_since.is_none() && client.is_short(self.reserve) && client.pause() {
                client.paused_since = Some(now);
                self.scheduler.handle(Input::Pause { id }, &mut self.effects);
            }
        } else if matches!(event, Event::Started { .. }) {
            // The first of its events: there is room.
            client.send(event);
        } else if let Some(client) = self.clients.remove(&id) {
            let kept = self.parked.release(id);
            client.send(match event {
                Event::Moved(request) => Event::Moved(Box::new(Request { kept, ..*request })),
                last => last,
            });
        }
    }

    fn publish(&mut self) {
        let counts = self.scheduler.counts();
        if counts != self.last_counts {
            self.meter.counts(&self.last_counts, &counts);
            self.last_counts = counts;
        }
        self.inbox.set_line(counts.waiting, self.retry_after_s);
        self.board.set_counts(counts, self.scheduler.is_empty());
    }

    /// What is done now and then: read the memory, and give up clients that have been slow for too long.
    fn refresh(&mut self, now: Instant) {
        if self.last_refresh.is_some_and(|last| now - last < REFRESH) {
            return;
        }
        self.last_refresh = Some(now);
        let since = now.saturating_duration_since(self.began);
        self.tell(Input::Tick { now: since });
        self.publish();
        let patience = self.options.slow_client;
        let slow = |client: &Client| {
            client
                .paused_since
                .is_some_and(|since| now.saturating_duration_since(since) >= patience)
        };
        let slow: Vec<RequestId> = self
            .clients
            .iter()
            .filter(|(_, client)| slow(client))
            .map(|(id, _)| *id)
            .collect();
        for id in slow {
            self.tell(Input::GiveUp {
                id,
                failure: Failure::SlowClient,
            });
        }
        if !self.scheduler.is_fenced() {
            self.board.refresh(self.device.as_mut());
        }
    }
}
