//! Generations behind the boundary, on any backend.

use super::Holdings;
use met_backend_api::{
    Batch, BatchOutput, Error, ModelInfo, ModelSpec, NO_SLOT, OpenSpec, Row, RowOutput, Sampling,
    TokenLogprob, Want,
    abi::{BackendBox, BackendModule_Ref, HostServices, HostServices_TO, LogLevel, LogRecord, ModelBox},
    abi_stable::{
        sabi_trait::TD_Opaque,
        std_types::{RArc, RNone, RSlice, RSliceMut, RStr},
    },
    sdk::{BackendModel, Host, Output},
};
use met_kernels::{Ledger, cpu::CpuOps};
use met_model::LoadedModel;
use std::{cell::RefCell, path::PathBuf, rc::Rc};

/// What a backend's ledger holds.
pub fn on_the_ledger(backend: &BackendBox) -> Holdings {
    let entries = backend.ledger().unwrap();
    let kinds: Vec<_> = entries
        .iter()
        .map(|entry| (format!("{:?}", entry.kind).to_lowercase(), entry.bytes))
        .collect();
    Holdings::of(kinds.iter().map(|(kind, bytes)| (kind.as_str(), *bytes)))
}

/// A file of the fixtures.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures")).join(name)
}

pub fn open(module: BackendModule_Ref) -> Result<BackendBox, Error> {
    let spec = OpenSpec {
        threads: 1,
        ..OpenSpec::default()
    };
    module.open()(host(), &spec).into_result()
}

pub fn model_spec(name: &str) -> ModelSpec {
    ModelSpec {
        path: fixture(name).to_str().unwrap().into(),
        context: 0,
        max_rows: 4,
        max_batch_tokens: 64,
        kv_bytes: 1 << 20,
        ..ModelSpec::default()
    }
}

pub fn load(backend: &mut BackendBox, name: &str) -> Result<ModelBox, Error> {
    load_spec(backend, &model_spec(name))
}

pub fn load_spec(backend: &mut BackendBox, spec: &ModelSpec) -> Result<ModelBox, Error> {
    backend.load_model(spec).into_result()
}

/// One sequence of a step.
#[derive(Clone, Debug)]
pub struct Part {
    pub tokens: Vec<u32>,
    pub position: u32,
    pub blocks: Vec<u32>,
    /// The slot of its state, where the model has such.
    pub slot: u32,
    pub sampling: Sampling,
}

/// A model, behind the boundary or not.
pub trait Steps {
    fn start(&mut self, batch: Batch<'_>) -> Result<u64, Error>;
    fn finish(&mut self, ticket: u64, rows: &mut [RowOutput], top: &mut [TokenLogprob]) -> Result<(), Error>;
    fn about(&self) -> ModelInfo;
    /// The sequence that holds a state slot has ended; nothing where the model has no states.
    fn free(&mut self, slot: u32);
}

impl Steps for ModelBox {
    fn start(&mut self, batch: Batch<'_>) -> Result<u64, Error> {
        self.submit(batch).into_result()
    }
    fn finish(&mut self, ticket: u64, rows: &mut [RowOutput], top: &mut [TokenLogprob]) -> Result<(), Error> {
        let output = BatchOutput {
            rows: RSliceMut::from_mut_slice(rows),
            top: RSliceMut::from_mut_slice(top),
            logits: RSliceMut::from_mut_slice(&mut []),
        };
        self.collect(ticket, output).into_result()
    }
    fn about(&self) -> ModelInfo {
        self.info().unwrap()
    }
    fn free(&mut self, slot: u32) {
        if self.about().state_slots > 0 {
            self.free_state(slot).unwrap();
        }
    }
}

impl Steps for LoadedModel<CpuOps> {
    fn start(&mut self, batch: Batch<'_>) -> Result<u64, Error> {
        self.submit(&batch)
    }
    fn finish(&mut self, ticket: u64, rows: &mut [RowOutput], top: &mut [TokenLogprob]) -> Result<(), Error> {
        let logits = &mut [][..];
        self.collect(ticket, &mut Output { rows, top, logits })
    }
    fn about(&self) -> ModelInfo {
        self.info().unwrap()
    }
    fn free(&mut self, slot: u32) {
        if self.about().state_slots > 0 {
            self.free_state(slot).unwrap();
        }
    }
}

/// The same model on the CPU.
pub fn on_the_cpu(name: &str) -> LoadedModel<CpuOps> {
    on_the_cpu_spec(&model_spec(name))
}

pub fn on_the_cpu_spec(spec: &ModelSpec) -> LoadedModel<CpuOps> {
    let ops = CpuOps::new(1, Ledger::default()).unwrap();
    LoadedModel::load(Rc::new(RefCell::new(ops)), &host(), spec, || 1 << 30).unwrap()
}

/// What a part gave: its token, and how far the most probable token is ahead of the next.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    pub token: u32,
    pub lead: f32,
}

