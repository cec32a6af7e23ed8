//! A swap from its beginning to its report, one verb at a time.

mod verbs;

use super::{
    GenerationCard, Machine, Next, Order, Outcome, Plan, Released, Step, StepReport, Subject, SwapEvent,
    SwapMemory, SwapOrder, SwapReport, Verb, choose, control::Control, memory, report::BeforeAfter,
};
use crate::{
    fetch::{self, ModelSource, Reporting},
    slot::{Generation, LoadSpec, ModelText, Slot, look},
};
use met_model::checkpoint;
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::broadcast;

/// How often a load tells how far it is.
const PROGRESS: Duration = Duration::from_millis(100);

/// Carries one swap out.
pub(super) struct Performer<'a, T> {
    pub id: u64,
    pub slot: Arc<Slot<T>>,
    pub order: &'a Order,
    pub control: &'a Control,
    pub events: &'a broadcast::Sender<SwapEvent>,
}

/// A swap under way.
struct Swap<'a, T> {
    performer: &'a Performer<'a, T>,
    /// With the model's path found.
    wanted: Option<SwapOrder>,
    incumbent: Option<Arc<Generation<T>>>,
    candidate: Option<Arc<Generation<T>>>,
    restored: Option<Arc<Generation<T>>>,
    report: SwapReport,
}

/// What a swap leaves behind.
pub(super) struct Done<T> {
    pub report: SwapReport,
    /// Generations with a call that did not come back.
    pub stuck: Vec<Arc<Generation<T>>>,
}

impl<T: ModelText> Performer<'_, T> {
    /// Does the whole of it, and reports. Blocks the calling thread.
    pub fn perform(&self) -> Done<T> {
        let began = Instant::now();
        let (held, _) = self.slot.held();
        let incumbent = self.slot.current();
        let device_of = |generation: &Arc<Generation<T>>| generation.engine().snapshot().memory;
        let device = incumbent.as_ref().map(device_of);
        let before = SwapMemory {
            process_anonymous: memory::anonymous(),
            device,
        };
        let mut swap = Swap {
            performer: self,
            wanted: None,
            report: self.blank(incumbent.as_deref(), before),
            incumbent,
            candidate: None,
            restored: None,
        };
        swap.report.outcome = match swap.prepare() {
            Ok(()) => swap.run(),
            Err(problem) => {
                swap.report.error = Some(problem);
                match self.control.is_cancelled() {
                    true => Outcome::Cancelled,
                    false => Outcome::Failed,
                }
            }
        };
        self.slot.let_go();
        let mut report = swap.report;
        let goes_on = |incumbent: &Generation<T>| {
            let serving = self.slot.current();
            serving.is_some_and(|serving| serving.identity() == incumbent.identity())
        };
        if !swap.incumbent.as_deref().is_some_and(goes_on) {
            // What was given away found nothing that goes on with it.
            report.cancelled += std::mem::take(&mut report.carried);
        }
        report.to = self.slot.current().map(|serving| GenerationCard::of(&serving));
        report.held_requests = self.slot.held().0 - held;
        report.memory.after.process_anonymous = memory::anonymous();
        if report.to == report.from {
            report.memory.after.device = swap.incumbent.as_ref().map(device_of);
        }
        report.ms = millis(began);
        let generations = [swap.incumbent, swap.candidate, swap.restored]
            .into_iter()
            .flatten();
        let stuck = generations.filter(|generation| generation.is_stuck()).collect();
        Done { report, stuck }
    }

    fn blank(&self, incumbent: Option<&Generation<T>>, before: SwapMemory) -> SwapReport {
        SwapReport {
            id: self.id,
            slot: self.slot.name().to_owned(),
            outcome: Outcome::Failed,
            error: None,
            plan: None,
            from: incumbent.map(GenerationCard::of),
            to: None,
            ms: 0.0,
            steps: Vec::new(),
            released: Released::default(),
            memory: BeforeAfter {
                before,
                after: SwapMemory::default(),
            },
            held_requests: 0,
            carried: 0,
            cancelled: 0,
            library: None,
        }
    }

    fn tell(&self, event: SwapEvent) {
        // Nobody need listen.
        let _ = self.events.send(event);
    }
}

