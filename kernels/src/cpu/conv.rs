//! The causal convolution of each channel along its sequence.
//!
//! An output is one chain, `fma(weight, input, sum)` from the bias on, the oldest input first, so it doesn't depend
//! on what else is in the step.

use super::{
    Workers,
    simd::{Kernel, LANES, Simd, activate},
    state::{self, State},
    tensor::{Tensor, same},
};
use crate::{Activation, Error, HostStep, Place, Result};
use std::ops::Range;

/// A convolution's constants.
pub(super) struct Taps<'a> {
    /// `[channels, taps]`.
    pub weight: &'a [f32],
    /// `[channels]`.
    pub bias: Option<&'a [f32]>,
    /// How many inputs an output is made of.
    pub taps: usize,
}

pub(super) fn conv(
    workers: Workers<'_>,
    x: &Tensor,
    taps: &Taps<'_>,
    place: Place<'_, State>,
    step: &HostStep,
    out: &mut Tensor,
) -> Result<()> {
    let channels = x.cols;
    same(out.cols, channels)?;
    same(taps.weight.len(), channels * taps.taps)?;
    same(taps.bias.map_or(channels, <[f32]>::len), channels)?;
    if taps.taps == 0 {
        return Err(Error::invalid("a convolution of 0 taps"));
    }
    let past = (taps.taps - 1) * channels;
    let (grain, tokens) = (x.grain(), step.tokens().len());
    let (x, mut out) = (x.rows(tokens)?, out.rows_mut(tokens)?);
    let mut states = state::parts(place, step, past)?;
    for (row, state) in step.rows().iter().zip(&mut states) {
        if row.position == 0 {
            state.fill(0.0);
        }
    }
    let mut tasks = Vec::new();
    for (row, past) in step.rows().iter().zip(&states) {
        let inputs = &x[row.tokens.start * channels..row.tokens.end * channels];
        let (mine, rest) = out.split_at_mut(inputs.len());
        out = rest;
        for (i, out) in mine.chunks_mut(grain * channels).enumerate() {
            let tokens = i * grain..i * grain + out.len() / channels;
            tasks.push(Conv {
                taps,
                past,
                inputs,
                tokens,
                out,
            });
        }
    }
    workers.team.for_each(&mut tasks, |task| workers.isa.run(task))?;
    drop(tasks);
    for (row, state) in step.rows().iter().zip(states) {
        let inputs = &x[row.tokens.start * channels..row.tokens.end * channels];
        let kept = past.saturating_sub(inputs.len());
        state.copy_within(past - kept.., 0);
        state[kept..].copy_from_slice(&inputs[inputs.len() - (past - kept)..]);
    }
    Ok(())
}

/// Some tokens of one row.
struct Conv<'a> {
    taps: &'a Taps<'a>,
    /// The inputs before the row.
    past: &'a [f32],
    /// The row's.
    inputs: &'a [f32],
    /// Which of the row's tokens.
    tokens: Range<usize>,
    out: &'a mut [f32],
}

impl Kernel for &mut Conv<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (channels, taps) = (self.out.len() / self.tokens.len(), self.taps.taps);
        let mut weights = vec![[0.0; LANES]; taps];
        for first in (0..channels).step_by(LANES) {
            let lanes = LANES.min(channels - first);
            for lane in 0..lanes {
                for (weights, &weight) in weights.iter_mut().zip(&self.taps.weight[(first + lane) * taps..]) {
                    weights[lane] = weight;
                }
            }
            let bias = match self.taps.bias {
                Some(bias) => s.load_part(&bias[first..][..lanes]),
                None => s.splat(0.0),
            };
            for (token, out) in self.tokens.clone().zip(self.out.chunks_exact_mut(channels)) {
                let mut sum = bias;
                for (i, weights) in weights.iter().enumerate() {
                    // The inputs begin `taps - 1` before the row.
                    let input = match (token + i).checked_sub(taps - 1) {
                        Some(at) => &self.inputs[at * channels + first..],
                        None => &self.past[(token + i) * channels + first..],
                    };
                    sum = s.fma(s.load(weights), load(s, input, lanes), sum);
                }
                let silu = activate(s, Activation::Silu, sum);
                s.store_part(silu, &mut out[first..][..lanes]);
            }
        }
    }
}

/// The first `lanes` values.
#[inline(always)]
fn load<S: Simd>(s: S, x: &[f32], lanes: usize) -> S::V {
    match x.first_chunk() {
        Some(x) if lanes == LANES => s.load(x),
        _ => s.load_part(&x[..lanes]),
    }
}
