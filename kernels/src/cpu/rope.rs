//! Rotary embedding, and the write of keys and values to the cache.

use super::{
    Workers,
    kv::HeadMut,
    simd::{Kernel, LANES, Simd},
    tensor::{GRAIN, Tensor, same},
};
use crate::{AttentionShape, HostStep, Result, RopeTable};
use half::f16;

/// Turns `q` and `k`, and writes `k` and `v` to `caches`, one a KV head; angles and caches have been checked.
pub(super) fn rope_kv_write<'a>(
    workers: Workers<'_>,
    angles: &Angles,
    shape: &AttentionShape,
    [q, k]: [&mut Tensor; 2],
    v: &Tensor,
    caches: impl Iterator<Item = HeadMut<'a>>,
    step: &HostStep,
) -> Result<()> {
    let &AttentionShape {
        heads,
        kv_heads,
        head_dim,
        ..
    } = shape;
    same(q.cols, heads * head_dim)?;
    same(k.cols, kv_heads * head_dim)?;
    same(v.cols, k.cols)?;
    let tokens = step.tokens().len();
    let (grain, stride) = (q.grain(), k.cols);
    let (q_grain, k_grain) = (grain * q.cols, grain * k.cols);
    let (q, k, v) = (q.rows_mut(tokens)?, k.rows_mut(tokens)?, v.rows(tokens)?);
    let parts = q.chunks_mut(q_grain).zip(k.chunks_mut(k_grain)).enumerate();
    let mut tasks: Vec<_> = parts.collect();
    workers.team.for_each(&mut tasks, |(i, (q, k))| {
        for (x, heads) in [(&mut **q, heads), (&mut **k, kv_heads)] {
            workers.isa.run(Turn {
                angles,
                first: *i * grain,
                x,
                heads,
                head_dim,
            });
        }
    })?;

    let mut caches: Vec<_> = caches.enumerate().collect();
    let heads_a_task = (GRAIN / (tokens * head_dim).max(1)).clamp(1, kv_heads);
    let mut tasks: Vec<_> = caches.chunks_mut(heads_a_task).collect();
    workers.team.for_each(&mut tasks, |caches| {
        for (head, cache) in caches.iter_mut() {
            workers.isa.run(Store {
                step,
                keys: k,
                values: v,
                stride,
                offset: *head * head_dim,
                head_dim,
                cache,
            });
        }
    })
}

/// Cosines and sines of a step's tokens: for each token, `pairs` of either.
#[derive(Debug)]
pub(super) struct Angles {
    rope: RopeTable,
    values: Vec<f32>,
}

impl Angles {
    /// They are the same for every layer. Angles are products in f64: in f32, those of far positions would be
    /// off by more than the rotation that they stand for.
    pub fn new(rope: &RopeTable, step: &HostStep) -> Self {
        let pairs = rope.inverse_frequencies.len();
        let mut values = vec![0.0; step.tokens().len() * 2 * pairs];
        for (position, values) in step.positions().zip(values.chunks_exact_mut((2 * pairs).max(1))) {
            let (cosines, sines) = values.split_at_mut(pairs);
            for (i, &frequency) in rope.inverse_frequencies.iter().enumerate() {
                let (sin, cos) = (position as f64 * f64::from(frequency)).sin_cos();
                cosines[i] = (cos * f64::from(rope.magnitude)) as f32;
                sines[i] = (sin * f64::from(rope.magnitude)) as f32;
            }
        }
        Self {
            rope: rope.clone(),
            values,
        }
    }

    /// Whether they were made from this table.
    pub fn is_of(&self, rope: &RopeTable) -> bool {
        self.rope == *rope
    }

    /// The cosines and sines of a token.
    #[inline(always)]
    fn token(&self, token: usize) -> (&[f32], &[f32]) {
        let pairs = self.rope.inverse_frequencies.len();
        self.values[token * 2 * pairs..][..2 * pairs].split_at(pairs)
    }
}

/// Turns the heads of some tokens in place.
pub(super) struct Turn<'a> {
    pub angles: &'a Angles,
    /// Index of the first token in the step.
    pub first: usize,
    /// Heads of `head_dim` dimensions, `heads` a token.
    pub x: &'a mut [f32],
    pub heads: usize,
    pub head_dim: usize,
}

impl Kernel for Turn<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (i, head) in self.x.chunks_exact_mut(self.head_dim).enumerate() {
            let (cosines, sines) = self.angles.token(self.first + i / self.heads);
            if self.angles.rope.half_split {
                let (low, high) = head.split_at_mut(cosines.len());
                let pairs = low.iter_mut().zip(high);
                for ((x, y), (cos, sin)) in pairs.zip(cosines.iter().zip(sines)) {
                    (*x, *y) = (*x * cos - *y * sin, *x * sin + *y * cos);
                }
            } else {
                let pairs = head.as_chunks_mut::<2>().0.iter_mut();
                for ([x, y], (cos, sin)) in pairs.zip(cosines.iter().zip(sines)) {
                    (*x, *y) = (*x * cos - *y * sin, *x * sin + *y * cos);
                }
            }
        }
    }
}

/// The longest head that the CPU kernels take.
pub(super) const MAX_HEAD_DIM: usize = 512;

/// Writes one head's keys and values of a step's tokens to the cache.
pub(super) struct Store<'a, 'b> {
    pub step: &'a HostStep,
    /// Keys and values of all heads, `stride` a token; this head's start at `offset`.
    pub keys: &'a [f32],
    pub values: &'a [f32],
    pub stride: usize,
    pub offset: usize,
    pub head_dim: usize,
    pub cache: &'a mut HeadMut<'b>,
}

impl Kernel for Store<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (mut key, mut value) = ([f16::ZERO; MAX_HEAD_DIM], [f16::ZERO; MAX_HEAD_DIM]);
        for row in self.step.rows() {
            let blocks = self.step.blocks(row);
            for (position, token) in (row.position..).zip(row.tokens.clone()) {
                let at = token * self.stride + self.offset;
                narrow(s, &self.keys[at..][..self.head_dim], &mut key);
                narrow(s, &self.values[at..][..self.head_dim], &mut value);
                self.cache.write(blocks, position, &key, &value);
            }
        }
    }
}

/// Rounds to f16.
#[inline(always)]
fn narrow<S: Simd>(s: S, x: &[f32], out: &mut [f16; MAX_HEAD_DIM]) {
    let (whole, rest) = x.as_chunks::<LANES>();
    let outs = out.as_chunks_mut::<LANES>().0;
    for (x, out) in whole.iter().zip(&mut *outs) {
        s.store_f16(s.load(x), out);
    }
    if !rest.is_empty() {
        let mut last = [0.0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        s.store_f16(s.load(&last), &mut outs[whole.len()]);
    }
}
