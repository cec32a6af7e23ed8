//! The forward pass against transformers, on the files that `tests/oracle/make_tiny.py` makes: random models with
//! the logits that transformers gives for their dequantised weights in f32.

use crate::{
    forward::{cpu_of, distance},
    support::{Sequence, all_logits, load},
};
use met_backend_api::Want;
use met_kernels::{Ledger, Ops, reference::Reference};
use met_model::LoadedModel;
use std::path::PathBuf;

struct Fixture {
    name: String,
    model: String,
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

fn fixtures() -> Vec<Fixture> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures"));
    let files = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_tiny = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("tiny-") && name.ends_with(".json")
    };
    let mut descriptions: Vec<_> = files.filter(is_tiny).collect();
    descriptions.sort();
    descriptions.iter().map(|path| Fixture::read(path)).collect()
}

impl Fixture {
    fn read(path: &std::path::Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let file = |key: &str| path.with_file_name(json[key].as_str().unwrap());
        let vocab = json["vocab"].as_u64().unwrap() as usize;
        let values: Vec<f32> = std::fs::read(file("logits"))
            .unwrap()
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        Self {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            model: file("model").to_str().unwrap().to_owned(),
            tokens: serde_json::from_value(json["tokens"].clone()).unwrap(),
            logits: values.chunks(vocab).map(<[f32]>::to_vec).collect(),
        }
    }

    fn distance<O: Ops + 'static>(&self, model: &mut LoadedModel<O>) -> f64 {
        let sequence = Sequence::new(&self.tokens, 0, &[0], Want::AllLogits);
        let (_, got) = all_logits(model, &[sequence]);
        assert_eq!(got.len(), self.logits.len());
        distance(&got, &self.logits)
    }
}

#[test]
fn the_reference_agrees_with_transformers() {
    let fixtures = fixtures();
    assert!(fixtures.len() >= 17);
    for fixture in fixtures {
        let ops = Reference::with_exact_kv(Ledger::default());
        let distance = fixture.distance(&mut load(ops, &fixture.model));
        assert!(distance < 1e-5, "{}: {distance}", fixture.name);
    }
}

#[test]
fn the_cpu_agrees_with_transformers() {
    for fixture in fixtures() {
        let is_float = fixture.name.ends_with("f32") || fixture.name.ends_with("f16");
        // Float weights keep f32 activations, and round keys and values to f16; the others round activations, too.
        let bound = if is_float { 1e-3 } else { 2e-2 };
        let distance = fixture.distance(&mut cpu_of(&fixture.model, 2));
        assert!(distance < bound, "{}: {distance}", fixture.name);
    }
}
