//! What a teardown did, in the host's own words and memory.

use met_backend_api as api;
use serde::Serialize;

/// A device's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// What the device says is free.
    pub free: u64,
    /// What it has in all.
    pub total: u64,
    /// Sum of the ledger's live entries.
    pub ledger_bytes: u64,
    /// Number of the ledger's live entries.
    pub ledger_count: u64,
}

/// A live entry of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LedgerItem {
    /// Counts up within a backend.
    pub serial: u64,
    /// What it is ("memory", "stream", …).
    pub kind: String,
    /// Who took it.
    pub owner: String,
    /// Its size.
    pub bytes: u64,
    /// Why it could not be freed, where a sweep tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One step of a teardown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TeardownStep {
    /// Its name.
    pub name: &'static str,
    /// How long it took, in milliseconds.
    pub ms: f64,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A pool that was released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReleasedPool {
    /// Its owner label.
    pub label: String,
    /// Bytes that came back.
    pub bytes: u64,
    /// Why it, or a part of it, was left for the sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What the sweep found: resources without an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Resources found.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many could not be freed.
    pub failures: u64,
    /// Each of them.
    pub entries: Vec<LedgerItem>,
}

/// Requests that the deadline ended, by the state they were in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GivenUp {
    /// In the line, never begun.
    pub waiting: u32,
    /// With part of their prompt computed.
    pub prefilling: u32,
    /// Generating.
    pub active: u32,
    /// Put back into the line.
    pub preempted: u32,
    /// Put back into the line, with their blocks kept in host memory.
    pub swapped: u32,
}

/// What a shutdown did: every step, whatever happened before it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TeardownReport {
    /// The steps in the order in which they ran.
    pub steps: Vec<TeardownStep>,
    /// Requests that left with all that they had given, to go on in another generation.
    pub moved: u32,
    /// Sessions that were ended.
    pub sessions: u32,
    /// Requests that were not finished by the deadline.
    pub given_up: GivenUp,
    /// The pools in the order of their release.
    pub pools: Vec<ReleasedPool>,
    /// What had no owner.
    pub swept: Swept,
    /// Device memory before the first step, where it could be read.
    pub memory_before: Option<Memory>,
    /// Device memory after the last step, where it could be read.
    pub memory_after: Option<Memory>,
    /// What the ledger still holds, with its owners; `None` where it could not be read.
    pub left: Option<Vec<LedgerItem>>,
    /// The call that did not come back: nothing after it was done, and the library must stay mapped.
    pub stuck: Option<String>,
}

impl TeardownReport {
    /// Whether every byte is known to be back.
    pub fn is_clean(&self) -> bool {
        self.stuck.is_none() && self.left.as_ref().is_some_and(Vec::is_empty) && self.first_error().is_none()
    }

    /// The first error, with the step or pool that it befell.
    pub fn first_error(&self) -> Option<(&str, &str)> {
        let pools = self
            .pools
            .iter()
            .filter_map(|pool| Some((pool.label.as_str(), pool.error.as_deref()?)));
        let steps = self
            .steps
            .iter()
            .filter_map(|step| Some((step.name, step.error.as_deref()?)));
        pools.chain(steps).next()
    }
}

impl From<api::MemoryInfo> for Memory {
    fn from(memory: api::MemoryInfo) -> Self {
        let api::MemoryInfo {
            free,
            total,
            ledger_bytes,
            ledger_count,
        } = memory;
        Self {
            free,
            total,
            ledger_bytes,
            ledger_count,
        }
    }
}

impl From<&api::LedgerEntry> for LedgerItem {
    fn from(entry: &api::LedgerEntry) -> Self {
        Self {
            serial: entry.serial,
            kind: format!("{:?}", entry.kind).to_lowercase(),
            owner: entry.owner.to_string(),
            bytes: entry.bytes,
            error: None,
        }
    }
}

impl From<&api::ReleaseStep> for ReleasedPool {
    fn from(step: &api::ReleaseStep) -> Self {
        let error = step.error.as_ref().map(ToString::to_string).into_option();
        Self {
            label: step.label.to_string(),
            bytes: step.bytes,
            error,
        }
    }
}

impl From<&api::SweepReport> for Swept {
    fn from(report: &api::SweepReport) -> Self {
        let entries = report.entries.iter().map(|swept| LedgerItem {
            error: swept.error.as_ref().map(ToString::to_string).into_option(),
            ..LedgerItem::from(&swept.entry)
        });
        Self {
            count: report.count,
            bytes: report.bytes,
            failures: report.failures,
            entries: entries.collect(),
        }
    }
}
