//! Arithmetic and conversions, each against plain Rust on the same input.

mod support;

use half::{bf16, f16};
use support::{Numbers, Sim};

const PTX: &str = include_str!("ptx/numbers.ptx");

/// Runs an elementwise kernel on two inputs.
fn run<I: Copy, O: Copy + Default>(name: &str, x: &[I], y: &[I]) -> Vec<O> {
    let sim = Sim::new();
    let (dx, dy, dz) = (sim.upload(x), sim.upload(y), sim.alloc(x.len() * size_of::<O>()));
    let (function, n) = (sim.function(PTX, name), x.len() as i32);
    sim.launch(
        function,
        (x.len() as u32).div_ceil(96),
        96,
        0,
        &[&dx, &dy, &dz, &n],
    )
    .unwrap_or_else(|code| panic!("{name}: {code:?} {}", support::last_error()));
    sim.download(dz, x.len())
}

fn exact<I: Copy, O: Copy + Default + PartialEq + std::fmt::Debug>(
    name: &str,
    (x, y): (&[I], &[I]),
    rule: impl Fn(I, I) -> O,
) {
    let expected: Vec<O> = x.iter().zip(y).map(|(a, b)| rule(*a, *b)).collect();
    assert_eq!(run::<I, O>(name, x, y), expected, "{name}");
}

fn close(name: &str, (x, y): (&[f32], &[f32]), tolerance: f32, rule: impl Fn(f32, f32) -> f64) {
    for ((a, b), got) in x.iter().zip(y).zip(run::<f32, f32>(name, x, y)) {
        let expected = rule(*a, *b);
        let error = (got as f64 - expected).abs() / expected.abs().max(1.0);
        assert!(
            error <= tolerance as f64,
            "{name}({a}, {b}) = {got}, expected {expected}"
        );
    }
}

fn words(seed: u64) -> (Vec<u32>, Vec<u32>) {
    let mut numbers = Numbers(seed);
    let edges = [
        0,
        1,
        2,
        31,
        32,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x8000_0001,
        0x00ff_00ff,
    ];
    let mut x: Vec<u32> = edges.iter().flat_map(|edge| [*edge; 10]).collect();
    let mut y: Vec<u32> = (0..10).flat_map(|_| edges).collect();
    for _ in 0..400 {
        let shift = numbers.next() % 32;
        x.push(numbers.next().rotate_left(7) >> shift);
        y.push(numbers.next().rotate_left(11) >> (numbers.next() % 32));
    }
    (x, y)
}

fn floats(seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut numbers = Numbers(seed);
    (0..500).map(|_| (numbers.float(), numbers.float())).unzip()
}

/// Floats with infinities, zeros of both signs, subnormals and what is no number.
fn special_floats() -> (Vec<f32>, Vec<f32>) {
    let edges = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e-40,
        -1e-40,
        65504.0,
        65520.0,
        1e-7,
    ];
    let x = edges.iter().flat_map(|edge| [*edge; 12]).collect();
    (x, (0..12).flat_map(|_| edges).collect())
}

#[test]
fn integers_of_32_bits() {
    let (x, y) = words(1);
    exact("u32_mix", (&x, &y), |a: u32, b: u32| {
        let high = ((a as u64 * b as u64) >> 32) as u32;
        (a / (b | 1))
            ^ (a % (b | 1))
                .wrapping_add(high)
                .wrapping_add(a.min(b))
                .wrapping_sub(a.max(b))
    });
    let (x, y): (Vec<i32>, Vec<i32>) = (
        x.iter().map(|v| *v as i32).collect(),
        y.iter().map(|v| *v as i32).collect(),
    );
    exact("s32_mix", (&x, &y), |a: i32, b: i32| {
        let high = ((a as i64 * b as i64) >> 32) as i32;
        let sum = a
            .wrapping_rem(b | 1)
            .wrapping_add(high)
            .wrapping_add(a.min(b))
            .wrapping_sub(a.max(b));
        a.wrapping_div(b | 1) ^ sum.wrapping_add((a >> 3).wrapping_abs())
    });
}

#[test]
fn integers_of_64_bits() {
    let ((x, y), (z, t)) = (words(2), words(3));
    let join = |high: &[u32], low: &[u32]| -> Vec<i64> {
        high.iter()
            .zip(low)
            .map(|(h, l)| ((*h as u64) << 32 | *l as u64) as i64)
            .collect()
    };
    let (x, y) = (join(&x, &z), join(&t, &y));
    exact("s64_mix", (&x, &y), |a: i64, b: i64| {
        let sum = a.wrapping_rem(b | 1).wrapping_add((a >> 7).wrapping_mul(b));
        a.wrapping_div(b | 1) ^ sum.wrapping_add(a.min(b)).wrapping_add(a.max(b))
    });
    let (x, y): (Vec<u64>, Vec<u64>) = (
        x.iter().map(|v| *v as u64).collect(),
        y.iter().map(|v| *v as u64).collect(),
    );
    exact("bits64", (&x, &y), |a: u64, b: u64| {
        let counts = a.count_ones() as u64 + b.leading_zeros() as u64 * 64;
        counts
            .wrapping_add(a.reverse_bits() >> 3)
            .wrapping_add(a << (b & 63))
    });
}

