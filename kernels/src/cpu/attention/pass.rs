//! Some queries over one chunk of positions: scores, weights, and the weighted sum of the values.
//!
//! What must stay true: for each query the operations and their order depend on its own position only. So
//! chunks are aligned to absolute positions, a lane of a vector of scores belongs to a position, values are
//! added in the order of positions, and positions that a query doesn't see have weight 0, which changes no bit.
//!
//! This is the blockwise softmax of FlashAttention (Dao et al., 2022) with the split over positions of
//! Flash-Decoding (Dao et al., 2023).

// Sums are indexed by query and vector on purpose: the compiler keeps them in registers only where the loops
// have constant bounds.
#![allow(clippy::needless_range_loop)]

use crate::{
    AttentionShape,
    cpu::{
        Isa,
        isa::Level,
        kv::Head,
        simd::{Kernel, LANES, Simd, exp, softcap},
    },
};
use half::f16;
use std::ops::Range;

/// Positions that share one maximum.
pub(super) const CHUNK: usize = 256;

/// A vector of a partial result. Each query has one with its largest score and its sum of weights in the
/// first two lanes, then those with the weighted sums of the values.
pub(in crate::cpu) type Partial = [f32; LANES];

/// Queries of one KV head that share the reading of keys and values.
pub(super) struct Tile {
    /// `[dimension][query]`, scaled.
    q: Vec<f32>,
    /// The positions that each query sees.
    visible: Vec<Range<usize>>,
}

impl Tile {
    /// Of queries with their positions; as many as [`tile_rows`] says.
    pub fn new<'a>(
        shape: &AttentionShape,
        queries: impl ExactSizeIterator<Item = (&'a [f32], usize)>,
    ) -> Self {
        let rows = queries.len();
        let mut q = vec![0.0; rows * shape.head_dim];
        let mut visible_to = Vec::with_capacity(rows);
        for (row, (query, position)) in queries.enumerate() {
            for (i, x) in query.iter().enumerate() {
                q[i * rows + row] = x * shape.scale;
            }
            visible_to.push(visible(shape, position));
        }
        Self {
            q,
            visible: visible_to,
        }
    }

    pub fn rows(&self) -> usize {
        self.visible.len()
    }

    /// The positions that any of the queries sees.
    pub fn positions(&self) -> Range<usize> {
        union(&self.visible)
    }
}

/// The positions that a token at `position` sees.
pub(super) fn visible(shape: &AttentionShape, position: usize) -> Range<usize> {
    let first = match shape.window {
        0 => 0,
        window => (position + 1).saturating_sub(window),
    };
    first..position + 1
}

/// How many of `left` queries the next tile takes.
pub(super) fn tile_rows(isa: Isa, left: usize) -> usize {
    let sizes: &[usize] = match isa.level() {
        Level::Avx512 => &[12, 6, 4, 3, 2, 1],
        Level::Avx2 | Level::Portable => &[6, 4, 3, 2, 1],
    };
    sizes.iter().copied().find(|&size| size <= left).unwrap_or(0)
}

/// One tile over one chunk.
pub(super) struct Pass<'a> {
    pub cache: Head<'a>,
    pub blocks: &'a [u32],
    pub softcap: f32,
    pub tile: &'a Tile,
    pub chunk: usize,
    pub out: &'a mut [Partial],
}

impl Kernel for Pass<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.tile.rows() {
            1 => self.rows::<S, 1>(s),
            2 => self.rows::<S, 2>(s),
            3 => self.rows::<S, 3>(s),
            4 => self.rows::<S, 4>(s),
            6 => self.rows::<S, 6>(s),
            12 if S::ACCUMULATORS >= 12 => self.rows::<S, 12>(s),
            rows => unreachable!("tile_rows gives no {rows} queries"),
        }
    }
}

/// Scores, then weights, of `R` queries.
type Scores<const R: usize> = [[f32; CHUNK]; R];

