//! The swap machine: which of the six verbs comes next. Pure: no clock, no I/O, no threads.
//!
//! A load is a swap without an incumbent, an unload one without a candidate.

use serde::Serialize;

/// The six verbs, in the order in which a model lives through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Open the library and load the model.
    Load,
    /// Generate on fixed prompts and look at what comes.
    Verify,
    /// Make it the one that new requests get.
    Switch,
    /// Wait for its requests to end, within a deadline.
    Drain,
    /// Release its pools and sweep what is left.
    Teardown,
    /// Close its library.
    Unload,
}

/// Whom a verb is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// The generation that a swap brings.
    Candidate,
    /// The generation that serves when the swap begins.
    Incumbent,
    /// The incumbent's model, loaded again after the candidate failed.
    Restored,
}

/// One step of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Step {
    /// What is done.
    #[serde(rename = "step")]
    pub verb: Verb,
    /// To whom.
    pub of: Subject,
}

/// In which order memory is taken and given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Plan {
    /// Both are loaded for a while: no gap.
    SideBySide,
    /// The incumbent goes first; requests are held meanwhile.
    DrainFirst,
}

/// How a swap ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The candidate serves.
    Swapped,
    /// The slot's first model serves.
    Loaded,
    /// The slot is empty, as asked.
    Unloaded,
    /// The candidate failed; the incumbent serves and never noticed.
    Failed,
    /// The swap was cancelled; the incumbent serves, or serves again.
    Cancelled,
    /// The candidate failed after the incumbent was gone; the incumbent's model was loaded again and serves.
    RolledBack,
    /// Nothing serves: neither the candidate nor the incumbent's model could be loaded.
    Down,
}

impl Verb {
    /// Its name, as in the reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Verify => "verify",
            Self::Switch => "switch",
            Self::Drain => "drain",
            Self::Teardown => "teardown",
            Self::Unload => "unload",
        }
    }
}

impl Outcome {
    /// Its name, as in the reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Swapped => "swapped",
            Self::Loaded => "loaded",
            Self::Unloaded => "unloaded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::RolledBack => "rolled_back",
            Self::Down => "down",
        }
    }
}

/// What the machine asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Perform this, then say how it went.
    Perform(Step),
    /// The end.
    Ended(Outcome),
}

/// A swap in progress. One step is performed at a time; its result moves the machine on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    plan: Plan,
    has_incumbent: bool,
    has_candidate: bool,
    step: Step,
    cancelled: bool,
    candidate_failed: bool,
    switched: bool,
}

impl Machine {
    /// Begins a swap; at least one of the two generations must be there. The plan matters where both are.
    pub fn begin(plan: Plan, has_incumbent: bool, has_candidate: bool) -> (Self, Next) {
        let drains = !has_candidate || (has_incumbent && plan == Plan::DrainFirst);
        let step = if drains { INCUMBENT_DRAIN } else { CANDIDATE_LOAD };
        let machine = Self {
            plan,
            has_incumbent,
            has_candidate,
            step,
            cancelled: false,
            candidate_failed: false,
            switched: false,
        };
        (machine, Next::Perform(step))
    }

    /// Whether a generation is to be brought.
    pub fn has_candidate(&self) -> bool {
        self.has_candidate
    }

    /// Asks to give the candidate up; `false` where it is too late, or there is none. The step in progress
    /// still has to be reported.
    pub fn cancel(&mut self) -> bool {
        let possible = self.has_candidate && !self.switched && !self.candidate_failed;
        self.cancelled |= possible;
        possible
    }

    /// The step in progress succeeded or failed. A failed teardown or unload is a matter for the report; it doesn't
    /// stop the swap. A drain fails only where it is given up after a cancel: then the incumbent serves again.
    pub fn done(&mut self, succeeded: bool) -> Next {
        use Subject::*;
        use Verb::*;
        let next = match (self.step.of, self.step.verb) {
            (Candidate, Load) if succeeded && !self.cancelled => Some((Candidate, Verify)),
            (Candidate, Verify) if succeeded && !self.cancelled => {
                self.switched = true;
                Some((Candidate, Switch))
            }
            (Candidate, Load | Verify) => {
                self.candidate_failed = true;
                Some((Candidate, Teardown))
            }
            (Candidate, Switch) if self.has_incumbent && self.plan == Plan::SideBySide => {
                Some((Incumbent, Drain))
            }
            (Candidate, Switch) => None,
            (Candidate, Drain | Teardown) => Some((Candidate, Unload)),
            (Candidate, Unload) if self.has_incumbent && self.plan == Plan::DrainFirst => {
                Some((Restored, Load))
            }
            (Candidate, Unload) => None,

            (Incumbent, Drain) if self.cancelled && !succeeded => Some((Incumbent, Switch)),
            (Incumbent, Switch) if succeeded => {
                self.candidate_failed = true;
                self.switched = true;
                None
            }
            (Incumbent, Drain | Switch) => Some((Incumbent, Teardown)),
            (Incumbent, Teardown) => Some((Incumbent, Unload)),
            (Incumbent, Unload) if !self.has_candidate || self.switched => None,
            (Incumbent, Unload) if self.cancelled => {
                self.candidate_failed = true;
                Some((Restored, Load))
            }
            (Incumbent, _) => Some((Candidate, Load)),

            (Restored, Load) if succeeded => Some((Restored, Verify)),
            (Restored, Verify) if succeeded => {
                self.switched = true;
                Some((Restored, Switch))
            }
            (Restored, Load | Verify) => Some((Restored, Teardown)),
            (Restored, Drain | Teardown) => Some((Restored, Unload)),
            (Restored, Switch | Unload) => None,
        };
        match next {
            Some((of, verb)) => {
                self.step = Step { verb, of };
                Next::Perform(self.step)
            }
            None => Next::Ended(self.outcome()),
        }
    }

