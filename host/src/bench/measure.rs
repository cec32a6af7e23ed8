//! The measurement: one sequence, straight on the backend's handles, without scheduler or HTTP.

use super::{bandwidth::read_bandwidth, stats};
use crate::{
    loader::{Backend, BackendSource, Library, Model, Opener, Services},
    scheduler::Limits,
};
use abi_stable::std_types::{ROption, RSlice};
use anyhow::{Context, Result, anyhow, ensure};
use met_backend_api::{
    Batch, ModelInfo, ModelSpec, NO_SLOT, OpenSpec, Row as BatchRow, RowOutput, Sampling, Want, sdk::Output,
};
use serde::Serialize;
use std::{collections::BTreeMap, path::PathBuf, thread, time::Duration, time::Instant};

/// Tokens of a prefill step.
const BATCH_TOKENS: u32 = 512;
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The backend.
    pub backend: BackendSource,
    /// The model's file or folder.
    pub model: PathBuf,
    /// Prompt lengths; 0 is left out.
    pub prompts: Vec<u32>,
    /// Numbers of generated tokens; 0 is left out.
    pub generations: Vec<u32>,
    /// Tokens in the KV cache before.
    pub depths: Vec<u32>,
    /// Thread counts; 0 is one for each core.
    pub threads: Vec<u32>,
    /// Samples a row.
    pub repetitions: u32,
    /// What float matrices become at load; empty leaves them.
    pub quantize: String,
}

/// A row of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The model's name, weight type and file.
    pub model: String,
    /// The backend's name.
    pub backend: String,
    /// Tokens prefilled; 0 in a decode row.
    pub n_prompt: u32,
    /// Tokens generated; 0 in a prefill row.
    pub n_gen: u32,
    /// Tokens in the KV cache before.
    pub n_depth: u32,
    /// Compute threads.
    pub n_threads: u32,
    /// Mean of `samples_ts`.
    pub avg_ts: f64,
    /// Their standard deviation.
    pub stddev_ts: f64,
    /// Tokens per second of each repetition.
    pub samples_ts: Vec<f64>,
    /// Decode rows: the share of the measured memory bandwidth that reading the weights and the KV cache
    /// once a token takes.
    pub bandwidth_share: Option<f64>,
    /// Decode rows: that bandwidth, in bytes per second.
    pub bandwidth: Option<f64>,
}

/// Measures everything that `plan` names.
pub fn run(plan: &Plan) -> Result<Vec<Row>> {
    let mut library = Library::load(&plan.backend)?;
    let name = library.name().to_owned();
    let openers: Vec<_> = plan.threads.iter().map(|_| library.opener()).collect();
    // The backend's objects live on a thread of their own, which ends before the library is closed.
    let rows = thread::scope(|scope| {
        let engine = thread::Builder::new().name("bench".to_owned());
        let measuring = engine.spawn_scoped(scope, move || on_engine_thread(plan, &name, openers))?;
        measuring
            .join()
            .map_err(|_| anyhow!("the measurement panicked; its message is above"))?
    });
    library.close(CLOSE_WAIT);
    rows
}

fn on_engine_thread(plan: &Plan, backend_name: &str, openers: Vec<Opener>) -> Result<Vec<Row>> {
    let services = Services::default();
    let mut bandwidths = BTreeMap::new();
    let mut rows = Vec::new();
    for (&threads, opener) in plan.threads.iter().zip(openers) {
        let threads = if threads == 0 { cores() } else { threads };
        let spec = OpenSpec {
            threads,
            ..OpenSpec::default()
        };
        let mut backend = opener.open(&spec, &services)?;
        let bandwidth = *bandwidths
            .entry(threads)
            .or_insert_with(|| read_bandwidth(threads as usize));
        for &depth in &plan.depths {
            let longest = plan
                .prompts
                .iter()
                .chain(&plan.generations)
                .max()
                .copied()
                .unwrap_or(0);
            let mut sequence = Sequence::load(&mut backend, plan, depth + longest)?;
            sequence.prefill(0, depth)?;
            sequence.keep_state(depth)?;
            let tests = plan
                .prompts
                .iter()
                .map(|n| (*n, 0))
                .chain(plan.generations.iter().map(|n| (0, *n)));
            for (n_prompt, n_gen) in tests.filter(|(p, n)| p + n > 0) {
                let samples = sequence.samples(plan.repetitions, depth, n_prompt, n_gen)?;
                let average = stats::mean(&samples);
                let decode = n_gen > 0;
                let bytes = sequence.bytes_of_a_token(depth + n_gen / 2)?;
                let row = Row {
                    model: sequence.name(),
                    backend: backend_name.to_owned(),
                    n_prompt,
                    n_gen,
                    n_depth: depth,
                    n_threads: threads,
                    avg_ts: average,
                    stddev_ts: stats::deviation(&samples),
                    samples_ts: samples,
                    bandwidth_share: decode.then(|| average * bytes as f64 / bandwidth),
                    bandwidth: decode.then_some(bandwidth),
                };
                rows.push(row);
            }
            sequence.free_state()?;
            sequence.model.release_pools()?;
        }
        backend.sweep_unreleased()?;
    }
    Ok(rows)
}

