//! Activations as 16-bit integers with a scale for every group of 32 columns.
//!
//! The largest value of a group becomes ±32767, so a value is kept to 1/65534 of its group's largest: the
//! error of a product is far below that of f16 arithmetic, and one form serves one row as well as many.
//!
//! Rows are kept in **tiles** of 1, 2, 4 or 8, so that a kernel for as many rows reads one stream: for each
//! group its [`PAIRS`] pairs of columns, then the [`Field`]s, and of each the rows side by side.

use super::format::{GROUP, LANES, PAIRS};
use crate::{
    Ledger, Result,
    cpu::{
        Buffer,
        simd::{Kernel, Simd},
    },
};

/// What a group of a row holds beside its codes.
#[derive(Clone, Copy)]
pub(super) enum Field {
    /// f32: value of a code of 1.
    Scale,
    /// f32: sum of the group's codes, times the scale.
    ScaledSum,
    /// i32: minus the sum of the group's codes.
    NegativeSum,
    /// i32: the same for its first half.
    NegativeSumFirst,
    /// i32: the same for its second half.
    NegativeSumSecond,
}

/// Number of [`Field`]s.
pub(super) const FIELDS: usize = 5;
/// Words of 32 bits that a group of a row takes.
pub(super) const GROUP_WORDS: usize = PAIRS + FIELDS;

/// Below this a group is zero: its scale's inverse would overflow.
const TINY: f32 = 1e-30;
const MAX_CODE: f32 = 32767.0;

/// Rows `first..first + height` of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    /// Its first row.
    pub(super) first: usize,
    /// 1, 2, 4 or 8 rows.
    pub(super) height: usize,
}

/// Cuts `rows` into tiles of at most `highest` rows, a power of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    rows: usize,
    highest: usize,
}

impl Tiles {
    pub(super) fn new(rows: usize, highest: usize) -> Self {
        Self { rows, highest }
    }

    /// How many tiles there are.
    pub(super) fn count(self) -> usize {
        self.rows / self.highest + (self.rows % self.highest).count_ones() as usize
    }

    /// The tile of index `index`: full ones first, then what is left by falling powers of two.
    pub(super) fn get(self, index: usize) -> Tile {
        let full = self.rows / self.highest;
        if index < full {
            return Tile {
                first: index * self.highest,
                height: self.highest,
            };
        }
        let mut rest = self.rows % self.highest;
        let mut first = full * self.highest;
        for _ in full..index {
            let height = 1 << rest.ilog2();
            first += height;
            rest -= height;
        }
        Tile {
            first,
            height: 1 << rest.ilog2(),
        }
    }
}

/// Room for quantised activations, used again and again.
#[derive(Debug)]
pub struct QuantizedRows {
    words: Buffer<u32>,
}

impl QuantizedRows {
    /// Room for `rows` rows of `cols` columns, or any other shape that takes no more; on the ledger under
    /// `owner`.
    pub fn new(ledger: &Ledger, owner: &str, rows: usize, cols: usize) -> Result<Self> {
        let words = rows
            .saturating_mul(cols.div_ceil(GROUP))
            .saturating_mul(GROUP_WORDS);
        Ok(Self {
            words: Buffer::zeroed(ledger, owner, words)?,
        })
    }

    /// Whether `rows` rows of `cols` columns fit.
    pub fn holds(&self, rows: usize, cols: usize) -> bool {
        rows * cols.div_ceil(GROUP) * GROUP_WORDS <= self.words.len()
    }

    /// Gives the memory back and returns its bytes.
    pub fn release(self) -> Result<u64> {
        self.words.release()
    }

    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }

    pub(super) fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }
}

/// Quantises the rows of a tile.
pub(super) struct QuantizeTile<'a> {
    /// 1, 2, 4 or 8 rows of whole groups of columns.
    pub(super) rows: &'a [&'a [f32]],
    /// [`GROUP_WORDS`] a group and row.
    pub(super) words: &'a mut [u32],
}

impl Kernel for QuantizeTile<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.rows.len() {
            1 => self.quantize::<S, 1>(s),
            2 => self.quantize::<S, 2>(s),
            4 => self.quantize::<S, 4>(s),
            _ => self.quantize::<S, 8>(s),
        }
    }
}

impl QuantizeTile<'_> {
    #[inline(always)]
    fn quantize<S: Simd, const HEIGHT: usize>(self, s: S) {
        let (words, _) = self.words.as_chunks_mut::<HEIGHT>();
        // All scales of a row before its codes: each is a long chain of dependent steps, and as short loops
        // several of them overlap.
        for (row, x) in self.rows.iter().enumerate() {
            let (x, _) = x.as_chunks::<GROUP>();
            for (words, x) in words.chunks_exact_mut(GROUP_WORDS).zip(x) {
                words[PAIRS + Field::Scale as usize][row] = scale_of(s, x).to_bits();
            }
            for (words, x) in words.chunks_exact_mut(GROUP_WORDS).zip(x) {
                let scale = f32::from_bits(words[PAIRS + Field::Scale as usize][row]);
                for (words, word) in words.iter_mut().zip(quantize_group(s, x, scale)) {
                    words[row] = word;
                }
            }
        }
    }
}

/// Added to a number below 2^22, it leaves no bits for a fraction: the sum's low bits are the number rounded to
/// the nearest integer, ties to even.
const ROUND: f32 = 12_582_912.0;

/// What the largest value of a group makes its scale.
#[inline(always)]
fn scale_of<S: Simd>(s: S, values: &[f32; GROUP]) -> f32 {
    let (halves, _) = values.as_chunks::<LANES>();
    let magnitude = |x| s.max(x, s.sub(s.splat(0.0), x));
    let (x, y) = (magnitude(s.load(&halves[0])), magnitude(s.load(&halves[1])));
    let largest = s.max_lane(s.max(x, y));
    if largest < TINY { 0.0 } else { largest / MAX_CODE }
}

/// The words of one group of one row.
#[inline(always)]
fn quantize_group<S: Simd>(s: S, values: &[f32; GROUP], mut scale: f32) -> [u32; GROUP_WORDS] {
    let mut words = [0; GROUP_WORDS];
    let (halves, _) = values.as_chunks::<LANES>();
    let inverse = s.splat(if scale > 0.0 { 1.0 / scale } else { 0.0 });
    let codes = |x| s.fma(s.load(x), inverse, s.splat(ROUND));
    let (x, y) = (codes(&halves[0]), codes(&halves[1]));
    words[..PAIRS / 2].copy_from_slice(&s.low_halves(x));
    words[PAIRS / 2..PAIRS].copy_from_slice(&s.low_halves(y));
    // Sums of codes are whole numbers below 2^21, so floats hold them.
    let sum = |x| s.sum(s.sub(x, s.splat(ROUND)));
    let (mut first, mut second) = (sum(x), sum(y));
    if (first + second).is_nan() {
        // A value is NaN or infinite (its code is inf * 0): all outputs that the row has a part in become NaN.
        (first, second, scale) = (0.0, 0.0, f32::NAN);
    }
    let mut set = |field: Field, bits: u32| words[PAIRS + field as usize] = bits;
    set(Field::Scale, scale.to_bits());
    set(Field::ScaledSum, (scale * (first + second)).to_bits());
    let negative = |sum: f32| (ROUND - sum).to_bits().wrapping_sub(ROUND.to_bits());
    set(Field::NegativeSum, negative(first + second));
    set(Field::NegativeSumFirst, negative(first));
    set(Field::NegativeSumSecond, negative(second));
    words
}
