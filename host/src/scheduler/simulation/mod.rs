//! The scheduler against a fake device, over random requests, clients, faults and pool sizes.
//!
//! A run is a function of its seed. `MET_SIM_SEED=n` replays one, `MET_SIM_RUNS=n` makes more of them:
//! `MET_SIM_RUNS=100000 cargo test --release -p met-host --lib simulation`.

mod checks;
mod clients;
pub(crate) mod kept;
pub(crate) mod random;
mod reached;
mod steps;

use super::{DeviceOp, Effect, Input, Limits, RequestId, Scheduler};
use crate::engine::{DeviceIo, testing::FakeDevice};
use clients::Client;
use kept::Kept;
use random::Random;
use reached::Reached;
use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};
use steps::Submitted;

/// Runs, which make a million steps together.
const RUNS: u64 = 6_000;
/// Threads that share them.
const THREADS: usize = 2;
/// Steps with arrivals and faults; then the rest is finished.
const STEPS: usize = 150;
/// A longer line would teach nothing more, and each check goes through it.
const MOST_CLIENTS: usize = 40;
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
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut reached = Reached::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) {
                return reached;
            }
            match catch_unwind(AssertUnwindSafe(|| World::new(seed).run())) {
                Ok(run) => reached.add(&run),
                Err(_) => panic!("seed {seed} failed; replay it with MET_SIM_SEED={seed}"),
            }
        }
    };
    let mut reached = Reached::default();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            reached.add(&thread.join().expect("a seed failed; see above"));
        }
    });
    eprintln!("{reached:?}");
    if seeds.end - seeds.start >= RUNS {
        assert!(
            reached.everything(),
            "the simulation no longer reaches what it is for: {reached:?}"
        );
    }
}

struct World {
    random: Random,
    limits: Limits,
    scheduler: Scheduler,
    device: FakeDevice,
    clients: BTreeMap<RequestId, Client>,
    last_id: u64,
    /// Prompts, and prompts with their answers.
    conversations: Vec<Vec<u32>>,
    flights: VecDeque<Submitted>,
    kept: Kept,
    now: Duration,
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
        // Half of the models have recurrent state.
        if random.chance(500) {
            let slots = random.between(1, u64::from(max_rows) + 2) as u32;
            device = device.with_state(slots, random.between(0, 8) as u32);
        }
        let mut limits = Limits::of(device.model()).expect("no size is 0");
        limits.parks = random.chance(700);
        limits.max_sessions = random.between(0, 4) as u32;
        limits.session_ttl = Duration::from_secs(random.between(1, 60));
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
            conversations: Vec::new(),
            flights: VecDeque::new(),
            kept: Kept::default(),
            now: Duration::ZERO,
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
            while self.random.chance(busy) && self.clients.len() < MOST_CLIENTS {
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
        assert!(self.scheduler.running.is_empty());
        self.end_sessions();
        assert_eq!(self.scheduler.pool.free(), self.limits.block_count);
        assert_eq!(self.scheduler.free_slots.len(), self.limits.state_slots as usize);
        self.perform();
        assert_eq!(self.device.held_states().count(), 0, "slots are held by nobody");
        self.reached.restarts = self.scheduler.counts().restarts;
        self.reached.preemptions = self.scheduler.counts().preemptions - self.scheduler.counts().swaps;
        self.reached.swaps = self.scheduler.counts().swaps;
        assert!(self.reached.cached == 0 || self.scheduler.counts().cached_tokens > 0);
        self.reached
    }

    /// Plans and submits what may be, or collects. Returns whether anything happened.
    fn turn(&mut self, fatal: bool) -> bool {
        // With several steps in flight, sometimes another one is submitted and sometimes one is collected.
        let submits = self.flights.is_empty() || self.random.chance(700);
        let planned = submits && self.plan();
        let copied = self.perform();
        if planned {
            self.submit_step(fatal);
        } else if !self.flights.is_empty() {
            self.collect_step(fatal);
        } else if copied {
            return true;
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
        self.pass_time();
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
        let parking = self
            .scheduler
            .running
            .iter()
            .find(|sequence| sequence.is_parking());
        let parking = parking
            .filter(|sequence| !sequence.paused)
            .map(|sequence| sequence.id);
        for first in [first_in_line, parking].into_iter().flatten() {
            assert!(
                newest.is_none_or(|newest| newest < first),
                "{newest:?} overtook {first:?}"
            );
        }
        planned
    }

    /// Does what is to be done on the device, or fails to.
    fn perform(&mut self) -> bool {
        let mut performed = false;
        while let Some(op) = self.scheduler.next_op() {
            // A slot that could not be freed stays held, which the next one to hold it doesn't mind.
            let fails = self.random.chance(4 * self.trouble) && !matches!(op, DeviceOp::FreeState { .. });
            match (&op, fails) {
                (_, false) => self.kept.perform(&mut self.device, &op),
                (DeviceOp::CopyIn { id, .. }, true) => self.kept.forget(*id),
                (_, true) => {}
            }
            self.reached.performed(&op, !fails);
            let elapsed = Duration::from_nanos(self.random.between(1, 2_000_000));
            self.tell(Input::OpDone {
                op: &op,
                succeeded: !fails,
                elapsed,
            });
            performed = true;
        }
        performed
    }

    fn pass_time(&mut self) {
        self.now += Duration::from_millis(self.random.between(0, 1000));
        let before = self.scheduler.sessions.count();
        self.tell(Input::Tick { now: self.now });
        self.reached.expired += u64::from(before - self.scheduler.sessions.count());
        let next = self.scheduler.next_session_end();
        assert!(
            next.is_none_or(|end| end > self.now),
            "a session is kept for too long"
        );
    }

    fn tell(&mut self, input: Input<'_>) {
        let aborted = matches!(input, Input::Abort { .. });
        let mut effects = Vec::new();
        self.scheduler.handle(input, &mut effects);
        for Effect::Emit { id, event } in effects {
            self.check_event(id, event, aborted);
        }
    }
}