fn cores() -> u32 {
    thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// One sequence that owns every KV block.
struct Sequence {
    model: Model,
    info: ModelInfo,
    blocks: Vec<u32>,
    tokens: Vec<u32>,
    /// Of a recurrent model: its state at the depth that is measured from.
    state: Vec<u8>,
}

/// The slot of its recurrent state, where it has one.
const SLOT: u32 = 0;

impl Sequence {
    fn load(backend: &mut Backend, plan: &Plan, length: u32) -> Result<Self> {
        let path = plan.model.to_str().context("the model's path is not UTF-8")?;
        let spec = ModelSpec {
            path: path.into(),
            context: length.max(1),
            max_rows: 1,
            max_batch_tokens: BATCH_TOKENS,
            quantize: plan.quantize.as_str().into(),
            ..ModelSpec::default()
        };
        let model = backend.load_model(&spec)?;
        let info = model.info()?;
        let room = Limits::of(&info).map_err(|problem| anyhow!(problem))?.longest();
        ensure!(
            room >= length,
            "the model has room for {room} tokens, but {length} are to be measured"
        );
        let blocks = (0..length.div_ceil(info.block_size)).collect();
        // Any tokens do: what they are doesn't change the work.
        let vocab = u64::from(info.vocab_size);
        let tokens = (0..u64::from(length))
            .map(|i| (i.wrapping_mul(2_654_435_761) % vocab) as u32)
            .collect();
        Ok(Self {
            model,
            info,
            blocks,
            tokens,
            state: Vec::new(),
        })
    }

    fn name(&self) -> String {
        let info = &self.info;
        format!("{} {}", info.name, info.quantization)
    }

    /// Tokens per second of each repetition, after one to warm up.
    fn samples(&mut self, repetitions: u32, depth: u32, n_prompt: u32, n_gen: u32) -> Result<Vec<f64>> {
        let mut samples = Vec::with_capacity(repetitions as usize);
        for repetition in 0..=repetitions {
            self.rewind(depth)?;
            let start = Instant::now();
            self.prefill(depth, n_prompt)?;
            for position in depth..depth + n_gen {
                self.step(position, 1)?;
            }
            let rate = f64::from(n_prompt + n_gen) / start.elapsed().as_secs_f64();
            if repetition > 0 {
                samples.push(rate);
            }
        }
        Ok(samples)
    }

    fn is_recurrent(&self) -> bool {
        self.info.state_slots > 0
    }

    fn keep_state(&mut self, depth: u32) -> Result<()> {
        if self.is_recurrent() && depth > 0 {
            self.state = vec![0; usize::try_from(self.info.state_bytes)?];
            self.model.save_state(SLOT, &mut self.state)?;
        }
        Ok(())
    }

    /// Back to the state at `depth`; at 0 a sequence begins anew by itself.
    fn rewind(&mut self, depth: u32) -> Result<()> {
        if self.is_recurrent() && depth > 0 {
            self.model.restore_state(SLOT, depth, &self.state)?;
        }
        Ok(())
    }

    fn free_state(&mut self) -> Result<()> {
        if self.is_recurrent() {
            self.model.free_state(SLOT)?;
        }
        Ok(())
    }

    fn prefill(&mut self, from: u32, count: u32) -> Result<()> {
        let end = from + count;
        let mut position = from;
        while position < end {
            let chunk = (end - position).min(BATCH_TOKENS);
            self.step(position, chunk)?;
            position += chunk;
        }
        Ok(())
    }

    /// Computes `count` tokens at `position` and samples the next one greedily.
    fn step(&mut self, position: u32, count: u32) -> Result<()> {
        let row = BatchRow {
            tokens: RSlice::from_slice(&self.tokens[position as usize..(position + count) as usize]),
            input: ROption::RNone,
            position,
            blocks: RSlice::from_slice(&self.blocks),
            state_slot: if self.is_recurrent() { SLOT } else { NO_SLOT },
            want: Want::Token,
            top_logprobs: 0,
            sampling: Sampling::default(),
            counts: RSlice::from_slice(&[]),
            bias: RSlice::from_slice(&[]),
            mask: RSlice::from_slice(&[]),
        };
        let ticket = self.model.submit(Batch {
            rows: RSlice::from_slice(&[row]),
        })?;
        let mut rows = [RowOutput::default()];
        self.model.collect(
            ticket,
            Output {
                rows: &mut rows,
                top: &mut [],
                logits: &mut [],
            },
        )?;
        ensure!(!rows[0].not_finite, "the model's logits are not finite");
        Ok(())
    }

    /// Bytes that a decode step has to read at `depth`: every weight, and the sequence's keys and values.
    fn bytes_of_a_token(&self, depth: u32) -> Result<u64> {
        let weights = self
            .model
            .resources()?
            .iter()
            .filter(|r| r.label.contains("weight"))
            .map(|r| r.bytes)
            .sum::<u64>();
        let info = &self.info;
        Ok(weights + info.block_bytes * u64::from(depth) / u64::from(info.block_size))
    }
}
