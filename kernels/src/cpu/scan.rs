//! The selective scan of Mamba-2.
//!
//! A head's state is read once for a few tokens. What is computed for a token, and in which order, is the same for
//! any number of them: `h = fma(Δx, B, decay · h)`, lane by lane, and one chain over the states for the output.

use super::{
    Workers,
    elementwise::softplus,
    simd::{Kernel, LANES, Simd},
    state::{self, Head, State},
    tensor::{Tensor, same},
};
use crate::{HostStep, Place, Result, ScanShape, ScanWeights, cpu::Buffer};

/// Tokens that are done together.
const TOKENS: usize = 4;

pub(super) fn scan(
    workers: Workers<'_>,
    xbc: &Tensor,
    dt: &Tensor,
    weights: &ScanWeights<'_, Buffer<f32>>,
    place: Place<'_, State>,
    step: &HostStep,
    out: &mut Tensor,
) -> Result<()> {
    let shape = weights.shape;
    shape.check()?;
    same(xbc.cols, shape.channels())?;
    same(dt.cols, shape.heads)?;
    same(out.cols, shape.heads * shape.head_dim)?;
    for constants in [weights.a, weights.d, weights.dt_bias] {
        same(constants.len(), shape.heads)?;
    }
    let tokens = step.tokens().len();
    let (xbc, dt, out) = (xbc.rows(tokens)?, dt.rows(tokens)?, out.rows_mut(tokens)?);
    let of_head = shape.head_dim * shape.state_dim;
    let mut heads = state::heads(place, step, shape.heads, of_head, out, shape.head_dim)?;
    state::for_each_head(workers.team, &mut heads, |head| {
        workers.isa.run(Scan {
            shape,
            xbc,
            dt,
            a: weights.a[head.head],
            d: weights.d[head.head],
            dt_bias: weights.dt_bias[head.head],
            head,
        });
    })
}

/// One head of one row.
struct Scan<'a, 'b> {
    shape: ScanShape,
    xbc: &'a [f32],
    dt: &'a [f32],
    a: f32,
    d: f32,
    dt_bias: f32,
    head: &'a mut Head<'b>,
}

impl Kernel for Scan<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        if self.head.row.position == 0 {
            self.head.state.fill(0.0);
        }
        let tokens = self.head.row.tokens.len();
        let whole = tokens / TOKENS * TOKENS;
        for first in (0..whole).step_by(TOKENS) {
            self.tokens::<S, TOKENS>(s, first);
        }
        for first in whole..tokens {
            self.tokens::<S, 1>(s, first);
        }
    }
}

impl Scan<'_, '_> {
    /// Tokens `first..first + N` of the row.
    #[inline(always)]
    fn tokens<S: Simd, const N: usize>(&mut self, s: S, first: usize) {
        let ScanShape {
            heads,
            head_dim,
            groups,
            state_dim,
        } = self.shape;
        let head = self.head.head;
        let b_at = heads * head_dim + head / (heads / groups) * state_dim;
        let c_at = b_at + groups * state_dim;
        let (mut x, mut b, mut c) = ([&[][..]; N], [&[][..]; N], [&[][..]; N]);
        let (mut deltas, mut decays) = ([0.0; N], [0.0; N]);
        for t in 0..N {
            let token = self.head.row.tokens.start + first + t;
            let row = &self.xbc[token * self.shape.channels()..][..self.shape.channels()];
            x[t] = &row[head * head_dim..][..head_dim];
            b[t] = &row[b_at..][..state_dim];
            c[t] = &row[c_at..][..state_dim];
            deltas[t] = softplus(self.dt[token * heads + head] + self.dt_bias);
            decays[t] = (deltas[t] * self.a).exp();
        }
        for (i, state) in self.head.state.chunks_exact_mut(state_dim).enumerate() {
            let mut inputs = [0.0; N];
            for t in 0..N {
                inputs[t] = deltas[t] * x[t][i];
            }
            let sums = advance(s, state, &decays, &inputs, &b, &c);
            for t in 0..N {
                self.head.out[first + t][i] = sums[t] + self.d * x[t][i];
            }
        }
    }
}

/// Takes the states of one value through `N` tokens: `h = decay · h + input · b`. The result is each token's `h · c`.
///
/// Loops over `N`, not closures: those of an array's methods would be compiled without the instruction set.
#[inline(always)]
fn advance<S: Simd, const N: usize>(
    s: S,
    h: &mut [f32],
    decays: &[f32; N],
    inputs: &[f32; N],
    b: &[&[f32]; N],
    c: &[&[f32]; N],
) -> [f32; N] {
    let zero = s.splat(0.0);
    let (mut decay, mut input, mut sums) = ([zero; N], [zero; N], [zero; N]);
    let mut rows = [[(&[][..], &[][..]); 2]; N];
    for t in 0..N {
        (decay[t], input[t]) = (s.splat(decays[t]), s.splat(inputs[t]));
        rows[t] = [b[t].as_chunks::<LANES>(), c[t].as_chunks::<LANES>()];
    }
    let (whole, rest) = h.as_chunks_mut::<LANES>();
    for (i, states) in whole.iter_mut().enumerate() {
        let mut h = s.load(states);
        for t in 0..N {
            let [(b, _), (c, _)] = rows[t];
            h = s.fma(input[t], s.load(&b[i]), s.mul(decay[t], h));
            sums[t] = s.fma(h, s.load(&c[i]), sums[t]);
        }
        s.store(h, states);
    }
    if !rest.is_empty() {
        let mut h = s.load_part(rest);
        for t in 0..N {
            let [(_, b), (_, c)] = rows[t];
            h = s.fma(input[t], s.load_part(b), s.mul(decay[t], h));
            sums[t] = s.fma(h, s.load_part(c), sums[t]);
        }
        s.store_part(h, rest);
    }
    let mut out = [0.0; N];
    for t in 0..N {
        out[t] = s.sum(sums[t]);
    }
    out
}
