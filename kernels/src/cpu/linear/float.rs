//! Products with unquantised weights, in the form that the checkpoint has them.
//!
//! Lane `i` sums the columns `i`, `i + 16`, ... in ascending order; the lanes are then added in a fixed
//! tree, and the columns after the last whole sixteen one by one. The order is the same for every number of
//! rows.

use super::format::LANES;
use crate::{
    TensorType,
    cpu::simd::{Kernel, Simd},
};
use half::{bf16, f16};

/// Multiplies up to [`LANES`] weight rows with up to [`HIGHEST`] rows of activations.
pub(super) struct FloatTile<'a> {
    /// F32, F16 or BF16.
    pub(super) ty: TensorType,
    /// The weight rows, in `ty`.
    pub(super) weights: &'a [u8],
    /// The activation rows.
    pub(super) x: &'a [&'a [f32]],
    /// Columns of both.
    pub(super) cols: usize,
    /// Results: a row of activations each, a lane a weight row.
    pub(super) out: &'a mut [[f32; LANES]],
}

/// Rows of activations in the highest tile.
pub(super) const HIGHEST: usize = 4;

/// How an element is stored.
trait Element {
    /// Bytes of one.
    const BYTES: usize;
    /// One element.
    fn one(bytes: &[u8]) -> f32;
    /// Sixteen.
    fn sixteen<S: Simd>(s: S, bytes: &[u8]) -> S::V;
}

impl Kernel for FloatTile<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        match self.ty {
            TensorType::F16 => self.multiply::<S, F16>(s),
            TensorType::BF16 => self.multiply::<S, BF16>(s),
            _ => self.multiply::<S, F32>(s),
        }
    }
}

impl FloatTile<'_> {
    #[inline(always)]
    fn multiply<S: Simd, E: Element>(&mut self, s: S) {
        let whole = self.out.len() == HIGHEST;
        let wide = S::ACCUMULATORS >= 4 * HIGHEST;
        let weights = self.weights.chunks_exact(self.cols * E::BYTES).count();
        let mut lane = 0;
        while lane < weights {
            let four = lane + 4 <= weights;
            match (whole, wide && four) {
                (true, true) => self.block::<S, E, HIGHEST, 4>(s, 0, lane),
                (true, false) => self.block::<S, E, HIGHEST, 1>(s, 0, lane),
                (false, true) => (0..self.out.len()).for_each(|row| self.block::<S, E, 1, 4>(s, row, lane)),
                (false, false) => (0..self.out.len()).for_each(|row| self.block::<S, E, 1, 1>(s, row, lane)),
            }
            lane += if wide && four { 4 } else { 1 };
        }
    }

    /// `M` rows of activations from `row` with `N` weight rows from `lane`.
    #[inline(always)]
    fn block<S: Simd, E: Element, const M: usize, const N: usize>(&mut self, s: S, row: usize, lane: usize) {
        let cols = self.cols;
        let x: [&[f32]; M] = std::array::from_fn(|m| &self.x[row + m][..cols]);
        let w: [&[u8]; N] =
            std::array::from_fn(|n| &self.weights[(lane + n) * cols * E::BYTES..][..cols * E::BYTES]);
        let mut sums = [[s.splat(0.0); N]; M];
        for col in 0..cols / LANES {
            let mut weights = [s.splat(0.0); N];
            for (weights, w) in weights.iter_mut().zip(w) {
                *weights = E::sixteen(s, &w[col * LANES * E::BYTES..]);
            }
            for (sums, x) in sums.iter_mut().zip(x) {
                let Some(x) = x[col * LANES..].first_chunk() else {
                    return;
                };
                let x = s.load(x);
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = s.fma(weight, x, *sum);
                }
            }
        }
        for (m, sums) in sums.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                let mut sum = s.sum(sum);
                for col in cols / LANES * LANES..cols {
                    sum += E::one(&w[n][col * E::BYTES..]) * x[m][col];
                }
                self.out[row + m][lane + n] = sum;
            }
        }
    }
}

/// `N` bytes of element `i`.
#[inline(always)]
fn bytes_of<const N: usize>(bytes: &[u8], i: usize) -> [u8; N] {
    std::array::from_fn(|byte| bytes[i * N + byte])
}

struct F32;
struct F16;
struct BF16;

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        f32::from_le_bytes(bytes_of(bytes, 0))
    }
    #[inline(always)]
    fn sixteen<S: Simd>(s: S, bytes: &[u8]) -> S::V {
        let bytes = &bytes[..4 * LANES];
        s.load(&std::array::from_fn(|i| f32::from_le_bytes(bytes_of(bytes, i))))
    }
}

impl Element for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        f16::from_le_bytes(bytes_of(bytes, 0)).to_f32()
    }
    #[inline(always)]
    fn sixteen<S: Simd>(s: S, bytes: &[u8]) -> S::V {
        let bytes = &bytes[..2 * LANES];
        s.load_f16(&std::array::from_fn(|i| f16::from_le_bytes(bytes_of(bytes, i))))
    }
}

impl Element for BF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes(bytes_of(bytes, 0)).to_f32()
    }
    #[inline(always)]
    fn sixteen<S: Simd>(s: S, bytes: &[u8]) -> S::V {
        let bytes = &bytes[..2 * LANES];
        let widened = |i| f32::from_bits(u32::from(u16::from_le_bytes(bytes_of(bytes, i))) << 16);
        s.load(&std::array::from_fn(widened))
    }
}
