//! Rotary embedding, the paged cache, and attention.

use super::*;
use crate::{AttentionShape, RopeTable};
use half::f16;

/// A sequence: `context` positions are in the cache, `new` ones are in the step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence {
    pub context: usize,
    pub new: usize,
}

/// Some positions of a sequence.
pub(crate) type Part = (usize, std::ops::Range<usize>);

/// Sequences with random queries, keys and values; keys and values are f16 numbers, so that rounding them
/// for the cache changes nothing.
pub(crate) struct Batch {
    pub shape: AttentionShape,
    pub block_size: usize,
    pub sequences: Vec<Sequence>,
    /// Each sequence's block table.
    pub tables: Vec<Vec<u32>>,
    pub blocks: usize,
    /// Each sequence's queries, keys and values, of all positions.
    pub data: Vec<[Vec<f32>; 3]>,
}

impl Batch {
    pub fn new(
        random: &mut Random,
        shape: AttentionShape,
        block_size: usize,
        sequences: &[Sequence],
    ) -> Self {
        let needed = |s: &Sequence| (s.context + s.new).div_ceil(block_size);
        let blocks = sequences.iter().map(needed).sum::<usize>() + 2;
        let mut free = random.shuffled(blocks);
        let tables = sequences
            .iter()
            .map(|s| free.split_off(free.len() - needed(s)))
            .collect();
        let data = sequences.iter().map(|s| {
            let (len, q, kv) = (s.context + s.new, shape.heads, shape.kv_heads);
            [q, kv, kv].map(|heads| {
                let x = random.normals(len * heads * shape.head_dim);
                x.into_iter().map(|x| f16::from_f32(x).to_f32()).collect()
            })
        });
        Self {
            data: data.collect(),
            shape,
            block_size,
            sequences: sequences.to_vec(),
            tables,
            blocks,
        }
    }

    pub fn alloc<O: Ops>(&self, ops: &mut O, layers: usize) -> O::KvCache {
        let AttentionShape {
            kv_heads, head_dim, ..
        } = self.shape;
        ops.alloc_kv(layers, kv_heads, head_dim, self.block_size, self.blocks)
            .unwrap()
    }

    /// One step over some positions of some sequences: writes their keys and values, and attends.
    pub fn step<O: Ops>(&self, ops: &mut O, kv: &mut O::KvCache, layer: usize, parts: &[Part]) -> Vec<f32> {
        self.write_and(ops, kv, layer, parts, |ops, kv, q, step| {
            let (rows, cols) = (
                parts.iter().map(|(_, p)| p.len()).sum(),
                self.shape.heads * self.shape.head_dim,
            );
            let mut out = zeros(ops, rows, cols);
            ops.attention(q, kv, layer, &self.shape, step, &mut out).unwrap();
            take(ops, out, rows, cols)
        })
    }

    /// Writes the keys and values of some positions.
    pub fn fill<O: Ops>(&self, ops: &mut O, kv: &mut O::KvCache, layer: usize, parts: &[Part]) {
        self.write_and(ops, kv, layer, parts, |_, _, _, _| ());
    }

    fn write_and<O: Ops, R>(
        &self,
        ops: &mut O,
        kv: &mut O::KvCache,
        layer: usize,
        parts: &[Part],
        then: impl FnOnce(&mut O, &O::KvCache, &O::Tensor, &O::Step) -> R,
    ) -> R {
        let AttentionShape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let mut first = 0;
        let rows: Vec<_> = parts
            .iter()
            .map(|(sequence, positions)| {
                first += positions.len();
                StepRow {
                    first: first - positions.len(),
                    len: positions.len(),
                    position: positions.start,
                    blocks: &self.tables[*sequence],
                    state: crate::NO_STATE,
                }
            })
            .collect();
        let tokens = vec![0; first];
        let step = StepRows {
            tokens: &tokens,
            rows: &rows,
        };
        let step = ops.begin(&step).unwrap();
        let [mut q, mut k, v] = [(0, heads), (1, kv_heads), (2, kv_heads)].map(|(which, heads)| {
            let cols = heads * head_dim;
            let part = |(sequence, positions): &Part| {
                self.data[*sequence][which][positions.start * cols..positions.end * cols].to_vec()
            };
            let values: Vec<f32> = parts.iter().flat_map(part).collect();
            upload(ops, &values, cols)
        });
        ops.rope_kv_write(&mut q, &mut k, &v, &still(), &self.shape, kv, layer, &step)
            .unwrap();
        let result = then(ops, kv, &q, &step);
        for tensor in [q, k, v] {
            ops.release_tensor(tensor).unwrap();
        }
        result
    }

