//! A model behind the boundary, over any operations.

use crate::{
    Checkpoint, Error, Llama, LlamaConfig, Result,
    arena::LOGITS_ROWS,
    convert,
    kv::{BLOCK_SIZE, KvSize},
    pools::Pools,
    step::{Limits, SampledTokens, Step},
};
use met_backend_api::{
    self as abi, Batch, ModelInfo, ModelSpec, ReleaseReport, ReleaseStep, ResourceReport, Row, RowOutput,
    Ticket, TokenLogprob, Want,
    sdk::{BackendModel, Host, Output},
};
use met_kernels::{
    ErrorKind, Ops, StepRows,
    sample::{Choice, Request, Scratch},
};
use std::{cell::RefCell, ops::Range, rc::Rc};

/// The most tokens of a batch that may be asked for.
const MAX_BATCH_TOKENS: u32 = 1 << 16;

/// A loaded model. It shares its operations with the backend that loaded it.
///
/// A step is computed as far as its sampled tokens in `submit`; rows that want logits get them in `collect`,
/// straight into the caller's memory.
pub struct LoadedModel<O: Ops> {
    ops: Rc<RefCell<O>>,
    model: Llama,
    pools: Pools<O>,
    info: ModelInfo,
    resources: Vec<ResourceReport>,
    limits: Limits,
    scratch: Scratch,
    sampled: SampledTokens,
    outstanding: Option<Outstanding>,
    released: bool,
}

