//! Angles of rotary embeddings and their scalings.

use std::f64::consts::TAU;

/// Radians a position for each of `dims / 2` pairs: `base^(-2i / dims)` (Su et al., RoFormer).
pub(crate) fn inverse_frequencies(dims: usize, base: f64) -> Vec<f64> {
    (0..dims / 2)
        .map(|i| base.powf(-2.0 * i as f64 / dims as f64))
        .collect()
}

/// Divides each pair's angle by its own factor (Llama 3.1 stores them as a tensor).
pub(crate) fn divide(inverse: &mut [f64], divisors: &[f32]) {
    for (f, &d) in inverse.iter_mut().zip(divisors) {
        *f /= f64::from(d);
    }
}

/// Position interpolation: all angles divided by one factor (Chen et al.).
pub(crate) fn scale_linear(inverse: &mut [f64], factor: f64) {
    inverse.iter_mut().for_each(|f| *f /= factor);
}

/// YaRN (Peng et al.): pairs that turn often within the original context keep their angle, pairs that
/// turn rarely are interpolated, those between are blended.
pub(crate) struct Yarn {
    pub(crate) factor: f64,
    pub(crate) original_context: f64,
    pub(crate) beta_fast: f64,
    pub(crate) beta_slow: f64,
}

impl Yarn {
    pub(crate) fn apply(&self, inverse: &mut [f64], base: f64) {
        let dims = 2.0 * inverse.len() as f64;
        // The pair that makes `turns` turns within the original context.
        let pair_of = |turns: f64| dims * (self.original_context / (turns * TAU)).ln() / (2.0 * base.ln());
        let low = pair_of(self.beta_fast).floor().max(0.0);
        let high = pair_of(self.beta_slow).ceil().min(dims - 1.0);
        let span = (high - low).max(0.001);
        for (i, f) in inverse.iter_mut().enumerate() {
            let interpolated = ((i as f64 - low) / span).clamp(0.0, 1.0);
            *f *= interpolated / self.factor + (1.0 - interpolated);
        }
    }

    /// What the blended attention is sharpened by.
    pub(crate) fn magnitude(&self) -> f64 {
        1.0 + 0.1 * self.factor.max(1.0).ln()
    }
}

/// Llama 3.1's scaling: long wavelengths are interpolated, short ones are kept, those between are blended.
pub(crate) struct Llama3 {
    pub(crate) factor: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) original_context: f64,
}

impl Llama3 {
    pub(crate) fn apply(&self, inverse: &mut [f64]) {
        let span = (self.high - self.low).max(f64::EPSILON);
        for f in inverse {
            // How often it turns within the original context.
            let turns = self.original_context * *f / TAU;
            let kept = ((turns - self.low) / span).clamp(0.0, 1.0);
            *f *= kept + (1.0 - kept) / self.factor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_and_linear_scaling() {
        let mut f = inverse_frequencies(4, 10_000.0);
        assert_eq!(f, [1.0, 0.01]);
        scale_linear(&mut f, 4.0);
        assert_eq!(f, [0.25, 0.0025]);
        divide(&mut f, &[0.5, 2.0]);
        assert_eq!(f, [0.5, 0.00125]);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        let plain = inverse_frequencies(128, 10_000.0);
        let mut f = plain.clone();
        let yarn = Yarn {
            factor: 4.0,
            original_context: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
        };
        yarn.apply(&mut f, 10_000.0);
        // Bounds of the ramp: floor(20.95) and ceil(45.03).
        assert_eq!(f[..21], plain[..21]);
        for i in 46..64 {
            assert!((f[i] - plain[i] / 4.0).abs() < 1e-12);
        }
        let blend = (33.0 - 20.0) / 26.0;
        assert!((f[33] - plain[33] * (blend / 4.0 + 1.0 - blend)).abs() < 1e-12);
        assert!((yarn.magnitude() - 1.138_629_436_111_989).abs() < 1e-12);
    }

    #[test]
    fn llama3_keeps_short_waves_and_interpolates_long_ones() {
        let plain = inverse_frequencies(64, 500_000.0);
        let mut f = plain.clone();
        let scaling = Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original_context: 8192.0,
        };
        scaling.apply(&mut f);
        for (i, (f, plain)) in f.iter().zip(&plain).enumerate() {
            let wave = TAU / plain;
            let expected = if wave < 8192.0 / 4.0 {
                *plain
            } else if wave > 8192.0 {
                plain / 8.0
            } else {
                let smooth = (8192.0 / wave - 1.0) / 3.0;
                (1.0 - smooth) * plain / 8.0 + smooth * plain
            };
            assert!((f - expected).abs() < 1e-15, "pair {i}: {f} {expected}");
        }
    }
}
