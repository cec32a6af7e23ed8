//! What the engine needs of a device.

use met_backend_api::{
    Batch, DeviceInfo, Error, LedgerEntry, MemoryInfo, ModelInfo, ReleaseReport, SweepReport, Ticket,
    sdk::Output,
};

/// A device that did not come to serve.
pub struct OpenFailure {
    /// Why.
    pub error: Error,
    /// What was opened before that, and is to be torn down.
    pub device: Option<Box<dyn DeviceIo>>,
}

impl From<Error> for OpenFailure {
    fn from(error: Error) -> Self {
        Self { error, device: None }
    }
}

/// An opened backend with its loaded model. All calls come from the engine thread, on which it was made
/// and is dropped. Whatever it returns is in the host's own memory: nothing points into the library.
///
/// What each call owes is said at [`met_backend_api::abi::GpuBackend`] and [`met_backend_api::abi::Model`].
pub trait DeviceIo {
    /// The device that was opened.
    fn device(&self) -> &DeviceInfo;
    /// The model that was loaded.
    fn model(&self) -> &ModelInfo;
    /// Memory now.
    fn memory(&mut self) -> Result<MemoryInfo, Error>;
    /// Every live entry of the ledger.
    fn ledger(&mut self) -> Result<Vec<LedgerEntry>, Error>;
    /// Starts a step.
    fn submit(&mut self, batch: Batch<'_>) -> Result<Ticket, Error>;
    /// Waits for the oldest outstanding step.
    fn collect(&mut self, ticket: Ticket, out: Output<'_>) -> Result<(), Error>;
    /// Copies blocks to host memory: `data` is `blocks.len() × block_bytes`.
    fn copy_blocks_out(&mut self, blocks: &[u32], data: &mut [u8]) -> Result<(), Error>;
    /// Copies blocks from host memory.
    fn copy_blocks_in(&mut self, blocks: &[u32], data: &[u8]) -> Result<(), Error>;
    /// Copies a slot of recurrent state to host memory, `state_bytes` long.
    fn save_state(&mut self, slot: u32, data: &mut [u8]) -> Result<(), Error>;
    /// Fills a slot of recurrent state with what it was after `position` tokens.
    fn restore_state(&mut self, slot: u32, position: u32, data: &[u8]) -> Result<(), Error>;
    /// The sequence of a slot of recurrent state has ended.
    fn free_state(&mut self, slot: u32) -> Result<(), Error>;
    /// Copies a slot of recurrent state to a snapshot.
    fn take_snapshot(&mut self, slot: u32, snapshot: u32) -> Result<(), Error>;
    /// Copies a snapshot to a slot of recurrent state.
    fn use_snapshot(&mut self, snapshot: u32, slot: u32) -> Result<(), Error>;
    /// Waits until all work of a stream (0 = default, 1 = prefill) is done.
    fn synchronize(&mut self, stream: u32) -> Result<(), Error>;
    /// Releases every pool, in order.
    fn release_pools(&mut self) -> Result<ReleaseReport, Error>;
    /// Drops the model object. Later calls on the model are `invalid`.
    fn drop_model(&mut self);
    /// Frees whatever the ledger still holds.
    fn sweep_unreleased(&mut self) -> Result<SweepReport, Error>;
}
