//! Writes the logits of every position of given token sequences, through the boundary of the built-in CPU
//! backend: what a reference's logits are compared with.

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use met_backend_api::{
    Batch, BatchOutput, ModelSpec, NO_SLOT, OpenSpec, Row, RowOutput, Sampling, Want,
    abi::{HostServices, HostServices_TO, LogLevel, LogRecord, ModelBox},
    abi_stable::{
        sabi_trait::TD_Opaque,
        std_types::{RArc, RNone, RResult, RSlice, RSliceMut, RStr},
    },
};
use std::{
    fs::File,
    io::{BufWriter, Write},
    path::PathBuf,
};

/// Writes little-endian f32 logits of all positions of all prompts, one after another.
#[derive(Parser)]
struct Arguments {
    /// The model file.
    model: String,
    /// A JSON array of arrays of token ids.
    tokens: PathBuf,
    /// Where the logits go.
    out: PathBuf,
    /// Compute threads; 0 lets the backend choose.
    #[arg(long, default_value_t = 0)]
    threads: u32,
    /// Tokens of one step.
    #[arg(long, default_value_t = 256)]
    chunk: u32,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let text = std::fs::read_to_string(&arguments.tokens).context("the token file can't be read")?;
    let prompts: Vec<Vec<u32>> =
        serde_json::from_str(&text).context("the token file is no array of arrays")?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    ensure!(longest > 0 && arguments.chunk > 0, "there is nothing to do");

    let host = HostServices_TO::from_ptr(RArc::new(Quiet), TD_Opaque);
    let spec = OpenSpec {
        threads: arguments.threads,
        ..OpenSpec::default()
    };
    let mut backend = ok(met_cpu::root_module().open()(host, &spec))?;
    let mut model = ok(backend.load_model(&ModelSpec {
        path: arguments.model.as_str().into(),
        context: 0,
        max_rows: 1,
        max_batch_tokens: arguments.chunk,
        ..ModelSpec::default()
    }))?;
    let mut out = BufWriter::new(File::create(&arguments.out).context("the output can't be created")?);
    for prompt in &prompts {
        write_logits(&mut model, prompt, arguments.chunk as usize, &mut out)?;
    }
    out.flush()?;

    let report = ok(model.release_pools())?;
    if let Some((label, error)) = report.first_error() {
        bail!("{label}: {error}");
    }
    drop(model);
    let swept = ok(backend.sweep_unreleased())?;
    ensure!(
        swept.count == 0,
        "the sweep found {} resources without an owner",
        swept.count
    );
    Ok(())
}

fn write_logits(model: &mut ModelBox, prompt: &[u32], chunk: usize, out: &mut impl Write) -> Result<()> {
    let info = ok(model.info())?;
    ensure!(
        prompt.len() <= info.context_length as usize,
        "a prompt is longer than the context"
    );
    let blocks: Vec<u32> = (0..(prompt.len() as u32).div_ceil(info.block_size)).collect();
    for (tokens, position) in prompt.chunks(chunk).zip((0u32..).step_by(chunk)) {
        let row = Row {
            tokens: RSlice::from_slice(tokens),
            input: RNone,
            position,
            blocks: RSlice::from_slice(&blocks),
            state_slot: NO_SLOT,
            want: Want::AllLogits,
            top_logprobs: 0,
            sampling: Sampling::default(),
            counts: RSlice::EMPTY,
            bias: RSlice::EMPTY,
            mask: RSlice::EMPTY,
        };
        let ticket = ok(model.submit(Batch {
            rows: RSlice::from_slice(&[row]),
        }))?;
        let mut logits = vec![0f32; tokens.len() * info.vocab_size as usize];
        ok(model.collect(
            ticket,
            BatchOutput {
                rows: RSliceMut::from_mut_slice(&mut [RowOutput::default()]),
                top: RSliceMut::from_mut_slice(&mut []),
                logits: RSliceMut::from_mut_slice(&mut logits),
            },
        ))?;
        for logit in logits {
            out.write_all(&logit.to_le_bytes())?;
        }
    }
    Ok(())
}

/// A host that never cancels and shows warnings.
#[derive(Clone)]
struct Quiet;

impl HostServices for Quiet {
    fn log_enabled(&self, level: LogLevel, _target: RStr<'_>) -> bool {
        level <= LogLevel::Warn
    }
    fn log(&self, record: &LogRecord<'_>) {
        eprintln!("{}", record.message);
    }
    fn progress(&self, _stage: RStr<'_>, _done: u64, _total: u64) {}
    fn cancelled(&self) -> bool {
        false
    }
}

fn ok<T>(result: RResult<T, met_backend_api::Error>) -> Result<T> {
    Ok(result.into_result()?)
}
