//! A loaded model: pools, steps, and the ordered release.

use super::{Batch, BatchOutput, Error, Ticket};
use abi_stable::{
    StableAbi, sabi_trait,
    std_types::{ROption, RResult, RSlice, RSliceMut, RString, RVec},
};

/// Which model to load, and how large its pools may be.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq)]
pub struct ModelSpec {
    /// The checkpoint: a file or a folder.
    pub path: RString,
    /// Most tokens of one sequence; 0 takes the model's own.
    pub context: u32,
    /// Most rows of one batch.
    pub max_rows: u32,
    /// Most new tokens of one batch, all rows together.
    pub max_batch_tokens: u32,
    /// Bytes for the KV cache; 0 lets the backend size it for `max_rows` sequences within free memory.
    pub kv_bytes: u64,
    /// Slots for snapshots of recurrent state; 0 lets the backend choose. Of no effect for models without.
    pub snapshot_slots: u32,
    /// What matrices of F32, F16 and BF16 become at load: "Q8_0", "Q4_K", or empty to leave them as they are.
    pub quantize: RString,
}

/// What was loaded.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq)]
pub struct ModelInfo {
    /// The architecture as the checkpoint names it ("llama").
    pub architecture: RString,
    /// A name for people.
    pub name: RString,
    /// Dominant weight type ("Q4_1").
    pub quantization: RString,
    /// Identity of the weights: equal for two loads of one checkpoint, whatever its path.
    pub weights_identity: RString,
    /// Number of parameters.
    pub parameters: u64,
    /// Vocabulary size: the length of a row of logits.
    pub vocab_size: u32,
    /// Most tokens of one sequence.
    pub context_length: u32,
    /// Tokens a KV block holds.
    pub block_size: u32,
    /// KV blocks in all. Block tables name blocks `0..block_count`.
    pub block_count: u32,
    /// Bytes of one KV block, all layers together.
    pub block_bytes: u64,
    /// Slots of the recurrent-state pool; 0 for models without.
    pub state_slots: u32,
    /// Bytes of one state slot.
    pub state_bytes: u64,
    /// Slots for snapshots of recurrent state; 0 for models without.
    pub snapshot_slots: u32,
    /// Most rows of one batch.
    pub max_rows: u32,
    /// Most new tokens of one batch.
    pub max_batch_tokens: u32,
    /// Tickets that may be outstanding at a time (1 on a CPU, 2 on a GPU).
    pub max_in_flight: u32,
}

/// One pool: a model resource that holds device memory.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub struct ResourceReport {
    /// Its owner label on the ledger.
    pub label: RString,
    /// Bytes it holds.
    pub bytes: u64,
    /// Allocations it holds.
    pub allocations: u64,
}

/// One step of the release.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub struct ReleaseStep {
    /// The pool.
    pub label: RString,
    /// Bytes that came back.
    pub bytes: u64,
    /// Why the pool, or part of it, was left for the sweep.
    pub error: ROption<Error>,
}

/// What `release_pools` did: every step, whatever happened before it.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleaseReport {
    /// The steps in the order in which they ran.
    pub steps: RVec<ReleaseStep>,
}

impl ReleaseReport {
    /// The first error, with the label of its pool.
    pub fn first_error(&self) -> Option<(&str, &Error)> {
        self.steps.iter().find_map(|s| match &s.error {
            ROption::RSome(e) => Some((s.label.as_str(), e)),
            ROption::RNone => None,
        })
    }
}

/// A loaded model. Every method is called from the generation's engine thread.
///
/// `submit` and `collect` alternate in ticket order, with at most [`ModelInfo::max_in_flight`] tickets
/// outstanding. After a `fault` only `free_state` and `release_pools` may be called.
#[sabi_trait]
pub trait Model {
    /// What was loaded. Constant for the object's life.
    fn info(&self) -> RResult<ModelInfo, Error>;

    /// One report a pool.
    fn resources(&self) -> RResult<RVec<ResourceReport>, Error>;

    /// Starts a step. What `batch` points to is read before the call returns. After an error nothing
    /// of the batch has happened, but for recurrent states: where an error other than `invalid` came halfway, those of its
    /// rows are lost. Their slots stay held, and take a row at position 0, a restored state or a snapshot; all else is `invalid`.
    fn submit(&mut self, batch: Batch<'_>) -> RResult<Ticket, Error>;

    /// Waits for the oldest outstanding step and writes its results into the caller's memory.
    fn collect(&mut self, ticket: Ticket, out: BatchOutput<'_>) -> RResult<(), Error>;

    /// Copies blocks to host memory: `data` is `blocks.len() × block_bytes`, blocks in the order named.
    fn copy_blocks_out(&mut self, blocks: RSlice<'_, u32>, data: RSliceMut<'_, u8>) -> RResult<(), Error>;

    /// Copies what [`copy_blocks_out`](Model::copy_blocks_out) gave into the named blocks: of this model, or of
    /// another one with the same weights that a backend of the same name and version has loaded.
    fn copy_blocks_in(&mut self, blocks: RSlice<'_, u32>, data: RSlice<'_, u8>) -> RResult<(), Error>;

    /// Copies a state slot to host memory (`state_bytes` long), as it is after all steps submitted so far.
    fn save_state(&mut self, slot: u32, data: RSliceMut<'_, u8>) -> RResult<(), Error>;

    /// Fills a state slot from what [`save_state`](Model::save_state) gave after `position` tokens, of this model or
    /// of another one as for [`copy_blocks_in`](Model::copy_blocks_in). The slot is held
    /// from then on, and its next row is at `position`.
    fn restore_state(&mut self, slot: u32, position: u32, data: RSlice<'_, u8>) -> RResult<(), Error>;

    /// The sequence that holds a state slot has ended. Nothing happens where nobody holds it.
    fn free_state(&mut self, slot: u32) -> RResult<(), Error>;

    /// Copies a state slot to a snapshot's on the device, as it is after all steps submitted so far.
    fn take_snapshot(&mut self, slot: u32, snapshot: u32) -> RResult<(), Error>;

    /// Copies a snapshot to a state slot, which is held from then on; its next row is at the position that the
    /// snapshot was taken at. Steps submitted later see it.
    fn use_snapshot(&mut self, snapshot: u32, slot: u32) -> RResult<(), Error>;

    /// Releases every pool in the fixed order: derived weights, state snapshots, state pool, KV cache,
    /// buffer arena, weight store. Attempts each step whatever happened before. No ticket may be
    /// outstanding. State slots that are still held are an error that says how many; the pool is then left for
    /// [`sweep_unreleased`](super::GpuBackend::sweep_unreleased), nothing is freed under them. A second call does nothing and reports no steps.
    #[sabi(last_prefix_field)]
    fn release_pools(&mut self) -> RResult<ReleaseReport, Error>;
}
