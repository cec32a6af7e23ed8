use super::TestHost;
use met_backend_api::{
    Batch, ModelSpec, NO_SLOT, Row, RowOutput, Sampling, TokenLogprob, Want,
    abi_stable::std_types::{RNone, RSlice},
    sdk::{BackendModel, Output},
};
use met_kernels::Ops;
use met_model::LoadedModel;
use std::{cell::RefCell, rc::Rc};

pub fn spec(path: &str) -> ModelSpec {
    ModelSpec {
        path: path.into(),
        context: 0,
        max_rows: 8,
        max_batch_tokens: 128,
        kv_bytes: 8 << 20,
        ..ModelSpec::default()
    }
}

pub fn load<O: Ops + 'static>(ops: O, path: &str) -> LoadedModel<O> {
    let ops = Rc::new(RefCell::new(ops));
    LoadedModel::load(ops, &TestHost::quiet(), &spec(path), || u64::MAX).unwrap()
}

/// One sequence's part of a step, owned.
#[derive(Clone)]
pub struct Sequence {
    pub tokens: Vec<u32>,
    pub position: u32,
    pub blocks: Vec<u32>,
    pub slot: u32,
    pub want: Want,
    pub sampling: Sampling,
    pub top_logprobs: u32,
}

impl Sequence {
    pub fn new(tokens: &[u32], position: u32, blocks: &[u32], want: Want) -> Self {
        Self {
            tokens: tokens.to_vec(),
            position,
            blocks: blocks.to_vec(),
            slot: NO_SLOT,
            want,
            sampling: Sampling::default(),
            top_logprobs: 0,
        }
    }

    /// The same, with its recurrent state in this slot.
    pub fn in_slot(self, slot: u32) -> Self {
        Self { slot, ..self }
    }

    pub fn row(&self) -> Row<'_> {
        Row {
            tokens: RSlice::from_slice(&self.tokens),
            input: RNone,
            position: self.position,
            blocks: RSlice::from_slice(&self.blocks),
            state_slot: self.slot,
            want: self.want,
            top_logprobs: self.top_logprobs,
            sampling: self.sampling,
            counts: RSlice::EMPTY,
            bias: RSlice::EMPTY,
            mask: RSlice::EMPTY,
        }
    }
}

/// Runs one step and gives the logits that its rows wanted.
pub fn all_logits<O: Ops + 'static>(
    model: &mut LoadedModel<O>,
    sequences: &[Sequence],
) -> (Vec<RowOutput>, Vec<Vec<f32>>) {
    let rows: Vec<_> = sequences.iter().map(Sequence::row).collect();
    let wanted: usize = rows
        .iter()
        .map(|row| match row.want {
            Want::Logits => 1,
            Want::AllLogits => row.tokens.len(),
            _ => 0,
        })
        .sum();
    let vocab = model.info().unwrap().vocab_size as usize;
    let mut logits = vec![0.0; wanted * vocab];
    let out = run(model, &rows, &mut [], &mut logits);
    (out, logits.chunks(vocab).map(<[f32]>::to_vec).collect())
}

/// Runs one step and gives what its rows sampled.
pub fn sample<O: Ops + 'static>(
    model: &mut LoadedModel<O>,
    rows: &[Row<'_>],
) -> (Vec<RowOutput>, Vec<TokenLogprob>) {
    let listed = rows.iter().map(|row| row.top_logprobs as usize).sum();
    let mut top = vec![TokenLogprob::default(); listed];
    let out = run(model, rows, &mut top, &mut []);
    (out, top)
}

/// A step of one token, to see that it runs.
pub fn step_of_ones<O: Ops + 'static>(model: &mut LoadedModel<O>) {
    let vocab = model.info().unwrap().vocab_size;
    let sequence = Sequence::new(&[1 % vocab], 0, &[0], Want::Token);
    sample(model, &[sequence.row()]);
}

fn run<O: Ops + 'static>(
    model: &mut LoadedModel<O>,
    rows: &[Row<'_>],
    top: &mut [TokenLogprob],
    logits: &mut [f32],
) -> Vec<RowOutput> {
    let mut out = vec![RowOutput::default(); rows.len()];
    let batch = Batch {
        rows: RSlice::from_slice(rows),
    };
    let ticket = model.submit(&batch).unwrap();
    let mut output = Output {
        rows: &mut out,
        top,
        logits,
    };
    model.collect(ticket, &mut output).unwrap();
    out
}
