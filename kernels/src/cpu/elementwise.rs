//! Normalisation and what works element by element.

use super::simd::{Kernel, LANES, Simd, activate, softcap};
use crate::Activation;

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
