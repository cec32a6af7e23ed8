//! The simulated supervisor: it does what the machine says, or fails to.

use super::{SimGeneration, World};
use crate::slot::{
    Hold,
    swap::{InFlight, Machine, Next, Outcome, Plan, Step, Subject, Verb},
};
use std::time::Duration;

/// Vocabularies of the models there are.
const MODELS: [u32; 2] = [17, 61];
const HOLD: Hold = Hold {
    max: 4,
    deadline: Duration::ZERO,
};

pub(super) struct SimSwap {
    machine: Machine,
    step: Step,
    /// Whether the step was begun; some take more than one turn.
    begun: bool,
    plan: Plan,
    in_flight: InFlight,
    cancelled: bool,
    model: u32,
    restored_model: u32,
    incumbent: Option<u64>,
    candidate: Option<u64>,
    restored: Option<u64>,
}

impl World {
    pub fn begin_swap(&mut self) {
        let incumbent = self.door.current().copied();
        let unload = incumbent.is_some() && self.random.chance(150);
        let plan = match self.random.chance(500) {
            true => Plan::SideBySide,
            false => Plan::DrainFirst,
        };
        let (machine, Next::Perform(step)) = Machine::begin(plan, incumbent.is_some(), !unload) else {
            panic!("a swap begins with a step")
        };
        if !unload {
            self.door.hold(HOLD);
        }
        self.swap = Some(SimSwap {
            machine,
            step,
            begun: false,
            plan,
            in_flight: [InFlight::Finish, InFlight::Carry, InFlight::Cancel]
                [self.random.between(0, 2) as usize],
            cancelled: false,
            model: MODELS[self.random.between(0, 1) as usize],
            restored_model: incumbent.map_or(0, |incumbent| self.generations[&incumbent].model),
            incumbent,
            candidate: None,
            restored: None,
        });
    }

    pub fn cancel_swap(&mut self) {
        if let Some(swap) = &mut self.swap {
            swap.cancelled |= swap.machine.cancel();
        }
    }

    /// A turn of the step that is being made.
    pub fn advance_swap(&mut self) {
        let Some(mut swap) = self.swap.take() else { return };
        let done = match swap.step.verb {
            Verb::Load => self.load(&mut swap),
            Verb::Verify => Some(!self.random.chance(150)),
            Verb::Switch => self.switch(&swap),
            Verb::Drain => self.drain(&mut swap),
            Verb::Teardown => self.teardown(&swap),
            Verb::Unload => Some(!self.random.chance(100)),
        };
        let Some(succeeded) = done else {
            self.swap = Some(swap);
            return;
        };
        match swap.machine.done(succeeded) {
            Next::Perform(step) => {
                (swap.step, swap.begun) = (step, false);
                self.swap = Some(swap);
            }
            Next::Ended(outcome) => self.end_swap(&swap, outcome),
        }
    }

    fn load(&mut self, swap: &mut SimSwap) -> Option<bool> {
        if self.random.chance(500) {
            return None;
        }
        if swap.incumbent.is_some() && swap.plan == Plan::DrainFirst {
            assert!(
                self.generations.is_empty(),
                "drain first loads into an empty slot"
            );
        }
        if self.random.chance(250) {
            return Some(false);
        }
        self.last_generation += 1;
        let (model, place) = match swap.step.of {
            Subject::Candidate => (swap.model, &mut swap.candidate),
            _ => (swap.restored_model, &mut swap.restored),
        };
        *place = Some(self.last_generation);
        let generation = SimGeneration::new(model, &mut self.random);
        self.generations.insert(self.last_generation, generation);
        Some(true)
    }

    fn switch(&mut self, swap: &SimSwap) -> Option<bool> {
        let to = swap.of(swap.step.of);
        assert!(to.is_some(), "nothing to switch to");
        if swap.step.of == Subject::Incumbent && to.is_some_and(|to| !self.generations[&to].is_open()) {
            return Some(false);
        }
        let (from, held) = self.door.switch(to);
        assert!(from.is_none() || from == swap.incumbent);
        for key in held {
            self.attach(key, to.unwrap_or_default());
        }
        assert!(self.door.let_go().is_empty(), "some that waited were not told");
        Some(true)
    }

    fn drain(&mut self, swap: &mut SimSwap) -> Option<bool> {
        let number = swap.incumbent.unwrap_or_default();
        if !std::mem::replace(&mut swap.begun, true) {
            if self.door.current() == swap.incumbent.as_ref() {
                let (_, told) = self.door.switch(None);
                assert!(told.is_empty());
            }
            let expected = swap.candidate.map(|candidate| self.generations[&candidate].model);
            let same = expected.unwrap_or(swap.model) == swap.restored_model;
            if swap.in_flight == InFlight::Carry && same && swap.has_candidate() {
                let events = self.generations.get_mut(&number).map(SimGeneration::move_out);
                self.take(number, events.unwrap_or_default());
            }
        }
        let (unused, is_open) = {
            let incumbent = &self.generations[&number];
            (incumbent.is_unused(), incumbent.is_open())
        };
        if swap.cancelled && !unused && is_open && swap.in_flight != InFlight::Cancel {
            self.reached.count("drain given up");
            return Some(false);
        }
        (unused || swap.in_flight == InFlight::Cancel || self.random.chance(20)).then_some(true)
    }

    fn teardown(&mut self, swap: &SimSwap) -> Option<bool> {
        let Some(number) = swap.of(swap.step.of) else {
            return Some(true);
        };
        assert_ne!(self.door.current(), Some(&number), "torn down while it serves");
        if let Some(generation) = self.generations.get_mut(&number) {
            let events = generation.end();
            self.take(number, events);
        }
        if let Some(generation) = self.generations.remove(&number) {
            generation.assert_empty();
            if generation.preemptions() > 0 {
                self.reached.count("preemption");
            }
        }
        Some(!self.random.chance(50))
    }

    fn end_swap(&mut self, swap: &SimSwap, outcome: Outcome) {
        for key in self.door.let_go() {
            self.turn_away(key);
        }
        self.reached.count(outcome.name());
        let serving = self.door.current().copied();
        match outcome {
            Outcome::Swapped | Outcome::Loaded => assert_eq!(serving, swap.candidate),
            Outcome::Failed => assert_eq!(serving, swap.incumbent),
            Outcome::RolledBack => assert_eq!(serving, swap.restored),
            Outcome::Unloaded | Outcome::Down => assert_eq!(serving, None),
            Outcome::Cancelled => assert!(serving == swap.incumbent || serving == swap.restored),
        }
    }
}

impl SimSwap {
    fn of(&self, subject: Subject) -> Option<u64> {
        match subject {
            Subject::Candidate => self.candidate,
            Subject::Incumbent => self.incumbent,
            Subject::Restored => self.restored,
        }
    }

    fn has_candidate(&self) -> bool {
        self.machine.has_candidate()
    }
}
