//! The forward pass: the CPU's against the plain reference, and against itself in other batches.

use crate::support::{Sequence, Tiny, Value, all_logits, load};
use met_backend_api::{Sampling, Want};
use met_kernels::{Ledger, Ops, TensorType, cpu::CpuOps, reference::Reference};
use met_model::LoadedModel;

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * i + 3 * i + 1) % 97).collect()
}

fn cpu(tiny: &Tiny, threads: usize) -> LoadedModel<CpuOps> {
    cpu_of(tiny.file().path(), threads)
}

pub fn cpu_of(path: &str, threads: usize) -> LoadedModel<CpuOps> {
    load(CpuOps::new(threads, Ledger::default()).unwrap(), path)
}

/// Root of the mean square difference, relative to the spread of the reference.
pub fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let pairs = || a.iter().flatten().zip(b.iter().flatten());
    let (error, spread) = pairs().fold((0.0, 0.0), |(e, s), (x, y)| (e + square(x - y), s + square(*y)));
    (error / spread).sqrt()
}

fn logits_of<O: Ops + 'static>(model: &mut LoadedModel<O>, tokens: &[u32]) -> Vec<Vec<f32>> {
    all_logits(model, &[Sequence::new(tokens, 0, &[2, 0, 1], Want::AllLogits)]).1
}

fn compare(tiny: &Tiny, bound: f64) {
    let tokens = prompt(40);
    let mut reference = load(Reference::new(Ledger::default()), tiny.file().path());
    let expected = logits_of(&mut reference, &tokens);
    let got = logits_of(&mut cpu(tiny, 2), &tokens);
    let distance = distance(&got, &expected);
    assert!(distance < bound, "{}: {distance}", tiny.ty.name());
    assert!(
        expected.iter().flatten().any(|x| x.abs() > 0.5),
        "the model says something"
    );
}

#[test]
fn every_weight_type_agrees_with_the_reference() {
    for ty in TensorType::ALL {
        // Float weights keep f32 activations; for the others activations are rounded to 8 bits.
        let bound = match ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => 2e-3,
            _ => 3e-2,
        };
        compare(&Tiny::of(ty), bound);
    }
}

#[test]
fn every_variant_agrees_with_the_reference() {
    let scaling = |kind: &str| {
        vec![
            ("llama.rope.scaling.type".to_owned(), Value::Text(kind.into())),
            ("llama.rope.scaling.factor".to_owned(), Value::F32(4.0)),
            (
                "llama.rope.scaling.original_context_length".to_owned(),
                Value::U32(64),
            ),
        ]
    };
    for tiny in [
        Tiny {
            tied: false,
            ..Tiny::default()
        },
        Tiny {
            biases: true,
            ..Tiny::default()
        },
        Tiny {
            rope_freqs: true,
            ..Tiny::default()
        },
        Tiny {
            kv_heads: 4,
            ..Tiny::default()
        },
        Tiny {
            kv_heads: 1,
            ..Tiny::default()
        },
        Tiny {
            extra: scaling("linear"),
            ..Tiny::default()
        },
        Tiny {
            extra: scaling("yarn"),
            ..Tiny::default()
        },
        Tiny {
            extra: vec![("llama.rope.dimension_count".into(), Value::U32(32))],
            ..Tiny::default()
        },
        Tiny {
            extra: vec![("llama.attention.sliding_window".into(), Value::U32(8))],
            ..Tiny::default()
        },
    ] {
        compare(&tiny, 2e-3);
    }
}

#[test]
fn each_variant_matters() {
    let tokens = prompt(40);
    let logits = |tiny: &Tiny| logits_of(&mut cpu(tiny, 1), &tokens);
    let plain = logits(&Tiny::default());
    let with = |key: &str, value: Value| Tiny {
        extra: vec![(key.to_owned(), value)],
        ..Tiny::default()
    };
    for other in [
        Tiny {
            rope_freqs: true,
            ..Tiny::default()
        },
        with("llama.rope.scale_linear", Value::F32(4.0)),
        with("llama.rope.freq_base", Value::F32(500_000.0)),
        with("llama.attention.sliding_window", Value::U32(8)),
        with("llama.rope.dimension_count", Value::U32(32)),
    ] {
        assert!(distance(&logits(&other), &plain) > 1e-3);
    }
}

