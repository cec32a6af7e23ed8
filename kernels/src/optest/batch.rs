//! The promise that a token's values don't depend on what else is in the step.

use super::{
    attention::{Batch, Sequence, shape},
    *,
};
use crate::{Activation, Linear};

/// A prefill in steps of any size, decodes among them, gives the same bits as a prefill at once.
pub(super) fn decode_equals_prefill<O: Ops>(ops: &mut O, _: &Ledger) {
    let mut random = Random::new(12);
    for (heads, kv_heads, window, softcap) in [(9, 3, 0, 0.0), (4, 4, 0, 0.0), (7, 1, 300, 5.0)] {
        let total = 540;
        let sequence = Sequence {
            context: 0,
            new: total,
        };
        let shape = crate::AttentionShape {
            window,
            softcap,
            ..shape(heads, kv_heads, 48)
        };
        let batch = Batch::new(&mut random, shape, 16, &[sequence]);
        let at_once = batch.run(ops);
        for size in [1, 2, 7, 12, 100, 300] {
            let mut kv = batch.alloc(ops, 2);
            let mut in_steps = Vec::new();
            for start in (0..total).step_by(size) {
                in_steps.extend(batch.step(ops, &mut kv, 1, &[(0, start..total.min(start + size))]));
            }
            ops.release_kv(kv).unwrap();
            let what = format_args!("{heads} heads on {kv_heads}, window {window}, steps of {size}");
            assert_same_bits(&in_steps, &at_once, what);
        }
    }
}

/// A layer's worth of operations on a token alone and among 15 others gives the same bits.
pub(super) fn alone_equals_among_others<O: Ops>(ops: &mut O, _: &Ledger) {
    let mut random = Random::new(13);
    let contexts = [
        0, 1, 255, 256, 257, 300, 17, 600, 5, 90, 128, 511, 512, 40, 77, 1000,
    ];
    let sequences = contexts.map(|context| Sequence { context, new: 1 });
    let batch = Batch::new(&mut random, shape(9, 3, 64), 32, &sequences);
    let all: Vec<_> = contexts
        .iter()
        .enumerate()
        .map(|(i, &context)| (i, context..context + 1))
        .collect();
    let fill: Vec<_> = contexts
        .iter()
        .enumerate()
        .filter(|(_, c)| **c > 0)
        .map(|(i, &c)| (i, 0..c))
        .collect();
    let mut kv = batch.alloc(ops, 1);
    batch.fill(ops, &mut kv, 0, &fill);
    let together = batch.step(ops, &mut kv, 0, &all);
    let mut layer = Layer::new(ops, &mut random);
    let together_after = layer.run(ops, &together);
    for (i, part) in all.into_iter().enumerate() {
        let alone = batch.step(ops, &mut kv, 0, &[part]);
        assert_same_bits(
            &alone,
            &together[i * 576..][..576],
            format_args!("attention of sequence {i}"),
        );
        let alone_after = layer.run(ops, &alone);
        assert_same_bits(
            &alone_after,
            &together_after[i * 576..][..576],
            format_args!("the rest of {i}"),
        );
    }
    layer.release(ops);
    ops.release_kv(kv).unwrap();
}

/// What follows the attention in a layer.
struct Layer<O: Ops> {
    output: O::Weight,
    norm: O::Vector,
    gate: O::Weight,
    up: O::Weight,
    down: O::Weight,
}

impl<O: Ops> Layer<O> {
    fn new(ops: &mut O, random: &mut Random) -> Self {
        let mut weight = |rows, cols| {
            let source = weights::random_weight(random, TensorType::Q4_1, rows, cols);
            ops.load_weight(&source, &mut |_| Ok(())).unwrap()
        };
        Self {
            output: weight(576, 576),
            gate: weight(1536, 576),
            up: weight(1536, 576),
            down: weight(576, 1536),
            norm: ops.load_vector(&random.normals(576)).unwrap(),
        }
    }

    fn run(&mut self, ops: &mut O, attended: &[f32]) -> Vec<f32> {
        let rows = attended.len() / 576;
        let attended = upload(ops, attended, 576);
        let mut residual = zeros(ops, rows, 576);
        let mut x = zeros(ops, rows, 576);
        let [mut gate, mut up, mut hidden] = [(); 3].map(|()| zeros(ops, rows, 1536));
        ops.linear(&attended, rows, &mut [product(&self.output, &mut x)])
            .unwrap();
        let mut normed = zeros(ops, rows, 576);
        ops.add_rms_norm(&mut residual, &x, &self.norm, 1e-5, rows, &mut normed)
            .unwrap();
        let mut products = [product(&self.gate, &mut gate), product(&self.up, &mut up)];
        ops.linear(&normed, rows, &mut products).unwrap();
        ops.gated(Activation::Silu, &gate, &up, rows, &mut hidden)
            .unwrap();
        ops.linear(&hidden, rows, &mut [product(&self.down, &mut x)])
            .unwrap();
        ops.add(&mut residual, &x, rows).unwrap();
        for tensor in [attended, x, gate, up, hidden, normed] {
            ops.release_tensor(tensor).unwrap();
        }
        take(ops, residual, rows, 576)
    }

    fn release(self, ops: &mut O) {
        for weight in [self.output, self.gate, self.up, self.down] {
            ops.release_weight(weight).unwrap();
        }
        ops.release_vector(self.norm).unwrap();
    }
}

fn product<'a, O: Ops>(weight: &'a O::Weight, out: &'a mut O::Tensor) -> Linear<'a, O> {
    Linear {
        weight,
        bias: None,
        out,
    }
}
