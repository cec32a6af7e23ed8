//! Speed of the CPU operations other than products, at the shapes of SmolLM2-135M.
//!
//! `cargo bench -p met-kernels --bench ops`; `MET_CPU_ISA` chooses the instruction set, `MET_BENCH_THREADS`
//! the number of threads (2).

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use met_kernels::{
    Activation, AttentionShape, Ledger, Ops, RopeTable, StepRow, StepRows,
    cpu::{CpuOps, CpuStep, KvCache, Team, Tensor},
    optest::{Random, upload, zeros},
};

const LAYERS: usize = 30;
const POSITIONS: usize = 2048;
const HIDDEN: usize = 576;
const FEED_FORWARD: usize = 1536;
const SHAPE: AttentionShape = AttentionShape {
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    scale: 0.125,
    window: 0,
    softcap: 0.0,
};

/// Operations with a KV cache whose positions are all written.
struct Bench {
    ops: CpuOps,
    rope: RopeTable,
    kv: KvCache,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
}

impl Bench {
    fn new() -> Self {
        let mut ops = CpuOps::new(threads(), Ledger::default()).unwrap();
        let mut random = Random::new(1);
        let [q, k, v] = [SHAPE.heads, SHAPE.kv_heads, SHAPE.kv_heads].map(|heads| {
            let cols = heads * SHAPE.head_dim;
            upload(&mut ops, &random.normals(POSITIONS * cols), cols)
        });
        let frequency = |pair| 10_000f32.powf(pair as f32 / -32.0);
        let mut bench = Self {
            kv: ops
                .alloc_kv(LAYERS, SHAPE.kv_heads, SHAPE.head_dim, 32, POSITIONS / 32)
                .unwrap(),
            out: zeros(&mut ops, POSITIONS, HIDDEN),
            rope: RopeTable {
                dims: 64,
                inverse_frequencies: (0..32).map(frequency).collect(),
                magnitude: 1.0,
                half_split: false,
            },
            ops,
            q,
            k,
            v,
        };
        let all = bench.step(0, POSITIONS);
        (0..LAYERS).for_each(|layer| bench.rope_kv_write(layer, &all));
        bench
    }

    fn step(&mut self, position: usize, len: usize) -> CpuStep {
        let blocks: Vec<u32> = (0..POSITIONS as u32 / 32).collect();
        let row = StepRow {
            first: 0,
            len,
            position,
            blocks: &blocks,
            state: met_kernels::NO_STATE,
        };
        let tokens = vec![0; len];
        let step = StepRows {
            tokens: &tokens,
            rows: &[row],
        };
        self.ops.begin(&step).unwrap()
    }

    fn attention(&mut self, layer: usize, step: &CpuStep) {
        self.ops
            .attention(&self.q, &self.kv, layer, &SHAPE, step, &mut self.out)
            .unwrap();
    }

    fn rope_kv_write(&mut self, layer: usize, step: &CpuStep) {
        let Self {
            q, k, v, rope, kv, ..
        } = self;
        self.ops
            .rope_kv_write(q, k, v, rope, &SHAPE, kv, layer, step)
            .unwrap();
    }
}

fn threads() -> usize {
    std::env::var("MET_BENCH_THREADS").map_or(2, |threads| threads.parse().unwrap())
}

/// One token's attention in all layers, by depth; bytes are those of its keys and values.
fn decode(c: &mut Criterion) {
    let mut bench = Bench::new();
    let mut group = c.benchmark_group("attention/decode, all layers");
    for depth in [128, 512, 2048] {
        let step = bench.step(depth - 1, 1);
        group.throughput(Throughput::Bytes(
            (LAYERS * depth * SHAPE.kv_heads * SHAPE.head_dim * 4) as u64,
        ));
        group.bench_function(BenchmarkId::from_parameter(depth), |b| {
            b.iter(|| (0..LAYERS).for_each(|layer| bench.attention(layer, &step)));
        });
    }
}

/// A prompt's attention in one layer; elements are floating-point operations.
fn prefill(c: &mut Criterion) {
    let mut bench = Bench::new();
    let mut group = c.benchmark_group("attention/prefill, one layer");
    for len in [512, 1500] {
        let step = bench.step(0, len);
        group.throughput(Throughput::Elements(
            (SHAPE.heads * len * (len + 1) / 2 * SHAPE.head_dim * 4) as u64,
        ));
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            b.iter(|| bench.attention(0, &step))
        });
    }
}

fn rope(c: &mut Criterion) {
    let mut bench = Bench::new();
    let mut group = c.benchmark_group("rope and KV write, one layer");
    for len in [1, 512] {
        let step = bench.step(0, len);
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            b.iter(|| bench.rope_kv_write(0, &step))
        });
    }
}

fn elementwise(c: &mut Criterion) {
    let mut ops = CpuOps::new(threads(), Ledger::default()).unwrap();
    let mut random = Random::new(2);
    let weight = ops.load_vector(&random.normals(HIDDEN)).unwrap();
    let x = upload(&mut ops, &random.normals(512 * HIDDEN), HIDDEN);
    let mut residual = upload(&mut ops, &random.normals(512 * HIDDEN), HIDDEN);
    let mut normed = zeros(&mut ops, 512, HIDDEN);
    let gate = upload(&mut ops, &random.normals(512 * FEED_FORWARD), FEED_FORWARD);
    let mut gated = zeros(&mut ops, 512, FEED_FORWARD);
    for rows in [1, 512] {
        c.bench_function(&format!("add_rms_norm/{rows}"), |b| {
            b.iter(|| {
                ops.add_rms_norm(&mut residual, &x, &weight, 1e-5, rows, &mut normed)
                    .unwrap()
            });
        });
        c.bench_function(&format!("gated/{rows}"), |b| {
            b.iter(|| {
                ops.gated(Activation::Silu, &gate, &gate, rows, &mut gated)
                    .unwrap()
            });
        });
    }
}

/// What handing out work costs: a job whose tasks the threads must take at the same time.
fn team(c: &mut Criterion) {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let size = threads();
    let team = Team::new(size, &Ledger::default()).unwrap();
    c.bench_function("team/empty job", |b| b.iter(|| team.run(&|_| ()).unwrap()));
    c.bench_function("team/all threads meet", |b| {
        b.iter(|| {
            let arrived = AtomicUsize::new(0);
            team.run(&|_| {
                arrived.fetch_add(1, Ordering::AcqRel);
                while arrived.load(Ordering::Acquire) < size {
                    std::hint::spin_loop();
                }
            })
            .unwrap();
        });
    });
}

criterion_group!(benches, decode, prefill, rope, elementwise, team);
criterion_main!(benches);
