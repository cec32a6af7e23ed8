//! Rotary embedding, and the write of keys and values to the cache.

use super::{
    kv::HeadMut,
    simd::{Kernel, LANES, Simd},
};
use crate::{HostStep, RopeTable};
use half::f16;

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
