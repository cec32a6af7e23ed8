//! Each architecture against transformers, on the models that `tests/oracle/make_architectures.py` makes: as a Hugging
//! Face folder and as GGUF.

use crate::{
    forward::cpu_of,
    support::{Sequence, all_logits, load},
};
use met_backend_api::{NO_SLOT, Want, sdk::BackendModel};
use met_kernels::{Ledger, Ops, cpu::CpuOps, reference::Reference};
use met_model::LoadedModel;
use serde_json::Value;
use std::path::{Path, PathBuf};

const NAMES: [&str; 12] = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "qwen2_moe",
    "qwen3_moe",
    "granite",
    "granitemoehybrid",
    "granitemoehybrid-experts",
    "qwen3_next",
];
const BLOCKS: [u32; 4] = [3, 0, 2, 1];

struct Expected {
    name: &'static str,
    /// The folder, and the GGUF file where there is one.
    paths: Vec<PathBuf>,
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
    prompt: usize,
    greedy: Vec<u32>,
}

pub fn fixtures() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/architectures"
    ))
}

fn expected() -> Vec<Expected> {
    NAMES.iter().map(|name| Expected::read(name)).collect()
}

impl Expected {
    fn read(name: &'static str) -> Self {
        let folder = fixtures().join(name);
        let json = std::fs::read_to_string(folder.join("expected.json")).unwrap();
        let json: Value = serde_json::from_str(&json).unwrap();
        let tokens = |key: &str| serde_json::from_value::<Vec<u32>>(json[key].clone()).unwrap();
        let bytes = std::fs::read(folder.join("logits.f32")).unwrap();
        let values: Vec<f32> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        let vocab = json["vocab"].as_u64().unwrap() as usize;
        let gguf = fixtures().join(format!("{name}.gguf"));
        let paths = [folder, gguf].into_iter().filter(|path| path.exists());
        Self {
            name,
            paths: paths.collect(),
            tokens: tokens("tokens"),
            logits: values.chunks(vocab).map(<[f32]>::to_vec).collect(),
            prompt: json["prompt"].as_u64().unwrap() as usize,
            greedy: tokens("greedy"),
        }
    }

    /// The largest difference of a logit, and the mean Kullback-Leibler divergence in nats, from the file at `path`.
    fn compare<O: Ops + 'static>(&self, path: &Path, model: &mut LoadedModel<O>) -> (f32, f64) {
        let slot = any_slot(model);
        let (_, got) = all_logits(model, &[part(&self.tokens, 0, slot, Want::AllLogits)]);
        assert_eq!(got.len(), self.logits.len());
        let pairs = || got.iter().zip(&self.logits);
        let off = pairs().flat_map(|(a, b)| a.iter().zip(b).map(|(a, b)| (a - b).abs()));
        let off = off.fold(0.0, f32::max);
        let kl = pairs().map(|(a, b)| divergence(b, a)).sum::<f64>() / got.len() as f64;
        eprintln!("{}: {off:.2e} at most, KL {kl:.2e}", path.display());
        (off, kl)
    }
}

fn divergence(of: &[f32], from: &[f32]) -> f64 {
    let log_softmax = |x: &[f32]| -> Vec<f64> {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = x.iter().map(|x| f64::from(x - max).exp()).sum();
        x.iter().map(|x| f64::from(x - max) - sum.ln()).collect()
    };
    let (p, q) = (log_softmax(of), log_softmax(from));
    p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// A slot where the model has recurrent state.
fn any_slot<O: Ops + 'static>(model: &LoadedModel<O>) -> u32 {
    match model.info().unwrap().state_slots {
        0 => NO_SLOT,
        slots => slots - 1,
    }
}

fn part(tokens: &[u32], position: usize, slot: u32, want: Want) -> Sequence {
    Sequence::new(tokens, position as u32, &BLOCKS, want).in_slot(slot)
}

