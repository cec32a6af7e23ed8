//! Speed of the operations of recurrent models and mixtures of experts, at the shapes of Granite 4.0 H 350M and
//! Qwen3-Next 80B-A3B.
//!
//! `cargo bench -p met-kernels --bench recurrent`; `MET_CPU_ISA` chooses the instruction set, `MET_BENCH_THREADS`
//! the number of threads (2). Decodes pass by many layers, so that no cache holds what they read.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use met_kernels::{
    DeltaShape, DeltaWeights, Ledger, Ops, Place, ScanShape, ScanWeights, StepRow, StepRows, TensorType,
    WeightSource,
    cpu::{CpuOps, CpuStep, State},
    optest::{Random, upload, zeros},
};

const SCAN: ScanShape = ScanShape {
    heads: 48,
    head_dim: 32,
    groups: 1,
    state_dim: 128,
};
const DELTA: DeltaShape = DeltaShape {
    key_heads: 16,
    value_heads: 32,
    key_dim: 128,
    value_dim: 128,
};
const TAPS: usize = 4;
const PROMPT: usize = 512;

fn threads() -> usize {
    std::env::var("MET_BENCH_THREADS").map_or(2, |threads| threads.parse().unwrap())
}

/// `rows` rows of `len` tokens, each with a slot of its own.
fn step(ops: &mut CpuOps, rows: usize, len: usize) -> CpuStep {
    let tokens = vec![0; rows * len];
    let rows: Vec<_> = (0..rows)
        .map(|row| StepRow {
            first: row * len,
            len,
            position: 1000,
            blocks: &[],
            state: row as u32,
        })
        .collect();
    ops.begin(&StepRows {
        tokens: &tokens,
        rows: &rows,
    })
    .unwrap()
}

