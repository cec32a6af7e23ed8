//! The scheduler against a fake device, over random requests, clients, faults and pool sizes.
//!
//! A run is a function of its seed. `MET_SIM_SEED=n` replays one, `MET_SIM_RUNS=n` makes more of them:
//! `MET_SIM_RUNS=100000 cargo test --release -p met-host --lib simulation`.

use super::{Effect, Flight, Input, Limits, RequestId, Scheduler, sequence::State};
use crate::{
    engine::{
        DeviceIo,
        testing::{FakeDevice, error, next_token},
    },
    request::{Event, Failure, FinishReason, Request, Sampling},
};
use met_backend_api::{Batch, ErrorKind, RowOutput, Ticket, TokenCount, TokenLogprob, sdk::Output};
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

const RUNS: u64 = 300;
/// Steps with arrivals and faults; then the rest is finished.
const STEPS: usize = 150;
/// Planned steps that the oldest request may go without a row of its own: retries, suspects that are tried
/// alone, steps in flight that hold blocks.
const PATIENCE: u32 = 60;
/// Turns in which everything that is left must come to its end.
const MOST_TURNS: u32 = 100_000;

#[test]
fn simulation() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match number("MET_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("MET_SIM_RUNS").unwrap_or(RUNS),
    };
    let mut reached = Reached::default();
    for seed in seeds.clone() {
        let run = catch_unwind(AssertUnwindSafe(|| World::new(seed).run()));
        match run {
            Ok(run) => reached.add(&run),
            Err(_) => panic!("seed {seed} failed; replay it with MET_SIM_SEED={seed}"),
        }
    }
    eprintln!("{reached:?}");
    if seeds.end - seeds.start >= RUNS {
        assert!(
            reached.everything(),
            "the simulation no longer reaches what it is for: {reached:?}"
        );
    }
}

/// How often the runs came to what they are to test.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    steps: u64,
    stopped: u64,
    lengths: u64,
    cancels: u64,
    pauses: u64,
    preemptions: u64,
    run_ahead: u64,
    exhausted: u64,
    failed_collects: u64,
    invalid: u64,
    fences: u64,
    aborts: u64,
}

impl Reached {
    fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.stopped += other.stopped;
        self.lengths += other.lengths;
        self.cancels += other.cancels;
        self.pauses += other.pauses;
        self.preemptions += other.preemptions;
        self.run_ahead += other.run_ahead;
        self.exhausted += other.exhausted;
        self.failed_collects += other.failed_collects;
        self.invalid += other.invalid;
        self.fences += other.fences;
        self.aborts += other.aborts;
    }

    fn everything(&self) -> bool {
        let Self {
            steps,
            stopped,
            lengths,
            cancels,
            pauses,
            preemptions,
            ..
        } = *self;
        let Self {
            run_ahead,
            exhausted,
            failed_collects,
            invalid,
            fences,
            aborts,
            ..
        } = *self;
        steps > 50_000
            && [stopped, lengths, cancels, pauses, preemptions, run_ahead]
                .iter()
                .all(|n| *n > 300)
            && [exhausted, failed_collects, invalid].iter().all(|n| *n > 100)
            && fences > 2
            && aborts > 2
    }
}

/// What the simulation knows of a request.
struct Client {
    request: Request,
    /// The prompt and what was emitted.
    tokens: Vec<u32>,
    paused: bool,
    /// The backend calls any batch with it invalid.
    poisoned: bool,
    /// Planned steps since it was the oldest and had a row.
    passed_over: u32,
}

/// A step in flight: its ticket, and whose blocks it uses.
type Submitted = (Ticket, Vec<(RequestId, Vec<u32>)>);