/// A step that was submitted and not collected.
struct Outstanding {
    rows: Vec<RowOutput>,
    top: Vec<TokenLogprob>,
    /// Rows of the arena's `normed` whose logits the caller gets.
    logits: Vec<u32>,
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
        let config = LlamaConfig::from_checkpoint(&checkpoint)?;
        let context = check_spec(spec, &config)?;
        let (model, bound) = Llama::bind(config, &checkpoint)?;
        let identity = checkpoint.identity()?;
        let mut pools = Pools::default();
        let fill = || {
            let ops = &mut *ops.borrow_mut();
            pools.weights.load(&bound, &checkpoint, ops, |done, total| {
                host.progress("weights".into(), done, total);
                if host.cancelled() {
                    return Err(Error::new(
                        ErrorKind::Cancelled,
                        "the load was cancelled by the host",
                    ));
                }
                Ok(())
            })?;
            let kv = KvSize::new(
                model.config(),
                context,
                spec.max_rows as usize,
                spec.kv_bytes,
                free_memory(),
            )?;
            pools.kv.alloc(ops, model.config(), kv)?;
            pools
                .arena
                .alloc(ops, model.config(), spec.max_batch_tokens as usize)?;
            Ok(kv)
        };
        let kv = match fill() {
            Ok(kv) => kv,
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
        let info = describe(&checkpoint, identity, model.config(), spec, context, kv);
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
            outstanding: None,
            released: false,
        })
    }

    fn start(&mut self, batch: &Batch<'_>) -> Result<Ticket> {
        self.check_alive()?;
        if self.outstanding.is_some() {
            return Err(Error::invalid(format!(
                "ticket {} has not been collected, and one may be outstanding at a time",
                self.sampled.ticket
            )));
        }
        let step = Step::new(batch, &self.limits, &self.sampled)?;
        self.forward(&step)?;
        let outstanding = self.choose(batch.rows.as_slice(), &step.wanted_by_row)?;
        self.sampled = SampledTokens {
            ticket: self.sampled.ticket + 1,
            rows: sampled_tokens(batch.rows.as_slice(), &outstanding.rows),
        };
        self.outstanding = Some(outstanding);
        Ok(self.sampled.ticket)
    }

    fn forward(&mut self, step: &Step<'_>) -> Result<()> {
        let ops = &mut *self.ops.borrow_mut();
        let begun = ops.begin(&StepRows {
            tokens: &step.tokens,
            rows: &step.rows,
        })?;
        self.model
            .forward(ops, &mut self.pools, &begun, step.tokens.len(), &step.wanted)
    }

    /// Samples the rows that want a token, and notes the others.
    fn choose(&mut self, rows: &[Row<'_>], wanted: &[Range<u32>]) -> Result<Outstanding> {
        let mut out = Outstanding {
            rows: vec![RowOutput::default(); rows.len()],
            top: Vec::new(),
            logits: Vec::new(),
        };
        let mut sampling = Vec::new();
        for (i, (row, wanted)) in rows.iter().zip(wanted).enumerate() {
            match row.want {
                Want::Token => sampling.push((i, wanted.start)),
                _ => out.logits.extend(wanted.clone()),
            }
        }
        for chunk in sampling.chunks(LOGITS_ROWS) {
            let normed: Vec<u32> = chunk.iter().map(|&(_, row)| row).collect();
            let requests: Vec<_> = chunk.iter().map(|&(i, _)| request(&rows[i])).collect();
            let (ops, vocab) = (&mut *self.ops.borrow_mut(), self.limits.vocab);
            self.model.logits(ops, &mut self.pools, &normed)?;
            let logits = self.pools.arena.buffers()?.logits;
            let choices = ops.sample(logits, vocab, &requests, &mut self.scratch)?;
            for (&(i, _), choice) in chunk.iter().zip(choices) {
                out.rows[i] = output(choice, rows[i].top_logprobs, &mut out.top);
            }
        }
        Ok(out)
    }

    fn finish(&mut self, ticket: Ticket, out: &mut Output<'_>) -> Result<()> {
        self.check_alive()?;
        let vocab = self.limits.vocab;
        let Some(step) = self.outstanding.take_if(|_| ticket == self.sampled.ticket) else {
            return Err(Error::invalid(format!("ticket {ticket} is not outstanding")));
        };
        let needed = [step.rows.len(), step.top.len(), step.logits.len() * vocab];
        let given = [out.rows.len(), out.top.len(), out.logits.len()];
        if needed.iter().zip(given).any(|(needed, given)| given < *needed) {
            self.outstanding = Some(step);
            return Err(Error::invalid(format!(
                "the output has room for {given:?} rows, top log-probabilities and logits, but {needed:?} are needed"
            )));
        }
        out.rows[..step.rows.len()].copy_from_slice(&step.rows);
        out.top[..step.top.len()].copy_from_slice(&step.top);
        for (rows, logits) in step
            .logits
            .chunks(LOGITS_ROWS)
            .zip(out.logits.chunks_mut(LOGITS_ROWS * vocab))
        {
            let ops = &mut *self.ops.borrow_mut();
            self.model.logits(ops, &mut self.pools, rows)?;
            let computed = self.pools.arena.buffers()?.logits;
            ops.download(computed, rows.len(), &mut logits[..rows.len() * vocab])?;
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

    fn release_pools(&mut self) -> Result<ReleaseReport, abi::Error> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(ReleaseReport::default());
        }
        self.outstanding = None;
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

/// Checks what the host asks for and returns the context.
fn check_spec(spec: &ModelSpec, config: &LlamaConfig) -> Result<usize> {
    if spec.max_rows == 0 || spec.max_batch_tokens < spec.max_rows || spec.max_batch_tokens > MAX_BATCH_TOKENS
    {
        return Err(Error::invalid(format!(
            "batches of {} rows and {} tokens are asked for, but there must be at least one row, as many tokens as rows, and at most {MAX_BATCH_TOKENS} tokens",
            spec.max_rows, spec.max_batch_tokens
        )));
    }
    match spec.context as usize {
        0 => Ok(config.context),
        asked if asked <= config.context => Ok(asked),
        asked => Err(Error::invalid(format!(
            "a context of {asked} tokens is asked for, but the model was made for {}",
            config.context
        ))),
    }
}

fn describe(
    checkpoint: &Checkpoint,
    identity: String,
    config: &LlamaConfig,
    spec: &ModelSpec,
    context: usize,
    kv: KvSize,
) -> ModelInfo {
    ModelInfo {
        architecture: config.architecture.clone().into(),
        name: config.name.clone().into(),
        quantization: checkpoint.quantization().into(),
        weights_identity: identity.into(),
        parameters: checkpoint.parameters(),
        vocab_size: config.vocab as u32,
        context_length: context as u32,
        block_size: BLOCK_SIZE as u32,
        block_count: kv.blocks as u32,
        block_bytes: kv.block_bytes,
        state_slots: 0,
        state_bytes: 0,
        max_rows: spec.max_rows,
        max_batch_tokens: spec.max_batch_tokens,
        max_in_flight: 1,
    }
}

fn request<'a>(row: &Row<'a>) -> Request<'a> {
    Request {
        params: convert::sampling(&row.sampling),
        position: row.position + row.tokens.len().max(1) as u32,
        counts: row
            .counts
            .as_slice()
            .iter()
            .map(|c| (c.token, c.generated))
            .collect(),
        bias: row.bias.as_slice().iter().map(|b| (b.token, b.bias)).collect(),
        mask: row.mask.as_slice(),
        top: row.top_logprobs as usize,
    }
}

/// A row's output; its `top_logprobs` entries are appended to `top`.
fn output(choice: Choice, top_logprobs: u32, top: &mut Vec<TokenLogprob>) -> RowOutput {
    let Some(sampled) = choice.sampled else {
        // As many entries as were asked for, so that the rows after it find theirs.
        top.extend(std::iter::repeat_n(
            TokenLogprob::default(),
            top_logprobs as usize,
        ));
        return RowOutput {
            not_finite: true,
            top: top_logprobs,
            ..RowOutput::default()
        };
    };
    let listed = choice.top.len() as u32;
    top.extend(choice.top.into_iter().map(convert::logprob));
    RowOutput {
        sampled: convert::logprob(sampled),
        not_finite: false,
        top: listed,
    }
}

fn sampled_tokens(rows: &[Row<'_>], outputs: &[RowOutput]) -> Vec<Option<u32>> {
    rows.iter()
        .zip(outputs)
        .map(|(row, out)| (row.want == Want::Token && !out.not_finite).then_some(out.sampled.token))
        .collect()
}