impl Pass<'_> {
    #[inline(always)]
    fn rows<S: Simd, const R: usize>(self, s: S) {
        let start = self.chunk * CHUNK;
        let mut visible = [const { 0..0 }; R];
        for (clipped, range) in visible.iter_mut().zip(&self.tile.visible) {
            *clipped = clip(range, start);
        }
        let seen = union(&visible);
        let mut scores = [[0.0; CHUNK]; R];
        self.score(s, &seen, &mut scores);
        let stride = self.out.len() / R;
        for ((scores, visible), out) in scores
            .iter_mut()
            .zip(&visible)
            .zip(self.out.chunks_exact_mut(stride))
        {
            out.fill(Partial::default());
            out[0] = weigh(s, scores, visible, &seen);
        }
        // With few queries, several vectors side by side keep the multiply-add units busy.
        match R * 4 <= S::ACCUMULATORS {
            true => self.sum_values::<S, R, 4>(s, &seen, &scores),
            false => self.sum_values::<S, R, 1>(s, &seen, &scores),
        }
    }

    /// Scores of the strips that hold `seen`, one strip after another: memory is read in order, which the
    /// processor foresees.
    #[inline(always)]
    fn score<S: Simd, const R: usize>(&self, s: S, seen: &Range<usize>, scores: &mut Scores<R>) {
        let queries = self.tile.q.as_chunks::<R>().0;
        for at in (seen.start / LANES * LANES..seen.end).step_by(LANES) {
            let mut sums = [s.splat(0.0); R];
            for (q, keys) in queries
                .iter()
                .zip(self.cache.keys(self.blocks, self.chunk * CHUNK + at))
            {
                let keys = s.load_f16(keys);
                for r in 0..R {
                    sums[r] = s.fma(s.splat(q[r]), keys, sums[r]);
                }
            }
            for r in 0..R {
                let score = match self.softcap > 0.0 {
                    true => softcap(s, sums[r], self.softcap),
                    false => sums[r],
                };
                if let Some(scores) = scores[r][at..].first_chunk_mut() {
                    s.store(score, scores);
                }
            }
        }
    }

    /// Adds up the weighted values strip by strip, so that memory is read in order; of a strip, `N` vectors of
    /// dimensions at a time.
    #[inline(always)]
    fn sum_values<S: Simd, const R: usize, const N: usize>(
        self,
        s: S,
        seen: &Range<usize>,
        weights: &Scores<R>,
    ) {
        let vectors = self.out.len() / R - 1;
        let dims = self.tile.q.len() / R;
        let mut at = seen.start;
        while at < seen.end {
            let end = seen.end.min((at / LANES + 1) * LANES);
            let values = self.cache.values(self.blocks, self.chunk * CHUNK + at);
            let mut first = 0;
            while first + N <= vectors {
                add_strip::<S, R, N>(s, values, dims, weights, at..end, first, self.out);
                first += N;
            }
            while first < vectors {
                add_strip::<S, R, 1>(s, values, dims, weights, at..end, first, self.out);
                first += 1;
            }
            at = end;
        }
    }
}

/// Adds the weighted values of `positions`, which start with `values`; `N` vectors from `first` on. What a
/// vector holds past the last dimension is never looked at.
#[inline(always)]
fn add_strip<S: Simd, const R: usize, const N: usize>(
    s: S,
    values: &[f16],
    head_dim: usize,
    weights: &Scores<R>,
    positions: Range<usize>,
    first: usize,
    out: &mut [Partial],
) {
    let stride = out.len() / R;
    let mut sums = [[s.splat(0.0); N]; R];
    for r in 0..R {
        for n in 0..N {
            sums[r][n] = s.load(&out[r * stride + 1 + first + n]);
        }
    }
    for (row, at) in positions.enumerate() {
        let values = values[row * head_dim + first * LANES..][..N * LANES]
            .as_chunks::<LANES>()
            .0;
        let mut v = [s.splat(0.0); N];
        for n in 0..N {
            v[n] = s.load_f16(&values[n]);
        }
        for r in 0..R {
            let weight = s.splat(weights[r][at]);
            for n in 0..N {
                sums[r][n] = s.fma(weight, v[n], sums[r][n]);
            }
        }
    }
    for r in 0..R {
        for n in 0..N {
            s.store(sums[r][n], &mut out[r * stride + 1 + first + n]);
        }
    }
}

/// Turns a query's scores into weights, e^(score − largest), and gives the largest and their sum.
#[inline(always)]
fn weigh<S: Simd>(s: S, scores: &mut [f32; CHUNK], visible: &Range<usize>, seen: &Range<usize>) -> Partial {
    let mut result = Partial::default();
    let strips = seen.start / LANES..seen.end.div_ceil(LANES);
    if visible.is_empty() {
        scores[strips.start * LANES..strips.end * LANES].fill(0.0);
        result[0] = f32::NEG_INFINITY;
        return result;
    }
    scores[strips.start * LANES..visible.start].fill(f32::NEG_INFINITY);
    scores[visible.end..strips.end * LANES].fill(f32::NEG_INFINITY);
    let scores = &mut scores.as_chunks_mut::<LANES>().0[strips];
    let mut largest = s.splat(f32::NEG_INFINITY);
    for scores in &*scores {
        largest = s.max(largest, s.load(scores));
    }
    result[0] = s.max_lane(largest);
    let largest = s.splat(result[0]);
    let mut sum = s.splat(0.0);
    for scores in scores {
        let weight = exp(s, s.sub(s.load(scores), largest));
        sum = s.add(sum, weight);
        s.store(weight, scores);
    }
    result[1] = s.sum(sum);
    result
}

/// The part of `range` in the chunk that starts at `start`, counted from there.
#[inline(always)]
fn clip(range: &Range<usize>, start: usize) -> Range<usize> {
    let clipped = range.start.max(start)..range.end.min(start + CHUNK);
    if clipped.is_empty() {
        0..0
    } else {
        clipped.start - start..clipped.end - start
    }
}

/// From the least start to the greatest end of the ranges that aren't empty.
#[inline(always)]
fn union(ranges: &[Range<usize>]) -> Range<usize> {
    let seen = ranges.iter().filter(|range| !range.is_empty());
    let start = seen.clone().map(|range| range.start).min().unwrap_or(0);
    start..seen.map(|range| range.end).max().unwrap_or(0)
}
