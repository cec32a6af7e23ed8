//! Passes over a whole row. Each is one loop over fixed lanes, so that the compiler makes vector code of it,
//! and every machine gets the same bits, however wide its vectors are.

/// Tokens whose probabilities are summed together.
pub(super) const BLOCK: usize = 1024;
const LANES: usize = 16;

/// Compiles `$name` a second time with AVX2 and calls that where the processor has it. No multiply is fused with
/// an add in either, so both give the same bits.
macro_rules! widest {
    ($(#[$doc:meta])* $name:ident / $wide:ident / $body:ident ($($arg:ident: $ty:ty),*) -> $out:ty) => {
        $(#[$doc])*
        pub(super) fn $name($($arg: $ty),*) -> $out {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has the feature.
                return unsafe { $wide($($arg),*) };
            }
            $body($($arg),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn $wide($($arg: $ty),*) -> $out {
            $body($($arg),*)
        }
    };
}

widest! {
    /// The largest value; `None` where there is none or one is NaN or infinite.
    finite_max / finite_max_avx2 / finite_max_body(x: &[f32]) -> Option<f32>
}
widest! {
    /// The largest value, of values that aren't NaN.
    max / max_avx2 / max_body(x: &[f32]) -> f32
}
widest! {
    /// The sum of `exp((x - max) · scale)`.
    sum_exp / sum_exp_avx2 / sum_exp_body(x: &[f32], max: f32, scale: f32) -> f64
}
widest! {
    /// Writes `exp((x - max) · scale)` to `out` and returns the sum of each [`BLOCK`].
    exp / exp_avx2 / exp_body(x: &[f32], max: f32, scale: f32, out: &mut [f32]) -> Vec<f64>
}

/// The first index that holds `value`, 0 where none does.
pub(super) fn first_of(x: &[f32], value: f32) -> u32 {
    let block = x
        .chunks(BLOCK)
        .position(|block| block.iter().fold(false, |found, &x| found | (x == value)))
        .unwrap_or(0);
    let start = block * BLOCK;
    let within = x[start..].iter().position(|&x| x == value).unwrap_or(0);
    (start + within) as u32
}

#[inline(always)]
fn finite_max_body(x: &[f32]) -> Option<f32> {
    // A NaN or an infinity times 0 is NaN, and stays it through the sum.
    let mut spoiled = [0f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (spoiled, &x) in spoiled.iter_mut().zip(chunk) {
            *spoiled += x * 0.0;
        }
    }
    let finite = spoiled.iter().all(|s| *s == 0.0) && rest.iter().all(|x| x.is_finite());
    (finite && !x.is_empty()).then(|| max_body(x))
}

#[inline(always)]
fn max_body(x: &[f32]) -> f32 {
    let mut best = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (best, &x) in best.iter_mut().zip(chunk) {
            *best = if x > *best { x } else { *best };
        }
    }
    best.iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
}

#[inline(always)]
fn sum_exp_body(x: &[f32], max: f32, scale: f32) -> f64 {
    x.chunks(BLOCK)
        .map(|block| {
            let mut sums = [0f32; LANES];
            let (chunks, rest) = block.as_chunks::<LANES>();
            for chunk in chunks {
                for (sum, &x) in sums.iter_mut().zip(chunk) {
                    *sum += exp_of((x - max) * scale);
                }
            }
            let rest: f32 = rest.iter().map(|&x| exp_of((x - max) * scale)).sum();
            sums.iter().map(|&s| f64::from(s)).sum::<f64>() + f64::from(rest)
        })
        .sum()
}

#[inline(always)]
fn exp_body(x: &[f32], max: f32, scale: f32, out: &mut [f32]) -> Vec<f64> {
    x.chunks(BLOCK)
        .zip(out.chunks_mut(BLOCK))
        .map(|(x, out)| {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = exp_of((x - max) * scale);
            }
            out.iter().map(|&p| f64::from(p)).sum()
        })
        .collect()
}

/// `exp(x)` of x ≤ 0 within 2 units in the last place, exactly 1 at 0; 0 below -87, where f32 has no normal
/// numbers left. Powers of two times a polynomial on ±ln 2 / 2.
#[inline(always)]
pub(super) fn exp_of(x: f32) -> f32 {
    // Adding it leaves the nearest whole number in a float's lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    let scaled = f32::from_bits(p.to_bits().wrapping_add(rounded.to_bits() << 23));
    if x >= -87.0 { scaled } else { 0.0 }
}
