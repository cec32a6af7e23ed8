//! Functions of a vector.

use super::Simd;
use crate::Activation;

/// Below this, e^x is no normal f32.
const EXP_LOWEST: f32 = -87.33;
/// Above this, e^x is no f32.
const EXP_HIGHEST: f32 = 88.37;

/// e^x with a relative error below 2e-7: 2^n · e^r, with n the whole number nearest to x / ln 2.
///
/// Results that are no normal number are 0, e^−∞ among them; x above 88.37 counts as that. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // ln 2 in two parts, the first with few bits, so that n · LN2_HIGH is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = (std::f64::consts::LN_2 - LN2_HIGH as f64) as f32;
    // (e^r − 1 − r) / r² on |r| ≤ ln 2 / 2, the least maximal relative error of e^r (3e-9).
    const SERIES: [f32; 5] = [
        0.001_381_459_8,
        0.008_368_717,
        0.041_668_39,
        0.166_665_21,
        0.499_999_94,
    ];

    let lowest = s.splat(EXP_LOWEST);
    let clamped = s.max(lowest, s.min(s.splat(EXP_HIGHEST), x));
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-LN2_HIGH), clamped);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let mut p = s.splat(SERIES[0]);
    for &term in &SERIES[1..] {
        p = s.fma(p, r, s.splat(term));
    }
    let power = s.fma(s.mul(r, r), p, s.add(r, s.splat(1.0)));
    s.zero_below(s.scale_by_power(power, n), x, lowest)
}

/// `cap · tanh(x / cap)`, by tanh(y) = 1 − 2 / (e^2y + 1).
#[inline(always)]
pub(crate) fn softcap<S: Simd>(s: S, x: S::V, cap: f32) -> S::V {
    let e = exp(s, s.mul(x, s.splat(2.0 / cap)));
    let tanh = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))));
    s.mul(s.splat(cap), tanh)
}

/// The activation of x. The gated ones are x · sigmoid(y), since 1 + tanh(u) = 2 · sigmoid(2u).
#[inline(always)]
pub(crate) fn activate<S: Simd>(s: S, activation: Activation, x: S::V) -> S::V {
    let (factor, y) = match activation {
        Activation::Silu => (x, x),
        Activation::Sigmoid => (s.splat(1.0), x),
        Activation::GeluTanh => {
            // 2 · sqrt(2 / π), and that times 0.044715.
            const LINEAR: f32 = 1.595_769_121_605_730_7_f64 as f32;
            const CUBIC: f32 = LINEAR * 0.044_715;
            (x, s.mul(x, s.fma(s.mul(x, x), s.splat(CUBIC), s.splat(LINEAR))))
        }
    };
    let e = exp(s, s.sub(s.splat(0.0), y));
    s.div(factor, s.add(s.splat(1.0), e))
}
