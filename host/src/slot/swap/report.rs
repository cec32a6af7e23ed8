//! What a swap did: every step, every byte, and what is left.

use super::{Outcome, Plan, Step};
use crate::{
    engine::{LedgerItem, Memory, ReleasedPool, Swept, TeardownReport},
    loader::Unload,
    slot::{Generation, ModelText},
};
use serde::Serialize;

/// The whole of it, in the host's own memory.
#[derive(Clone, Debug, Serialize)]
pub struct SwapReport {
    /// Never the same twice.
    pub id: u64,
    /// The slot's name.
    pub slot: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it did not end as it was asked to.
    pub error: Option<String>,
    /// In which order, where there were two generations.
    pub plan: Option<Plan>,
    /// What served when it began.
    pub from: Option<GenerationCard>,
    /// What serves now that it has ended.
    pub to: Option<GenerationCard>,
    /// All of it, in milliseconds.
    pub ms: f64,
    /// The steps in the order in which they were made.
    pub steps: Vec<StepReport>,
    /// What was given back by those generations that were torn down.
    pub released: Released,
    /// Memory before the first step and at the end.
    pub memory: BeforeAfter,
    /// Requests that were held because nothing served.
    pub held_requests: u64,
    /// Requests that went on in another generation.
    pub carried: u64,
    /// Requests that were cut.
    pub cancelled: u64,
    /// What became of the libraries of the generations that are gone.
    pub library: Option<LibraryReport>,
}

/// What an operator knows a generation by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GenerationCard {
    /// Its number within the slot.
    pub generation: u64,
    /// The backend as it was asked for.
    pub backend: String,
    /// The model's path.
    pub path: String,
    /// The model's own name.
    pub model: String,
    /// The device.
    pub device: String,
}

/// A step that was made.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// Which, and of whom.
    #[serde(flatten)]
    pub step: Step,
    /// How long it took.
    pub ms: f64,
    /// What went wrong.
    pub error: Option<String>,
}

/// What came back.
#[derive(Clone, Debug, Serialize)]
pub struct Released {
    /// Each pool of each generation, in the order of release.
    pub pools: Vec<PoolReport>,
    /// What no pool owned.
    pub swept: Swept,
    /// What is still on the ledgers, with its owners; none where one could not be read.
    pub left: Option<Vec<LedgerItem>>,
    /// The call that did not come back: its generation is stuck, and keeps what it has.
    pub stuck: Option<String>,
}

impl Default for Released {
    fn default() -> Self {
        Self {
            pools: Vec::new(),
            swept: Swept::default(),
            left: Some(Vec::new()),
            stuck: None,
        }
    }
}

/// A pool that was released.
#[derive(Clone, Debug, Serialize)]
pub struct PoolReport {
    /// Whose.
    pub generation: u64,
    /// Which.
    #[serde(flatten)]
    pub pool: ReleasedPool,
}

/// Memory at two moments.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct BeforeAfter {
    /// Before the first step.
    pub before: SwapMemory,
    /// After the last step.
    pub after: SwapMemory,
}

/// Memory at a moment, in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SwapMemory {
    /// Anonymous memory of the whole process.
    pub process_anonymous: Option<u64>,
    /// The device of the generation that served when the swap began, as its own backend says: with what it still holds
    /// there, or held at its end. None where nothing served, or the backend did not say.
    pub device: Option<Memory>,
}

/// What became of a library, or of the worst of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LibraryReport {
    /// A part of this program; nothing of it runs any more.
    BuiltIn,
    /// It has left the process's memory map.
    Unmapped,
    /// It is still mapped.
    Retained {
        /// Why.
        reason: String,
    },
}

impl GenerationCard {
    /// Of a generation.
    pub fn of<T: ModelText>(generation: &Generation<T>) -> Self {
        let info = generation.engine().info();
        let spec = generation.spec();
        Self {
            generation: generation.number(),
            backend: spec.map_or_else(String::new, |spec| spec.backend.to_string()),
            path: spec.map_or_else(String::new, |spec| spec.model.path.to_string()),
            model: info.model.name.to_string(),
            device: info.device.name.to_string(),
        }
    }
}

impl SwapReport {
    /// Whether the slot is now as it was asked to be.
    pub fn is_as_asked(&self) -> bool {
        matches!(
            self.outcome,
            Outcome::Swapped | Outcome::Loaded | Outcome::Unloaded
        )
    }

    /// Whether everything that was to go is known to be gone.
    pub fn is_clean(&self) -> bool {
        self.released.stuck.is_none()
            && self.released.left.as_ref().is_some_and(Vec::is_empty)
            && self.released.swept.failures == 0
            && !matches!(self.library, Some(LibraryReport::Retained { .. }))
    }

    /// Adds what the teardown of generation `number` did.
    pub(super) fn add_teardown(&mut self, number: u64, report: &TeardownReport) {
        let pools = report.pools.iter().cloned().map(|pool| PoolReport {
            generation: number,
            pool,
        });
        self.released.pools.extend(pools);
        let (sum, swept) = (&mut self.released.swept, &report.swept);
        sum.count += swept.count;
        sum.bytes += swept.bytes;
        sum.failures += swept.failures;
        sum.entries.extend(swept.entries.iter().cloned());
        let left = self.released.left.take().zip(report.left.clone());
        self.released.left = left.map(|(mut left, more)| {
            left.extend(more);
            left
        });
        self.released.stuck = report.stuck.clone().or(self.released.stuck.take());
        self.carried += u64::from(report.moved);
        let given_up = report.given_up;
        self.cancelled += [
            given_up.waiting,
            given_up.prefilling,
            given_up.active,
            given_up.preempted,
            given_up.swapped,
        ]
        .map(u64::from)
        .iter()
        .sum::<u64>();
    }

    /// Adds what became of a library. One that stays is what is told of several.
    pub(super) fn add_unload(&mut self, unload: Unload) {
        let unload = match unload {
            Unload::BuiltIn => LibraryReport::BuiltIn,
            Unload::Unmapped => LibraryReport::Unmapped,
            Unload::Retained { reason } => LibraryReport::Retained { reason },
        };
        if !matches!(self.library, Some(LibraryReport::Retained { .. })) {
            self.library = Some(unload);
        }
    }
}
