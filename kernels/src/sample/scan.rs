//! Passes over a whole row, block by block.

use crate::cpu::{
    Isa,
    simd::{Kernel, LANES, Simd, exp},
};

/// Tokens that are looked at, or passed over, together.
pub(super) const BLOCK: usize = 4 * LANES;

/// A row's values with the largest of each [`BLOCK`]: most searches need look at few blocks only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) values: &'a [f32],
    pub(super) maxima: &'a [f32],
    pub(super) max: f32,
}

impl<'a> Row<'a> {
    /// The blocks whose largest value is at least `least`: each value with its token.
    pub(super) fn blocks(
        self,
        least: f32,
    ) -> impl Iterator<Item = impl Iterator<Item = (u32, f32)> + 'a> + 'a {
        let blocks = self
            .values
            .chunks(BLOCK)
            .zip(self.maxima)
            .zip((0u32..).step_by(BLOCK));
        blocks
            .filter(move |((_, max), _)| **max >= least)
            .map(|((values, _), start)| (start..).zip(values.iter().copied()))
    }
}

/// Writes the largest value of each block to `out`. Returns the largest of all and whether all are finite.
pub(super) fn maxima(values: &[f32], out: &mut Vec<f32>) -> (f32, bool) {
    out.clear();
    let spoiled = Isa::best().run(Maxima { values, out });
    let max = out
        .iter()
        .fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    (max, spoiled == 0.0)
}

/// Writes the sum of `exp((x - max) · scale)` of each block to `out` and returns the sum of all.
pub(super) fn sums(values: &[f32], max: f32, scale: f32, out: &mut Vec<f32>) -> f64 {
    out.clear();
    Isa::best().run(Sums {
        values,
        max,
        scale,
        out,
    });
    out.iter().map(|&sum| f64::from(sum)).sum()
}

/// Replaces each x by `exp((x - max) · scale)`.
pub(super) fn exponentials(values: &mut [f32], max: f32, scale: f32) {
    Isa::best().run(Exponentials { values, max, scale });
}

struct Maxima<'a> {
    values: &'a [f32],
    out: &'a mut Vec<f32>,
}

impl Kernel for Maxima<'_> {
    /// 0, or NaN where a value is NaN or infinite: such a one times 0 is NaN, and stays it through the sum.
    type Out = f32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let zero = s.splat(0.0);
        let mut spoiled = zero;
        let (blocks, rest) = self.values.as_chunks::<BLOCK>();
        for block in blocks {
            let (vectors, _) = block.as_chunks::<LANES>();
            let mut max = s.splat(f32::NEG_INFINITY);
            for x in vectors {
                let x = s.load(x);
                max = s.max(x, max);
                spoiled = s.fma(x, zero, spoiled);
            }
            self.out.push(s.max_lane(max));
        }
        if !rest.is_empty() {
            let larger = |a: f32, b: &f32| if *b > a { *b } else { a };
            self.out.push(rest.iter().fold(f32::NEG_INFINITY, larger));
        }
        rest.iter().fold(s.sum(spoiled), |sum, x| sum + x * 0.0)
    }
}

struct Sums<'a> {
    values: &'a [f32],
    max: f32,
    scale: f32,
    out: &'a mut Vec<f32>,
}

impl Kernel for Sums<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (blocks, rest) = self.values.as_chunks::<BLOCK>();
        for block in blocks {
            self.out.push(sum_of(s, block, self.max, self.scale));
        }
        if !rest.is_empty() {
            let mut block = [f32::NEG_INFINITY; BLOCK];
            block[..rest.len()].copy_from_slice(rest);
            self.out.push(sum_of(s, &block, self.max, self.scale));
        }
    }
}

#[inline(always)]
fn sum_of<S: Simd>(s: S, block: &[f32; BLOCK], max: f32, scale: f32) -> f32 {
    let (max, scale) = (s.splat(max), s.splat(scale));
    let mut sum = s.splat(0.0);
    for x in block.as_chunks::<LANES>().0 {
        sum = s.add(sum, exp(s, s.mul(s.sub(s.load(x), max), scale)));
    }
    s.sum(sum)
}

struct Exponentials<'a> {
    values: &'a mut [f32],
    max: f32,
    scale: f32,
}

impl Kernel for Exponentials<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (max, scale) = (s.splat(self.max), s.splat(self.scale));
        for values in self.values.chunks_mut(LANES) {
            let mut lanes = [f32::NEG_INFINITY; LANES];
            lanes[..values.len()].copy_from_slice(values);
            let x = s.mul(s.sub(s.load(&lanes), max), scale);
            s.store(exp(s, x), &mut lanes);
            values.copy_from_slice(&lanes[..values.len()]);
        }
    }
}