#[test]
fn bit_operations() {
    let (x, y) = words(4);
    exact("bits", (&x, &y), |a: u32, b: u32| {
        let first = if a == 0 { 0 } else { a.trailing_zeros() + 1 };
        let bytes = (b as u64) << 32 | a as u64;
        let pick = |selector: u64| (bytes >> (8 * selector)) as u32 & 0xff;
        let permuted = pick(5) | pick(1) << 8 | pick(7) << 16 | pick(3) << 24;
        let funnel = ((b as u64) << 32 | a as u64) << (b & 31) >> 32;
        let counts = a.count_ones() + b.leading_zeros() * 64 + first * 4096;
        counts
            .wrapping_add(a.reverse_bits() ^ permuted)
            .wrapping_add(funnel as u32)
    });
    exact("logic3", (&x, &y), |a: u32, b: u32| {
        ((a & !b) | (b ^ (a >> 7))) & !a.wrapping_mul(5)
    });
    exact("dots", (&x, &y), |a: u32, b: u32| {
        let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
        let signed: i32 = (0..4).map(|i| a[i] as i8 as i32 * b[i] as i8 as i32).sum();
        let unsigned: i32 = (0..4).map(|i| a[i] as i32 * b[i] as i32).sum();
        signed + 7 + unsigned + 9
    });
}

#[test]
fn floats_rounded_once_are_exact() {
    for (x, y) in [floats(5), special_floats()] {
        let bits = |name, rule: fn(f32, f32) -> f32| {
            for ((a, b), got) in x.iter().zip(&y).zip(run::<f32, f32>(name, &x, &y)) {
                let expected = rule(*a, *b);
                let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
                assert!(same, "{name}({a}, {b}) = {got}, expected {expected}");
            }
        };
        bits("rounding", |a, b| {
            // The compiler contracts the products into the sums.
            let sum = (b * 9.0).floor().mul_add(100.0, (a * 9.0).round_ties_even());
            (a * 7.0).ceil().mul_add(10000.0, sum) + (b * 5.0).trunc()
        });
        bits("limits", |a, b| {
            (b.max(a).mul_add(3.0, a.min(b)) + a.abs()) - b.abs().sqrt() + a / b
        });
    }
    let (x, y) = special_floats();
    exact("compare", (&x, &y), |a: f32, b: f32| {
        (a < b) as u32
            | ((a <= b) as u32) << 1
            | ((a > b) as u32) << 2
            | ((a >= b) as u32) << 3
            | ((a == b) as u32) << 4
            | ((a != b) as u32) << 5
            | ((a.is_nan() || b.is_nan()) as u32) << 6
    });
}

#[test]
fn approximate_functions() {
    let (x, y) = floats(6);
    close("logistic", (&x, &y), 1e-5, |a, b| {
        let (a, b) = (a as f64, b as f64);
        1.0 / (1.0 + (-a).exp()) + (b.abs() + 1.0).ln() + 1.0 / (a.abs() + 0.5).sqrt()
    });
    close("angles", (&x, &y), 1e-5, |a, b| {
        (a as f64).sin() + (b as f64).cos() * 2.0
    });
    // The sine of a large angle goes over the compiler's own reduction, with a table in constant memory.
    close("precise", (&x, &y), 1e-5, |a, b| {
        ((a * 1e5) as f64).sin() + (b as f64).exp() + (a.abs() as f64).powf(b as f64) + (b as f64).tanh()
    });
}

#[test]
fn doubles() {
    let (x, y) = floats(7);
    let (x, y): (Vec<f64>, Vec<f64>) = (
        x.iter().map(|v| *v as f64 * 1e3).collect(),
        y.iter().map(|v| *v as f64).collect(),
    );
    exact("doubles", (&x, &y), |a: f64, b: f64| {
        a.mul_add(b, a / (b.abs() + 1.0)) - a.abs().sqrt() + b.floor()
    });
}

#[test]
fn conversions_between_floats_and_integers() {
    let (x, y) = floats(8);
    exact("quantise", (&x, &y), |a: f32, b: f32| {
        let byte = (a * 127.0).round_ties_even() as i32 as i8 as i32;
        byte + ((b.mul_add(100.0, 100.0) as u8 as i32) << 8)
    });
    let (x, y) = words(9);
    let (x, y): (Vec<i32>, Vec<i32>) = (
        x.iter().map(|v| *v as i32).collect(),
        y.iter().map(|v| *v as i32).collect(),
    );
    exact("widths", (&x, &y), |a: i32, b: i32| {
        let sum = a as i8 as i64 * 3 + b as u8 as i64 + a as i16 as i64 * 5 + b as u16 as i64 * 7;
        sum + a as u32 as i64
    });
}

