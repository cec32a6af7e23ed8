//! Vectors as plain arrays.

use super::{LANES, Simd};
use half::{bf16, f16};

/// No requirements.
#[derive(Clone, Copy)]
pub struct Portable;

#[inline(always)]
fn map(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

impl Simd for Portable {
    type V = [f32; LANES];
    const ACCUMULATORS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        *x
    }
    #[inline(always)]
    fn store(self, v: Self::V, x: &mut [f32; LANES]) {
        *x = v;
    }
    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> Self::V {
        x.map(f16::to_f32)
    }
    #[inline(always)]
    fn load_f32_bytes(self, x: &[u8; 4 * LANES]) -> Self::V {
        let lanes = x.as_chunks().0;
        std::array::from_fn(|lane| f32::from_le_bytes(lanes[lane]))
    }
    #[inline(always)]
    fn load_f16_bytes(self, x: &[u8; 2 * LANES]) -> Self::V {
        let lanes = x.as_chunks().0;
        std::array::from_fn(|lane| f16::from_le_bytes(lanes[lane]).to_f32())
    }
    #[inline(always)]
    fn load_bf16_bytes(self, x: &[u8; 2 * LANES]) -> Self::V {
        let lanes = x.as_chunks().0;
        std::array::from_fn(|lane| bf16::from_le_bytes(lanes[lane]).to_f32())
    }
    #[inline(always)]
    fn store_f16(self, v: Self::V, x: &mut [f16; LANES]) {
        *x = v.map(f16::from_f32);
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| a / b)
    }
    /// Two roundings: without the instruction, one would take a call into libm.
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        map(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self, x: Self::V) -> Self::V {
        // Adding 1.5 · 2^23 leaves no bits for a fraction.
        const SHIFT: f32 = 12_582_912.0;
        x.map(|x| (x + SHIFT) - SHIFT)
    }
    #[inline(always)]
    fn scale_by_power(self, x: Self::V, n: Self::V) -> Self::V {
        map(x, n, |x, n| x * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn low_halves(self, x: Self::V) -> [u32; LANES / 2] {
        let mut words = [0; LANES / 2];
        for (word, pair) in words.iter_mut().zip(x.as_chunks::<2>().0) {
            *word = pair[0].to_bits() & 0xFFFF | pair[1].to_bits() << 16;
        }
        words
    }
    #[inline(always)]
    fn zero_below(self, x: Self::V, key: Self::V, bound: Self::V) -> Self::V {
        let mut out = x;
        for i in 0..LANES {
            if key[i] < bound[i] {
                out[i] = 0.0;
            }
        }
        out
    }
}
