//! The deeds of a swap, one verb at a time, and their report.

use super::{
    GenerationCard, InFlight, Machine, Next, Order, Outcome, Plan, Released, Step, StepReport, Subject,
    SwapEvent, SwapMemory, SwapOrder, SwapReport, Verb, choose, control::Control, memory,
    report::BeforeAfter, verify::verify,
};
use crate::{
    fetch::{self, ModelSource, Reporting},
    loader::{Progress, Services},
    slot::{Generation, LoadSpec, ModelText, Slot, load},
};
use met_model::{Checkpoint, checkpoint, weights_identity};
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::broadcast;

/// How long the threads of a library may take to end once its engine thread has.
const UNLOAD_WAIT: Duration = Duration::from_secs(5);
/// How often a drain looks whether it is to stop.
const POLL: Duration = Duration::from_millis(20);
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

    fn load(&mut self, of: Subject) -> Result<(), String> {
        if self.performer.control.is_given_up(of) {
            return Err("cancelled".to_owned());
        }
        let spec = self.spec(of).ok_or("nobody knows how it was loaded")?;
        let services = self.services();
        self.performer.control.loads_with(of, &services);
        match load(&self.performer.slot, &spec, &services) {
            Ok(generation) => {
                log_load(self.performer.slot.name(), &generation);
                *self.place(of) = Some(generation);
                Ok(())
            }
            Err(failure) => {
                if let Some(teardown) = &failure.teardown {
                    self.report.add_teardown(failure.number, teardown);
                }
                if let Some(unload) = failure.unload.clone() {
                    self.report.add_unload(unload);
                }
                Err(failure.to_string())
            }
        }
    }

    fn verify(&mut self, of: Subject) -> Result<(), String> {
        let how = self
            .wanted
            .as_ref()
            .map(|order| order.verify.clone())
            .unwrap_or_default();
        // A text is expected of the candidate alone.
        let how = match of {
            Subject::Candidate => how,
            _ => super::Verify::Prompts,
        };
        let generation = self.of(of).ok_or("there is nothing to try")?;
        verify(generation, &how, || self.performer.control.is_given_up(of))
    }

    fn switch(&mut self, of: Subject) -> Result<(), String> {
        let generation = self.of(of).ok_or("there is nothing to switch to")?;
        let slot = &self.performer.slot;
        if of == Subject::Incumbent {
            if !generation.engine().is_open() {
                return Err("it takes no requests any more".to_owned());
            }
            generation.reopen();
        }
        if let Some(spec) = generation.spec() {
            slot.set_spec(spec.clone());
        }
        slot.switch(Some(Arc::clone(generation)));
        slot.let_go();
        Ok(())
    }

    /// Lets the incumbent's requests come to their end, here or elsewhere. Where the swap is cancelled before that, the
    /// incumbent takes requests again, unless it has given its own away, or is broken.
    fn drain(&mut self) -> Result<(), String> {
        let Some(incumbent) = &self.incumbent else {
            return Ok(());
        };
        let slot = &self.performer.slot;
        if slot
            .current()
            .is_some_and(|current| current.number() == incumbent.number())
        {
            slot.switch(None);
        }
        let (in_flight, deadline) = match self.performer.order {
            Order::Load(order) | Order::Swap(order) => (order.in_flight, order.drain_deadline),
            Order::Unload {
                in_flight,
                drain_deadline,
            } => (*in_flight, *drain_deadline),
        };
        let deadline = match in_flight {
            InFlight::Cancel => Duration::ZERO,
            InFlight::Finish | InFlight::Carry => deadline,
        };
        if in_flight == InFlight::Carry && self.can_carry(incumbent) {
            incumbent.engine().move_out();
        }
        let (began, control) = (Instant::now(), self.performer.control);
        loop {
            let until = control
                .stops_at()
                .map_or(began + deadline, |stop| stop.min(began + deadline));
            let left = until.saturating_duration_since(Instant::now());
            if incumbent.drain(left.min(POLL)) == 0 || left.is_zero() {
                return Ok(());
            }
            if control.is_cancelled() && incumbent.engine().is_open() {
                return Err("cancelled".to_owned());
            }
        }
    }

    fn teardown(&mut self, of: Subject) -> Result<(), String> {
        let Some(generation) = self.of(of).cloned() else {
            return Ok(());
        };
        // Those that the deadline has not seen to their end are cut now.
        generation.drain(Duration::ZERO);
        let teardown = generation.teardown(Duration::ZERO);
        self.report.add_teardown(generation.number(), &teardown);
        if of == Subject::Incumbent {
            self.report.memory.after.device = teardown.memory_after;
        }
        if let Some(call) = &teardown.stuck {
            return Err(format!(
                "the backend's call `{call}` did not come back, so the generation keeps what it has"
            ));
        }
        match teardown.first_error() {
            Some((at, error)) => Err(format!("{at}: {error}")),
            None if !teardown.is_clean() => Err("the ledger is not empty, or could not be read".to_owned()),
            None => Ok(()),
        }
    }

    fn unload(&mut self, of: Subject) -> Result<(), String> {
        let Some(generation) = self.of(of).cloned() else {
            return Ok(());
        };
        let wait = match generation.is_stuck() {
            true => Duration::ZERO,
            false => UNLOAD_WAIT,
        };
        let Some(unload) = generation.unload(wait) else {
            return Ok(());
        };
        self.report.add_unload(unload.clone());
        match unload {
            crate::loader::Unload::Retained { reason } => Err(format!("the library stays mapped: {reason}")),
            _ => Ok(()),
        }
    }

    /// Whether the incumbent's requests can go on in what comes after it, as far as that is known.
    fn can_carry(&self, incumbent: &Generation<T>) -> bool {
        if let Some(candidate) = &self.candidate {
            let longest = |generation: &Generation<T>| generation.engine().info().limits.longest();
            let has_room = longest(candidate) >= longest(incumbent);
            return has_room && candidate.identity() == incumbent.identity();
        }
        let Some(order) = &self.wanted else { return false };
        let model = &order.spec.model;
        let checkpoint = Checkpoint::open(Path::new(model.path.as_str()));
        let identity =
            checkpoint.and_then(|checkpoint| weights_identity(&checkpoint, model.quantize.as_str()));
        identity.is_ok_and(|identity| identity == incumbent.identity().weights)
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

    fn services(&self) -> Services {
        let teller = self.teller();
        Services::new(move |Progress { stage, done, total }| teller(stage, done, total))
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

    fn spec(&self, of: Subject) -> Option<LoadSpec> {
        match of {
            Subject::Candidate => Some(self.wanted.as_ref()?.spec.clone()),
            Subject::Incumbent | Subject::Restored => self.incumbent.as_ref()?.spec().cloned(),
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
pub const STEP_SECONDS: &str = "met_swap_step_seconds";

fn log_load<T>(slot: &str, generation: &Generation<T>) {
    let info = generation.engine().info();
    tracing::info!(
        slot,
        generation = generation.number(),
        device = info.device.name.as_str(),
        model = info.model.name.as_str(),
        quantization = info.model.quantization.as_str(),
        context = info.model.context_length,
        kv_blocks = info.model.block_count,
        "loaded"
    );
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
