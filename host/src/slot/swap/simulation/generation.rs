//! A simulated generation: a scheduler over a fake device, and the clients that hold it.

use super::{Client, Key, World};
use crate::{
    engine::{
        DeviceIo,
        testing::{FakeDevice, error},
    },
    request::{Event, Failure, Request},
    scheduler::{
        Effect, Input, Limits, RequestId, Scheduler,
        simulation::{kept::Kept, random::Random},
    },
};
use met_backend_api::{Batch, ErrorKind, RowOutput, Ticket, TokenLogprob, sdk::Output};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

pub(super) struct SimGeneration {
    /// Its vocabulary's size, which is all that two models differ in.
    pub model: u32,
    device: FakeDevice,
    scheduler: Scheduler,
    flights: VecDeque<Ticket>,
    kept: Kept,
    /// Who holds it, by their names within it.
    holds: BTreeMap<RequestId, Key>,
    last_id: u64,
    /// It takes no requests any more.
    closed: bool,
    /// Its requests are being cut.
    ending: bool,
    exhausted_in_a_row: u32,
    blocks: u32,
}

impl SimGeneration {
    pub fn new(model: u32, random: &mut Random) -> Self {
        let (block_size, blocks) = (random.between(1, 8) as u32, random.between(32, 80) as u32);
        let mut device = FakeDevice::new(blocks, block_size, random.between(1, 6) as u32);
        let info = device.model_mut();
        info.vocab_size = model;
        info.context_length = 100;
        info.max_batch_tokens = random.between(6, 40) as u32;
        info.max_in_flight = random.between(1, 3) as u32;
        let limits = Limits::of(info).expect("no size is 0");
        Self {
            model,
            scheduler: Scheduler::new(limits),
            device,
            flights: VecDeque::new(),
            kept: Kept::default(),
            holds: BTreeMap::new(),
            last_id: 0,
            closed: false,
            ending: false,
            exhausted_in_a_row: 0,
            blocks,
        }
    }

    pub fn is_open(&self) -> bool {
        !self.closed && !self.scheduler.is_fenced()
    }

    pub fn is_fenced(&self) -> bool {
        self.scheduler.is_fenced()
    }

    pub fn is_ending(&self) -> bool {
        self.ending
    }

    pub fn has_no_memory(&self) -> bool {
        self.exhausted_in_a_row > 8
    }

    pub fn holds(&self, key: Key) -> bool {
        self.holds.values().any(|holder| *holder == key)
    }

    pub fn is_unused(&self) -> bool {
        self.holds.is_empty()
    }

    pub fn release(&mut self, key: Key) {
        self.holds.retain(|_, holder| *holder != key);
    }

    pub fn submit(&mut self, key: Key, request: Request) -> Vec<(Key, Event)> {
        self.last_id += 1;
        let id = RequestId(self.last_id);
        self.holds.insert(id, key);
        self.tell(Input::Submit { id, request })
    }

    pub fn cancel(&mut self, key: Key) -> Vec<(Key, Event)> {
        let id = self
            .holds
            .iter()
            .find(|(_, holder)| **holder == key)
            .map(|(id, _)| *id);
        self.release(key);
        id.map(|id| self.tell(Input::Cancel { id })).unwrap_or_default()
    }

    /// Lets every request go, once no step is in flight.
    pub fn move_out(&mut self) -> Vec<(Key, Event)> {
        self.closed = true;
        let mut events = Vec::new();
        while !self.flights.is_empty() {
            events.extend(self.collect(None));
        }
        // Its clients take what it gave them first.
        events.extend(self.tell(Input::MoveOut));
        assert!(self.scheduler.is_empty(), "some stay behind");
        events
    }

    /// Cuts every request, once no step is in flight.
    pub fn end(&mut self) -> Vec<(Key, Event)> {
        (self.closed, self.ending) = (true, true);
        let mut events = Vec::new();
        while !self.flights.is_empty() {
            events.extend(self.collect(None));
        }
        events.extend(self.tell(Input::Abort {
            failure: Failure::Draining,
        }));
        events
    }

    /// Nothing of it is in use any more.
    pub fn assert_empty(&self) {
        assert!(
            self.scheduler.is_empty() && self.holds.is_empty(),
            "torn down while it is used"
        );
        let counts = self.scheduler.counts();
        assert_eq!(
            (counts.blocks_used, counts.blocks_total),
            (0, self.blocks),
            "blocks are lost"
        );
    }

    pub fn preemptions(&self) -> u64 {
        self.scheduler.counts().preemptions
    }