#[test]
fn sixteen_bit_floats() {
    let mut numbers = Numbers(10);
    let every: Vec<u16> = (0..=u16::MAX).collect();
    // Every value there is, exactly.
    for (bits, got) in every
        .iter()
        .zip(run::<u16, f32>("from_half", &every, &vec![0; 65536]))
    {
        let expected = f16::from_bits(*bits).to_f32();
        assert!(
            got == expected || (got.is_nan() && expected.is_nan()),
            "{bits:#x}: {got} {expected}"
        );
    }
    // All of f16's steps and halves of steps, and values beyond its range.
    let mut x: Vec<f32> = every.iter().map(|bits| f16::from_bits(*bits).to_f32()).collect();
    let between: Vec<f32> = x.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
    x.extend(between);
    x.extend([65519.0, 65520.0, -1e9, f32::MIN_POSITIVE, 1e-30, 2.98e-8, 2.99e-8]);
    x.extend((0..2000).map(|_| f32::from_bits(numbers.next() << 1 | numbers.next() & 1)));
    let zeros = vec![0f32; x.len()];
    for (value, got) in x.iter().zip(run::<f32, u16>("to_half", &x, &zeros)) {
        let expected = f16::from_f32(*value);
        assert!(
            got == expected.to_bits() || (f16::from_bits(got).is_nan() && expected.is_nan()),
            "{value} {got:#x}"
        );
    }
    for (value, got) in x.iter().zip(run::<f32, u16>("to_brain", &x, &zeros)) {
        let expected = bf16::from_f32(*value);
        assert!(
            got == expected.to_bits() || (bf16::from_bits(got).is_nan() && expected.is_nan()),
            "{value} {got:#x}"
        );
    }
    let (x, y) = floats(11);
    exact("half_math", (&x, &y), |a: f32, b: f32| {
        let (a, b) = (f16::from_f32(a).to_f64(), f16::from_f32(b).to_f64());
        f16::from_f64(a * b + 0.25).to_f32() + f16::from_f64(a + b).to_f32()
    });
}

#[test]
fn pairs_of_sixteen_bit_floats() {
    let sim = Sim::new();
    let mut numbers = Numbers(12);
    let pair = |low: f16, high: f16| low.to_bits() as u32 | (high.to_bits() as u32) << 16;
    let values: Vec<[f16; 4]> = (0..300)
        .map(|_| std::array::from_fn(|_| f16::from_f32(numbers.float() * 8.0)))
        .collect();
    let x: Vec<u32> = values.iter().map(|v| pair(v[0], v[1])).collect();
    let y: Vec<u32> = values.iter().map(|v| pair(v[2], v[3])).collect();
    let (dx, dy) = (sim.upload(&x), sim.upload(&y));
    let [sum, product, fused] = std::array::from_fn(|_| sim.alloc(1200));
    let function = sim.function(PTX, "half_pairs");
    sim.launch(function, 3, 128, 0, &[&dx, &dy, &sum, &product, &fused, &300i32])
        .unwrap();
    let rule = |f: fn(f64, f64) -> f64| -> Vec<u32> {
        let one = |a: f16, b: f16| f16::from_f64(f(a.to_f64(), b.to_f64()));
        values
            .iter()
            .map(|v| pair(one(v[0], v[2]), one(v[1], v[3])))
            .collect()
    };
    assert_eq!(sim.download::<u32>(sum, 300), rule(|a, b| a + b));
    assert_eq!(sim.download::<u32>(product, 300), rule(|a, b| a * b));
    assert_eq!(sim.download::<u32>(fused, 300), rule(|a, b| a * b + a));

    let pair = |low: bf16, high: bf16| low.to_bits() as u32 | (high.to_bits() as u32) << 16;
    let values: Vec<[bf16; 4]> = (0..300)
        .map(|_| std::array::from_fn(|_| bf16::from_f32(numbers.float() * 8.0)))
        .collect();
    let x: Vec<u32> = values.iter().map(|v| pair(v[0], v[1])).collect();
    let y: Vec<u32> = values.iter().map(|v| pair(v[2], v[3])).collect();
    let (dx, dy) = (sim.upload(&x), sim.upload(&y));
    sim.launch(
        sim.function(PTX, "brain_pairs"),
        3,
        128,
        0,
        &[&dx, &dy, &fused, &300i32],
    )
    .unwrap();
    let one = |a: bf16, b: bf16| bf16::from_f64(a.to_f64() * b.to_f64() + a.to_f64());
    let expected: Vec<u32> = values
        .iter()
        .map(|v| pair(one(v[0], v[2]), one(v[1], v[3])))
        .collect();
    assert_eq!(sim.download::<u32>(fused, 300), expected);
}
