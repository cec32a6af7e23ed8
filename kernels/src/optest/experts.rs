//! Mixtures of experts, and the gates that go with them.

use super::{resources::refused, *};
use crate::Activation;

/// Each row's experts, then their weights.
fn routing(random: &mut Random, rows: usize, experts: usize, chosen: usize) -> Vec<f32> {
    let row = |_| {
        let numbers = random.shuffled(experts)[..chosen].to_vec();
        let weights = random.normals(chosen);
        numbers
            .into_iter()
            .map(|number| number as f32)
            .chain(weights)
            .collect::<Vec<_>>()
    };
    (0..rows).flat_map(row).collect()
}

pub(super) fn route<O: Ops>(ops: &mut O, _: &Ledger) {
    fn choose<O: Ops>(
        ops: &mut O,
        logits: &[f32],
        experts: usize,
        chosen: usize,
        normalised: bool,
    ) -> Vec<f32> {
        let rows = logits.len() / experts;
        let logits = upload(ops, logits, experts);
        let mut routing = zeros(ops, rows, 2 * chosen);
        ops.route(&logits, rows, experts, chosen, normalised, &mut routing)
            .unwrap();
        ops.release_tensor(logits).unwrap();
        take(ops, routing, rows, 2 * chosen)
    }
    let mut random = Random::new(30);
    for (experts, chosen) in [(1, 1), (4, 2), (33, 33), (62, 6), (512, 10)] {
        for rows in [1, 3, 50] {
            for step in [0.0, 0.5] {
                let mut logits: Vec<f32> = random
                    .normals(rows * experts)
                    .into_iter()
                    .map(|x| 3.0 * x)
                    .collect();
                if step > 0.0 {
                    // Many are equal.
                    logits.iter_mut().for_each(|x| *x = (*x / step).round() * step);
                }
                for normalised in [false, true] {
                    let actual = choose(ops, &logits, experts, chosen, normalised);
                    let expected = choose(&mut reference(), &logits, experts, chosen, normalised);
                    for (actual, expected) in actual.chunks(2 * chosen).zip(expected.chunks(2 * chosen)) {
                        let what =
                            format_args!("{chosen} of {experts}, normalised {normalised}, {rows} rows");
                        assert_same_bits(&actual[..chosen], &expected[..chosen], what);
                        assert_close(&actual[chosen..], &expected[chosen..], 1e-6, what);
                    }
                }
            }
        }
    }
}

pub(super) fn expert_linear<O: Ops>(ops: &mut O, _: &Ledger) {
    let mut random = Random::new(31);
    for ty in TensorType::ALL {
        let cols = ty.block_len().max(32) * 2;
        for shape in [(4, 32, 2), (7, 5, 3), (3, 24, 1), (5, 33, 5)] {
            check(ops, &mut random, ty, cols, shape);
        }
    }
    // No multiples of what a vector or a warp takes at once.
    for ty in [TensorType::F32, TensorType::F16, TensorType::BF16] {
        for cols in [1, 31, 33] {
            check(ops, &mut random, ty, cols, (3, 9, 2));
        }
    }
}

/// Checks products with weights of so many experts and outputs, of which a row chooses so many.
fn check<O: Ops>(
    ops: &mut O,
    random: &mut Random,
    ty: TensorType,
    cols: usize,
    (experts, outputs, chosen): (usize, usize, usize),
) {
    let source = weights::random_weight(random, ty, experts * outputs, cols);
    for (rows, spread) in [(1, false), (1, true), (23, false), (40, true)] {
        let x = random.normals(rows * cols * if spread { chosen } else { 1 });
        let mut routing = routing(random, rows, experts, chosen);
        if rows == 40 {
            // All to the same.
            let first = routing[..2 * chosen].to_vec();
            routing
                .chunks_exact_mut(2 * chosen)
                .for_each(|row| row.copy_from_slice(&first));
        }
        let products = Products {
            source: &source,
            experts,
            outputs,
            chosen,
            spread,
        };
        let actual = products.run(ops, &x, &routing);
        let expected = products.run(&mut reference(), &x, &routing);
        let what = format!(
            "{}, {rows} rows of {cols}, {chosen} of {experts}, spread {spread}",
            source.name
        );
        let rms = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
        let scaled = |values: &[f32]| values.iter().map(|x| x / rms).collect::<Vec<_>>();
        assert_close(&scaled(&actual), &scaled(&expected), 3e-3, &what);
        let (x, routing) = (x.chunks(x.len() / rows), routing.chunks(2 * chosen));
        let alone = x
            .zip(routing)
            .step_by(5)
            .map(|(x, routing)| products.run(ops, x, routing));
        for (alone, together) in alone.zip(actual.chunks(chosen * outputs).step_by(5)) {
            assert_same_bits(&alone, together, &what);
        }
    }
}

struct Products<'a> {
    source: &'a WeightSource,
    experts: usize,
    outputs: usize,
    chosen: usize,
    spread: bool,
}

impl Products<'_> {
    fn run<O: Ops>(&self, ops: &mut O, x: &[f32], routing: &[f32]) -> Vec<f32> {
        let rows = routing.len() / (2 * self.chosen);
        let weight = ops.load_weight(self.source, &mut |_| Ok(())).unwrap();
        let x = upload(ops, x, self.source.cols);
        let routing = upload(ops, routing, 2 * self.chosen);
        let mut out = zeros(ops, rows * self.chosen, self.outputs);
        ops.expert_linear(&x, self.spread, rows, &weight, self.experts, &routing, &mut out)
            .unwrap();
        let values = take(ops, out, rows * self.chosen, self.outputs);
        ops.release_weight(weight).unwrap();
        ops.release_tensor(x).unwrap();
        ops.release_tensor(routing).unwrap();
        values
    }
}

