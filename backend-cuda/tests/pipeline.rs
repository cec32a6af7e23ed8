//! Two steps under way: the second one's input is taken on the card, and what the first one gives is kept for it.

mod support;

use met_backend_api::{
    Batch, BatchOutput, Error, ErrorKind, NO_SLOT, Row, RowOutput, Sampling, TokenLogprob, Want,
    abi::{ModelBox, SampledBy},
    abi_stable::std_types::{RNone, RSlice, RSliceMut, RSome},
};
use support::{
    Simulator,
    life::{load, on_the_ledger, open},
    simulator,
};

const PROMPTS: [&[u32]; 3] = [&[1, 60, 7, 250, 9], &[2, 33, 101], &[77, 78, 79, 80]];
const STEPS: u32 = 9;
const OUT_OF_MEMORY: i32 = 2;

/// What a step gives.
type Given = (Vec<RowOutput>, Vec<TokenLogprob>, Vec<f32>);

/// Sends the prompts, or what the rows of `last` sampled; the last row wants logits, and its tokens are given.
fn submit(model: &mut ModelBox, step: u32, last: Option<u64>, sampled: Option<&[u32]>) -> Result<u64, Error> {
    let blocks = [[0u32], [1], [2]];
    let logits_tokens = [40 + step];
    let sampling = Sampling {
        seed: 3,
        temperature: 0.9,
        ..Sampling::default()
    };
    let rows: Vec<_> = (0..3)
        .map(|i| {
            let is_logits = i == 2;
            let tokens = match (last, sampled) {
                (None, _) => PROMPTS[i],
                (Some(_), _) if is_logits => &logits_tokens,
                (Some(_), Some(sampled)) => &sampled[i..=i],
                (Some(_), None) => &[],
            };
            let input = last.filter(|_| tokens.is_empty()).map(|ticket| SampledBy {
                ticket,
                row: i as u32,
            });
            Row {
                tokens: RSlice::from_slice(tokens),
                input: input.map_or(RNone, RSome),
                position: last.map_or(0, |_| PROMPTS[i].len() as u32 + step - 1),
                blocks: RSlice::from_slice(&blocks[i]),
                state_slot: NO_SLOT,
                want: if is_logits { Want::Logits } else { Want::Token },
                top_logprobs: if is_logits { 0 } else { 3 },
                sampling: Sampling {
                    sequence: i as u64,
                    ..sampling
                },
                counts: RSlice::EMPTY,
                bias: RSlice::EMPTY,
                mask: RSlice::EMPTY,
            }
        })
        .collect();
    let batch = Batch {
        rows: RSlice::from_slice(&rows),
    };
    model.submit(batch).into_result()
}

fn collect(model: &mut ModelBox, ticket: u64) -> Result<Given, Error> {
    let vocab = model.info().unwrap().vocab_size as usize;
    let mut rows = vec![RowOutput::default(); 3];
    let mut top = vec![TokenLogprob::default(); 6];
    let mut logits = vec![0.0; vocab];
    let out = BatchOutput {
        rows: RSliceMut::from_mut_slice(&mut rows),
        top: RSliceMut::from_mut_slice(&mut top),
        logits: RSliceMut::from_mut_slice(&mut logits),
    };
    model.collect(ticket, out).into_result()?;
    Ok((rows, top, logits))
}

fn one_by_one(model: &mut ModelBox) -> Vec<Given> {
    let mut given: Vec<Given> = Vec::new();
    for step in 0..STEPS {
        let sampled = given
            .last()
            .map(|(rows, _, _)| rows.iter().map(|row| row.sampled.token).collect::<Vec<_>>());
        let ticket = submit(model, step, sampled.as_ref().map(|_| 0), sampled.as_deref()).unwrap();
        given.push(collect(model, ticket).unwrap());
    }
    given
}

fn two_at_a_time(model: &mut ModelBox) -> Vec<Given> {
    let mut given = Vec::new();
    let mut last = submit(model, 0, None, None).unwrap();
    for step in 1..STEPS {
        let next = submit(model, step, Some(last), None).unwrap();
        if step == 1 {
            let rows: [Row<'_>; 0] = [];
            let batch = Batch {
                rows: RSlice::from_slice(&rows),
            };
            let error = model.submit(batch).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid);
            assert!(error.message.contains("2 may be outstanding"), "{error}");
        }
        given.push(collect(model, last).unwrap());
        last = next;
    }
    given.push(collect(model, last).unwrap());
    given
}