    pub fn check(&self, number: u64, clients: &BTreeMap<Key, Client>) {
        for key in self.holds.values() {
            let at = clients.get(key).map(|client| client.at);
            assert_eq!(
                at,
                Some(Some(number)),
                "client {key} holds a generation that it is not in"
            );
        }
        let counts = self.scheduler.counts();
        let known = counts.waiting + counts.prefilling + counts.active + counts.preempted + counts.swapped;
        assert_eq!(known as usize, self.holds.len(), "requests are lost");
    }

    /// Plans and submits a step, or collects one; with `fault`, that fails.
    pub fn compute(&mut self, submits: bool, fault: Option<ErrorKind>) -> Vec<(Key, Event)> {
        let is_planned = (self.flights.is_empty() || submits) && self.scheduler.plan();
        self.copy(fault.is_some());
        if is_planned {
            self.submit_step(fault)
        } else if !self.flights.is_empty() {
            self.collect(fault)
        } else {
            Vec::new()
        }
    }

    fn copy(&mut self, fails: bool) {
        while let Some(op) = self.scheduler.next_op() {
            if !fails {
                self.kept.perform(&mut self.device, &op);
            }
            self.tell(Input::OpDone {
                op: &op,
                succeeded: !fails,
                elapsed: Duration::from_micros(1),
            });
        }
    }

    fn submit_step(&mut self, fault: Option<ErrorKind>) -> Vec<(Key, Event)> {
        if let Some(kind) = fault {
            return self.fail(kind, |error| Input::SubmitFailed { error });
        }
        let rows = self.scheduler.batch();
        let ticket = self.device.submit(Batch {
            rows: rows.as_slice().into(),
        });
        drop(rows);
        let ticket = ticket.expect("no failure was ordered");
        self.flights.push_back(ticket);
        self.tell(Input::Submitted { ticket })
    }

    fn collect(&mut self, fault: Option<ErrorKind>) -> Vec<(Key, Event)> {
        let Some(ticket) = self.flights.pop_front() else {
            return Vec::new();
        };
        let (row_count, top_count) = self.scheduler.oldest_sizes();
        let mut rows = vec![RowOutput::default(); row_count];
        let mut top = vec![TokenLogprob::default(); top_count];
        if let Some(kind) = fault {
            self.device.controls().fail("collect", [error(kind, "ordered")]);
        }
        let out = Output {
            rows: &mut rows,
            top: &mut top,
            logits: &mut [],
        };
        match self.device.collect(ticket, out) {
            Ok(()) => {
                self.exhausted_in_a_row = 0;
                self.tell(Input::Collected {
                    rows: &rows,
                    top: &top,
                    elapsed: Duration::from_millis(1),
                })
            }
            Err(error) => self.fail(error.kind, |error| Input::CollectFailed { error }),
        }
    }

    fn fail(
        &mut self,
        kind: ErrorKind,
        input: impl FnOnce(&met_backend_api::Error) -> Input<'_>,
    ) -> Vec<(Key, Event)> {
        match kind {
            ErrorKind::Exhausted => self.exhausted_in_a_row += 1,
            _ => self.flights.clear(),
        }
        self.tell(input(&error(kind, "ordered")))
    }

    fn tell(&mut self, input: Input<'_>) -> Vec<(Key, Event)> {
        let mut effects = Vec::new();
        self.scheduler.handle(input, &mut effects);
        let events = effects.into_iter().map(|Effect::Emit { id, event }| {
            let key = self
                .holds
                .get(&id)
                .unwrap_or_else(|| panic!("{id:?} got {event:?} after its end"));
            (*key, event)
        });
        events.collect()
    }
}

impl World {
    /// A step of one generation, sometimes a failed one.
    pub fn compute(&mut self) {
        let at = self.random.between(0, self.generations.len().max(1) as u64 - 1);
        let Some(number) = self.generations.keys().nth(at as usize).copied() else {
            return;
        };
        let fault = self
            .random
            .chance(self.trouble)
            .then(|| match self.random.chance(60) {
                true => ErrorKind::Fault,
                false => ErrorKind::Exhausted,
            });
        let submits = self.random.chance(700);
        let Some(generation) = self.generations.get_mut(&number) else {
            return;
        };
        let was_fenced = generation.is_fenced();
        let events = generation.compute(submits, fault);
        if generation.is_fenced() && !was_fenced {
            self.reached.count("fault");
        } else if fault == Some(ErrorKind::Exhausted) {
            self.reached.count("step without memory");
        }
        self.take(number, events);
    }
}
