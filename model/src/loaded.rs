//! A model behind the boundary, over any operations.

use crate::{
    Checkpoint, Decoder, Error, ModelConfig, Result, convert,
    flight::Flight,
    info,
    kv::{BLOCK_SIZE, KvSize},
    pools::Pools,
    quantize,
    states::{StateSize, States},
    step::{Limits, SampledTokens, Step},
};
use met_backend_api::{
    self as abi, Batch, ModelInfo, ModelSpec, ReleaseReport, ReleaseStep, ResourceReport, Ticket,
    sdk::{BackendModel, Host, Output},
};
use met_kernels::{ErrorKind, Ops, StepRows, sample::Scratch};
use std::{
    cell::{RefCell, RefMut},
    collections::VecDeque,
    rc::Rc,
};

/// A loaded model. It shares its operations with the backend that loaded it.
///
/// A step is computed, or started, as far as its sampled tokens in `submit`; rows that want logits get them in
/// `collect`, straight into the caller's memory.
pub struct LoadedModel<O: Ops> {
    ops: Rc<RefCell<O>>,
    model: Decoder,
    pools: Pools<O>,
    info: ModelInfo,
    resources: Vec<ResourceReport>,
    limits: Limits,
    scratch: Scratch,
    sampled: SampledTokens,
    /// Steps that were submitted and not collected, the oldest first.
    flights: VecDeque<Flight<O>>,
    released: bool,
}

/// The identity of the weights that a load of `checkpoint` has which is asked to quantise like that.
pub fn weights_identity(checkpoint: &Checkpoint, quantize: &str) -> Result<String> {
    let identity = checkpoint.identity()?;
    Ok(match quantize::choice(quantize)? {
        Some(ty) => format!("{identity}-{}", ty.name()),
        None => identity,
    })
}

impl<O: Ops> LoadedModel<O> {
    /// Loads the checkpoint that `spec` names. `free_memory` is asked once the weights are loaded.
    ///
    /// After an error everything that was allocated is released.
    pub fn load(
        ops: Rc<RefCell<O>>,
        host: &Host,
        spec: &ModelSpec,
        free_memory: impl FnOnce() -> u64,
    ) -> Result<Self> {
        let checkpoint = Checkpoint::open(spec.path.as_str())?;
        let config = ModelConfig::from_checkpoint(&checkpoint)?;
        let context = info::check(spec, &config)?;
        let (model, mut bound) = Decoder::bind(config, &checkpoint)?;
        let identity = weights_identity(&checkpoint, spec.quantize.as_str())?;
        if let Some(ty) = quantize::choice(spec.quantize.as_str())? {
            bound.quantize(ty);
        }
        let mut pools = Pools::default();
        let fill = || {
            let ops = &mut *ops.borrow_mut();
            pools.weights.load(&bound, ops, |done, total| {
                host.progress("weights".into(), done, total);
                if host.cancelled() {
                    return Err(Error::new(
                        ErrorKind::Cancelled,
                        "the load was cancelled by the host",
                    ));
                }
                Ok(())
            })?;
            let (sequences, free) = (spec.max_rows as usize, free_memory());
            let states = StateSize::new(model.config(), sequences, spec.snapshot_slots, free)?;
            let free = free.saturating_sub(states.bytes());
            let kv = KvSize::new(model.config(), context, sequences, spec.kv_bytes, free)?;
            pools.states.alloc(ops, states)?;
            pools.kv.alloc(ops, model.config(), kv)?;
            pools
                .arena
                .alloc(ops, model.config(), spec.max_batch_tokens as usize)?;
            Ok((kv, states))
        };
        let (kv, states) = match fill() {
            Ok(sizes) => sizes,
            Err(error) => {
                for (label, released) in pools.release(&mut ops.borrow_mut()) {
                    if let Some(failed) = released.error {
                        abi::event!(
                            Error,
                            "{label} was left for the sweep after a failed load: {failed}"
                        );
                    }
                }
                return Err(error);
            }
        };
        let context = context.min(kv.positions());
        let info = ModelInfo {
            weights_identity: identity.into(),
            parameters: checkpoint.parameters(),
            quantization: bound.quantization().into(),
            context_length: context as u32,
            max_in_flight: O::IN_FLIGHT,
            ..info::describe(model.config(), spec, kv, states)
        };
        Ok(Self {
            ops,
            limits: Limits {
                vocab: model.config().vocab,
                context: info.context_length as usize,
                block_size: BLOCK_SIZE,
                blocks: kv.blocks,
                rows: spec.max_rows as usize,
                tokens: spec.max_batch_tokens as usize,
            },
            resources: resources(&mut pools),
            model,
            pools,
            info,
            scratch: Scratch::default(),
            sampled: SampledTokens::default(),
            flights: VecDeque::new(),
            released: false,
        })
    }

