//! What the card itself can do: its memory's bandwidth and its tensor cores' rate, as its own driver lets it.

use anyhow::{Result, ensure};
use cudarc::{
    driver::{CudaContext, CudaStream, LaunchConfig, PushKernelArg, sys::CUevent_flags},
    nvrtc::Ptx,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Measurements of each; the best one counts.
const REPETITIONS: usize = 5;
const THREADS: u32 = 256;
/// Operations of a warp's turn in `products.ptx`: 8 products of 16 × 8 × 16, a multiplication and an addition each.
const OPERATIONS_OF_A_TURN: f64 = 8.0 * 16.0 * 8.0 * 16.0 * 2.0;

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Size {
    /// Of a copy.
    pub bytes: usize,
    /// Copies of a measurement.
    pub copies: usize,
    /// Blocks of threads on each multiprocessor.
    pub blocks: u32,
    /// Turns of each warp.
    pub turns: u32,
}

impl Size {
    /// Enough for a card: some milliseconds a measurement.
    pub const FULL: Self = Self {
        bytes: 1 << 30,
        copies: 10,
        blocks: 8,
        turns: 10_000,
    };
    /// To see that it runs.
    pub const SMALL: Self = Self {
        bytes: 1 << 16,
        copies: 2,
        blocks: 1,
        turns: 3,
    };
}

/// Bytes a second of a copy on the card, which reads and writes, and operations a second of products of f16 that are
/// summed in f32.
pub fn measure(size: Size) -> Result<Value> {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let bandwidth = bandwidth(&context, &stream, size)?;
    let operations = operations(&context, &stream, size)?;
    Ok(json!({"copy_gb_s": bandwidth / 1e9, "mma_tflop_s": operations / 1e12}))
}

fn bandwidth(context: &Arc<CudaContext>, stream: &Arc<CudaStream>, size: Size) -> Result<f64> {
    let (free, _) = context.mem_get_info()?;
    let bytes = size.bytes.min(free / 4);
    let from = stream.alloc_zeros::<u8>(bytes)?;
    let mut to = stream.alloc_zeros::<u8>(bytes)?;
    let mut best = f64::INFINITY;
    for _ in 0..REPETITIONS {
        let seconds = seconds(context, stream, || {
            for _ in 0..size.copies {
                stream.memcpy_dtod(&from, &mut to)?;
            }
            Ok(())
        })?;
        best = best.min(seconds);
    }
    Ok(2.0 * (bytes * size.copies) as f64 / best)
}

fn operations(context: &Arc<CudaContext>, stream: &Arc<CudaStream>, size: Size) -> Result<f64> {
    let module = context.load_module(Ptx::from_src(include_str!("products.ptx")))?;
    let kernel = module.load_function("products")?;
    let attribute = cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    let blocks = context.attribute(attribute)?.cast_unsigned() * size.blocks;
    let mut out = stream.alloc_zeros::<f32>((blocks * THREADS) as usize)?;
    let shape = LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    let mut best = f64::INFINITY;
    for _ in 0..REPETITIONS {
        let seconds = seconds(context, stream, || {
            let mut launch = stream.launch_builder(&kernel);
            launch.arg(&mut out).arg(&size.turns);
            // SAFETY: the kernel takes a pointer and a number, and each thread writes one f32 of as many as there are.
            unsafe { launch.launch(shape) }?;
            Ok(())
        })?;
        best = best.min(seconds);
    }
    let expected = 512.0 * size.turns as f32;
    let sums = stream.clone_dtoh(&out)?;
    ensure!(
        sums.iter().all(|sum| *sum == expected),
        "the products are wrong: {}, not {expected}",
        sums.iter().find(|sum| **sum != expected).unwrap_or(&expected)
    );
    let warps = f64::from(blocks * THREADS / 32);
    Ok(warps * f64::from(size.turns) * OPERATIONS_OF_A_TURN / best)
}

/// How long the card takes for what `work` gives the stream to do.
fn seconds(
    context: &Arc<CudaContext>,
    stream: &Arc<CudaStream>,
    work: impl FnOnce() -> Result<()>,
) -> Result<f64> {
    let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
    let (begin, end) = (context.new_event(timed)?, context.new_event(timed)?);
    begin.record(stream)?;
    work()?;
    end.record(stream)?;
    end.synchronize()?;
    Ok(f64::from(begin.elapsed_ms(&end)?) / 1e3)
}
