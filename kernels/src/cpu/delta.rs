//! The gated delta rule.
//!
//! A head's state is walked through once a token, some columns at a time: what a token writes is added when the next
//! one reads. With S the state that a token finds, decay g, `r = g · (k · S)` and `δ = β (v - r)`, its output is
//! `g · (q · S) + (q · k) δ`, and the state that it leaves `g · S + k ⊗ δ`. Every value of a column is one chain over
//! the rows of S, whatever the number of tokens.

use super::{
    Workers,
    elementwise::{sigmoid, softplus},
    simd::{Kernel, LANES, Simd},
    state::{self, Head, State},
    tensor::{Tensor, same},
};
use crate::{DeltaShape, DeltaWeights, HostStep, Place, Result, cpu::Buffer};

/// Tokens whose keys and queries are kept in the first-level cache, beside the columns of a tile.
const TOKENS: usize = 16;
/// Vectors of columns in a tile: their sums stay in registers.
const TILE: usize = 2;
/// Those of a token by itself, which waits for memory: long pieces of rows are what it reads fastest.
const WIDE: usize = 8;
/// Added to the square of a norm.
const EPSILON: f32 = 1e-6;

pub(super) fn delta_rule(
    workers: Workers<'_>,
    qkv: &Tensor,
    [alpha, beta]: [&Tensor; 2],
    weights: &DeltaWeights<'_, Buffer<f32>>,
    place: Place<'_, State>,
    step: &HostStep,
    out: &mut Tensor,
) -> Result<()> {
    let shape = weights.shape;
    shape.check()?;
    same(qkv.cols, shape.channels())?;
    same(out.cols, shape.value_heads * shape.value_dim)?;
    for len in [alpha.cols, beta.cols, weights.a.len(), weights.dt_bias.len()] {
        same(len, shape.value_heads)?;
    }
    let tokens = step.tokens().len();
    let (qkv, out) = (qkv.rows(tokens)?, out.rows_mut(tokens)?);
    let [alpha, beta] = [alpha.rows(tokens)?, beta.rows(tokens)?];
    let of_head = shape.key_dim * shape.value_dim;
    let mut heads = state::heads(place, step, shape.value_heads, of_head, out, shape.value_dim)?;
    state::for_each_head(workers.team, &mut heads, |head| {
        workers.isa.run(Delta {
            shape,
            qkv,
            alpha,
            beta,
            a: weights.a[head.head],
            dt_bias: weights.dt_bias[head.head],
            head,
        });
    })
}

/// One value head of one row.
struct Delta<'a, 'b> {
    shape: DeltaShape,
    qkv: &'a [f32],
    alpha: &'a [f32],
    beta: &'a [f32],
    a: f32,
    dt_bias: f32,
    head: &'a mut Head<'b>,
}

impl Kernel for Delta<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        if self.head.row.position == 0 {
            self.head.state.fill(0.0);
        }
        let mut out = std::mem::take(&mut self.head.out);
        let mut keys = vec![0.0; TOKENS * 2 * self.shape.key_dim];
        for (first, out) in self
            .head
            .row
            .tokens
            .clone()
            .step_by(TOKENS)
            .zip(out.chunks_mut(TOKENS))
        {
            let keys = keys.chunks_exact_mut(2 * self.shape.key_dim);
            let mut tokens = Vec::with_capacity(TOKENS);
            for (token, keys) in (first..first + out.len()).zip(keys) {
                tokens.push(self.token(s, token, keys));
            }
            self.block(s, &tokens, out);
        }
    }
}

/// What a token brings to a head.
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    qk: f32,
    decay: f32,
    share: f32,
}

impl<'a> Delta<'a, '_> {
    /// Its queries and keys, divided by their norms, are written to `keys`.
    #[inline(always)]
    fn token<'k, S: Simd>(&self, s: S, token: usize, keys: &'k mut [f32]) -> Token<'k>
    where
        'a: 'k,
    {
        let DeltaShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
        } = self.shape;
        let head = self.head.head;
        let row = &self.qkv[token * self.shape.channels()..][..self.shape.channels()];
        let (qk, v) = row.split_at(2 * key_heads * key_dim);
        let of_key = head / (value_heads / key_heads) * key_dim;
        let (q, k) = keys.split_at_mut(key_dim);
        divide_by_norm(s, &qk[of_key..][..key_dim], (key_dim as f32).sqrt(), q);
        divide_by_norm(s, &qk[key_heads * key_dim + of_key..][..key_dim], 1.0, k);
        let scalar = token * value_heads + head;
        Token {
            qk: dot(s, q, k),
            q,
            k,
            v: &v[head * value_dim..][..value_dim],
            decay: (self.a * softplus(self.alpha[scalar] + self.dt_bias)).exp(),
            share: sigmoid(self.beta[scalar]),
        }
    }

    /// Takes the state through some tokens, tile by tile.
    #[inline(always)]
    fn block<S: Simd>(&mut self, s: S, tokens: &[Token<'_>], out: &mut [&mut [f32]]) {
        let columns = self.shape.value_dim;
        let state = &mut *self.head.state;
        let mut first = 0;
        while tokens.len() == 1 && first + WIDE * LANES <= columns {
            walk::<S, WIDE>(s, state, columns, first, first, tokens, out);
            first += WIDE * LANES;
        }
        while first + TILE * LANES <= columns {
            walk::<S, TILE>(s, state, columns, first, first, tokens, out);
            first += TILE * LANES;
        }
        while first + LANES <= columns {
            walk::<S, 1>(s, state, columns, first, first, tokens, out);
            first += LANES;
        }
        if first < columns {
            let mut last = vec![0.0; self.shape.key_dim * LANES];
            let rows = || state.chunks_exact(columns).map(|row| &row[first..]);
            for (last, row) in last.chunks_exact_mut(LANES).zip(rows()) {
                last[..row.len()].copy_from_slice(row);
            }
            walk::<S, 1>(s, &mut last, LANES, 0, first, tokens, out);
            for (last, row) in last.chunks_exact(LANES).zip(state.chunks_exact_mut(columns)) {
                let row = &mut row[first..];
                row.copy_from_slice(&last[..row.len()]);
            }
        }
    }
}

