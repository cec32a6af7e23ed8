//! Normalisation and what works element by element.

use super::*;
use crate::Activation;

const ROWS: [usize; 4] = [1, 2, 17, 61];
const COLS: [usize; 10] = [1, 8, 15, 16, 17, 255, 256, 257, 1000, 1536];

fn shapes() -> impl Iterator<Item = (usize, usize)> {
    ROWS.into_iter()
        .flat_map(|rows| COLS.into_iter().map(move |cols| (rows, cols)))
}

pub(super) fn rms_norm<O: Ops>(ops: &mut O, _: &Ledger) {
    fn norm<O: Ops>(ops: &mut O, x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
        norm_of_heads(ops, x, weight, 1, eps)
    }
    fn norm_of_heads<O: Ops>(ops: &mut O, x: &[f32], weight: &[f32], heads: usize, eps: f32) -> Vec<f32> {
        let cols = heads * weight.len();
        let rows = x.len() / cols;
        let x = upload(ops, x, cols);
        let weight = ops.load_vector(weight).unwrap();
        let mut out = zeros(ops, rows, cols);
        ops.rms_norm(&x, &weight, eps, rows, &mut out).unwrap();
        ops.release_tensor(x).unwrap();
        ops.release_vector(weight).unwrap();
        take(ops, out, rows, cols)
    }
    let mut random = Random::new(1);
    for (rows, cols) in shapes() {
        let (x, weight) = (random.normals(rows * cols), random.normals(cols));
        for eps in [1e-5, 1.0] {
            let actual = norm(ops, &x, &weight, eps);
            let expected = norm(&mut reference(), &x, &weight, eps);
            assert_close(
                &actual,
                &expected,
                2e-6,
                format_args!("{rows} × {cols}, eps {eps}"),
            );
        }
    }
    // Each head by itself.
    for (rows, heads, head_dim) in [(1, 9, 64), (5, 3, 128), (70, 4, 8), (3, 2, 17)] {
        let (x, weight) = (random.normals(rows * heads * head_dim), random.normals(head_dim));
        let alone = norm(ops, &x, &weight, 1e-6);
        let heads = norm_of_heads(ops, &x, &weight, heads, 1e-6);
        assert_same_bits(&heads, &alone, format_args!("{rows} rows of heads of {head_dim}"));
    }
    let zero = norm(ops, &[0.0; 24], &[1.0; 24], 1e-5);
    assert_eq!(zero, [0.0; 24]);
}

pub(super) fn add_rms_norm<O: Ops>(ops: &mut O, _: &Ledger) {
    fn norm<O: Ops>(ops: &mut O, residual: &[f32], x: &[f32], weight: &[f32]) -> [Vec<f32>; 2] {
        let (cols, rows) = (weight.len(), x.len() / weight.len());
        let (mut residual, x) = (upload(ops, residual, cols), upload(ops, x, cols));
        let weight = ops.load_vector(weight).unwrap();
        let mut out = zeros(ops, rows, cols);
        ops.add_rms_norm(&mut residual, &x, &weight, 1e-6, rows, &mut out)
            .unwrap();
        ops.release_tensor(x).unwrap();
        ops.release_vector(weight).unwrap();
        [residual, out].map(|tensor| take(ops, tensor, rows, cols))
    }
    let mut random = Random::new(2);
    for (rows, cols) in shapes() {
        let (residual, x) = (random.normals(rows * cols), random.normals(rows * cols));
        let weight = random.normals(cols);
        let actual = norm(ops, &residual, &x, &weight);
        let expected = norm(&mut reference(), &residual, &x, &weight);
        for (actual, expected) in actual.iter().zip(&expected) {
            assert_close(actual, expected, 5e-6, format_args!("{rows} × {cols}"));
        }
    }
}

pub(super) fn gated<O: Ops>(ops: &mut O, _: &Ledger) {
    fn gate<O: Ops>(ops: &mut O, f: Activation, gate: &[f32], up: &[f32], cols: usize) -> Vec<f32> {
        let rows = gate.len() / cols;
        let (gate, up) = (upload(ops, gate, cols), upload(ops, up, cols));
        let mut out = zeros(ops, rows, cols);
        ops.gated(f, &gate, &up, rows, &mut out).unwrap();
        ops.release_tensor(gate).unwrap();
        ops.release_tensor(up).unwrap();
        take(ops, out, rows, cols)
    }
    let mut random = Random::new(3);
    for (rows, cols) in shapes() {
        let x: Vec<f32> = random.normals(rows * cols).into_iter().map(|x| x * 4.0).collect();
        let up = random.normals(rows * cols);
        for f in [Activation::Silu, Activation::GeluTanh] {
            let (actual, expected) = (
                gate(ops, f, &x, &up, cols),
                gate(&mut reference(), f, &x, &up, cols),
            );
            assert_close(&actual, &expected, 2e-6, format_args!("{f:?} of {rows} × {cols}"));
        }
    }
}

pub(super) fn scale_add_gather<O: Ops>(ops: &mut O, _: &Ledger) {
    fn chain<O: Ops>(ops: &mut O, x: &[f32], y: &[f32], cols: usize, wanted: &[u32]) -> Vec<f32> {
        let rows = x.len() / cols;
        let (mut x, y) = (upload(ops, x, cols), upload(ops, y, cols));
        // The last row is scaled and added to in neither.
        ops.scale(&mut x, rows - 1, 0.37).unwrap();
        ops.add(&mut x, &y, rows - 1).unwrap();
        let mut out = zeros(ops, wanted.len(), cols);
        ops.gather(&x, wanted, &mut out).unwrap();
        ops.release_tensor(x).unwrap();
        ops.release_tensor(y).unwrap();
        take(ops, out, wanted.len(), cols)
    }
    let mut random = Random::new(4);
    for (rows, cols) in shapes() {
        let (x, y) = (random.normals(rows * cols), random.normals(rows * cols));
        let mut wanted = random.shuffled(rows);
        wanted.push(rows as u32 - 1);
        let actual = chain(ops, &x, &y, cols, &wanted);
        let expected = chain(&mut reference(), &x, &y, cols, &wanted);
        assert_close(&actual, &expected, 5e-7, format_args!("{rows} × {cols}"));
    }
}

pub(super) fn softcap<O: Ops>(ops: &mut O, _: &Ledger) {
    fn cap<O: Ops>(ops: &mut O, x: &[f32], cols: usize, cap: f32) -> Vec<f32> {
        let rows = x.len() / cols;
        let mut x = upload(ops, x, cols);
        // The last row is left as it is.
        ops.softcap(&mut x, rows - 1, cap).unwrap();
        take(ops, x, rows, cols)
    }
    let mut random = Random::new(5);
    for (rows, cols) in shapes() {
        let x: Vec<f32> = random
            .normals(rows * cols)
            .into_iter()
            .map(|x| x * 20.0)
            .collect();
        let actual = cap(ops, &x, cols, 30.0);
        let expected = cap(&mut reference(), &x, cols, 30.0);
        // Some units in the last place of the cap, also where the value is near 0.
        assert_close(&actual, &expected, 1e-5, format_args!("{rows} × {cols}"));
    }
}
