//! The reference's recurrent states, and the operations that have one.

use super::{
    activate,
    tensor::{Tensor, same},
};
use crate::{
    Activation, DeltaWeights, Error, HostStep, Ledger, Place, Result, ScanWeights, cpu::Buffer, step::HostRow,
};

/// Slots of as many values each, in f64.
#[derive(Debug)]
pub struct State {
    values: usize,
    data: Buffer<f64>,
}

impl State {
    pub(super) fn new(ledger: &Ledger, owner: &str, slots: usize, values: usize) -> Result<Self> {
        let len = slots.checked_mul(values).filter(|&len| len > 0);
        let len = len.ok_or_else(|| Error::invalid(format!("{owner}: {slots} states of {values} values")))?;
        Ok(Self {
            values,
            data: Buffer::zeroed(ledger, owner, len)?,
        })
    }

    pub(super) fn release(self) -> Result<u64> {
        self.data.release()
    }

    pub(super) fn copy(&mut self, slot: u32, from: &Self, from_slot: u32) -> Result<()> {
        same(self.values, from.values)?;
        let from = from.range(from_slot).map(|range| &from.data[range])?;
        let to = self.range(slot)?;
        self.data[to].copy_from_slice(from);
        Ok(())
    }

    /// Slots are copied as f32.
    pub(super) fn read(&self, slot: u32, data: &mut [u8]) -> Result<()> {
        same(data.len(), self.values * 4)?;
        let range = self.range(slot)?;
        for (to, &from) in data.as_chunks_mut().0.iter_mut().zip(&self.data[range]) {
            *to = (from as f32).to_le_bytes();
        }
        Ok(())
    }

    pub(super) fn write(&mut self, slot: u32, data: &[u8]) -> Result<()> {
        same(data.len(), self.values * 4)?;
        let range = self.range(slot)?;
        for (to, &from) in self.data[range].iter_mut().zip(data.as_chunks().0) {
            *to = f64::from(f32::from_le_bytes(from));
        }
        Ok(())
    }

    fn range(&self, slot: u32) -> Result<std::ops::Range<usize>> {
        let start = (slot as usize).checked_mul(self.values);
        let start = start.filter(|&start| start < self.data.len());
        let start = start.ok_or_else(|| Error::invalid(format!("there is no state slot {slot}")))?;
        Ok(start..start + self.values)
    }
}

/// Each row with its `len` values of state, which are zeros where it begins.
fn each_row(
    place: Place<'_, State>,
    step: &HostStep,
    len: usize,
    mut work: impl FnMut(&HostRow, &mut [f64]),
) -> Result<()> {
    let Place { state, offset } = place;
    let values = state.values;
    step.check_states(state.data.len() / values, values, offset, len)?;
    for row in step.rows() {
        let part = &mut state.data[row.state as usize * values + offset..][..len];
        if row.position == 0 {
            part.fill(0.0);
        }
        work(row, part);
    }
    Ok(())
}

pub(super) fn conv(
    x: &Tensor,
    weight: &[f32],
    bias: Option<&[f32]>,
    taps: usize,
    place: Place<'_, State>,
    step: &HostStep,
    out: &mut Tensor,
) -> Result<()> {
    let channels = x.cols;
    same(out.cols, channels)?;
    same(weight.len(), channels * taps)?;
    same(bias.map_or(channels, <[f32]>::len), channels)?;
    let past = taps
        .checked_sub(1)
        .ok_or_else(|| Error::invalid("a convolution of 0 taps"))?
        * channels;
    let tokens = step.tokens().len();
    let x: Vec<_> = x.rows(tokens)?.collect();
    let mut out: Vec<_> = out.rows_mut(tokens)?.collect();
    each_row(place, step, past, |row, state| {
        let mut inputs = state.to_vec();
        x[row.tokens.clone()]
            .iter()
            .for_each(|x| inputs.extend_from_slice(x));
        for (inputs, out) in inputs
            .chunks(channels)
            .collect::<Vec<_>>()
            .windows(taps)
            .zip(&mut out[row.tokens.clone()])
        {
            for (c, out) in out.iter_mut().enumerate() {
                let weights = weight[c * taps..].iter().zip(inputs);
                let sum: f64 = weights.map(|(&weight, x)| f64::from(weight) * x[c]).sum();
                *out = activate(
                    Activation::Silu,
                    sum + bias.map_or(0.0, |bias| f64::from(bias[c])),
                );
            }
        }
        state.copy_from_slice(&inputs[inputs.len() - past..]);
    })
}