pub(super) fn combine<O: Ops>(ops: &mut O, _: &Ledger) {
    fn sum<O: Ops>(ops: &mut O, x: &[f32], routing: &[f32], chosen: usize, cols: usize) -> Vec<f32> {
        let rows = routing.len() / (2 * chosen);
        let (x, routing) = (upload(ops, x, cols), upload(ops, routing, 2 * chosen));
        let mut out = zeros(ops, rows, cols);
        ops.combine(&x, &routing, rows, &mut out).unwrap();
        ops.release_tensor(x).unwrap();
        ops.release_tensor(routing).unwrap();
        take(ops, out, rows, cols)
    }
    let mut random = Random::new(32);
    for (rows, chosen, cols) in [(1, 1, 1), (1, 8, 576), (40, 3, 17), (5, 10, 64)] {
        let x = random.normals(rows * chosen * cols);
        let routing = routing(&mut random, rows, 20, chosen);
        let actual = sum(ops, &x, &routing, chosen, cols);
        let expected = sum(&mut reference(), &x, &routing, chosen, cols);
        assert_close(
            &actual,
            &expected,
            2e-6,
            format_args!("{rows} rows of {chosen} × {cols}"),
        );
    }
}

pub(super) fn gates<O: Ops>(ops: &mut O, _: &Ledger) {
    fn gate<O: Ops>(ops: &mut O, x: &[f32], gates: &[f32], cols: usize) -> [Vec<f32>; 2] {
        let rows = gates.len();
        let (mut by_row, one_a_row) = (upload(ops, x, cols), upload(ops, gates, 1));
        // The last row is left as it is.
        ops.gate_rows(&mut by_row, &one_a_row, rows - 1).unwrap();
        let (x, mut each) = (upload(ops, x, cols), zeros(ops, rows, cols));
        ops.gated(Activation::Sigmoid, &by_row, &x, rows, &mut each)
            .unwrap();
        ops.release_tensor(one_a_row).unwrap();
        ops.release_tensor(x).unwrap();
        [by_row, each].map(|tensor| take(ops, tensor, rows, cols))
    }
    let mut random = Random::new(33);
    for (rows, cols) in [(1, 1), (2, 576), (61, 17), (30, 1000)] {
        let x = random.normals(rows * cols);
        let gates: Vec<f32> = random.normals(rows).into_iter().map(|x| x * 4.0).collect();
        let actual = gate(ops, &x, &gates, cols);
        let expected = gate(&mut reference(), &x, &gates, cols);
        for (actual, expected) in actual.iter().zip(&expected) {
            assert_close(actual, expected, 2e-6, format_args!("{rows} × {cols}"));
        }
    }
}

pub(super) fn refusals<O: Ops>(ops: &mut O, _: &Ledger) {
    let [mut x, mut out, mut logits, mut routing] =
        [(3, 32), (6, 8), (3, 4), (3, 4)].map(|(rows, cols)| zeros(ops, rows, cols));
    let mut gate = zeros(ops, 3, 1);
    let weight = f32_weight(ops, &[0.0; 32 * 32], 32, 32);
    let mut spread = zeros(ops, 6, 32);

    ops.route(&logits, 3, 4, 2, true, &mut routing).unwrap();
    ops.expert_linear(&x, false, 3, &weight, 4, &routing, &mut out)
        .unwrap();
    ops.expert_linear(&spread, true, 3, &weight, 4, &routing, &mut out)
        .unwrap();
    ops.combine(&spread, &routing, 3, &mut x).unwrap();
    ops.gate_rows(&mut x, &gate, 3).unwrap();

    refused(
        ops.route(&logits, 3, 5, 2, true, &mut routing),
        "logits of other experts",
    );
    refused(
        ops.route(&logits, 3, 4, 1, true, &mut routing),
        "a routing of another width",
    );
    refused(
        ops.route(&logits, 4, 4, 2, true, &mut routing),
        "more rows than logits",
    );
    refused(
        ops.route(&gate, 3, 1, 2, true, &mut routing),
        "more chosen than there are",
    );
    refused(ops.route(&routing, 3, 4, 0, true, &mut gate), "none chosen");
    for (rows, spreads, experts, what) in [
        (4, false, 4, "more rows than inputs"),
        (3, true, 4, "inputs that aren't spread"),
        (3, false, 5, "a weight of other experts"),
        (3, false, 0, "no experts"),
    ] {
        refused(
            ops.expert_linear(&x, spreads, rows, &weight, experts, &routing, &mut out),
            what,
        );
    }
    refused(
        ops.expert_linear(&out, false, 3, &weight, 4, &routing, &mut spread),
        "another width",
    );
    refused(
        ops.expert_linear(&x, false, 3, &weight, 4, &gate, &mut out),
        "an odd routing",
    );
    refused(
        ops.expert_linear(&x, false, 3, &weight, 4, &routing, &mut logits),
        "outputs of another width",
    );
    refused(ops.combine(&x, &routing, 3, &mut spread), "sums of fewer rows");
    refused(
        ops.combine(&spread, &routing, 3, &mut out),
        "sums to another width",
    );
    refused(ops.combine(&spread, &gate, 3, &mut x), "an odd routing");
    refused(ops.gate_rows(&mut x, &logits, 3), "gates of several columns");
    refused(ops.gate_rows(&mut x, &gate, 4), "more rows than gates");

    ops.release_weight(weight).unwrap();
    for tensor in [x, out, logits, routing, gate, spread] {
        ops.release_tensor(tensor).unwrap();
    }
}
