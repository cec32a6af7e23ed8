//! Damaged files give an error or are harmless; none makes the reader panic, hang or allocate without bound.

use crate::support::{Rng, TempFile, TestHost, Tiny, Value, Writer, spec, step_of_ones};
use met_kernels::{Ledger, reference::Reference};
use met_model::{Checkpoint, LoadedModel, fuzz};
use std::{cell::RefCell, rc::Rc};

fn smallest() -> Writer {
    let mut w = Tiny {
        layers: 1,
        width: 8,
        ffn: 8,
        heads: 2,
        kv_heads: 1,
        vocab: 5,
        context: 16,
        rope_freqs: true,
        biases: true,
        ..Tiny::default()
    }
    .writer();
    w.set("tokenizer.ggml.tokens", Value::Texts(vec!["a".into(); 5]))
        .set("tokenizer.ggml.token_type", Value::I32s(vec![1; 5]))
        .set("nested", Value::Nested(vec![vec![1], vec![]]))
        .set("flag", Value::Bool(true))
        .set("llama.rope.freq_base", Value::F32(1e4))
        .set("llama.rope.scaling.type", Value::Text("yarn".into()))
        .set("llama.rope.scaling.factor", Value::F32(4.0));
    w
}

#[test]
fn a_file_cut_short_anywhere_is_an_error() {
    let whole = smallest().bytes();
    Checkpoint::from_bytes(whole.clone()).unwrap();
    for len in 0..whole.len() {
        let e = Checkpoint::from_bytes(whole[..len].to_vec()).expect_err("something is missing");
        assert!(!e.message.is_empty());
    }
}

#[test]
fn every_byte_and_field_can_be_wrong() {
    let (whole, header) = (smallest().bytes(), smallest().header().len());
    let mut loadable = 0;
    let try_patch = |at: usize, patch: &[u8]| {
        let mut bytes = whole.clone();
        let end = (at + patch.len()).min(bytes.len());
        bytes[at..end].copy_from_slice(&patch[..end - at]);
        fuzz::checkpoint(&bytes);
        bytes
    };
    for at in 0..header {
        for word in [
            0u64,
            1,
            2,
            9,
            31,
            1 << 31,
            1 << 32,
            1 << 61,
            1 << 63,
            !0,
            !0 - 8,
            whole.len() as u64,
        ] {
            try_patch(at, &word.to_le_bytes());
            try_patch(at, &(word as u32).to_le_bytes());
        }
        for bit in 0..8 {
            let bytes = try_patch(at, &[whole[at] ^ 1 << bit]);
            if bit == 0 {
                loadable += u32::from(loads_and_runs(&bytes));
            }
        }
    }
    // Letters of names nobody reads, and numbers that are as good as the true ones.
    assert!(loadable > 10, "{loadable}");
}

/// Whether the file loads; then a step runs, too.
fn loads_and_runs(bytes: &[u8]) -> bool {
    if Checkpoint::from_bytes(bytes.to_vec()).is_err() {
        return false;
    }
    let file = TempFile::new(bytes);
    let ledger = Ledger::default();
    let ops = Rc::new(RefCell::new(Reference::new(ledger.clone())));
    let mut spec = spec(file.path());
    spec.kv_bytes = 1 << 16;
    spec.max_batch_tokens = 8;
    match LoadedModel::load(ops, &TestHost::quiet(), &spec, || u64::MAX) {
        Ok(mut model) => {
            step_of_ones(&mut model);
            true
        }
        Err(_) => {
            assert_eq!(ledger.total(), (0, 0));
            false
        }
    }
}

#[test]
fn random_damage_is_survived() {
    let whole = smallest().bytes();
    let mut rng = Rng(11);
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + rng.next() % 4 {
            let at = rng.next() as usize % bytes.len();
            match rng.next() % 4 {
                0 => bytes.truncate(at.max(1)),
                1 => bytes[at] = rng.next() as u8,
                2 => {
                    let from = rng.next() as usize % bytes.len();
                    let len = (rng.next() as usize % 32).min(bytes.len() - at.max(from));
                    bytes.copy_within(from..from + len, at);
                }
                _ => bytes.insert(at, rng.next() as u8),
            }
        }
        fuzz::checkpoint(&bytes);
    }
}