#[test]
fn chunks_and_single_tokens_give_the_same_bits_as_the_whole_prompt() {
    for ty in [
        TensorType::F32,
        TensorType::Q4_1,
        TensorType::Q4_K,
        TensorType::Q8_0,
    ] {
        let tiny = Tiny::of(ty);
        let tokens = prompt(70);
        let whole = logits_of(&mut cpu(&tiny, 2), &tokens);
        for chunk in [1, 7, 32, 69] {
            let mut model = cpu(&tiny, 2);
            let mut parts = Vec::new();
            for (tokens, position) in tokens.chunks(chunk).zip((0..).step_by(chunk)) {
                let sequence = Sequence::new(tokens, position, &[2, 0, 1], Want::AllLogits);
                parts.extend(all_logits(&mut model, &[sequence]).1);
            }
            assert!(parts == whole, "{} in chunks of {chunk}", ty.name());
        }
    }
}

#[test]
fn the_same_token_is_drawn_however_the_prompt_was_cut() {
    let tokens = prompt(40);
    let row = |range: std::ops::Range<usize>, seed, want| {
        let mut row = Sequence::new(&tokens[range.clone()], range.start as u32, &[0, 1], want);
        row.sampling = Sampling {
            temperature: 3.0,
            seed,
            ..Sampling::default()
        };
        row
    };
    let mut model = cpu(&Tiny::default(), 1);
    let mut drawn = std::collections::BTreeSet::new();
    for seed in 0..10 {
        let (whole, _) = all_logits(&mut model, &[row(0..40, seed, Want::Token)]);
        all_logits(&mut model, &[row(0..33, seed, Want::Nothing)]);
        let (cut, _) = all_logits(&mut model, &[row(33..40, seed, Want::Token)]);
        assert_eq!(whole, cut);
        drawn.insert(whole[0].sampled.token);
    }
    assert!(drawn.len() > 5, "the draws differ from one another");
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let tokens = prompt(50);
    let one = logits_of(&mut cpu(&Tiny::of(TensorType::Q4_1), 1), &tokens);
    assert!(logits_of(&mut cpu(&Tiny::of(TensorType::Q4_1), 3), &tokens) == one);
}

#[test]
fn a_row_gives_the_same_alone_and_among_others() {
    let tiny = Tiny::of(TensorType::Q4_1);
    let sampling = Sampling {
        temperature: 1.0,
        seed: 5,
        ..Sampling::default()
    };
    let rows: Vec<Sequence> = (0..8u32)
        .map(|i| {
            let want = [Want::Token, Want::Logits, Want::AllLogits, Want::Nothing][i as usize % 4];
            let mut row = Sequence::new(&prompt(3 + i as usize)[..], 0, &[i], want);
            row.sampling = Sampling {
                sequence: u64::from(i),
                ..sampling
            };
            row
        })
        .collect();
    let (together, logits) = all_logits(&mut cpu(&tiny, 2), &rows);
    let mut logits = logits.into_iter();
    for (row, together) in rows.iter().zip(together) {
        let (alone, expected) = all_logits(&mut cpu(&tiny, 1), std::slice::from_ref(row));
        assert_eq!(alone, [together]);
        for expected in expected {
            assert!(logits.next().unwrap() == expected);
        }
    }
    assert_eq!(logits.next(), None);
}

#[test]
fn rows_of_which_no_logits_are_wanted_still_fill_the_cache() {
    let mut model = cpu(&Tiny::default(), 1);
    let tokens = prompt(33);
    let whole = logits_of(&mut cpu(&Tiny::default(), 1), &tokens);
    let first = Sequence::new(&tokens[..32], 0, &[4, 3], Want::Nothing);
    assert!(all_logits(&mut model, &[first]).1.is_empty());
    let last = Sequence::new(&tokens[32..], 32, &[4, 3], Want::Logits);
    assert!(all_logits(&mut model, &[last]).1[0] == whole[32]);
}
