//! The device: what it is, how much memory it has, and the ledger of what is alive on it.

use super::{Error, Model_TO, ModelSpec};
use abi_stable::{
    StableAbi, sabi_trait,
    std_types::{RBox, ROption, RResult, RString, RVec, Tuple2},
};

/// One device a backend can open.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// The index that [`OpenSpec::device`] takes.
    pub index: u32,
    /// "cpu", "cuda", …
    pub kind: RString,
    /// The name a person knows it by.
    pub name: RString,
    /// Instruction sets or compute capability, for the log.
    pub features: RString,
    /// Total memory in bytes.
    pub total_memory: u64,
    /// Cores or multiprocessors.
    pub compute_units: u32,
}

/// What `probe` found, without opening anything.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq)]
pub struct ProbeReport {
    /// The usable devices.
    pub devices: RVec<DeviceInfo>,
    /// Where there is none: why, and what an operator can do about it. Empty otherwise.
    pub problem: RString,
}

/// How to open a device.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq)]
pub struct OpenSpec {
    /// Index from [`ProbeReport::devices`].
    pub device: u32,
    /// Compute threads on the host's side; 0 lets the backend choose.
    pub threads: u32,
    /// Most bytes the backend may hold on its ledger; 0 is no limit of ours.
    pub memory_limit: u64,
    /// Backend-specific options as (name, value); an unknown name is an `invalid` error.
    pub options: RVec<Tuple2<RString, RString>>,
}

/// A device's memory, in bytes.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What the device says is free; once its context is given back, what it said last.
    pub free: u64,
    /// What the device has in all.
    pub total: u64,
    /// Sum of the ledger's live entries.
    pub ledger_bytes: u64,
    /// Number of the ledger's live entries.
    pub ledger_count: u64,
}

/// What a ledger entry is.
#[repr(u8)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResourceKind {
    /// What a driver keeps for the process on a device.
    Context,
    /// A memory pool of a driver.
    Pool,
    /// Device memory.
    Memory,
    /// Pinned host memory.
    Pinned,
    /// A file mapping that weights are read from in place.
    Mapping,
    /// A stream.
    Stream,
    /// An event.
    Event,
    /// A captured graph.
    Graph,
    /// A loaded code module.
    Module,
    /// A thread.
    Thread,
}

/// One live resource.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Counts up from 1 within a backend; never reused.
    pub serial: u64,
    /// What it is.
    pub kind: ResourceKind,
    /// Who took it ("weights", "kv cache", …).
    pub owner: RString,
    /// Its size; 0 where size has no meaning.
    pub bytes: u64,
}

/// One resource that the sweep found without an owner.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, PartialEq, Eq)]
pub struct SweptEntry {
    /// The resource.
    pub entry: LedgerEntry,
    /// Why it could not be freed, where it could not.
    pub error: ROption<Error>,
}

/// What [`GpuBackend::sweep_unreleased`] found.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Resources found.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many could not be freed; they stay on the ledger.
    pub failures: u64,
    /// Each of them.
    pub entries: RVec<SweptEntry>,
}

/// A model object of a backend.
pub type ModelBox = Model_TO<'static, RBox<()>>;
/// A backend object.
pub type BackendBox = GpuBackend_TO<'static, RBox<()>>;

/// An opened device. Every method is called from the generation's engine thread.
#[sabi_trait]
pub trait GpuBackend {
    /// The device that was opened.
    fn info(&self) -> RResult<DeviceInfo, Error>;

    /// Memory now. Cheap enough for every step; creates no context that stays.
    fn memory(&self) -> RResult<MemoryInfo, Error>;

    /// Every live entry, in order of serial number.
    fn ledger(&self) -> RResult<RVec<LedgerEntry>, Error>;

    /// Reads the checkpoint and makes the model's pools. Polls the host's cancel flag at least every
    /// 100 ms. After an error everything that the load had taken is given back.
    fn load_model(&mut self, spec: &ModelSpec) -> RResult<ModelBox, Error>;

    /// Waits until all work of a stream (0 = default, 1 = prefill) is done.
    fn synchronize(&mut self, stream: u32) -> RResult<(), Error>;

    /// Frees whatever the ledger still holds. Called after `release_pools` and after every model object
    /// was dropped; may be called again, and then finds only what failed before.
    #[sabi(last_prefix_field)]
    fn sweep_unreleased(&mut self) -> RResult<SweepReport, Error>;
}
