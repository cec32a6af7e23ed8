//! Merging the partial results of chunks of positions.

use super::pass::Partial;
use crate::cpu::simd::{Kernel, Simd, exp};

/// Takes `part` into `total`; both are some queries' [`Partial`]s, `stride` a query.
pub(super) struct Merge<'a> {
    pub stride: usize,
    pub total: &'a mut [Partial],
    pub part: &'a [Partial],
}

/// Makes a query's total empty.
pub(super) fn clear(total: &mut [Partial]) {
    total.fill(Partial::default());
    total[0][0] = f32::NEG_INFINITY;
}

/// A query's result.
pub(super) fn finish(total: &[Partial], out: &mut [f32]) {
    let factor = 1.0 / total[0][1];
    for (out, sum) in out.iter_mut().zip(total[1..].as_flattened()) {
        *out = sum * factor;
    }
}

impl Kernel for Merge<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let parts = self.part.chunks_exact(self.stride);
        for (total, part) in self.total.chunks_exact_mut(self.stride).zip(parts) {
            let (old, new) = (total[0][0], part[0][0]);
            if new == f32::NEG_INFINITY {
                continue;
            }
            let max = if old > new { old } else { new };
            let mut shrink = Partial::default();
            (shrink[0], shrink[1]) = (old - max, new - max);
            let shrink = s.to_array(exp(s, s.load(&shrink)));
            let (keep, take) = (s.splat(shrink[0]), s.splat(shrink[1]));
            for (total, part) in total.iter_mut().zip(part) {
                s.store(s.fma(s.load(part), take, s.mul(s.load(total), keep)), total);
            }
            total[0][0] = max;
        }
    }
}