pub(super) fn scan(
    xbc: &Tensor,
    dt: &Tensor,
    weights: &ScanWeights<'_, Buffer<f32>>,
    place: Place<'_, State>,
    step: &HostStep,
    out: &mut Tensor,
) -> Result<()> {
    let shape = weights.shape;
    shape.check()?;
    same(xbc.cols, shape.channels())?;
    same(dt.cols, shape.heads)?;
    same(out.cols, shape.heads * shape.head_dim)?;
    for constants in [weights.a, weights.d, weights.dt_bias] {
        same(constants.len(), shape.heads)?;
    }
    let tokens = step.tokens().len();
    let xbc: Vec<_> = xbc.rows(tokens)?.collect();
    let dt: Vec<_> = dt.rows(tokens)?.collect();
    let mut out: Vec<_> = out.rows_mut(tokens)?.collect();
    each_row(place, step, shape.state(), |row, state| {
        for t in row.tokens.clone() {
            let (x, bc) = xbc[t].split_at(shape.heads * shape.head_dim);
            let (b, c) = bc.split_at(shape.groups * shape.state_dim);
            for (head, h) in state
                .chunks_exact_mut(shape.head_dim * shape.state_dim)
                .enumerate()
            {
                let of_group = head / (shape.heads / shape.groups) * shape.state_dim;
                let (b, c) = (
                    &b[of_group..][..shape.state_dim],
                    &c[of_group..][..shape.state_dim],
                );
                let [a, d, dt_bias] = [weights.a, weights.d, weights.dt_bias].map(|v| f64::from(v[head]));
                let delta = softplus(dt[t][head] + dt_bias);
                let decay = (delta * a).exp();
                for (i, h) in h.chunks_exact_mut(shape.state_dim).enumerate() {
                    let i = head * shape.head_dim + i;
                    out[t][i] = d * x[i];
                    for ((h, b), c) in h.iter_mut().zip(b).zip(c) {
                        *h = decay * *h + delta * x[i] * b;
                        out[t][i] += *h * c;
                    }
                }
            }
        }
    })
}

pub(super) fn delta_rule(
    qkv: &Tensor,
    [alpha, beta]: [&Tensor; 2],
    weights: &DeltaWeights<'_, Buffer<f32>>,
    place: Place<'_, State>,
    step: &HostStep,
    out: &mut Tensor,
) -> Result<()> {
    let shape = weights.shape;
    shape.check()?;
    same(qkv.cols, shape.channels())?;
    same(out.cols, shape.value_heads * shape.value_dim)?;
    for len in [alpha.cols, beta.cols, weights.a.len(), weights.dt_bias.len()] {
        same(len, shape.value_heads)?;
    }
    let tokens = step.tokens().len();
    let qkv: Vec<_> = qkv.rows(tokens)?.collect();
    let [alpha, beta] = [
        alpha.rows(tokens)?.collect::<Vec<_>>(),
        beta.rows(tokens)?.collect(),
    ];
    let mut out: Vec<_> = out.rows_mut(tokens)?.collect();
    let (key_dim, value_dim) = (shape.key_dim, shape.value_dim);
    each_row(place, step, shape.state(), |row, state| {
        for t in row.tokens.clone() {
            let (q, kv) = qkv[t].split_at(shape.key_heads * key_dim);
            let (k, v) = kv.split_at(shape.key_heads * key_dim);
            for (head, state) in state.chunks_exact_mut(key_dim * value_dim).enumerate() {
                let of_key = head / (shape.value_heads / shape.key_heads) * key_dim;
                let q = divided_by_norm(&q[of_key..][..key_dim], (key_dim as f64).sqrt());
                let k = divided_by_norm(&k[of_key..][..key_dim], 1.0);
                let [a, dt_bias] = [weights.a, weights.dt_bias].map(|v| f64::from(v[head]));
                let decay = (a * softplus(alpha[t][head] + dt_bias)).exp();
                let share = activate(Activation::Sigmoid, beta[t][head]);
                state.iter_mut().for_each(|s| *s *= decay);
                for j in 0..value_dim {
                    let column = |i: usize| i * value_dim + j;
                    let known: f64 = (0..key_dim).map(|i| k[i] * state[column(i)]).sum();
                    let change = share * (v[head * value_dim + j] - known);
                    (0..key_dim).for_each(|i| state[column(i)] += k[i] * change);
                    out[t][head * value_dim + j] = (0..key_dim).map(|i| q[i] * state[column(i)]).sum();
                }
            }
        }
    })
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn divided_by_norm(x: &[f64], further: f64) -> Vec<f64> {
    let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|x| x / (norm * further)).collect()
}
