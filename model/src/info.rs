//! What the host asks for, checked, and what it is told.

use crate::{
    Error, ModelConfig, Result,
    kv::{BLOCK_SIZE, KvSize},
    states::StateSize,
};
use met_backend_api::{ModelInfo, ModelSpec};

/// The most tokens of a batch that may be asked for.
const MAX_BATCH_TOKENS: u32 = 1 << 16;

/// Checks what the host asks for and returns the context.
pub(crate) fn check(spec: &ModelSpec, config: &ModelConfig) -> Result<usize> {
    if spec.max_rows == 0 || spec.max_batch_tokens < spec.max_rows || spec.max_batch_tokens > MAX_BATCH_TOKENS
    {
        return Err(Error::invalid(format!(
            "batches of {} rows and {} tokens are asked for, but there must be at least one row, as many tokens as rows, and at most {MAX_BATCH_TOKENS} tokens",
            spec.max_rows, spec.max_batch_tokens
        )));
    }
    match spec.context as usize {
        0 => Ok(config.context),
        asked if asked <= config.context => Ok(asked),
        asked => Err(Error::invalid(format!(
            "a context of {asked} tokens is asked for, but the model was made for {}",
            config.context
        ))),
    }
}

/// What follows from the configuration and the pools' sizes.
pub(crate) fn describe(config: &ModelConfig, spec: &ModelSpec, kv: KvSize, states: StateSize) -> ModelInfo {
    ModelInfo {
        architecture: config.architecture.clone().into(),
        name: config.name.clone().into(),
        vocab_size: config.vocab as u32,
        block_size: BLOCK_SIZE as u32,
        block_count: kv.blocks as u32,
        block_bytes: kv.block_bytes,
        state_slots: states.slots as u32,
        state_bytes: states.slot_bytes(),
        snapshot_slots: states.snapshots as u32,
        max_rows: spec.max_rows,
        max_batch_tokens: spec.max_batch_tokens,
        ..ModelInfo::default()
    }
}
