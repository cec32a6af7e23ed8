//! Matrix instructions and asynchronous copies.

mod support;

use half::{bf16, f16};
use support::{Code, Numbers, Sim, last_error};

const PTX: &str = include_str!("ptx/matrix.ptx");

/// A kernel of one warp, with two inputs and an output of `count` values.
fn run<A: Copy, O: Copy + Default>(name: &str, a: &[A], b: &[A], count: usize) -> Vec<O> {
    let sim = Sim::new();
    let (da, db, dc) = (sim.upload(a), sim.upload(b), sim.alloc(count * size_of::<O>()));
    sim.launch(sim.function(PTX, name), 1, 32, 0, &[&da, &db, &dc])
        .unwrap_or_else(|code| panic!("{name}: {code:?} {}", last_error()));
    sim.download(dc, count)
}

/// What the accumulators of the kernels begin with at a row and column.
fn start(row: usize, column: usize, from: i32) -> i32 {
    from + (column & 1) as i32 + 2 * (row / 8) as i32
}

#[test]
fn products_of_sixteen_bit_floats() {
    let mut numbers = Numbers(20);
    let a: Vec<f32> = (0..256).map(|_| numbers.float()).collect();
    let b: Vec<f32> = (0..128).map(|_| numbers.float()).collect();
    let check = |name, round: fn(f32) -> f32, bits: fn(f32) -> u16| {
        let to = |values: &[f32]| values.iter().map(|v| bits(*v)).collect::<Vec<u16>>();
        for (at, got) in run::<u16, f32>(name, &to(&a), &to(&b), 128)
            .into_iter()
            .enumerate()
        {
            let (row, column) = (at / 8, at % 8);
            let products = (0..16).map(|k| round(a[row * 16 + k]) as f64 * round(b[column * 16 + k]) as f64);
            let expected = products.sum::<f64>() + start(row, column, 1) as f64;
            assert!(
                (got as f64 - expected).abs() < 1e-5,
                "{name} at {row}, {column}: {got}, expected {expected}"
            );
        }
    };
    check(
        "product_half",
        |v| f16::from_f32(v).to_f32(),
        |v| f16::from_f32(v).to_bits(),
    );
    check(
        "product_brain",
        |v| bf16::from_f32(v).to_f32(),
        |v| bf16::from_f32(v).to_bits(),
    );
}

#[test]
fn products_of_bytes() {
    let mut numbers = Numbers(21);
    let a: Vec<i8> = (0..512).map(|_| numbers.next() as i8).collect();
    let b: Vec<i8> = (0..256).map(|_| numbers.next() as i8).collect();
    let expected: Vec<i32> = (0..128)
        .map(|at| {
            let (row, column) = (at / 8, at % 8);
            let products = (0..32).map(|k| a[row * 32 + k] as i32 * b[column * 32 + k] as i32);
            products.sum::<i32>() + start(row, column, 5)
        })
        .collect();
    assert_eq!(run::<i8, i32>("product_bytes", &a, &b, 128), expected);
}

#[test]
fn matrices_from_shared_memory_plain_and_transposed() {
    let sim = Sim::new();
    let x: Vec<u16> = (0..64).map(|i| i * 3).collect();
    let (dx, dy) = (sim.upload(&x), sim.alloc(256));
    sim.launch(sim.function(PTX, "matrix_loads"), 1, 32, 0, &[&dx, &dy])
        .unwrap();
    let expected: Vec<u32> = (0..64)
        .map(|at| {
            let (row, pair) = (at % 32 / 4, at % 4 * 2);
            let element = |k: usize| {
                if at < 32 {
                    x[row * 8 + pair + k]
                } else {
                    x[(pair + k) * 8 + row]
                }
            };
            element(0) as u32 | (element(1) as u32) << 16
        })
        .collect();
    assert_eq!(sim.download::<u32>(dy, 64), expected);
}

#[test]
fn copies_that_run_beside() {
    for n in [256, 130, 127, 3, 1] {
        let sim = Sim::new();
        let x: Vec<f32> = (0..n).map(|i| i as f32 + 1.0).collect();
        let (dx, dy) = (sim.upload(&x), sim.alloc(1024));
        sim.launch(sim.function(PTX, "staged"), 1, 32, 0, &[&dx, &dy, &n, &1i32])
            .unwrap();
        let expected: Vec<f32> = (0..256)
            .map(|i| if i < n { i as f32 + 1.0 } else { 0.0 })
            .collect();
        assert_eq!(sim.download::<f32>(dy, 256), expected);
    }
}

#[test]
fn a_copy_that_was_not_waited_for_is_not_there() {
    let sim = Sim::new();
    let (dx, dy) = (sim.upload(&[1f32; 256]), sim.alloc(1024));
    let code = sim.launch(sim.function(PTX, "staged"), 1, 32, 0, &[&dx, &dy, &256i32, &0i32]);
    assert_eq!(code, Err(Code::LAUNCH_FAILED));
    assert!(last_error().contains("shared read"), "{}", last_error());
    assert!(last_error().contains("never written"), "{}", last_error());
}
