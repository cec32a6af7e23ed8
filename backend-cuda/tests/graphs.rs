//! Decodes as graphs: the same tokens as kernel by kernel, and nothing left behind, whichever of the driver's calls for
//! graphs fails.

mod support;

use met_backend_api::{ErrorKind, Sampling, abi::ModelBox};
use support::{
    Simulator,
    life::{Part, load, open, step},
    simulator,
};

const MODEL: &str = "tiny-q4_0.gguf";
const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const LAUNCH_FAILED: i32 = 719;
/// The calls that make, start and give back a graph.
const CALLS: [&str; 6] = [
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
];

/// Two sequences that decode in turns, alone and together, past the border of a chunk of 256 positions: several lists
/// of launches, each of which comes again. Every token but a lost step's.
fn decode(model: &mut ModelBox) -> Vec<Result<u32, ErrorKind>> {
    let part = |sequence: u32, tokens: Vec<u32>, position: u32| Part {
        tokens,
        position,
        blocks: (0..17).map(|block| 2 * block + sequence).collect(),
        sampling: Sampling::default(),
    };
    let prompt = |sequence: u32| (0..62).map(|i| (7 * i + sequence) % 300).collect::<Vec<u32>>();
    let mut tokens = Vec::new();
    let mut take = |parts: &[Part], model: &mut ModelBox| match step(model, parts) {
        Ok(drawn) => tokens.extend(drawn.iter().map(|drawn| Ok(drawn.token))),
        Err(error) => tokens.push(Err(error.kind)),
    };
    for position in [0, 62, 124, 186] {
        take(&[part(0, prompt(0), position)], model);
    }
    take(&[part(1, prompt(1), 0)], model);
    for i in 0..16 {
        let first = part(0, vec![30 + i], 248 + i);
        let second = part(1, vec![90 + i], 62 + i);
        match i % 3 {
            0 => take(&[first], model),
            _ => take(&[first, second], model),
        }
    }
    tokens
}

/// A generation's life with these failures of the driver. Returns its tokens, and how many graphs were started.
fn life(simulator: &Simulator, failures: &[(&str, u64, i32)]) -> (Vec<Result<u32, ErrorKind>>, u64) {
    let mut backend = open(met_cuda::root_module()).unwrap();
    let mut model = load(&mut backend, MODEL).unwrap();
    simulator.reset();
    for &(function, n, code) in failures {
        simulator.fail_of(function, n, code);
    }
    let tokens = decode(&mut model);
    let ledger: u64 = backend
        .ledger()
        .unwrap()
        .iter()
        .filter(|e| e.kind == met_backend_api::ResourceKind::Memory)
        .map(|e| e.bytes)
        .sum();
    assert_eq!(ledger, simulator.live().0, "{failures:?}");
    let started = simulator.calls_of("cuGraphLaunch");
    // What fails is named, and given back at the second attempt, unless the context is lost.
    let _ = model.release_pools();
    drop(model);
    for _ in 0..2 {
        backend.sweep_unreleased().unwrap();
    }
    drop(backend);
    simulator.assert_empty(&format!("{failures:?}"));
    (tokens, started)
}

#[test]
fn graphs_give_the_tokens_of_plain_launches_whatever_fails() {
    let simulator = simulator();
    simulator.set("threads", 2);
    let (expected, started) = life(simulator, &[]);
    assert!(expected.iter().all(Result::is_ok), "{expected:?}");
    let calls = CALLS.map(|name| simulator.calls_of(name));
    let graphs = calls[0];
    // One sequence and two, each with one chunk and with two.
    assert_eq!(graphs, 4, "{calls:?}");
    assert_eq!(started, 16 - graphs, "all but the first of each");
    assert_eq!(calls[5], graphs);

    let never: Vec<_> = (1..=graphs)
        .map(|n| ("cuStreamBeginCapture_v2", n, OUT_OF_MEMORY))
        .collect();
    assert_eq!(life(simulator, &never), (expected.clone(), 0));

    for (name, calls) in CALLS.into_iter().zip(calls) {
        for n in 1..=calls {
            for code in [INVALID_VALUE, OUT_OF_MEMORY, LAUNCH_FAILED] {
                let (tokens, _) = life(simulator, &[(name, n, code)]);
                let lost = tokens.iter().position(Result::is_err);
                match code {
                    LAUNCH_FAILED => {
                        let lost = &tokens[lost.unwrap_or(tokens.len())..];
                        assert!(
                            lost.iter().all(|token| *token == Err(ErrorKind::Fault)),
                            "{name} {n}: {tokens:?}"
                        );
                        assert_eq!(
                            tokens[..tokens.len() - lost.len()],
                            expected[..tokens.len() - lost.len()]
                        );
                    }
                    _ => assert_eq!(tokens, expected, "{name} {n} {code}"),
                }
            }
        }
    }
}
