//! What choosing a token costs, on a row of 49,152 logits.

use criterion::{Criterion, criterion_group, criterion_main};
use met_kernels::sample::{Adjustments, Params, Row, Sampler};
use std::hint::black_box;

const GREEDY: Params = Params {
    seed: 1,
    sequence: 0,
    temperature: 0.0,
    top_p: 1.0,
    min_p: 0.0,
    top_k: 0,
    repetition_penalty: 1.0,
    presence_penalty: 0.0,
    frequency_penalty: 0.0,
};

fn bench(c: &mut Criterion) {
    let logits: Vec<f32> = (0..49_152u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 22) as f32 * 4.0 - 8.0)
        .collect();
    let warm = Params {
        temperature: 0.8,
        ..GREEDY
    };
    let mut sampler = Sampler::default();
    let mut group = c.benchmark_group("sample");
    group.bench_function("row", |b| b.iter(|| Row::new(black_box(&logits))));
    for (name, params) in [
        ("greedy", GREEDY),
        ("temperature", warm),
        ("top_p 0.9", Params { top_p: 0.9, ..warm }),
        ("top_k 40", Params { top_k: 40, ..warm }),
        ("min_p 0.05", Params { min_p: 0.05, ..warm }),
    ] {
        let mut position = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                position += 1;
                let adjustments = Adjustments {
                    counts: [].into_iter(),
                    bias: [].into_iter(),
                    mask: &[],
                };
                Row::new(black_box(&logits)).map(|row| sampler.sample(&row, &params, position, adjustments))
            })
        });
    }
    let row = Row::new(&logits);
    group.bench_function("top 20", |b| {
        b.iter(|| black_box(&row).as_ref().map(|row| row.top(20)))
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
