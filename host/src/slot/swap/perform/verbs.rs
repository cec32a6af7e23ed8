//! The six verbs.

use super::{
    super::{InFlight, Order, Subject, Verify, verify::verify},
    Swap,
};
use crate::{
    loader::{Progress, Services, Unload},
    slot::{Generation, LoadSpec, ModelText, generation::UNLOAD_WAIT, load},
};
use met_model::{Checkpoint, weights_identity};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often a drain looks whether it is to stop.
const POLL: Duration = Duration::from_millis(20);

impl<T: ModelText> Swap<'_, T> {
    pub(super) fn load(&mut self, of: Subject) -> Result<(), String> {
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

    pub(super) fn verify(&mut self, of: Subject) -> Result<(), String> {
        let how = self
            .wanted
            .as_ref()
            .map(|order| order.verify.clone())
            .unwrap_or_default();
        // A text is expected of the candidate alone.
        let how = match of {
            Subject::Candidate => how,
            _ => Verify::Prompts,
        };
        let generation = self.of(of).ok_or("there is nothing to try")?;
        verify(generation, &how, || self.performer.control.is_given_up(of))
    }

    pub(super) fn switch(&mut self, of: Subject) -> Result<(), String> {
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
    pub(super) fn drain(&mut self) -> Result<(), String> {
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

    pub(super) fn teardown(&mut self, of: Subject) -> Result<(), String> {
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

    pub(super) fn unload(&mut self, of: Subject) -> Result<(), String> {
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
            Unload::Retained { reason } => Err(format!("the library stays mapped: {reason}")),
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

    fn services(&self) -> Services {
        let teller = self.teller();
        Services::new(move |Progress { stage, done, total }| teller(stage, done, total))
    }

    fn spec(&self, of: Subject) -> Option<LoadSpec> {
        match of {
            Subject::Candidate => Some(self.wanted.as_ref()?.spec.clone()),
            Subject::Incumbent | Subject::Restored => self.incumbent.as_ref()?.spec().cloned(),
        }
    }
}

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