/// The token after `tokens`, which begin at `position`.
fn next(model: &mut LoadedModel<CpuOps>, tokens: &[u32], position: usize, slot: u32) -> u32 {
    let (rows, _) = all_logits(model, &[part(tokens, position, slot, Want::Token)]);
    rows[0].sampled.token
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_reference_gives_the_logits_of_transformers() {
    for expected in expected() {
        for path in &expected.paths {
            let ops = Reference::with_exact_kv(Ledger::default());
            let (off, kl) = expected.compare(path, &mut load(ops, text(path)));
            assert!(off < 5e-4 && kl < 1e-9, "{}: {off:e}, {kl:e}", path.display());
        }
    }
}

#[test]
fn the_cpu_gives_the_logits_of_transformers() {
    for expected in expected() {
        for path in &expected.paths {
            let (off, kl) = expected.compare(path, &mut cpu_of(text(path), 2));
            // Keys and values are rounded to f16.
            assert!(off < 1e-1 && kl < 2e-5, "{}: {off:e}, {kl:e}", path.display());
        }
    }
}

#[test]
fn the_cpu_takes_the_tokens_that_transformers_takes() {
    for expected in expected() {
        for path in &expected.paths {
            let mut model = cpu_of(text(path), 2);
            let slot = any_slot(&model);
            let (mut tokens, mut made) = (expected.tokens[..expected.prompt].to_vec(), Vec::new());
            let mut position = 0;
            while made.len() < expected.greedy.len() {
                made.push(next(&mut model, &tokens, position, slot));
                position += tokens.len();
                tokens = vec![made[made.len() - 1]];
            }
            assert_eq!(made, expected.greedy, "{}", path.display());
            assert_eq!(made.len(), 64, "{}", expected.name);
        }
    }
}

/// How a sequence is taken from one slot to another.
#[derive(Clone, Copy, Debug)]
enum Move {
    Snapshot,
    HostMemory,
}

#[test]
fn a_sequence_that_moves_takes_the_tokens_of_transformers() {
    for expected in expected() {
        for path in &expected.paths {
            let mut model = cpu_of(text(path), 2);
            let info = model.info().unwrap();
            if info.state_slots == 0 {
                continue;
            }
            let (prompt, mut made) = (&expected.tokens[..expected.prompt], Vec::new());
            // In chunks, at whose end it moves.
            let (first, rest) = prompt.split_at(9);
            all_logits(&mut model, &[part(first, 0, 2, Want::Nothing)]);
            move_slot(&mut model, first.len(), 2, 5, Move::HostMemory);
            made.push(next(&mut model, rest, first.len(), 5));
            let mut slot = 5;
            while made.len() < expected.greedy.len() {
                let position = prompt.len() + made.len() - 1;
                let moved = match position {
                    // A block's border, and within one.
                    32 | 64 => Some((slot + 1, Move::Snapshot)),
                    41 => Some((slot - 3, Move::HostMemory)),
                    _ => None,
                };
                if let Some((to, how)) = moved {
                    move_slot(&mut model, position, slot, to, how);
                    slot = to;
                }
                made.push(next(&mut model, &made[made.len() - 1..], position, slot));
            }
            assert_eq!(made, expected.greedy, "{}", path.display());
        }
    }
}

/// Takes a sequence at `position` to another slot, and lets others use both slots meanwhile.
fn move_slot(model: &mut LoadedModel<CpuOps>, position: usize, from: u32, to: u32, how: Move) {
    let info = model.info().unwrap();
    let disturb = |model: &mut LoadedModel<CpuOps>| {
        // In the last of the blocks there are, which the sequence doesn't use.
        let block = info.block_count - 1;
        for slot in [from, to] {
            let other = Sequence::new(&[7, 3, 11], 0, &[block], Want::Nothing).in_slot(slot);
            all_logits(model, &[other]);
            model.free_state(slot).unwrap();
        }
    };
    match how {
        Move::Snapshot => {
            let snapshot = info.snapshot_slots - 1;
            model.take_snapshot(from, snapshot).unwrap();
            disturb(model);
            model.use_snapshot(snapshot, to).unwrap();
        }
        Move::HostMemory => {
            let mut state = vec![0; info.state_bytes as usize];
            model.save_state(from, &mut state).unwrap();
            disturb(model);
            model.restore_state(to, position as u32, &state).unwrap();
        }
    }
}

#[test]
fn a_prompt_in_chunks_gives_the_same_bits_as_at_once() {
    for expected in expected() {
        let path = text(&expected.paths[0]);
        let mut model = cpu_of(path, 2);
        let slot = any_slot(&model);
        let whole = part(&expected.tokens, 0, slot, Want::AllLogits);
        let (_, whole) = all_logits(&mut model, &[whole]);
        for size in [1, 7, 13] {
            let (mut model, mut parts) = (cpu_of(path, 1), Vec::new());
            for (tokens, position) in expected.tokens.chunks(size).zip((0..).step_by(size)) {
                let chunk = part(tokens, position, slot, Want::AllLogits);
                parts.extend(all_logits(&mut model, &[chunk]).1);
            }
            assert!(parts == whole, "{} in chunks of {size}", expected.name);
        }
    }
}
