//! The swap machine, the door of a slot and the schedulers of its generations together, over random clients, orders
//! and faults.
//!
//! A run is a function of its seed. `MET_SIM_SEED=n` replays one, `MET_SIM_STEPS=n` makes more steps:
//! `MET_SIM_STEPS=100000000 cargo test --release -p met-host --lib swap::simulation`.

mod clients;
mod generation;
mod swap;

use crate::{scheduler::simulation::random::Random, slot::door::Door};
use clients::{Client, Key};
use generation::SimGeneration;
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
};
use swap::SimSwap;

/// All runs together.
const STEPS: u64 = 1_000_000;
/// One run.
const STEPS_OF_A_RUN: u64 = 2_000;
/// Steps in which everything must come to its end once nothing disturbs it any more.
const CALM: u64 = 20_000;

#[test]
fn simulation() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let steps = number("MET_SIM_STEPS").unwrap_or(STEPS);
    let seeds = match number("MET_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..steps.div_ceil(STEPS_OF_A_RUN),
    };
    let whole = seeds.end - seeds.start >= STEPS / STEPS_OF_A_RUN;
    let mut reached = Reached::default();
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| World::new(seed).run())) {
            Ok(run) => reached.add(&run),
            Err(_) => panic!("seed {seed} failed; replay it with MET_SIM_SEED={seed}"),
        }
    }
    eprintln!("{reached:?}");
    if whole {
        assert!(
            reached.0.len() == WHAT.len() && reached.0.values().all(|count| *count > 20),
            "the simulation no longer reaches what it is for: {reached:?}"
        );
    }
}

/// What the simulation is for.
const WHAT: [&str; 21] = [
    "loaded",
    "swapped",
    "unloaded",
    "failed",
    "cancelled",
    "rolled_back",
    "down",
    "drain given up",
    "client served",
    "client held",
    "client turned away",
    "client left",
    "client left while held",
    "client cut by a deadline",
    "client cut by a fault",
    "client carried",
    "client shares a beginning",
    "client carried over a gap",
    "preemption",
    "fault",
    "step without memory",
];

#[derive(Debug, Default)]
struct Reached(BTreeMap<&'static str, u64>);

impl Reached {
    fn count(&mut self, what: &'static str) {
        assert!(WHAT.contains(&what), "{what} is not listed");
        *self.0.entry(what).or_default() += 1;
    }

    fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

struct World {
    random: Random,
    door: Door<u64, Key>,
    /// Those that are loaded, by number.
    generations: BTreeMap<u64, SimGeneration>,
    last_generation: u64,
    clients: BTreeMap<Key, Client>,
    last_key: Key,
    swap: Option<SimSwap>,
    /// Faults come with this chance out of 1000.
    trouble: u64,
    reached: Reached,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let trouble = match random.chance(300) {
            true => 0,
            false => random.between(1, 60),
        };
        Self {
            random,
            door: Door::new(),
            generations: BTreeMap::new(),
            last_generation: 0,
            clients: BTreeMap::new(),
            last_key: 0,
            swap: None,
            trouble,
            reached: Reached::default(),
        }
    }

    fn run(mut self) -> Reached {
        let busy = self.random.between(50, 400);
        for _ in 0..STEPS_OF_A_RUN {
            match self.random.between(0, 9) {
                0..3 if self.random.chance(busy) => self.arrive(),
                3 if self.random.chance(100) => self.leave(),
                4 if self.swap.is_none() && self.random.chance(200) => self.begin_swap(),
                5 if self.random.chance(80) => self.cancel_swap(),
                4..6 => self.advance_swap(),
                _ => self.compute(),
            }
            self.check();
        }
        self.come_to_rest();
        self.reached
    }

    /// Nothing new and no faults: everything that is left comes to its end.
    fn come_to_rest(&mut self) {
        self.trouble = 0;
        for _ in 0..CALM {
            if self.swap.is_none() && self.clients.is_empty() {
                break;
            }
            self.compute();
            self.advance_swap();
            self.check();
        }
        assert!(self.swap.is_none(), "a swap comes to no end");
        assert!(
            self.clients.is_empty(),
            "{} clients come to no end: {:?}",
            self.clients.len(),
            self.clients
        );
        assert!(self.generations.len() <= 1, "more is loaded than serves");
    }

    /// What is true between any two steps.
    fn check(&self) {
        if let Some(current) = self.door.current() {
            assert!(
                self.generations.contains_key(current),
                "what serves is not loaded"
            );
        }
        if self.swap.is_none() {
            let loaded: Vec<u64> = self.generations.keys().copied().collect();
            let serving: Vec<u64> = self.door.current().copied().into_iter().collect();
            assert_eq!(loaded, serving, "only what serves is loaded");
            assert_eq!(self.door.held(|_| false), 0, "requests wait for nothing");
        }
        for (number, generation) in &self.generations {
            generation.check(*number, &self.clients);
        }
        for (key, client) in &self.clients {
            client.check(*key, &self.generations);
        }
    }
}
