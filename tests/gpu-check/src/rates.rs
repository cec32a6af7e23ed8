//! Decode and prefill rates, beside what the card itself can do.

use crate::{Setup, limits};
use anyhow::{Context, Result};
use met_host::bench;
use met_model::Checkpoint;
use serde_json::{Value, json};

/// How much is measured.
pub struct Size {
    /// Tokens of a prompt.
    pub prompt: u32,
    /// Tokens generated.
    pub generated: u32,
    /// Depths at which they are.
    pub depths: Vec<u32>,
    /// Samples of each.
    pub repetitions: u32,
    /// Of the limits.
    pub limits: limits::Size,
}

impl Size {
    /// For a card.
    pub fn full() -> Self {
        Self {
            prompt: 512,
            generated: 128,
            depths: vec![0, 1024],
            repetitions: 5,
            limits: limits::Size::FULL,
        }
    }

    /// To see that it runs.
    pub fn small() -> Self {
        Self {
            prompt: 16,
            generated: 2,
            depths: vec![0],
            repetitions: 1,
            limits: limits::Size::SMALL,
        }
    }
}

/// Rates in tokens a second. Of a decode step the share of the copy bandwidth that reading weights and KV cache once a
/// token takes; of a prefill the share of the tensor cores' rate that the products with the weights take.
pub fn run(setup: &Setup, size: &Size) -> Result<Value> {
    let limits = limits::measure(size.limits)?;
    let rows = bench::run(&bench::Plan {
        backend: setup.cuda()?,
        model: setup.model.clone(),
        prompts: vec![size.prompt],
        generations: vec![size.generated],
        depths: size.depths.clone(),
        threads: vec![0],
        repetitions: size.repetitions,
        quantize: String::new(),
    })?;
    let (bandwidth, operations) = (
        number(&limits, "copy_gb_s")? * 1e9,
        number(&limits, "mma_tflop_s")? * 1e12,
    );
    let a_token = operations_of_a_token(setup)?;
    let rates: Vec<Value> = rows
        .iter()
        .map(|row| {
            // The bench relates to the host's memory what a token has to read: back to bytes.
            let bytes = row.bandwidth_share.zip(row.bandwidth);
            let bytes = bytes.map(|(share, bandwidth)| share * bandwidth / row.avg_ts);
            json!({
                "what": if row.n_gen > 0 { "decode" } else { "prefill" },
                "tokens": row.n_gen.max(row.n_prompt),
                "depth": row.n_depth,
                "tokens_s": row.avg_ts,
                "deviation": row.stddev_ts,
                "bytes_of_a_token": bytes,
                "share_of_bandwidth": bytes.map(|bytes| bytes * row.avg_ts / bandwidth),
                "share_of_mma": (row.n_gen == 0).then(|| a_token * row.avg_ts / operations),
            })
        })
        .collect();
    Ok(json!({"limits": limits, "rates": rates}))
}

/// Multiplications and additions with the weights of the layers; the head is computed for the last token alone.
fn operations_of_a_token(setup: &Setup) -> Result<f64> {
    let checkpoint = Checkpoint::open(&setup.model)?;
    let layers = checkpoint
        .tensors()
        .iter()
        .filter(|tensor| tensor.name.starts_with("blk."));
    Ok(layers.map(|tensor| 2.0 * tensor.elements() as f64).sum())
}

fn number(of: &Value, name: &str) -> Result<f64> {
    of[name].as_f64().with_context(|| format!("no {name}"))
}