    /// The contexts in one step, then all new positions in another: the latter's result.
    pub fn run<O: Ops>(&self, ops: &mut O) -> Vec<f32> {
        let mut kv = self.alloc(ops, 2);
        let sequences = || self.sequences.iter().enumerate();
        let contexts: Vec<_> = sequences()
            .map(|(i, s)| (i, 0..s.context))
            .filter(|(_, p)| !p.is_empty())
            .collect();
        let new: Vec<_> = sequences()
            .map(|(i, s)| (i, s.context..s.context + s.new))
            .collect();
        if !contexts.is_empty() {
            self.fill(ops, &mut kv, 1, &contexts);
        }
        let out = self.step(ops, &mut kv, 1, &new);
        ops.release_kv(kv).unwrap();
        out
    }

    fn check<O: Ops>(&self, ops: &mut O) {
        let (actual, expected) = (self.run(ops), self.run(&mut reference()));
        let what = format!(
            "{:?}, {:?}, blocks of {}",
            self.shape, self.sequences, self.block_size
        );
        assert_close(&actual, &expected, 1e-5, what);
    }
}

/// A rotation by 0.
pub(super) fn still() -> RopeTable {
    RopeTable {
        dims: 0,
        inverse_frequencies: Vec::new(),
        magnitude: 1.0,
        half_split: false,
    }
}

pub(crate) fn shape(heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape {
        heads,
        kv_heads,
        head_dim,
        scale: 2.0 / (head_dim as f32).sqrt(),
        window: 0,
        softcap: 0.0,
    }
}

pub(super) fn rope<O: Ops>(ops: &mut O, _: &Ledger) {
    fn turn<O: Ops>(
        ops: &mut O,
        x: &[f32],
        rope: &RopeTable,
        shape: &AttentionShape,
        position: usize,
    ) -> [Vec<f32>; 2] {
        let cols = shape.heads * shape.head_dim;
        let rows = x.len() / cols;
        let blocks: Vec<u32> = vec![0; (position + rows).div_ceil(16)];
        let row = StepRow {
            first: 0,
            len: rows,
            position,
            blocks: &blocks,
            state: crate::NO_STATE,
        };
        let tokens = vec![0; rows];
        let step = StepRows {
            tokens: &tokens,
            rows: &[row],
        };
        let step = ops.begin(&step).unwrap();
        let mut kv = ops.alloc_kv(1, shape.kv_heads, shape.head_dim, 16, 1).unwrap();
        let kv_cols = shape.kv_heads * shape.head_dim;
        let (mut q, mut k) = (upload(ops, x, cols), upload(ops, &x[..rows * kv_cols], kv_cols));
        let v = zeros(ops, rows, kv_cols);
        ops.rope_kv_write(&mut q, &mut k, &v, rope, shape, &mut kv, 0, &step)
            .unwrap();
        ops.release_kv(kv).unwrap();
        ops.release_tensor(v).unwrap();
        [take(ops, q, rows, cols), take(ops, k, rows, kv_cols)]
    }
    let mut random = Random::new(7);
    let shapes = [
        (9, 3, 64, 64),
        (4, 4, 80, 32),
        (2, 1, 8, 8),
        (6, 2, 96, 96),
        (3, 1, 16, 0),
        (2, 2, 256, 64),
    ];
    for (heads, kv_heads, head_dim, dims) in shapes {
        for half_split in [false, true] {
            let frequency = |i| 10_000f32.powf(-2.0 * i as f32 / dims as f32);
            let rope = RopeTable {
                dims,
                inverse_frequencies: (0..dims / 2).map(frequency).collect(),
                magnitude: 1.25,
                half_split,
            };
            for (rows, position) in [(1, 0), (1, 131_071), (5, 3), (90, 1000)] {
                let x = random.normals(rows * heads * head_dim);
                let shape = shape(heads, kv_heads, head_dim);
                let actual = turn(ops, &x, &rope, &shape, position);
                let expected = turn(&mut reference(), &x, &rope, &shape, position);
                for (actual, expected) in actual.iter().zip(&expected) {
                    let what = format_args!("{shape:?} {dims} dims, half split {half_split}, at {position}");
                    assert_close(actual, expected, 1e-6, what);
                }
            }
        }
    }
}

