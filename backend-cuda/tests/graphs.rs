//! Decodes as graphs: the same tokens as kernel by kernel, and nothing left behind, whichever of the driver's calls for
//! graphs fails.

mod support;

use met_backend_api::{ErrorKind, Sampling, abi::ModelBox};
use support::{
    Holdings, Simulator,
    life::{Part, load, on_the_ledger, open, step},
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

/// Positions before the decodes of the first sequence: with the short one all are in one chunk of 256 positions, and
/// with the long one they pass into the next.
#[derive(Clone, Copy)]
enum Context {
    Short = 8,
    Long = 248,
}

/// Two sequences that decode in turns, alone and together: several lists of launches, each of which comes again. Every
/// token but a lost step's.
fn decode(model: &mut ModelBox, context: Context, steps: u32) -> Vec<Result<u32, ErrorKind>> {
    let part = |sequence: u32, tokens: Vec<u32>, position: u32| Part {
        tokens,
        position,
        blocks: (0..17).map(|block| 2 * block + sequence).collect(),
        slot: sequence,
        sampling: Sampling::default(),
    };
    let context = context as u32;
    let prompt = |first: u32| (first..context.min(first + 62)).map(|i| 7 * i % 300).collect();
    let mut tokens = Vec::new();
    let mut take = |parts: &[Part], model: &mut ModelBox| match step(model, parts) {
        Ok(drawn) => tokens.extend(drawn.iter().map(|drawn| Ok(drawn.token))),
        Err(error) => tokens.push(Err(error.kind)),
    };
    for first in (0..context).step_by(62) {
        take(&[part(0, prompt(first), first)], model);
    }
    take(&[part(1, vec![5, 6], 0)], model);
    for i in 0..steps {
        let first = part(0, vec![30 + i], context + i);
        let second = part(1, vec![90 + i], 2 + i);
        match i % 3 {
            0 => take(&[first], model),
            _ => take(&[first, second], model),
        }
    }
    tokens
}

/// A generation's life with these failures of the driver. Returns its tokens.
fn life(
    simulator: &Simulator,
    (context, steps): (Context, u32),
    failures: &[(&str, u64, i32)],
) -> Vec<Result<u32, ErrorKind>> {
    let mut backend = open(met_cuda::root_module()).unwrap();
    let mut model = load(&mut backend, MODEL).unwrap();
    simulator.reset();
    for &(function, n, code) in failures {
        simulator.fail_of(function, n, code);
    }
    let tokens = decode(&mut model, context, steps);
    assert_eq!(on_the_ledger(&backend), simulator.alive(), "{failures:?}");
    // What fails is named, and given back at the second attempt, unless the context is lost.
    let _ = model.release_pools();
    drop(model);
    for _ in 0..2 {
        backend.sweep_unreleased().unwrap();
    }
    let left = on_the_ledger(&backend);
    let is_lost = failures.iter().any(|(_, _, code)| *code == LAUNCH_FAILED);
    assert!(is_lost || left == Holdings::default(), "{failures:?}: {left:?}");
    drop(backend);
    assert_eq!(
        simulator.left(),
        left.in_the_context(),
        "{failures:?}: at the context's end"
    );
    tokens
}

#[test]
fn graphs_give_the_tokens_of_plain_launches_whatever_fails() {
    let simulator = simulator();
    simulator.set("threads", 2);
    for (length, expected_graphs) in [((Context::Long, 16), 4), ((Context::Short, 7), 2)] {
        let expected = life(simulator, length, &[]);
        assert!(expected.iter().all(Result::is_ok), "{expected:?}");
        let calls = CALLS.map(|name| simulator.calls_of(name));
        // Of one sequence and of two, each with one chunk and, where the context is long, with two.
        let graphs = expected_graphs;
        let started = u64::from(length.1) - graphs;
        assert_eq!(calls, [graphs, graphs, graphs, started, graphs, graphs]);

        let never = (1..=graphs).map(|n| ("cuStreamBeginCapture_v2", n, OUT_OF_MEMORY));
        assert_eq!(life(simulator, length, &never.collect::<Vec<_>>()), expected);
        assert_eq!(simulator.calls_of("cuGraphLaunch"), 0);
        if let (Context::Short, _) = length {
            every_call_fails_once(simulator, &expected, calls, length);
        }
    }
    simulator.reset();
    two_models_in_one_backend(simulator);
}

/// Models that start the same kernels on the same grids: what their graphs compute is each one's own.
fn two_models_in_one_backend(simulator: &Simulator) {
    const MODELS: [&str; 2] = [MODEL, "tiny-linear-q4_0.gguf"];
    let mut backend = open(met_cuda::root_module()).unwrap();
    let alone = MODELS.map(|name| {
        let mut model = load(&mut backend, name).unwrap();
        let tokens = decode(&mut model, Context::Short, 7);
        model.release_pools().unwrap();
        tokens
    });
    assert_ne!(alone[0], alone[1]);
    let mut both = MODELS.map(|name| load(&mut backend, name).unwrap());
    let beside = both.each_mut().map(|model| decode(model, Context::Short, 7));
    assert_eq!(beside, alone);
    for mut model in both {
        model.release_pools().unwrap();
    }
    drop(backend);
    simulator.assert_empty("after two models");
}

fn every_call_fails_once(
    simulator: &Simulator,
    expected: &[Result<u32, ErrorKind>],
    calls: [u64; CALLS.len()],
    length: (Context, u32),
) {
    for (name, calls) in CALLS.into_iter().zip(calls) {
        for n in 1..=calls {
            for code in [INVALID_VALUE, OUT_OF_MEMORY, LAUNCH_FAILED] {
                let tokens = life(simulator, length, &[(name, n, code)]);
                let lost = tokens.iter().position(Result::is_err).unwrap_or(tokens.len());
                assert_eq!(tokens[..lost], expected[..lost], "{name} {n} {code}");
                let lost = &tokens[lost..];
                assert!(
                    lost.is_empty() || code == LAUNCH_FAILED,
                    "{name} {n} {code}: {tokens:?}"
                );
                assert!(
                    lost.iter().all(|token| *token == Err(ErrorKind::Fault)),
                    "{name} {n}: {tokens:?}"
                );
            }
        }
    }
}
