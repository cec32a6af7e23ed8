//! The CUDA backend's tokens against the CPU backend's, each sequence forced onto the CPU's tokens: one difference
//! doesn't make others.

use crate::Setup;
use anyhow::{Context, Result, ensure};
use met_backend_api::{
    Batch, ModelSpec, NO_SLOT, OpenSpec, Row, RowOutput, Sampling, TokenLogprob, Want,
    abi_stable::std_types::{RNone, RSlice},
    sdk::Output,
};
use met_host::{
    loader::{BackendSource, Library, Opener, Services, Unload},
    slot::ModelText,
    text::Text,
};
use serde_json::{Value, json};
use std::{thread, time::Duration};

const PROMPTS: [&str; 4] = [
    "The capital of France is",
    "Once upon a time, in a small village at the edge of a forest,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "1, 2, 3, 4, 5, 6, 7,",
];
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// A token that was drawn, and how far its logarithm of probability was ahead of the next one's.
#[derive(Clone, Copy)]
struct Drawn {
    token: u32,
    lead: f32,
}

/// Greedy tokens after each prompt on both backends, and where they differ.
pub fn run(setup: &Setup, count: usize) -> Result<Value> {
    let text = Text::from_checkpoint(&setup.model)?;
    let prompts = PROMPTS.map(|prompt| text.tokens(prompt).map_err(anyhow::Error::msg));
    let prompts = prompts.into_iter().collect::<Result<Vec<_>>>()?;
    let expected = generate(setup, &setup.cpu()?, &prompts, None, count)?;
    let actual = generate(setup, &setup.cuda()?, &prompts, Some(&expected), count)?;
    let mut differences = Vec::new();
    for (at, (expected, actual)) in expected.iter().zip(&actual).enumerate() {
        for (position, (e, a)) in expected.iter().zip(actual).enumerate() {
            if e.token != a.token {
                differences.push(json!({
                    "prompt": at, "position": position, "cpu": e.token, "cuda": a.token,
                    "cpu_lead": e.lead, "cuda_lead": a.lead,
                }));
            }
        }
    }
    Ok(json!({
        "tokens": count * prompts.len(),
        "different": differences.len(),
        "differences": differences,
    }))
}

/// A generation's whole life on a thread of its own.
fn generate(
    setup: &Setup,
    source: &BackendSource,
    prompts: &[Vec<u32>],
    path: Option<&[Vec<Drawn>]>,
    count: usize,
) -> Result<Vec<Vec<Drawn>>> {
    let mut library = Library::load(source)?;
    let opener = library.opener();
    let drawn = thread::scope(|scope| {
        let engine = scope.spawn(|| on_engine_thread(setup, opener, prompts, path, count));
        engine
            .join()
            .map_err(|_| anyhow::anyhow!("the engine thread panicked"))?
    });
    let unload = library.close(CLOSE_WAIT);
    ensure!(!matches!(unload, Unload::Retained { .. }), "{source}: {unload:?}");
    drawn.with_context(|| source.to_string())
}

fn on_engine_thread(
    setup: &Setup,
    opener: Opener,
    prompts: &[Vec<u32>],
    path: Option<&[Vec<Drawn>]>,
    count: usize,
) -> Result<Vec<Vec<Drawn>>> {
    let mut backend = opener.open(&OpenSpec::default(), &Services::default())?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + count;
    let mut model = backend.load_model(&ModelSpec {
        path: setup.model_path()?.into(),
        context: longest as u32,
        max_rows: 1,
        max_batch_tokens: longest as u32,
        ..ModelSpec::default()
    })?;
    let blocks: Vec<u32> = (0..(longest as u32).div_ceil(model.info()?.block_size)).collect();
    let mut all = Vec::new();
    for (at, prompt) in prompts.iter().enumerate() {
        let (mut drawn, mut tokens, mut position) = (Vec::new(), prompt.clone(), 0);
        for step in 0..count {
            let row = Row {
                tokens: RSlice::from_slice(&tokens),
                input: RNone,
                position,
                blocks: RSlice::from_slice(&blocks),
                state_slot: NO_SLOT,
                want: Want::Token,
                top_logprobs: 2,
                sampling: Sampling::default(),
                counts: RSlice::EMPTY,
                bias: RSlice::EMPTY,
                mask: RSlice::EMPTY,
            };
            let ticket = model.submit(Batch {
                rows: RSlice::from_slice(&[row]),
            })?;
            let (mut rows, mut top) = ([RowOutput::default()], [TokenLogprob::default(); 2]);
            let (logits, to) = (&mut [][..], &mut rows);
            model.collect(
                ticket,
                Output {
                    rows: to,
                    top: &mut top,
                    logits,
                },
            )?;
            ensure!(
                !rows[0].not_finite,
                "prompt {at}, step {step}: logits are not finite"
            );
            position += tokens.len() as u32;
            drawn.push(Drawn {
                token: rows[0].sampled.token,
                lead: top[0].logprob - top[1].logprob,
            });
            tokens = vec![path.map_or(drawn[step], |path| path[at][step]).token];
        }
        all.push(drawn);
    }
    let released = model.release_pools()?;
    if let Some((label, error)) = released.first_error() {
        anyhow::bail!("{label}: {error}");
    }
    drop(model);
    let swept = backend.sweep_unreleased()?;
    ensure!(
        swept.failures == 0,
        "{} resources could not be freed",
        swept.failures
    );
    Ok(all)
}