pub(super) fn ragged_batches<O: Ops>(ops: &mut O, _: &Ledger) {
    let mut random = Random::new(8);
    let heads = [
        (9, 3, 64),
        (4, 1, 32),
        (3, 3, 80),
        (14, 2, 64),
        (4, 2, 96),
        (8, 2, 128),
        (5, 1, 8),
        (2, 1, 256),
    ];
    for (heads, kv_heads, head_dim) in heads {
        for block_size in [16, 32] {
            let sequences: Vec<_> = (0..6)
                .map(|i| Sequence {
                    context: if i == 0 { 0 } else { random.below(600) },
                    new: if i % 2 == 0 { 1 } else { 1 + random.below(40) },
                })
                .collect();
            Batch::new(
                &mut random,
                shape(heads, kv_heads, head_dim),
                block_size,
                &sequences,
            )
            .check(ops);
        }
    }
}

pub(super) fn edges<O: Ops>(ops: &mut O, _: &Ledger) {
    let mut random = Random::new(9);
    let edges = [
        1, 2, 11, 12, 13, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513,
    ];
    for total in edges {
        for new in [1, 2, 11, 12, 13, 24, 25, total] {
            if new <= total {
                let sequence = Sequence {
                    context: total - new,
                    new,
                };
                Batch::new(&mut random, shape(3, 1, 32), 16, &[sequence]).check(ops);
            }
        }
    }
}

pub(super) fn windows_and_softcaps<O: Ops>(ops: &mut O, _: &Ledger) {
    let mut random = Random::new(10);
    for window in [1, 2, 15, 16, 17, 100, 256, 300, 5000] {
        for softcap in [0.0, 3.0] {
            let shape = AttentionShape {
                window,
                softcap,
                ..shape(4, 2, 64)
            };
            let sequences = [(0, 1), (700, 1), (255, 2), (256, 30), (511, 1), (130, 200)];
            let sequences = sequences.map(|(context, new)| Sequence { context, new });
            Batch::new(&mut random, shape, 32, &sequences).check(ops);
        }
    }
}

pub(super) fn blocks<O: Ops>(ops: &mut O, _: &Ledger) {
    let mut random = Random::new(11);
    for (head_dim, block_size) in [(64, 16), (8, 32), (80, 16)] {
        let sequence = Sequence { context: 100, new: 1 };
        let mut batch = Batch::new(&mut random, shape(4, 2, head_dim), block_size, &[sequence]);
        let mut kv = batch.alloc(ops, 2);
        batch.fill(ops, &mut kv, 0, &[(0, 0..100)]);
        batch.fill(ops, &mut kv, 1, &[(0, 0..100)]);
        let expected = [0, 1].map(|layer| batch.step(ops, &mut kv, layer, &[(0, 100..101)]));

        // The same blocks, in another order, in another cache.
        let mut other = batch.alloc(ops, 2);
        let moved = random.shuffled(batch.blocks)[..batch.tables[0].len()].to_vec();
        let mut data = vec![0; 2 * 2 * 2 * head_dim * block_size * 2];
        for (&from, &to) in batch.tables[0].iter().zip(&moved) {
            ops.read_block(&kv, from, &mut data).unwrap();
            ops.write_block(&mut other, to, &data).unwrap();
        }
        batch.tables[0] = moved;
        for (layer, expected) in expected.iter().enumerate() {
            let actual = batch.step(ops, &mut other, layer, &[(0, 100..101)]);
            assert_same_bits(
                &actual,
                expected,
                format_args!("layer {layer}, heads of {head_dim}"),
            );
        }
        ops.release_kv(kv).unwrap();
        ops.release_kv(other).unwrap();
    }
}
