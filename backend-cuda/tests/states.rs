//! Recurrent models: the same tokens whether a sequence's state stays in its slot or moves, and however its prompt is
//! cut.

mod support;

use met_backend_api::{
    ModelSpec, Sampling,
    abi::ModelBox,
    abi_stable::std_types::{RSlice, RSliceMut},
};
use support::{
    life::{Part, Steps, load_spec, model_spec, open, step},
    simulator,
};

const MODELS: [&str; 3] = [
    "architectures/granitemoehybrid",
    "architectures/granitemoehybrid-experts",
    "architectures/qwen3_next",
];
const PROMPT: u32 = 24;
const GENERATED: u32 = 6;

/// What happens to the state between the prompt and what follows it.
#[derive(Clone, Copy, Debug)]
enum Journey {
    /// It stays in slot 0.
    Stay,
    /// By way of host memory to slot 1.
    Host,
    /// By way of a snapshot to slot 2, when slot 0 has gone on.
    Snapshot,
}

/// The tokens that follow a prompt which comes `piece` tokens at a time.
fn run(model: &mut ModelBox, piece: u32, journey: Journey) -> Vec<u32> {
    let part = |tokens: Vec<u32>, position: u32, slot: u32| Part {
        tokens,
        position,
        blocks: vec![1, 0, 3],
        slot,
        sampling: Sampling::default(),
    };
    let mut drawn = 0;
    for first in (0..PROMPT).step_by(piece as usize) {
        let tokens = (first..PROMPT.min(first + piece)).map(|i| (i * 37 + 5) % 90);
        drawn = step(model, &[part(tokens.collect(), first, 0)]).unwrap()[0].token;
    }
    let slot = match journey {
        Journey::Stay => 0,
        Journey::Host => {
            let mut data = vec![0; model.about().state_bytes as usize];
            model.save_state(0, RSliceMut::from_mut_slice(&mut data)).unwrap();
            model.restore_state(1, PROMPT, RSlice::from_slice(&data)).unwrap();
            1
        }
        Journey::Snapshot => {
            model.take_snapshot(0, 0).unwrap();
            step(model, &[part(vec![17], PROMPT, 0)]).unwrap();
            model.use_snapshot(0, 2).unwrap();
            2
        }
    };
    let mut tokens = vec![drawn];
    for position in PROMPT..PROMPT + GENERATED {
        drawn = step(model, &[part(vec![drawn], position, slot)]).unwrap()[0].token;
        tokens.push(drawn);
    }
    for slot in 0..3 {
        model.free(slot);
    }
    tokens
}

#[test]
fn a_state_may_move_and_a_prompt_be_cut_anywhere() {
    let simulator = simulator();
    for name in MODELS {
        simulator.reset();
        let spec = ModelSpec {
            snapshot_slots: 1,
            ..model_spec(name)
        };
        let mut backend = open(met_cuda::root_module()).unwrap();
        let mut model = load_spec(&mut backend, &spec).unwrap();
        let expected = run(&mut model, PROMPT, Journey::Stay);
        let kinds: std::collections::HashSet<_> = expected.iter().collect();
        assert!(kinds.len() > 2, "the model says various things: {expected:?}");
        for (piece, journey) in [
            (7, Journey::Stay),
            (PROMPT, Journey::Host),
            (5, Journey::Snapshot),
        ] {
            assert_eq!(
                run(&mut model, piece, journey),
                expected,
                "{name}, {piece}, {journey:?}"
            );
        }
        assert!(
            simulator.calls_of("cuGraphLaunch") > 0,
            "{name}: decodes are graphs"
        );
        assert_eq!(model.release_pools().unwrap().first_error(), None);
        drop(model);
        assert_eq!(backend.sweep_unreleased().unwrap().count, 0);
        drop(backend);
        simulator.assert_empty(name);
    }
}
