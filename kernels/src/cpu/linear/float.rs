//! Products with unquantised weights, in the form that the checkpoint has them.
//!
//! Lane `i` sums the columns `i`, `i + 16`, ... in ascending order; the lanes are then added in a fixed
//! tree, and the columns after the last whole sixteen one by one. The order is the same for every number of
//! rows.

use super::format::LANES;
use crate::{
    TensorType,
    cpu::{
        Isa,
        simd::{Kernel, Simd},
    },
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
pub(super) const HIGHEST: usize = 6;

/// Weight rows in f32, for many tiles: widening them again for each would take a third of the time.
#[derive(Default)]
pub(super) struct Widened {
    memory: Vec<u8>,
    start: usize,
}

impl Widened {
    /// Takes `weights`, elements of `ty`, instead of what it had.
    pub(super) fn fill(&mut self, isa: Isa, ty: TensorType, weights: &[u8]) {
        let bytes = weights.len() / ty.block_bytes() * F32::BYTES;
        self.memory.resize(bytes + CACHE_LINE, 0);
        self.start = self.memory.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE);
        let to = &mut self.memory[self.start..][..bytes];
        isa.run(Widen { ty, weights, to });
    }

    /// The elements' bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        let bytes = self.memory.len().saturating_sub(CACHE_LINE);
        &self.memory[self.start..][..bytes]
    }
}

const CACHE_LINE: usize = 64;

struct Widen<'a> {
    ty: TensorType,
    weights: &'a [u8],
    to: &'a mut [u8],
}

impl Kernel for Widen<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.ty {
            TensorType::F16 => self.widen::<S, F16>(s),
            TensorType::BF16 => self.widen::<S, BF16>(s),
            _ => self.to.copy_from_slice(self.weights),
        }
    }
}

impl Widen<'_> {
    #[inline(always)]
    fn widen<S: Simd, E: Element>(self, s: S) {
        let (sixteens, rest) = self.to.as_chunks_mut::<{ LANES * F32::BYTES }>();
        let whole = sixteens.len() * LANES * E::BYTES;
        for (i, to) in sixteens.iter_mut().enumerate() {
            let values = s.to_array(E::sixteen(s, self.weights, i));
            for (to, value) in to.as_chunks_mut().0.iter_mut().zip(values) {
                *to = value.to_le_bytes();
            }
        }
        let rest = rest.as_chunks_mut().0.iter_mut();
        for (to, from) in rest.zip(self.weights[whole..].chunks_exact(E::BYTES)) {
            *to = E::one(from).to_le_bytes();
        }
    }
}

/// How an element is stored.
trait Element {
    /// Bytes of one.
    const BYTES: usize;
    /// One element.
    fn one(bytes: &[u8]) -> f32;
    /// Elements `16 * i..16 * (i + 1)`.
    fn sixteen<S: Simd>(s: S, bytes: &[u8], i: usize) -> S::V;
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
            let four = wide && lane + 4 <= weights;
            match (whole, four) {
                (true, true) => self.block::<S, E, HIGHEST, 4>(s, 0, lane),
                (true, false) => self.block::<S, E, HIGHEST, 1>(s, 0, lane),
                // One after the other, which the processor reads ahead of: four rows at a time are too short for that.
                (false, _) => (0..self.out.len()).for_each(|row| self.block::<S, E, 1, 1>(s, row, lane)),
            }
            lane += if whole && four { 4 } else { 1 };
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
                *weights = E::sixteen(s, w, col);
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

/// The bytes of the first element.
#[inline(always)]
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.as_chunks().0[0]
}

struct F32;
struct F16;
struct BF16;

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        f32::from_le_bytes(first(bytes))
    }
    #[inline(always)]
    fn sixteen<S: Simd>(s: S, bytes: &[u8], i: usize) -> S::V {
        s.load_f32_bytes(&bytes.as_chunks().0[i])
    }
}

impl Element for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        f16::from_le_bytes(first(bytes)).to_f32()
    }
    #[inline(always)]
    fn sixteen<S: Simd>(s: S, bytes: &[u8], i: usize) -> S::V {
        s.load_f16_bytes(&bytes.as_chunks().0[i])
    }
}

impl Element for BF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes(first(bytes)).to_f32()
    }
    #[inline(always)]
    fn sixteen<S: Simd>(s: S, bytes: &[u8], i: usize) -> S::V {
        s.load_bf16_bytes(&bytes.as_chunks().0[i])
    }
}
