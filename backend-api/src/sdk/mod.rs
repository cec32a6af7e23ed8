//! What a backend author writes against: two plain traits, a log, and the export macro.

mod adapter;
mod export;
mod guard;
pub mod log;
mod shared;

pub use adapter::{open, probe};
pub use export::{construct, header, root_module};
pub use guard::guard;

use crate::abi::*;

/// The services of the host, as an author sees them.
pub type Host = HostServicesArc;

/// An opened device. See [`crate::abi::GpuBackend`] for what each call owes.
pub trait Backend: Sized + 'static {
    /// The models it loads.
    type Model: BackendModel;
    /// The backend's name.
    const NAME: &'static str;
    /// The backend's version.
    const VERSION: &'static str;

    /// Which devices are usable.
    fn probe(host: &Host) -> Result<ProbeReport, Error>;
    /// Opens a device.
    fn open(host: Host, spec: &OpenSpec) -> Result<Self, Error>;
    /// The device that was opened.
    fn info(&self) -> Result<DeviceInfo, Error>;
    /// Memory now.
    fn memory(&self) -> Result<MemoryInfo, Error>;
    /// Every live entry.
    fn ledger(&self) -> Result<Vec<LedgerEntry>, Error>;
    /// Loads a model.
    fn load_model(&mut self, spec: &ModelSpec) -> Result<Self::Model, Error>;
    /// Waits for a stream.
    fn synchronize(&mut self, stream: u32) -> Result<(), Error>;
    /// Frees what is left.
    fn sweep_unreleased(&mut self) -> Result<SweepReport, Error>;
}

/// A loaded model. See [`crate::abi::Model`] for what each call owes.
pub trait BackendModel: Sized + 'static {
    /// What was loaded.
    fn info(&self) -> Result<ModelInfo, Error>;
    /// One report a pool.
    fn resources(&self) -> Result<Vec<ResourceReport>, Error>;
    /// Starts a step.
    fn submit(&mut self, batch: &Batch<'_>) -> Result<Ticket, Error>;
    /// Finishes the oldest step.
    fn collect(&mut self, ticket: Ticket, out: &mut Output<'_>) -> Result<(), Error>;
    /// Copies blocks to host memory.
    fn copy_blocks_out(&mut self, blocks: &[u32], data: &mut [u8]) -> Result<(), Error>;
    /// Copies blocks from host memory.
    fn copy_blocks_in(&mut self, blocks: &[u32], data: &[u8]) -> Result<(), Error>;
    /// Copies a state slot to host memory.
    fn save_state(&mut self, _slot: u32, _data: &mut [u8]) -> Result<(), Error> {
        Err(Error::invalid("this model has no recurrent state"))
    }
    /// Fills a state slot from host memory.
    fn restore_state(&mut self, _slot: u32, _position: u32, _data: &[u8]) -> Result<(), Error> {
        Err(Error::invalid("this model has no recurrent state"))
    }
    /// The sequence of a state slot has ended.
    fn free_state(&mut self, _slot: u32) -> Result<(), Error> {
        Err(Error::invalid("this model has no recurrent state"))
    }
    /// Copies a state slot to a snapshot.
    fn take_snapshot(&mut self, _slot: u32, _snapshot: u32) -> Result<(), Error> {
        Err(Error::invalid("this model has no recurrent state"))
    }
    /// Copies a snapshot to a state slot.
    fn use_snapshot(&mut self, _snapshot: u32, _slot: u32) -> Result<(), Error> {
        Err(Error::invalid("this model has no recurrent state"))
    }
    /// Releases every pool in order.
    fn release_pools(&mut self) -> Result<ReleaseReport, Error>;
}

/// [`BatchOutput`] as plain slices.
pub struct Output<'a> {
    /// One a row.
    pub rows: &'a mut [RowOutput],
    /// Top log-probabilities, rows in order.
    pub top: &'a mut [TokenLogprob],
    /// Logits, rows in order.
    pub logits: &'a mut [f32],
}