/// Takes `W` vectors of columns through some tokens: those from `at` on of the state, whose rows are `stride` long,
/// which are those from `first` on of the outputs.
#[inline(always)]
fn walk<S: Simd, const W: usize>(
    s: S,
    state: &mut [f32],
    stride: usize,
    at: usize,
    first: usize,
    tokens: &[Token<'_>],
    out: &mut [&mut [f32]],
) {
    let mut written: Option<Written<'_, S, W>> = None;
    for (token, out) in tokens.iter().zip(out) {
        let rows = columns::<W>(state, stride, at).zip(token.k.iter().zip(token.q));
        let (mut known, mut answer) = ([s.splat(0.0); W], [s.splat(0.0); W]);
        match &written {
            None => {
                for (row, (&k, &q)) in rows {
                    let (k, q) = (s.splat(k), s.splat(q));
                    for ((values, known), answer) in row.iter().zip(&mut known).zip(&mut answer) {
                        let value = s.load(values);
                        *known = s.fma(k, value, *known);
                        *answer = s.fma(q, value, *answer);
                    }
                }
            }
            Some(written) => {
                for ((row, (&k, &q)), &before) in rows.zip(written.token.k) {
                    written.add(s, row, before);
                    let (k, q) = (s.splat(k), s.splat(q));
                    for ((values, known), answer) in row.iter().zip(&mut known).zip(&mut answer) {
                        let value = s.load(values);
                        *known = s.fma(k, value, *known);
                        *answer = s.fma(q, value, *answer);
                    }
                }
            }
        }
        let (decay, share, qk) = (s.splat(token.decay), s.splat(token.share), s.splat(token.qk));
        let mut change = [s.splat(0.0); W];
        let parts = token.v[first..].chunks(LANES).zip(out[first..].chunks_mut(LANES));
        for (w, (v, out)) in parts.take(W).enumerate() {
            change[w] = s.mul(share, s.sub(s.load_part(v), s.mul(decay, known[w])));
            s.store_part(s.fma(qk, change[w], s.mul(decay, answer[w])), out);
        }
        written = Some(Written { token, change });
    }
    if let Some(written) = written {
        for (row, &k) in columns::<W>(state, stride, at).zip(written.token.k) {
            written.add(s, row, k);
        }
    }
}

/// What a token leaves in the state.
struct Written<'a, S: Simd, const W: usize> {
    token: &'a Token<'a>,
    change: [S::V; W],
}

impl<S: Simd, const W: usize> Written<'_, S, W> {
    /// Adds it to the row of `k`.
    #[inline(always)]
    fn add(&self, s: S, row: &mut [[f32; LANES]; W], k: f32) {
        let (k, decay) = (s.splat(k), s.splat(self.token.decay));
        for (values, &change) in row.iter_mut().zip(&self.change) {
            s.store(s.fma(k, change, s.mul(decay, s.load(values))), values);
        }
    }
}

/// `W` vectors of each row of the state.
#[inline(always)]
fn columns<const W: usize>(
    state: &mut [f32],
    stride: usize,
    at: usize,
) -> impl Iterator<Item = &mut [[f32; LANES]; W]> {
    let rows = state.chunks_exact_mut(stride);
    rows.filter_map(move |row| row[at..].as_chunks_mut().0.first_chunk_mut())
}

/// `out = x / (norm of x · further)`.
#[inline(always)]
fn divide_by_norm<S: Simd>(s: S, x: &[f32], further: f32, out: &mut [f32]) {
    let factor = 1.0 / ((dot(s, x, x) + EPSILON).sqrt() * further);
    for (out, x) in out.iter_mut().zip(x) {
        *out = x * factor;
    }
}

#[inline(always)]
fn dot<S: Simd>(s: S, x: &[f32], y: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    for (x, y) in x.chunks(LANES).zip(y.chunks(LANES)) {
        sum = s.fma(s.load_part(x), s.load_part(y), sum);
    }
    s.sum(sum)
}