struct World {
    random: Random,
    limits: Limits,
    scheduler: Scheduler,
    device: FakeDevice,
    clients: BTreeMap<RequestId, Client>,
    last_id: u64,
    flights: VecDeque<Submitted>,
    /// Faults come with this chance out of 1000.
    trouble: u64,
    exhausted_in_a_row: u32,
    reached: Reached,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let block_size = random.between(1, 8) as u32;
        let block_count = random.between(2, 24) as u32;
        let max_rows = random.between(1, 6) as u32;
        let mut device = FakeDevice::new(block_count, block_size, max_rows);
        let model = device.model_mut();
        model.vocab_size = random.between(2, 40) as u32;
        model.context_length = random.between(2, 100) as u32;
        model.max_batch_tokens = random.between(1, 40) as u32;
        model.max_in_flight = random.between(1, 3) as u32;
        let limits = Limits::of(model).expect("no size is 0");
        let trouble = if random.chance(500) {
            0
        } else {
            random.between(1, 80)
        };
        Self {
            scheduler: Scheduler::new(limits),
            limits,
            device,
            clients: BTreeMap::new(),
            last_id: 0,
            flights: VecDeque::new(),
            trouble,
            exhausted_in_a_row: 0,
            reached: Reached::default(),
            random,
        }
    }

    fn run(mut self) -> Reached {
        let fatal = self
            .random
            .chance(50)
            .then(|| self.random.between(1, STEPS as u64) as usize);
        let abort = self
            .random
            .chance(50)
            .then(|| self.random.between(1, STEPS as u64) as usize);
        let busy = self.random.between(20, 700);
        for step in 0..STEPS {
            while self.random.chance(busy) {
                self.submit_request();
            }
            self.disturb();
            if abort == Some(step) {
                self.abort();
            }
            self.turn(fatal == Some(step));
        }
        // Calm: everything that is left comes to its end.
        self.trouble = 0;
        let paused: Vec<RequestId> = self
            .clients
            .iter()
            .filter(|(_, c)| c.paused)
            .map(|(id, _)| *id)
            .collect();
        for id in paused {
            self.resume(id);
        }
        let mut turns = 0;
        while !self.scheduler.is_empty() || self.scheduler.in_flight() > 0 {
            turns += 1;
            assert!(
                turns < MOST_TURNS,
                "{} requests come to no end",
                self.clients.len()
            );
            assert!(
                self.turn(false),
                "nothing happens, and {} requests are left",
                self.clients.len()
            );
        }
        assert!(
            self.clients.is_empty(),
            "requests were lost: {:?}",
            self.clients.keys()
        );
        assert_eq!(self.scheduler.pool.free(), self.limits.block_count);
        assert!(self.scheduler.running.is_empty());
        self.reached.preemptions = self.scheduler.counts().preemptions;
        self.reached
    }

    /// Plans and submits what may be, or collects. Returns whether anything happened.
    fn turn(&mut self, fatal: bool) -> bool {
        // With several steps in flight, sometimes another one is submitted and sometimes one is collected.
        let submits = self.flights.is_empty() || self.random.chance(700);
        let planned = submits && self.plan();
        if planned {
            self.submit_step(fatal);
        } else if !self.flights.is_empty() {
            self.collect_step(fatal);
        } else if !self.scheduler.is_fenced() {
            let left: Vec<_> = self
                .clients
                .iter()
                .filter(|(_, client)| !client.paused)
                .map(|(id, _)| id)
                .collect();
            assert!(left.is_empty(), "nothing is planned for {left:?}");
            return false;
        } else {
            return false;
        }
        self.check_state();
        true
    }

    fn plan(&mut self) -> bool {
        let ran: HashSet<RequestId> = self
            .scheduler
            .running
            .iter()
            .map(|sequence| sequence.id)
            .collect();
        let planned = self.scheduler.plan();
        let running = self.scheduler.running.iter().map(|sequence| sequence.id);
        let newest = running.filter(|id| !ran.contains(id)).max();
        let first_in_line = self
            .scheduler
            .waiting
            .iter()
            .find(|sequence| !sequence.paused)
            .map(|sequence| sequence.id);
        if let (Some(newest), Some(first)) = (newest, first_in_line) {
            assert!(newest < first, "{newest:?} overtook {first:?}");
        }
        planned
    }

    fn submit_step(&mut self, fatal: bool) {
        self.reached.steps += 1;
        let rows = self.scheduler.batch();
        let planned: Vec<RequestId> = self
            .scheduler
            .planned
            .iter()
            .flat_map(|flight: &Flight| &flight.rows)
            .map(|row| row.id)
            .collect();
        assert_eq!(rows.len(), planned.len());
        self.reached.run_ahead += rows.iter().filter(|row| row.input.is_some()).count() as u64;
        for (row, id) in rows.iter().zip(&planned) {
            let client = &self.clients[id];
            assert!(!client.paused, "{id:?} is paused");
            let end = row.position as usize + row.tokens.len().max(1);
            let last = client.request.prompt.len() + client.request.max_tokens as usize;
            assert!(end < last, "{id:?} computes what nobody asked for");
            assert_eq!(
                (
                    row.sampling,
                    row.top_logprobs > 0 && client.request.top_logprobs.is_none()
                ),
                (client.request.sampling, false)
            );
            // What a step in flight reads or writes belongs to nobody else.
            for (other, blocks) in self.flights.iter().flat_map(|(_, blocks)| blocks) {
                let shared = blocks.iter().any(|block| row.blocks.contains(block));
                assert!(
                    other == id || !shared,
                    "{id:?} got blocks that {other:?} has in flight"
                );
            }
        }
        let poisoned = planned.iter().any(|id| self.clients[id].poisoned);
        let kind = if fatal {
            Some(if self.random.chance(500) {
                ErrorKind::Fault
            } else {
                ErrorKind::Bug
            })
        } else if self.random.chance(self.trouble) {
            Some(ErrorKind::Exhausted)
        } else {
            poisoned.then_some(ErrorKind::Invalid)
        };
        let blocks = planned
            .iter()
            .zip(&rows)
            .map(|(id, row)| (*id, row.blocks.to_vec()))
            .collect();
        if let Some(kind) = kind {
            drop(rows);
            self.fail(kind, planned.len(), |error| Input::SubmitFailed { error });
        } else {
            let ticket = self
                .device
                .submit(Batch {
                    rows: rows.as_slice().into(),
                })
                .expect("no failure was ordered");
            drop(rows);
            self.flights.push_back((ticket, blocks));
            self.tell(Input::Submitted { ticket });
        }
        self.age(&planned);
    }

    fn collect_step(&mut self, fatal: bool) {
        let Some((ticket, whose)) = self.flights.pop_front() else {
            return;
        };
        let (row_count, top_count) = self.scheduler.oldest_sizes();
        assert_eq!(row_count, whose.len());
        let mut rows = vec![RowOutput::default(); row_count];
        let mut top = vec![TokenLogprob::default(); top_count];
        let kind = if fatal {
            Some(ErrorKind::Fault)
        } else if self.random.chance(self.trouble) {
            // A step that fails alone is taken as the fault of its only request.
            Some(if row_count > 1 && self.random.chance(500) {
                ErrorKind::Invalid
            } else {
                ErrorKind::Exhausted
            })
        } else {
            None
        };
        if let Some(kind) = kind {
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
                let elapsed = Duration::from_millis(self.random.between(0, 3000));
                self.tell(Input::Collected {
                    rows: &rows,
                    top: &top,
                    elapsed,
                });
            }
            Err(error) => {
                self.reached.failed_collects += 1;
                self.fail(error.kind, row_count, |error| Input::CollectFailed { error });
            }
        }
    }

    fn fail(
        &mut self,
        kind: ErrorKind,
        rows: usize,
        input: impl FnOnce(&met_backend_api::Error) -> Input<'_>,
    ) {
        match kind {
            ErrorKind::Exhausted => {
                self.reached.exhausted += 1;
                self.exhausted_in_a_row += 1;
            }
            ErrorKind::Invalid => self.reached.invalid += 1,
            _ => {
                self.reached.fences += 1;
                self.flights.clear();
            }
        }
        assert!(rows > 0);
        let error = error(kind, "ordered");
        self.tell(input(&error));
    }

    /// The oldest request that may run doesn't go without for long.
    fn age(&mut self, planned: &[RequestId]) {
        let Some((id, client)) = self.clients.iter_mut().find(|(_, client)| !client.paused) else {
            return;
        };
        client.passed_over = if planned.contains(id) {
            0
        } else {
            client.passed_over + 1
        };
        assert!(client.passed_over < PATIENCE, "{id:?} is the oldest and starves");
    }

    fn submit_request(&mut self) {
        self.last_id += 1;
        let id = RequestId(self.last_id);
        let vocab = u64::from(self.limits.vocab_size);
        let longest = u64::from(self.limits.longest());
        let length = self.random.between(1, longest.max(2));
        let prompt: Vec<u32> = (0..length)
            .map(|_| self.random.between(0, vocab - 1) as u32)
            .collect();
        let penalty = if self.random.chance(250) { 0.5 } else { 0.0 };
        let request = Request {
            prompt,
            max_tokens: self.random.between(1, 30) as u32,
            sampling: Sampling {
                seed: self.last_id,
                sequence: 3,
                presence_penalty: penalty,
                ..Sampling::default()
            },
            stop_tokens: (0..self.random.between(0, 1))
                .map(|_| self.random.between(0, vocab - 1) as u32)
                .collect(),
            top_logprobs: self
                .random
                .chance(200)
                .then(|| self.random.between(0, vocab.min(4)) as u32),
            bias: Vec::new(),
        };
        let fits = self.limits.check(&request).is_ok();
        let poisoned = self.trouble > 0 && self.random.chance(30);
        let tokens = request.prompt.clone();
        let client = Client {
            request: request.clone(),
            tokens,
            paused: false,
            poisoned,
            passed_over: 0,
        };
        self.clients.insert(id, client);
        self.tell(Input::Submit { id, request });
        assert_eq!(
            self.clients.contains_key(&id),
            fits && !self.scheduler.is_fenced(),
            "{id:?}: refused at once or not at all"
        );
    }

    /// Clients leave, stop reading, and read again.
    fn disturb(&mut self) {
        if self.random.chance(40)
            && let Some(id) = self.any_client()
        {
            self.clients.remove(&id);
            self.reached.cancels += 1;
            self.tell(Input::Cancel { id });
        }
        if self.random.chance(100)
            && let Some(id) = self.any_client()
        {
            if self.clients[&id].paused {
                self.resume(id);
            } else if self.clients[&id].tokens.len() > self.clients[&id].request.prompt.len() {
                self.reached.pauses += 1;
                self.client(id).paused = true;
                self.tell(Input::Pause { id });
            }
        }
    }

    fn abort(&mut self) {
        self.reached.aborts += 1;
        self.tell(Input::Abort {
            failure: Failure::Draining,
        });
        assert!(self.clients.is_empty() && self.scheduler.is_empty());
    }

    fn resume(&mut self, id: RequestId) {
        self.client(id).paused = false;
        self.tell(Input::Resume { id });
    }

    fn any_client(&mut self) -> Option<RequestId> {
        let at = self.random.between(0, self.clients.len().max(1) as u64 - 1);
        self.clients.keys().nth(at as usize).copied()
    }

    fn client(&mut self, id: RequestId) -> &mut Client {
        self.clients
            .get_mut(&id)
            .unwrap_or_else(|| panic!("{id:?} got something after its end"))
    }

    fn tell(&mut self, input: Input<'_>) {
        let aborted = matches!(input, Input::Abort { .. });
        let mut effects = Vec::new();
        self.scheduler.handle(input, &mut effects);
        for Effect::Emit { id, event } in effects {
            self.check_event(id, event, aborted);
        }
    }

    /// An event is the one that the request's tokens call for.
    fn check_event(&mut self, id: RequestId, event: Event, aborted: bool) {
        let (vocab, longest, fenced) = (self.limits.vocab_size, self.limits, self.scheduler.is_fenced());
        let exhausted = self.exhausted_in_a_row;
        let client = self.client(id);
        let generated = client.tokens.len() - client.request.prompt.len();
        let next = next_token(&client.tokens, &client.request.sampling, &counts(client), vocab);
        match event {
            Event::Token(token) => {
                assert_eq!(token.id, next, "{id:?}: wrong token {generated}");
                assert_eq!(token.top.len() as u32, client.request.top_logprobs.unwrap_or(0));
                assert!(
                    token.top.iter().all(|(_, logprob)| *logprob == token.logprob),
                    "another row's"
                );
                assert!(!client.request.stop_tokens.contains(&token.id));
                assert!(generated < client.request.max_tokens as usize);
                client.tokens.push(token.id);
                return;
            }
            Event::Finished(FinishReason::Stop) => {
                assert!(client.request.stop_tokens.contains(&next));
                self.reached.stopped += 1;
            }
            Event::Finished(FinishReason::Length) => {
                assert_eq!(generated, client.request.max_tokens as usize);
                self.reached.lengths += 1;
            }
            Event::Failed(Failure::Invalid(_)) => {
                assert!(
                    client.poisoned || longest.check(&client.request).is_err(),
                    "{id:?} was not invalid"
                );
            }
            Event::Failed(Failure::Backend(_)) => {
                assert!(fenced || exhausted > 8, "{id:?} failed without a reason")
            }
            Event::Failed(Failure::Draining) => assert!(aborted),
            Event::Failed(Failure::SlowClient) => panic!("{id:?} was not slow"),
        }
        self.clients.remove(&id);
    }

    /// What is true between any two inputs.
    fn check_state(&self) {
        let scheduler = &self.scheduler;
        let tables = scheduler.running.iter().flat_map(|sequence| &sequence.blocks);
        let mut blocks: Vec<u32> = tables.chain(scheduler.pool.free_blocks()).copied().collect();
        blocks.sort_unstable();
        assert!(
            blocks.iter().copied().eq(0..self.limits.block_count),
            "blocks are lost or held twice"
        );
        assert!(scheduler.running.is_sorted_by_key(|sequence| sequence.id));
        assert!(scheduler.waiting.iter().is_sorted_by_key(|sequence| sequence.id));
        assert!(scheduler.running.len() <= self.limits.max_running as usize);
        assert!(scheduler.flights.len() <= self.limits.max_in_flight as usize);
        for sequence in &scheduler.running {
            let rows = scheduler
                .flights
                .iter()
                .flat_map(|flight| &flight.rows)
                .filter(|row| row.id == sequence.id);
            assert_eq!(sequence.in_flight as usize, rows.count());
            assert!(
                sequence.is_admitted() || sequence.in_flight > 0,
                "{:?} holds blocks for nothing",
                sequence.id
            );
            assert_eq!(
                self.clients.contains_key(&sequence.id),
                sequence.state != State::Leaving
            );
        }
        for sequence in &scheduler.waiting {
            assert!(sequence.blocks.is_empty() && sequence.in_flight == 0 && sequence.pending == 0);
            assert!(self.clients.contains_key(&sequence.id));
        }
        let counted = scheduler.counts();
        let known = counted.waiting + counted.prefilling + counted.active + counted.preempted;
        assert_eq!(known as usize, self.clients.len(), "requests are lost");
    }
}

/// The counts that a request's penalties need, reckoned from the start.
fn counts(client: &Client) -> Vec<TokenCount> {
    if client.request.sampling.presence_penalty == 0.0 {
        return Vec::new();
    }
    let mut counts = BTreeMap::new();
    for (at, token) in client.tokens.iter().enumerate() {
        *counts.entry(*token).or_insert(0) += u32::from(at >= client.request.prompt.len());
    }
    counts
        .into_iter()
        .map(|(token, generated)| TokenCount { token, generated })
        .collect()
}

/// splitmix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }

    /// True `per_mille` times out of 1000.
    fn chance(&mut self, per_mille: u64) -> bool {
        self.next() % 1000 < per_mille
    }
}
