//! What a backend reports, in host memory.

use super::BackendError;
use met_backend_api::{ResourceKind, abi};

/// One device a backend can open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The index that [`abi::OpenSpec::device`] takes.
    pub index: u32,
    /// "cpu", "cuda", …
    pub kind: String,
    /// The name a person knows it by.
    pub name: String,
    /// Instruction sets or compute capability.
    pub features: String,
    /// Total memory in bytes.
    pub total_memory: u64,
    /// Cores or multiprocessors.
    pub compute_units: u32,
}

impl From<abi::DeviceInfo> for DeviceInfo {
    fn from(d: abi::DeviceInfo) -> Self {
        Self {
            index: d.index,
            kind: d.kind.as_str().to_owned(),
            name: d.name.as_str().to_owned(),
            features: d.features.as_str().to_owned(),
            total_memory: d.total_memory,
            compute_units: d.compute_units,
        }
    }
}

/// What a probe found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeReport {
    /// The usable devices.
    pub devices: Vec<DeviceInfo>,
    /// Where there is none: why, and what an operator can do about it.
    pub problem: String,
}

impl From<abi::ProbeReport> for ProbeReport {
    fn from(p: abi::ProbeReport) -> Self {
        Self {
            devices: p.devices.into_iter().map(Into::into).collect(),
            problem: p.problem.as_str().to_owned(),
        }
    }
}

/// One live resource of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Counts up from 1 within a backend; never reused.
    pub serial: u64,
    /// What it is.
    pub kind: ResourceKind,
    /// Who took it.
    pub owner: String,
    /// Its size; 0 where size has no meaning.
    pub bytes: u64,
}

impl From<abi::LedgerEntry> for LedgerEntry {
    fn from(e: abi::LedgerEntry) -> Self {
        Self {
            serial: e.serial,
            kind: e.kind,
            owner: e.owner.as_str().to_owned(),
            bytes: e.bytes,
        }
    }
}

/// What was loaded. The fields are those of [`abi::ModelInfo`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// The architecture as the checkpoint names it ("llama").
    pub architecture: String,
    /// A name for people.
    pub name: String,
    /// Dominant weight type ("Q4_1").
    pub quantization: String,
    /// Identity of the weights: equal for two loads of one checkpoint, whatever its path.
    pub weights_identity: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Vocabulary size: the length of a row of logits.
    pub vocab_size: u32,
    /// Most tokens of one sequence.
    pub context_length: u32,
    /// Tokens a KV block holds.
    pub block_size: u32,
    /// KV blocks in all.
    pub block_count: u32,
    /// Bytes of one KV block, all layers together.
    pub block_bytes: u64,
    /// Slots of the recurrent-state pool; 0 for models without.
    pub state_slots: u32,
    /// Bytes of one state slot.
    pub state_bytes: u64,
    /// Most rows of one batch.
    pub max_rows: u32,
    /// Most new tokens of one batch.
    pub max_batch_tokens: u32,
    /// Tickets that may be outstanding at a time.
    pub max_in_flight: u32,
}

impl From<abi::ModelInfo> for ModelInfo {
    fn from(m: abi::ModelInfo) -> Self {
        Self {
            architecture: m.architecture.as_str().to_owned(),
            name: m.name.as_str().to_owned(),
            quantization: m.quantization.as_str().to_owned(),
            weights_identity: m.weights_identity.as_str().to_owned(),
            parameters: m.parameters,
            vocab_size: m.vocab_size,
            context_length: m.context_length,
            block_size: m.block_size,
            block_count: m.block_count,
            block_bytes: m.block_bytes,
            state_slots: m.state_slots,
            state_bytes: m.state_bytes,
            max_rows: m.max_rows,
            max_batch_tokens: m.max_batch_tokens,
            max_in_flight: m.max_in_flight,
        }
    }
}

/// One pool of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceReport {
    /// Its owner label on the ledger.
    pub label: String,
    /// Bytes it holds.
    pub bytes: u64,
    /// Allocations it holds.
    pub allocations: u64,
}

impl From<abi::ResourceReport> for ResourceReport {
    fn from(r: abi::ResourceReport) -> Self {
        Self {
            label: r.label.as_str().to_owned(),
            bytes: r.bytes,
            allocations: r.allocations,
        }
    }
}

/// What a release of the pools did: every step, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleaseReport {
    /// The steps.
    pub steps: Vec<ReleaseStep>,
}

impl ReleaseReport {
    /// The first error, with the label of its pool.
    pub fn first_error(&self) -> Option<(&str, &BackendError)> {
        self.steps
            .iter()
            .find_map(|s| Some((s.label.as_str(), s.error.as_ref()?)))
    }
}

impl From<abi::ReleaseReport> for ReleaseReport {
    fn from(r: abi::ReleaseReport) -> Self {
        Self {
            steps: r.steps.into_iter().map(Into::into).collect(),
        }
    }
}

/// One step of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseStep {
    /// The pool.
    pub label: String,
    /// Bytes that came back.
    pub bytes: u64,
    /// Why the pool, or part of it, was left for the sweep.
    pub error: Option<BackendError>,
}

impl From<abi::ReleaseStep> for ReleaseStep {
    fn from(s: abi::ReleaseStep) -> Self {
        Self {
            label: s.label.as_str().to_owned(),
            bytes: s.bytes,
            error: s.error.into_option().map(Into::into),
        }
    }
}

/// What a sweep found that had no owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Resources found.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many could not be freed; they stay on the ledger.
    pub failures: u64,
    /// Each of them.
    pub entries: Vec<SweptEntry>,
}

impl From<abi::SweepReport> for SweepReport {
    fn from(s: abi::SweepReport) -> Self {
        Self {
            count: s.count,
            bytes: s.bytes,
            failures: s.failures,
            entries: s.entries.into_iter().map(Into::into).collect(),
        }
    }
}

/// One resource that a sweep found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweptEntry {
    /// The resource.
    pub entry: LedgerEntry,
    /// Why it could not be freed, where it could not.
    pub error: Option<BackendError>,
}

impl From<abi::SweptEntry> for SweptEntry {
    fn from(s: abi::SweptEntry) -> Self {
        Self {
            entry: s.entry.into(),
            error: s.error.into_option().map(Into::into),
        }
    }
}
