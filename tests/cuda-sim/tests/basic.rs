//! Arithmetic, divergence, shared memory and barriers, against plain Rust.

mod support;

use support::{Numbers, Sim};

const PTX: &str = include_str!("ptx/basic.ptx");

#[test]
fn scaled_addition_over_a_ragged_end() {
    let sim = Sim::new();
    let mut numbers = Numbers(1);
    let x: Vec<f32> = (0..1000).map(|_| numbers.float()).collect();
    let y: Vec<f32> = (0..1000).map(|_| numbers.float()).collect();
    let (dx, dy) = (sim.upload(&x), sim.upload(&y));
    sim.launch(
        sim.function(PTX, "scale_add"),
        8,
        128,
        0,
        &[&dx, &dy, &2.5f32, &1000i32],
    )
    .unwrap();
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 2.5f32.mul_add(*x, *y)).collect();
    assert_eq!(sim.download::<f32>(dy, 1000), expected);
}

#[test]
fn lanes_that_leave_a_loop_at_different_times() {
    let sim = Sim::new();
    let start: Vec<u32> = (1..=777).collect();
    let (from, to) = (sim.upload(&start), sim.alloc(777 * 4));
    sim.launch(sim.function(PTX, "collatz"), 4, 256, 0, &[&from, &to, &777i32])
        .unwrap();
    let steps = |mut v: u32| {
        let mut count = 0;
        while v != 1 {
            v = if v % 2 == 1 { 3 * v + 1 } else { v / 2 };
            count += 1;
        }
        count
    };
    assert_eq!(
        sim.download::<u32>(to, 777),
        start.into_iter().map(steps).collect::<Vec<_>>()
    );
}

#[test]
fn block_sums_by_shuffle_and_shared_memory() {
    let sim = Sim::new();
    for reversed in [0, 1] {
        support::set("reversed", reversed);
        let x: Vec<f32> = (0..2000).map(|i| (i % 17) as f32).collect();
        let (dx, sums) = (sim.upload(&x), sim.alloc(8 * 4));
        sim.launch(sim.function(PTX, "block_sum"), 8, 256, 0, &[&dx, &sums, &2000i32])
            .unwrap();
        let expected: Vec<f32> = x.chunks(256).map(|block| block.iter().sum()).collect();
        assert_eq!(sim.download::<f32>(sums, 8), expected);
    }
}

#[test]
fn dynamic_shared_memory_across_a_barrier() {
    let sim = Sim::new();
    let x: Vec<i32> = (0..400).collect();
    let dx = sim.upload(&x);
    sim.launch(sim.function(PTX, "reverse"), 4, 100, 400, &[&dx])
        .unwrap();
    let expected: Vec<i32> = x
        .chunks(100)
        .flat_map(|block| block.iter().rev().copied())
        .collect();
    assert_eq!(sim.download::<i32>(dx, 400), expected);
}