    fn start(&mut self, batch: &Batch<'_>) -> Result<Ticket> {
        self.check_alive()?;
        if self.flights.len() >= O::IN_FLIGHT as usize {
            return Err(Error::invalid(format!(
                "ticket {} has not been collected, and {} may be outstanding at a time",
                self.sampled.ticket,
                O::IN_FLIGHT
            )));
        }
        let slots = self.pools.states.are_there().then_some(&self.pools.states.slots);
        let step = Step::new(batch, &self.limits, &self.sampled, slots)?;
        let (shared, vocab) = (self.ops.clone(), self.limits.vocab);
        let ops = &mut *shared.borrow_mut();
        // What the last step's logits are computed from is about to be overwritten.
        for flight in &mut self.flights {
            flight.settle(ops, &self.model, &mut self.pools, vocab)?;
        }
        let mut begun = ops.begin(&StepRows {
            tokens: &step.tokens,
            rows: &step.rows,
        })?;
        if let Some(last) = self.flights.back() {
            ops.take(&mut begun, &last.taken(&step.inputs)?)?;
        }
        let flight = self.run(ops, &begun, &step, batch);
        let slots = &mut self.pools.states.slots;
        for row in &step.rows {
            match &flight {
                Ok(_) => slots.hold(row.state, row.position + row.len),
                // Some layers may have changed it.
                Err(_) => slots.lose(row.state),
            }
        }
        let flight = flight?;
        self.sampled = SampledTokens {
            ticket: flight.ticket,
            rows: flight.sampled(),
        };
        self.flights.push_back(flight);
        Ok(self.sampled.ticket)
    }

    fn run(&mut self, ops: &mut O, begun: &O::Step, step: &Step<'_>, batch: &Batch<'_>) -> Result<Flight<O>> {
        let (model, pools) = (&self.model, &mut self.pools);
        let mut forward = |ops: &mut O| model.forward(ops, pools, begun, step.tokens.len(), &step.wanted);
        // Otherwise rows are left out on the way.
        match step.wanted.len() == step.tokens.len() {
            true => ops.layers(begun, &mut forward),
            false => forward(ops),
        }?;
        Flight::new(
            self.sampled.ticket + 1,
            ops,
            &self.model,
            &mut self.pools,
            (batch.rows.as_slice(), &step.wanted_by_row),
            self.limits.vocab,
            &mut self.scratch,
        )
    }

    fn finish(&mut self, ticket: Ticket, out: &mut Output<'_>) -> Result<()> {
        self.check_alive()?;
        let vocab = self.limits.vocab;
        let Some(flight) = self.flights.front().filter(|flight| flight.ticket == ticket) else {
            return Err(Error::invalid(format!("ticket {ticket} is not outstanding")));
        };
        let needed = flight.needed(vocab);
        let given = [out.rows.len(), out.top.len(), out.logits.len()];
        if needed.iter().zip(given).any(|(needed, given)| given < *needed) {
            return Err(Error::invalid(format!(
                "the output has room for {given:?} rows, top log-probabilities and logits, but {needed:?} are needed"
            )));
        }
        let Some(flight) = self.flights.pop_front() else {
            return Err(Error::bug("a step that was under way is gone"));
        };
        let ops = &mut *self.ops.borrow_mut();
        let sampled = flight.land(ops, &self.model, &mut self.pools, vocab, out)?;
        if ticket == self.sampled.ticket {
            self.sampled.rows = sampled;
        }
        Ok(())
    }

    /// Checks the arguments of a copy of blocks and returns the bytes of one.
    fn check_copy(&self, blocks: &[u32], bytes: usize) -> Result<usize> {
        self.check_alive()?;
        if let Some(block) = blocks.iter().find(|&&block| block as usize >= self.limits.blocks) {
            return Err(Error::invalid(format!(
                "block {block} is not one of the {} there are",
                self.limits.blocks
            )));
        }
        let block_bytes = self.info.block_bytes as usize;
        if blocks.len().checked_mul(block_bytes) != Some(bytes) {
            return Err(Error::invalid(format!(
                "{} blocks of {block_bytes} bytes don't make {bytes} bytes",
                blocks.len()
            )));
        }
        Ok(block_bytes)
    }

