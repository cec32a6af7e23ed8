//! The real model on the simulated card: 32 tokens of a prompt and 16 generated, against the CPU backend's.

#[path = "../../backend-cuda/tests/support/mod.rs"]
mod support;

use met_backend_api::{ModelSpec, Sampling};
use met_host::{slot::ModelText, text::Text};
use support::{
    life::{generate, load_spec, on_the_cpu_spec, open},
    simulator,
};

/// Of what follows there is little doubt, so that no rounding changes it.
const TEXT: &str = "Count to thirty: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16";
const PROMPT: usize = 32;
const GENERATED: usize = 16;
/// How far the backends' leads of the most probable token, in log-probability, may be apart: one rounds activations to
/// 16 bits a block, the other to f16.
const APART: f32 = 0.05;

#[test]
fn the_real_model_gives_the_cpu_backends_tokens() {
    let simulator = simulator();
    simulator.set("threads", 2);
    let path = met_tests::model_path();
    let text = Text::from_checkpoint(&path).expect("the model has a tokenizer");
    let prompt = text.tokens(TEXT).expect("it has tokens")[..PROMPT].to_vec();
    let spec = ModelSpec {
        path: path.to_str().expect("a plain path").into(),
        context: 64,
        max_rows: 1,
        max_batch_tokens: PROMPT as u32,
        kv_bytes: 16 << 20,
        ..ModelSpec::default()
    };
    let prompts = [prompt];
    let greedy = Sampling::default();
    let expected = generate(&mut on_the_cpu_spec(&spec), &prompts, greedy, None, GENERATED);
    let mut backend = open(met_cuda::root_module()).expect("the card opens");
    let mut model = load_spec(&mut backend, &spec).expect("the model loads");
    let actual = generate(&mut model, &prompts, greedy, None, GENERATED);
    let tokens = |drawn: &[Vec<support::life::Drawn>]| -> Vec<u32> {
        drawn[0].iter().map(|drawn| drawn.token).collect()
    };
    assert_eq!(tokens(&actual), tokens(&expected), "{actual:?}\n{expected:?}");
    let apart = actual[0].iter().zip(&expected[0]);
    let apart = apart.map(|(actual, expected)| (actual.lead - expected.lead).abs());
    let apart = apart.fold(0.0, f32::max);
    assert!(apart < APART, "the most probable token's lead is {apart} apart");
    // All decodes but the first are graphs.
    assert_eq!(simulator.calls_of("cuGraphLaunch"), GENERATED as u64 - 2);
    assert_eq!(model.release_pools().expect("pools").first_error(), None);
    drop(model);
    assert_eq!(backend.sweep_unreleased().expect("a sweep").count, 0);
    drop(backend);
    simulator.assert_empty("after the real model");
}