impl<T: ModelText> Swap<'_, T> {
    /// Finds the model, fetched where it has to be: nothing of the slot is touched before that.
    fn prepare(&mut self) -> Result<(), String> {
        let (Order::Load(order) | Order::Swap(order)) = self.performer.order else {
            return Ok(());
        };
        let mut order = order.clone();
        // From here on: a fetch may take long.
        self.performer.slot.hold(order.hold);
        let source = match order.spec.model.path.as_str() {
            "" => Ok(ModelSource::Default),
            path => ModelSource::parse(path),
        };
        let source = source.map_err(|error| error.to_string())?;
        let control = self.performer.control;
        let teller = self.teller();
        let reporting = Reporting::Listener(Arc::new(move |done, total| teller("download", done, total)));
        let path = fetch::resolve_unless(&source, reporting, &|| control.is_given_up(Subject::Candidate));
        let path = path.map_err(|error| error.to_string())?;
        order.spec.model.path = path.to_string_lossy().as_ref().into();
        if control.is_cancelled() {
            return Err("cancelled".to_owned());
        }
        if self.incumbent.is_some() {
            self.report.plan = Some(choose(order.plan, self.need(&order.spec), self.free(&order.spec)));
        }
        if self.report.plan == Some(Plan::DrainFirst) {
            // The incumbent is not torn down for what can't be loaded anyway.
            look(&self.performer.slot, &order.spec).map_err(|problem| problem.to_string())?;
        }
        self.wanted = Some(order);
        Ok(())
    }

    fn run(&mut self) -> Outcome {
        self.performer.tell(SwapEvent::Begun {
            id: self.performer.id,
            slot: self.report.slot.clone(),
            from: self.report.from.clone(),
            plan: self.report.plan,
        });
        let plan = self.report.plan.unwrap_or(Plan::SideBySide);
        let (machine, mut next) = Machine::begin(plan, self.incumbent.is_some(), self.wanted.is_some());
        self.performer.control.begin(machine);
        loop {
            let step = match next {
                Next::Perform(step) => step,
                Next::Ended(outcome) => return outcome,
            };
            let succeeded = self.step(step);
            next = match self.performer.control.done(succeeded) {
                Some(next) => next,
                None => return Outcome::Failed,
            };
        }
    }

    /// Makes a step and reports it; whether it succeeded.
    fn step(&mut self, step: Step) -> bool {
        if step.verb > Verb::Switch && self.of(step.of).is_none() {
            // It came to nothing, so nothing of it is to go.
            return true;
        }
        let (id, slot) = (self.performer.id, self.report.slot.clone());
        self.performer.tell(SwapEvent::StepBegun { id, slot, step });
        let began = Instant::now();
        let result = match step.verb {
            Verb::Load => self.load(step.of),
            Verb::Verify => self.verify(step.of),
            Verb::Switch => self.switch(step.of),
            Verb::Drain => self.drain(),
            Verb::Teardown => self.teardown(step.of),
            Verb::Unload => self.unload(step.of),
        };
        let ms = millis(began);
        let error = result.err();
        let (verb, of) = (step.verb.name(), step.of);
        match &error {
            None => tracing::info!(id, slot = self.report.slot, ?of, ms, "{verb}"),
            Some(error) => tracing::warn!(id, slot = self.report.slot, ?of, ms, "{verb} failed: {error}"),
        }
        metrics::histogram!(STEP_SECONDS, "model" => self.report.slot.clone(), "step" => verb)
            .record(ms / 1e3);
        if self.report.error.is_none() {
            self.report.error = error.as_ref().map(|error| format!("{verb}: {error}"));
        }
        let succeeded = error.is_none();
        let report = StepReport { step, ms, error };
        self.report.steps.push(report.clone());
        let slot = self.report.slot.clone();
        self.performer.tell(SwapEvent::Step { id, slot, report });
        succeeded
    }

    /// Bytes that the candidate is estimated to need: its checkpoint and what its KV cache was given.
    fn need(&self, spec: &LoadSpec) -> u64 {
        checkpoint::stored_bytes(Path::new(spec.model.path.as_str())).saturating_add(spec.model.kv_bytes)
    }

    /// Bytes that are free where the candidate will live: on the incumbent's device, or else in main memory.
    fn free(&self, spec: &LoadSpec) -> Option<u64> {
        let incumbent = self.incumbent.as_ref()?;
        let same = incumbent.spec()?.backend.to_string() == spec.backend.to_string();
        let device = incumbent.engine().snapshot().memory;
        match same && device.total > 0 {
            true => Some(device.free),
            false => memory::free(),
        }
    }

    /// Tells how far a stage is: bytes that are done, and in all (0: not known). Not more often than is of use.
    fn teller(&self) -> impl Fn(&str, u64, u64) + Send + Sync + 'static {
        let (id, slot) = (self.performer.id, self.report.slot.clone());
        let events = self.performer.events.clone();
        let last = Mutex::new(None::<Instant>);
        move |stage, done, total| {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if done != total && last.is_some_and(|last| last.elapsed() < PROGRESS) {
                return;
            }
            *last = Some(Instant::now());
            let _ = events.send(SwapEvent::Progress {
                id,
                slot: slot.clone(),
                stage: stage.to_owned(),
                done,
                total,
            });
        }
    }

    fn of(&self, subject: Subject) -> Option<&Arc<Generation<T>>> {
        match subject {
            Subject::Candidate => self.candidate.as_ref(),
            Subject::Incumbent => self.incumbent.as_ref(),
            Subject::Restored => self.restored.as_ref(),
        }
    }

    fn place(&mut self, subject: Subject) -> &mut Option<Arc<Generation<T>>> {
        match subject {
            Subject::Candidate => &mut self.candidate,
            Subject::Incumbent => &mut self.incumbent,
            Subject::Restored => &mut self.restored,
        }
    }
}

/// How long a step of a swap took.
const STEP_SECONDS: &str = "met_swap_step_seconds";

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
