//! Normalisation and what works element by element.

use super::{
    Workers,
    simd::{Kernel, LANES, Simd, activate, softcap},
    tensor::{GRAIN, Tensor, groups, same},
};
use crate::{Activation, Result};

pub(super) fn rms_norm(
    workers: Workers<'_>,
    x: &Tensor,
    weight: &[f32],
    eps: f32,
    rows: usize,
    out: &mut Tensor,
) -> Result<()> {
    same(x.cols, out.cols)?;
    groups(x.cols, weight.len())?;
    let grain = x.grain() * x.cols;
    let (x, out) = (x.rows(rows)?, out.rows_mut(rows)?);
    let mut tasks: Vec<_> = x.chunks(grain).zip(out.chunks_mut(grain)).collect();
    workers.team.for_each(&mut tasks, |(x, out)| {
        workers.isa.run(RmsNorm { x, weight, eps, out })
    })
}

pub(super) fn add_rms_norm(
    workers: Workers<'_>,
    residual: &mut Tensor,
    x: &Tensor,
    weight: &[f32],
    eps: f32,
    rows: usize,
    out: &mut Tensor,
) -> Result<()> {
    same(residual.cols, x.cols)?;
    same(residual.cols, out.cols)?;
    same(residual.cols, weight.len())?;
    let grain = x.grain() * x.cols;
    let (residual, x, out) = (residual.rows_mut(rows)?, x.rows(rows)?, out.rows_mut(rows)?);
    let inputs = residual.chunks_mut(grain).zip(x.chunks(grain));
    let mut tasks: Vec<_> = inputs.zip(out.chunks_mut(grain)).collect();
    workers.team.for_each(&mut tasks, |((residual, x), out)| {
        workers.isa.run(Add { x: residual, y: x });
        workers.isa.run(RmsNorm {
            x: residual,
            weight,
            eps,
            out,
        });
    })
}

pub(super) fn gated(
    workers: Workers<'_>,
    activation: Activation,
    gate: &Tensor,
    up: &Tensor,
    rows: usize,
    out: &mut Tensor,
) -> Result<()> {
    same(gate.cols, up.cols)?;
    same(gate.cols, out.cols)?;
    let inputs = gate.rows(rows)?.chunks(GRAIN).zip(up.rows(rows)?.chunks(GRAIN));
    let mut tasks: Vec<_> = inputs.zip(out.rows_mut(rows)?.chunks_mut(GRAIN)).collect();
    workers.team.for_each(&mut tasks, |((gate, up), out)| {
        workers.isa.run(Gated {
            activation,
            gate,
            up,
            out,
        });
    })
}

/// 1 / (1 + e^−x).
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// ln (1 + e^x).
pub(super) fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `out = x / rms(x) * weight` for rows of `weight.len()`.
pub(super) struct RmsNorm<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
    pub eps: f32,
    pub out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cols = self.weight.len();
        for (x, out) in self.x.chunks_exact(cols).zip(self.out.chunks_exact_mut(cols)) {
            let factor = 1.0 / (sum_of_squares(s, x) / cols as f32 + self.eps).sqrt();
            for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight) {
                *out = x * factor * weight;
            }
        }
    }
}

#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (whole, rest) = x.as_chunks::<LANES>();
    let mut sums = s.splat(0.0);
    for x in whole {
        let x = s.load(x);
        sums = s.fma(x, x, sums);
    }
    rest.iter().fold(s.sum(sums), |sum, x| sum + x * x)
}

/// `x += y`.
pub(super) struct Add<'a> {
    pub x: &'a mut [f32],
    pub y: &'a [f32],
}

impl Kernel for Add<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            *x += y;
        }
    }
}

/// `x *= factor`.
pub(super) struct Scale<'a> {
    pub x: &'a mut [f32],
    pub factor: f32,
}

impl Kernel for Scale<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for x in self.x {
            *x *= self.factor;
        }
    }
}

/// `x = cap · tanh(x / cap)`.
pub(super) struct SoftCap<'a> {
    pub x: &'a mut [f32],
    pub cap: f32,
}

impl Kernel for SoftCap<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (whole, rest) = self.x.as_chunks_mut::<LANES>();
        for x in whole {
            s.store(softcap(s, s.load(x), self.cap), x);
        }
        let mut last = [0.0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        rest.copy_from_slice(&s.to_array(softcap(s, s.load(&last), self.cap))[..rest.len()]);
    }
}

/// `out = f(gate) * up`.
pub(super) struct Gated<'a> {
    pub activation: Activation,
    pub gate: &'a [f32],
    pub up: &'a [f32],
    pub out: &'a mut [f32],
}

impl Kernel for Gated<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (gates, last_gate) = self.gate.as_chunks::<LANES>();
        let (ups, last_up) = self.up.as_chunks::<LANES>();
        let (outs, last_out) = self.out.as_chunks_mut::<LANES>();
        for ((gate, up), out) in gates.iter().zip(ups).zip(outs) {
            s.store(s.mul(activate(s, self.activation, s.load(gate)), s.load(up)), out);
        }
        let mut gate = [0.0; LANES];
        gate[..last_gate.len()].copy_from_slice(last_gate);
        let activated = s.to_array(activate(s, self.activation, s.load(&gate)));
        for ((out, activated), up) in last_out.iter_mut().zip(activated).zip(last_up) {
            *out = activated * up;
        }
    }
}