/// Measures an operation on a state of `values` a layer: decodes of 1 and 8 sequences, by the bytes of state that
/// are read and written, and a prompt, by tokens. The operation is given its place, the step, and the tokens.
fn measure(
    c: &mut Criterion,
    name: &str,
    layers: usize,
    values: usize,
    mut run: impl FnMut(&mut CpuOps, Place<'_, State>, &CpuStep),
) {
    let mut ops = CpuOps::new(threads(), Ledger::default()).unwrap();
    let mut group = c.benchmark_group(name);
    for rows in [1, 8] {
        let mut state = ops.alloc_state("bench", rows, layers * values).unwrap();
        let step = step(&mut ops, rows, 1);
        group.throughput(Throughput::Bytes((rows * layers * values * 8) as u64));
        group.bench_function(BenchmarkId::new("decode, all layers", rows), |b| {
            b.iter(|| {
                (0..layers).for_each(|layer| {
                    let state = &mut state;
                    run(
                        &mut ops,
                        Place {
                            state,
                            offset: layer * values,
                        },
                        &step,
                    );
                });
            });
        });
    }
    let mut state = ops.alloc_state("bench", 1, values).unwrap();
    let step = step(&mut ops, 1, PROMPT);
    group.throughput(Throughput::Elements(PROMPT as u64));
    group.bench_function("prompt, one layer", |b| {
        b.iter(|| {
            run(
                &mut ops,
                Place {
                    state: &mut state,
                    offset: 0,
                },
                &step,
            )
        });
    });
}

fn scan(c: &mut Criterion) {
    let mut ops = CpuOps::new(1, Ledger::default()).unwrap();
    let mut random = Random::new(1);
    let xbc = upload(
        &mut ops,
        &random.normals(PROMPT * SCAN.channels()),
        SCAN.channels(),
    );
    let dt = upload(&mut ops, &random.normals(PROMPT * SCAN.heads), SCAN.heads);
    let mut out = zeros(&mut ops, PROMPT, SCAN.heads * SCAN.head_dim);
    let vector = ops.load_vector(&[-1.0; SCAN.heads]).unwrap();
    let weights = ScanWeights {
        shape: SCAN,
        a: &vector,
        d: &vector,
        dt_bias: &vector,
    };
    measure(c, "scan", 28, SCAN.state(), |ops, place, step| {
        ops.scan(&xbc, &dt, &weights, place, step, &mut out).unwrap();
    });
}

fn delta_rule(c: &mut Criterion) {
    let mut ops = CpuOps::new(1, Ledger::default()).unwrap();
    let mut random = Random::new(2);
    let heads = DELTA.value_heads;
    let qkv = upload(
        &mut ops,
        &random.normals(PROMPT * DELTA.channels()),
        DELTA.channels(),
    );
    let [alpha, beta] = [(); 2].map(|()| upload(&mut ops, &random.normals(PROMPT * heads), heads));
    let mut out = zeros(&mut ops, PROMPT, heads * DELTA.value_dim);
    let vector = ops.load_vector(&[-1.0; DELTA.value_heads]).unwrap();
    let weights = DeltaWeights {
        shape: DELTA,
        a: &vector,
        dt_bias: &vector,
    };
    measure(c, "delta rule", 36, DELTA.state(), |ops, place, step| {
        ops.delta_rule(&qkv, &alpha, &beta, &weights, place, step, &mut out)
            .unwrap();
    });
}

fn conv(c: &mut Criterion) {
    for (name, channels) in [
        ("conv of Granite", SCAN.channels()),
        ("conv of Qwen3-Next", DELTA.channels()),
    ] {
        let mut ops = CpuOps::new(1, Ledger::default()).unwrap();
        let mut random = Random::new(3);
        let x = upload(&mut ops, &random.normals(PROMPT * channels), channels);
        let mut out = zeros(&mut ops, PROMPT, channels);
        let weight = ops.load_vector(&random.normals(channels * TAPS)).unwrap();
        measure(c, name, 28, channels * (TAPS - 1), |ops, place, step| {
            ops.conv(&x, &weight, None, TAPS, place, step, &mut out).unwrap();
        });
    }
}

/// The products of one layer's experts, of Q4_K; bytes are those of the chosen experts, elements multiply-adds.
fn experts(c: &mut Criterion) {
    for (name, experts, chosen, cols, outputs) in [
        ("experts of Granite", 62, 6, 1536, 512),
        ("experts of Qwen3-Next", 128, 10, 2048, 512),
    ] {
        let mut ops = CpuOps::new(threads(), Ledger::default()).unwrap();
        let mut random = Random::new(4);
        let source = WeightSource {
            name: name.into(),
            ty: TensorType::Q4_K,
            rows: experts * outputs,
            cols,
            data: vec![0x11; TensorType::Q4_K.bytes_of(experts * outputs * cols).unwrap()].into(),
        };
        let weight = ops.load_weight(&source, &mut |_| Ok(())).unwrap();
        let x = upload(&mut ops, &random.normals(PROMPT * cols), cols);
        let logits = upload(&mut ops, &random.normals(PROMPT * experts), experts);
        let mut routing = zeros(&mut ops, PROMPT, 2 * chosen);
        let mut out = zeros(&mut ops, PROMPT * chosen, outputs);
        let mut sum = zeros(&mut ops, PROMPT, outputs);
        let mut group = c.benchmark_group(name);
        for rows in [1, 8, PROMPT] {
            group.bench_function(BenchmarkId::new("route", rows), |b| {
                b.iter(|| {
                    ops.route(&logits, rows, experts, chosen, true, &mut routing)
                        .unwrap()
                });
            });
            let amount = match rows {
                1 => Throughput::Bytes(source.ty.bytes_of(chosen * outputs * cols).unwrap() as u64),
                _ => Throughput::Elements((rows * chosen * outputs * cols) as u64),
            };
            group.throughput(amount);
            group.bench_function(BenchmarkId::new("products", rows), |b| {
                b.iter(|| {
                    ops.expert_linear(&x, false, rows, &weight, experts, &routing, &mut out)
                        .unwrap();
                });
            });
            group.bench_function(BenchmarkId::new("combine", rows), |b| {
                b.iter(|| ops.combine(&out, &routing, rows, &mut sum).unwrap());
            });
        }
    }
}

criterion_group!(benches, scan, delta_rule, conv, experts);
criterion_main!(benches);