    /// The states and the operations, for a call of a model that has such.
    fn states(&mut self) -> Result<(&mut States<O>, RefMut<'_, O>)> {
        self.check_alive()?;
        let states = &mut self.pools.states;
        match states.are_there() {
            true => Ok((states, self.ops.borrow_mut())),
            false => Err(Error::invalid("this model has no recurrent state")),
        }
    }

    fn check_alive(&self) -> Result<()> {
        if self.released {
            return Err(Error::invalid("the model's pools were released"));
        }
        Ok(())
    }
}

impl<O: Ops + 'static> BackendModel for LoadedModel<O> {
    fn info(&self) -> Result<ModelInfo, abi::Error> {
        Ok(self.info.clone())
    }

    fn resources(&self) -> Result<Vec<ResourceReport>, abi::Error> {
        Ok(self.resources.clone())
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<Ticket, abi::Error> {
        self.start(batch).map_err(convert::error)
    }

    fn collect(&mut self, ticket: Ticket, out: &mut Output<'_>) -> Result<(), abi::Error> {
        self.finish(ticket, out).map_err(convert::error)
    }

    fn copy_blocks_out(&mut self, blocks: &[u32], data: &mut [u8]) -> Result<(), abi::Error> {
        let mut copy = || {
            let bytes = self.check_copy(blocks, data.len())?;
            let (ops, kv) = (&mut *self.ops.borrow_mut(), self.pools.kv.get()?);
            let mut parts = blocks.iter().zip(data.chunks_exact_mut(bytes));
            parts.try_for_each(|(&block, data)| ops.read_block(kv, block, data))
        };
        copy().map_err(convert::error)
    }

    fn copy_blocks_in(&mut self, blocks: &[u32], data: &[u8]) -> Result<(), abi::Error> {
        let mut copy = || {
            let bytes = self.check_copy(blocks, data.len())?;
            let (ops, kv) = (&mut *self.ops.borrow_mut(), self.pools.kv.get()?);
            let mut parts = blocks.iter().zip(data.chunks_exact(bytes));
            parts.try_for_each(|(&block, data)| ops.write_block(kv, block, data))
        };
        copy().map_err(convert::error)
    }

    fn save_state(&mut self, slot: u32, data: &mut [u8]) -> Result<(), abi::Error> {
        let mut save = || {
            let (states, mut ops) = self.states()?;
            states.save(&mut ops, slot, data)
        };
        save().map_err(convert::error)
    }

    fn restore_state(&mut self, slot: u32, position: u32, data: &[u8]) -> Result<(), abi::Error> {
        let mut restore = || {
            let (context, position) = (self.limits.context, position as usize);
            let (states, mut ops) = self.states()?;
            if position > context {
                return Err(Error::invalid(format!(
                    "a state of position {position} is given, but the context is {context}"
                )));
            }
            states.restore(&mut ops, slot, position, data)
        };
        restore().map_err(convert::error)
    }

    fn free_state(&mut self, slot: u32) -> Result<(), abi::Error> {
        let mut free = || self.states()?.0.slots.free(slot);
        free().map_err(convert::error)
    }

    fn take_snapshot(&mut self, slot: u32, snapshot: u32) -> Result<(), abi::Error> {
        let mut take = || {
            let (states, mut ops) = self.states()?;
            states.take(&mut ops, slot, snapshot)
        };
        take().map_err(convert::error)
    }

    fn use_snapshot(&mut self, snapshot: u32, slot: u32) -> Result<(), abi::Error> {
        let mut give = || {
            let (states, mut ops) = self.states()?;
            states.give(&mut ops, snapshot, slot)
        };
        give().map_err(convert::error)
    }

    fn release_pools(&mut self) -> Result<ReleaseReport, abi::Error> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(ReleaseReport::default());
        }
        self.flights.clear();
        self.scratch = Scratch::default();
        let steps = self.pools.release(&mut self.ops.borrow_mut());
        self.resources = resources(&mut self.pools);
        let steps = steps.into_iter().map(|(label, released)| ReleaseStep {
            label: label.into(),
            bytes: released.bytes,
            error: released.error.map(convert::error).into(),
        });
        Ok(ReleaseReport {
            steps: steps.collect(),
        })
    }
}

fn resources<O: Ops>(pools: &mut Pools<O>) -> Vec<ResourceReport> {
    let reports = pools.report().into_iter().map(|pool| ResourceReport {
        label: pool.label.into(),
        bytes: pool.bytes,
        allocations: pool.allocations,
    });
    reports.collect()
}
