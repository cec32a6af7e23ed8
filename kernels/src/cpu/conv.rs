//! The causal convolution of each channel along its sequence.
//!
//! An output is one chain, `fma(weight, input, sum)` from the bias on, the oldest input first, so it doesn't depend
//! on what else is in the step.

use super::{
    Workers,
    simd::{Kernel, LANES, Simd, activate},
    state::{self, State},
    tensor::{GRAIN, Tensor, same},
};
use crate::{Activation, Error, HostStep, Place, Result};

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
    let tokens = step.tokens().len();
    let (x, mut out) = (x.rows(tokens)?, out.rows_mut(tokens)?);
    let states = state::parts(place, step, (taps.taps - 1) * channels)?;
    let starts = (0..channels).step_by(WIDTH);
    let mut tasks: Vec<_> = starts
        .map(|first| Conv {
            taps,
            first,
            rows: Vec::new(),
        })
        .collect();
    for (row, state) in step.rows().iter().zip(states) {
        let inputs = &x[row.tokens.start * channels..row.tokens.end * channels];
        let (mine, rest) = out.split_at_mut(inputs.len());
        out = rest;
        if row.position == 0 {
            state.fill(0.0);
        }
        let mut states = state::columns(state, channels, WIDTH).into_iter();
        for (task, out) in tasks.iter_mut().zip(state::columns(mine, channels, WIDTH)) {
            task.rows.push(Row {
                past: states.next().unwrap_or_default(),
                inputs,
                out,
            });
        }
    }
    let grain = (GRAIN / (WIDTH * OUTPUT_WORK * tokens.max(1))).max(1);
    let mut tasks: Vec<_> = tasks.chunks_mut(grain).collect();
    workers.team.for_each(&mut tasks, |tasks| {
        tasks.iter_mut().for_each(|task| workers.isa.run(task));
    })
}

/// Elements of cheap work that take as long as an output.
const OUTPUT_WORK: usize = 16;

/// Channels whose weights are in the first-level cache.
const WIDTH: usize = 128;

/// Some channels, from `first` on, of all rows.
struct Conv<'a> {
    taps: &'a Taps<'a>,
    first: usize,
    rows: Vec<Row<'a>>,
}

/// A row's part of a task.
struct Row<'a> {
    /// The inputs before the row, of the task's channels.
    past: Vec<&'a mut [f32]>,
    /// The row's, of all channels.
    inputs: &'a [f32],
    /// The outputs of the task's channels.
    out: Vec<&'a mut [f32]>,
}

impl Kernel for &mut Conv<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Taps { weight, bias, taps } = *self.taps;
        // A tap's weights side by side, as the inputs are, and the bias as one more.
        let mut weights = vec![[0.0; WIDTH]; taps + 1];
        for (tap, weights) in weights.iter_mut().enumerate().take(taps) {
            let column = weight[self.first * taps + tap..].iter().step_by(taps);
            for (to, &weight) in weights.iter_mut().zip(column) {
                *to = weight;
            }
        }
        if let Some(bias) = bias {
            for (to, &bias) in weights[taps].iter_mut().zip(&bias[self.first..]) {
                *to = bias;
            }
        }
        for row in &mut self.rows {
            row.run(s, self.first, &weights);
        }
    }
}

impl Row<'_> {
    /// `weights` are those of each tap, then the bias.
    #[inline(always)]
    fn run<S: Simd>(&mut self, s: S, first: usize, weights: &[[f32; WIDTH]]) {
        let (tokens, width, taps) = (self.out.len(), self.out[0].len(), weights.len() - 1);
        let mut inputs = Vec::with_capacity(self.past.len() + tokens);
        for past in &self.past {
            inputs.push(&**past);
        }
        for row in self.inputs.chunks_exact(self.inputs.len() / tokens) {
            inputs.push(&row[first..][..width]);
        }
        for (inputs, out) in inputs.windows(taps).zip(&mut self.out) {
            for (i, out) in out.chunks_mut(LANES).enumerate() {
                let mut sum = s.load(&weights[taps].as_chunks().0[i]);
                for (weights, input) in weights.iter().zip(inputs) {
                    let input = &input[i * LANES..];
                    let input = match input.first_chunk() {
                        Some(input) => s.load(input),
                        None => s.load_part(input),
                    };
                    sum = s.fma(s.load(&weights.as_chunks().0[i]), input, sum);
                }
                s.store_part(activate(s, Activation::Silu, sum), out);
            }
        }
        let kept = inputs[tokens..].concat();
        for (past, kept) in self.past.iter_mut().zip(kept.chunks_exact(width)) {
            past.copy_from_slice(kept);
        }
    }
}