    fn outcome(&self) -> Outcome {
        let incumbent_stays = self.has_incumbent && self.plan == Plan::SideBySide;
        match (self.has_candidate, self.candidate_failed) {
            (false, _) => Outcome::Unloaded,
            (true, false) if self.has_incumbent => Outcome::Swapped,
            (true, false) => Outcome::Loaded,
            (true, true) if self.has_incumbent && !incumbent_stays && !self.switched => Outcome::Down,
            (true, true) if self.cancelled => Outcome::Cancelled,
            (true, true) if self.has_incumbent && !incumbent_stays => Outcome::RolledBack,
            (true, true) => Outcome::Failed,
        }
    }
}

const INCUMBENT_DRAIN: Step = Step {
    verb: Verb::Drain,
    of: Subject::Incumbent,
};
const CANDIDATE_LOAD: Step = Step {
    verb: Verb::Load,
    of: Subject::Candidate,
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// What is loaded and what serves, as the steps performed so far left it.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
    struct World {
        loaded: Vec<Subject>,
        serving: Option<Subject>,
    }

    impl World {
        fn perform(&mut self, step: Step, succeeded: bool) {
            match step.verb {
                Verb::Load => {
                    assert!(!self.loaded.contains(&step.of), "{step:?} twice");
                    self.loaded.push(step.of);
                }
                Verb::Verify => assert!(self.loaded.contains(&step.of)),
                Verb::Switch => {
                    assert!(self.loaded.contains(&step.of));
                    self.serving = Some(step.of).filter(|_| succeeded);
                }
                Verb::Drain => {
                    assert!(self.loaded.contains(&step.of));
                    self.serving = self.serving.filter(|s| *s != step.of);
                }
                Verb::Teardown => assert_ne!(self.serving, Some(step.of), "torn down while it serves"),
                Verb::Unload => self.loaded.retain(|s| *s != step.of),
            }
        }
    }

    /// Every path there is: each step succeeds or fails, with and without a cancel before it is reported.
    fn explore(
        machine: Machine,
        next: Next,
        world: World,
        seen: &mut HashSet<Outcome>,
        plan: Plan,
        both: bool,
    ) {
        let step = match next {
            Next::Perform(step) => step,
            Next::Ended(outcome) => return check(outcome, &world, seen),
        };
        if both && plan == Plan::DrainFirst && step.verb == Verb::Load {
            assert!(
                world.loaded.is_empty(),
                "drain first loads only into an empty slot"
            );
        }
        for cancel in [false, true] {
            for succeeded in [false, true] {
                if step.verb == Verb::Switch && step.of != Subject::Incumbent && !succeeded {
                    continue; // a pointer store
                }
                let (mut machine, mut world) = (machine.clone(), world.clone());
                if cancel && !machine.cancel() {
                    continue;
                }
                world.perform(step, succeeded);
                let next = machine.done(succeeded);
                explore(machine, next, world, seen, plan, both);
            }
        }
    }

    fn check(outcome: Outcome, world: &World, seen: &mut HashSet<Outcome>) {
        seen.insert(outcome);
        let serving = match outcome {
            Outcome::Swapped | Outcome::Loaded => vec![Some(Subject::Candidate)],
            Outcome::Failed => vec![Some(Subject::Incumbent), None],
            Outcome::Cancelled => vec![Some(Subject::Incumbent), Some(Subject::Restored), None],
            Outcome::RolledBack => vec![Some(Subject::Restored)],
            Outcome::Unloaded | Outcome::Down => vec![None],
        };
        assert!(serving.contains(&world.serving), "{outcome:?} but {world:?}");
        let left: Vec<Subject> = world.serving.into_iter().collect();
        assert_eq!(world.loaded, left, "{outcome:?}: only what serves stays loaded");
    }

    #[test]
    fn every_path_ends_with_exactly_what_serves_loaded() {
        for (plan, incumbent, candidate, outcomes) in [
            (
                Plan::SideBySide,
                true,
                true,
                &[Outcome::Swapped, Outcome::Failed, Outcome::Cancelled][..],
            ),
            (
                Plan::DrainFirst,
                true,
                true,
                &[
                    Outcome::Swapped,
                    Outcome::RolledBack,
                    Outcome::Cancelled,
                    Outcome::Down,
                ][..],
            ),
            (
                Plan::SideBySide,
                false,
                true,
                &[Outcome::Loaded, Outcome::Failed, Outcome::Cancelled][..],
            ),
            (Plan::DrainFirst, true, false, &[Outcome::Unloaded][..]),
        ] {
            let serving = incumbent.then_some(Subject::Incumbent);
            let world = World {
                loaded: serving.into_iter().collect(),
                serving,
            };
            let mut seen = HashSet::new();
            let (machine, next) = Machine::begin(plan, incumbent, candidate);
            explore(machine, next, world, &mut seen, plan, incumbent && candidate);
            assert_eq!(
                seen,
                outcomes.iter().copied().collect(),
                "{plan:?} {incumbent} {candidate}"
            );
        }
    }
}