/// Some steps two at a time, up to the first error; what is under way then is collected, or was lost with it.
fn some_steps(model: &mut ModelBox, steps: u32) -> Result<Vec<Given>, Error> {
    let mut given = Vec::new();
    let mut last = submit(model, 0, None, None)?;
    for step in 1..steps {
        let next = submit(model, step, Some(last), None);
        let collected = collect(model, last);
        let (next, collected) = match (next, collected) {
            (Ok(next), Ok(collected)) => (next, collected),
            (Err(error), _) => return Err(error),
            (Ok(next), Err(error)) => {
                // It may be lost as well.
                let _ = collect(model, next);
                return Err(error);
            }
        };
        given.push(collected);
        last = next;
    }
    given.push(collect(model, last)?);
    Ok(given)
}

/// Whichever call fails while two steps are under way: an error says so or nothing is changed, the card and the ledger
/// agree, and the next steps are as if nothing had been.
fn every_call_fails_once(simulator: &Simulator) {
    const FEW: u32 = 3;
    let mut backend = open(met_cuda::root_module()).unwrap();
    let model = &mut load(&mut backend, "tiny-q4_1.gguf").unwrap();
    some_steps(model, FEW).unwrap();
    simulator.reset();
    let expected = &some_steps(model, FEW).unwrap()[..];
    let calls = simulator.calls();
    assert!(calls > 100, "{calls}");
    let mut failed = 0;
    for n in 1..=calls {
        simulator.reset();
        simulator.fail(n, OUT_OF_MEMORY);
        match some_steps(model, FEW) {
            Ok(given) => assert_eq!(given, expected, "call {n}"),
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Exhausted, "call {n}: {error}");
                failed += 1;
            }
        }
        simulator.reset();
        assert_eq!(on_the_ledger(&backend), simulator.alive(), "call {n}");
        assert_eq!(
            some_steps(model, 2).unwrap(),
            expected[..2],
            "after call {n} failed"
        );
    }
    assert!(failed * 2 > calls, "{failed} of {calls}");
    assert_eq!(model.release_pools().unwrap().first_error(), None);
    // What could not be given back on the way is now.
    let swept = backend.sweep_unreleased().unwrap();
    assert!(swept.count > 0 && swept.failures == 0, "{swept:?}");
}

#[test]
fn two_steps_under_way_give_what_one_by_one_gives() {
    let simulator = simulator();
    for lazy in [0, 1] {
        simulator.set("lazy", lazy);
        let mut backend = open(met_cuda::root_module()).unwrap();
        let mut model = load(&mut backend, "tiny-q4_1.gguf").unwrap();
        assert_eq!(model.info().unwrap().max_in_flight, 2);
        simulator.reset();
        let expected = one_by_one(&mut model);
        let graphs = simulator.calls_of("cuGraphLaunch");
        assert_eq!(two_at_a_time(&mut model), expected, "lazy {lazy}");
        // A prefill is no graph, and the first decode of its kind is none yet.
        let decodes = u64::from(STEPS) - 1;
        let graphs = (graphs, simulator.calls_of("cuGraphLaunch"));
        assert_eq!(graphs, (decodes - 1, 2 * decodes - 1));
        let tokens: std::collections::HashSet<_> = expected
            .iter()
            .map(|(rows, _, _)| rows[0].sampled.token)
            .collect();
        assert!(tokens.len() > 2, "the model says various things: {tokens:?}");

        // A step that nobody collects is no hindrance.
        submit(&mut model, 0, None, None).unwrap();
        assert_eq!(model.release_pools().unwrap().first_error(), None);
        drop(model);
        assert_eq!(backend.sweep_unreleased().unwrap().count, 0);
        drop(backend);
        simulator.assert_empty("after steps two at a time");
    }
    simulator.set("lazy", 0);
    every_call_fails_once(simulator);
    simulator.assert_empty("after calls that failed");
}
