//! Weights that are quantised while they are read.

use crate::{
    architectures::fixtures,
    forward::distance,
    support::{Sequence, TempFile, TestHost, Tiny, all_logits, spec},
};
use met_backend_api::{ModelInfo, Want, sdk::BackendModel};
use met_kernels::{ErrorKind, Ledger, TensorType, cpu::CpuOps, formats};
use met_model::{LoadedModel, Result};
use std::{cell::RefCell, rc::Rc};

fn try_load(path: &str, quantize: &str, ledger: &Ledger) -> Result<LoadedModel<CpuOps>> {
    let ops = Rc::new(RefCell::new(CpuOps::new(2, ledger.clone()).unwrap()));
    let mut spec = spec(path);
    spec.quantize = quantize.into();
    LoadedModel::load(ops, &TestHost::quiet(), &spec, || u64::MAX)
}

/// What a load says of itself, the logits of a prompt, and the bytes of its weights.
fn load(path: &str, quantize: &str) -> (ModelInfo, Vec<Vec<f32>>, u64) {
    let ledger = Ledger::default();
    let mut model = try_load(path, quantize, &ledger).unwrap();
    let info = model.info().unwrap();
    let tokens: Vec<u32> = (0..40).map(|i| (i * i + 3 * i + 1) % 96).collect();
    let slot = info.state_slots.checked_sub(1).unwrap_or(u32::MAX);
    let sequence = Sequence::new(&tokens, 0, &[1, 0], Want::AllLogits).in_slot(slot);
    let logits = all_logits(&mut model, &[sequence]).1;
    let bytes = ledger.owned_by("weight store").0 + ledger.owned_by("derived weights").0;
    (info, logits, bytes)
}

#[test]
fn matrices_of_floats_become_what_is_asked_for() {
    for ty in [TensorType::F32, TensorType::F16, TensorType::BF16] {
        let file = Tiny::of(ty).file();
        let (plain, expected, whole) = load(file.path(), "");
        for (asked, name, bits, bound) in [("q8_0", "Q8_0", 9.0, 2e-2), ("Q4_K", "Q4_K", 5.5, 0.4)] {
            let (info, logits, bytes) = load(file.path(), asked);
            let (off, parameters) = (distance(&logits, &expected), info.parameters as f64);
            assert!(off > 1e-4 && off < bound, "{} as {name}: {off}", ty.name());
            assert_eq!(info.quantization, name);
            assert_ne!(info.weights_identity, plain.weights_identity);
            assert!(
                (bytes as f64) < parameters * bits / 8.0,
                "{name}: {bytes} of {whole}"
            );
        }
    }
}

#[test]
fn a_load_makes_the_bits_that_a_file_quantised_before_has() {
    for ty in [TensorType::Q8_0, TensorType::Q4_K] {
        let mut writer = Tiny::default().writer();
        let file = TempFile::new(&writer.bytes());
        for (_, stored, shape, data) in &mut writer.tensors {
            if shape.len() == 2 {
                let values: Vec<f32> = data
                    .as_chunks()
                    .0
                    .iter()
                    .map(|b| f32::from_le_bytes(*b))
                    .collect();
                *stored = ty;
                *data = vec![0; ty.bytes_of(values.len()).unwrap()];
                formats::quantize(ty, &values, data).unwrap();
            }
        }
        let before = TempFile::new(&writer.bytes());
        let (_, expected, bytes) = load(before.path(), "");
        let (_, logits, at_load) = load(file.path(), ty.name());
        assert!(logits == expected && bytes == at_load, "{}", ty.name());
    }
}

#[test]
fn a_file_that_is_quantised_already_stays_as_it_is() {
    let file = Tiny::of(TensorType::Q5_0).file();
    let (_, plain, _) = load(file.path(), "");
    let (info, logits, _) = load(file.path(), "Q4_K");
    assert_eq!(info.quantization, "Q5_0");
    assert!(logits == plain);
}

#[test]
fn rows_that_are_no_whole_blocks_stay_as_they_are() {
    // 32 wide: whole blocks of Q8_0 but for what is 48 or 24 wide, and none of Q4_K.
    for name in ["qwen3", "qwen3_next", "granitemoehybrid-experts"] {
        let folder = fixtures().join(name);
        let path = folder.to_str().unwrap();
        let (_, plain, _) = load(path, "");
        let (info, logits, _) = load(path, "q4_k");
        assert!(logits == plain && info.quantization != "Q4_K", "{name}");
        let (info, logits, _) = load(path, "Q8_0");
        let off = distance(&logits, &plain);
        // A token that gets another expert is far off.
        assert!(off > 1e-4 && off < 0.5, "{name}: {off}");
        assert_eq!(info.quantization, "Q8_0", "{name}");
    }
}

#[test]
fn other_types_are_refused_with_the_choices() {
    let file: TempFile = Tiny::default().file();
    for wrong in ["Q4_0", "q8", "yes"] {
        let error = try_load(file.path(), wrong, &Ledger::default())
            .map(drop)
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        let message = error.message;
        assert!(
            message.contains(wrong) && message.contains("Q8_0, Q4_K"),
            "{message}"
        );
    }
}