/// One step; a token for each part.
pub fn step(model: &mut impl Steps, parts: &[Part]) -> Result<Vec<Drawn>, Error> {
    let has_states = model.about().state_slots > 0;
    let rows: Vec<_> = parts
        .iter()
        .map(|part| Row {
            tokens: RSlice::from_slice(&part.tokens),
            input: RNone,
            position: part.position,
            blocks: RSlice::from_slice(&part.blocks),
            state_slot: if has_states { part.slot } else { NO_SLOT },
            want: Want::Token,
            top_logprobs: 2,
            sampling: part.sampling,
            counts: RSlice::EMPTY,
            bias: RSlice::EMPTY,
            mask: RSlice::EMPTY,
        })
        .collect();
    let mut out = vec![RowOutput::default(); rows.len()];
    let mut top = vec![TokenLogprob::default(); 2 * rows.len()];
    let batch = Batch {
        rows: RSlice::from_slice(&rows),
    };
    let ticket = model.start(batch)?;
    model.finish(ticket, &mut out, &mut top)?;
    let drawn = out.iter().zip(top.chunks(2)).map(|(out, top)| {
        assert!(!out.not_finite && out.top == 2);
        Drawn {
            token: out.sampled.token,
            lead: top[0].logprob - top[1].logprob,
        }
    });
    Ok(drawn.collect())
}

/// What follows each prompt, `count` tokens of each: the prompts in one step, then one token of each a step. Where
/// `path` says so, the sequences go on with its tokens in place of those drawn.
pub fn generate(
    model: &mut impl Steps,
    prompts: &[Vec<u32>],
    sampling: Sampling,
    path: Option<&[Vec<Drawn>]>,
    count: usize,
) -> Vec<Vec<Drawn>> {
    let blocks_each = model.about().block_count as usize / prompts.len();
    let mut parts: Vec<_> = (0u64..)
        .zip(prompts)
        .map(|(i, prompt)| Part {
            tokens: prompt.clone(),
            position: 0,
            blocks: (0..blocks_each)
                .map(|block| (block * prompts.len()) as u32 + i as u32)
                .collect(),
            slot: i as u32,
            sampling: Sampling {
                sequence: i,
                ..sampling
            },
        })
        .collect();
    let mut generated = vec![Vec::new(); prompts.len()];
    for i in 0..count {
        let outputs = step(model, &parts).unwrap();
        for (row, (part, output)) in parts.iter_mut().zip(outputs).enumerate() {
            part.position += part.tokens.len() as u32;
            part.tokens = vec![path.map_or(output, |path| path[row][i]).token];
            generated[row].push(output);
        }
    }
    parts.iter().for_each(|part| model.free(part.slot));
    generated
}

#[derive(Clone)]
struct Quiet;

impl HostServices for Quiet {
    fn log_enabled(&self, _level: LogLevel, _target: RStr<'_>) -> bool {
        false
    }
    fn log(&self, _record: &LogRecord<'_>) {}
    fn progress(&self, _stage: RStr<'_>, _done: u64, _total: u64) {}
    fn cancelled(&self) -> bool {
        false
    }
}

pub fn host() -> Host {
    HostServices_TO::from_ptr(RArc::new(Quiet), TD_Opaque)
}
