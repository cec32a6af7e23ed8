//! Prints how fast the interpreter is: lane-instructions a second, by kind of kernel.
//!
//! `cargo run --example speed -p met-cuda-sim`

#[path = "../tests/support/mod.rs"]
mod support;

use met_cuda_sim::control;
use support::{Argument, Sim};

fn measure(
    sim: &Sim,
    name: &str,
    function: usize,
    grid: u32,
    block: u32,
    shared: u32,
    arguments: &[&dyn Argument],
) {
    control::met_sim_reset();
    let start = processor_seconds();
    let mut runs = 0;
    while processor_seconds() - start < 0.3 {
        sim.launch(function, grid, block, shared, arguments)
            .unwrap_or_else(|_| panic!("{}", support::last_error()));
        runs += 1;
    }
    let seconds = processor_seconds() - start;
    let rate = control::met_sim_issued() as f64 * 32.0 / seconds / 1e9;
    println!(
        "{name:12} {rate:6.2} G lane-instructions/s, {:.3} ms a launch",
        seconds * 1e3 / runs as f64
    );
}

/// Processor time of this thread, which other work on the machine does not change.
fn processor_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is that of a local.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn main() {
    let sim = Sim::new();
    let (basic, numbers) = (
        include_str!("../tests/ptx/basic.ptx"),
        include_str!("../tests/ptx/numbers.ptx"),
    );
    let n = 1 << 16;
    let x: Vec<f32> = (0..n).map(|i| (i % 1000) as f32 * 1e-3).collect();
    let (dx, dy) = (sim.upload(&x), sim.upload(&x));
    let words: Vec<u32> = (1..=n as u32).collect();
    let (dw, dz) = (sim.upload(&words), sim.alloc(4 * n));
    let n = n as i32;
    measure(
        &sim,
        "scale_add",
        sim.function(basic, "scale_add"),
        256,
        256,
        0,
        &[&dx, &dy, &0.5f32, &n],
    );
    measure(
        &sim,
        "collatz",
        sim.function(basic, "collatz"),
        16,
        256,
        0,
        &[&dw, &dz, &4096i32],
    );
    measure(
        &sim,
        "block_sum",
        sim.function(basic, "block_sum"),
        256,
        256,
        0,
        &[&dx, &dz, &n],
    );
    measure(
        &sim,
        "reverse",
        sim.function(basic, "reverse"),
        256,
        256,
        1024,
        &[&dw],
    );
    measure(
        &sim,
        "logistic",
        sim.function(numbers, "logistic"),
        256,
        256,
        0,
        &[&dx, &dy, &dz, &n],
    );
    measure(
        &sim,
        "u32_mix",
        sim.function(numbers, "u32_mix"),
        256,
        256,
        0,
        &[&dw, &dw, &dz, &n],
    );
    measure(
        &sim,
        "precise",
        sim.function(numbers, "precise"),
        256,
        256,
        0,
        &[&dx, &dy, &dz, &n],
    );
    let matrix = sim.function(include_str!("../tests/ptx/matrix.ptx"), "many_products");
    let halves = sim.upload(&[0x3c00_3800u32; 192]);
    // 2,048 multiply-adds each.
    measure(&sim, "mma", matrix, 1, 32, 0, &[&halves, &dz, &10_000i32]);
}
