//! What is told of a swap while it runs.

use super::{GenerationCard, Plan, Step, StepReport, SwapReport};
use serde::Serialize;

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum SwapEvent {
    /// A swap began.
    Begun {
        /// Which.
        id: u64,
        /// Of which slot.
        slot: String,
        /// What serves.
        from: Option<GenerationCard>,
        /// In which order, where there are two generations.
        plan: Option<Plan>,
    },
    /// A step began.
    StepBegun {
        /// Of which swap.
        id: u64,
        /// Of which slot.
        slot: String,
        /// Which.
        #[serde(flatten)]
        step: Step,
    },
    /// A load is so far, or the download that comes before the swap begins.
    Progress {
        /// Of which swap.
        id: u64,
        /// Of which slot.
        slot: String,
        /// What is being done ("download", "weights").
        stage: String,
        /// Bytes of it that are done.
        done: u64,
        /// Bytes of it in all; 0 where that is not known.
        total: u64,
    },
    /// A step came to its end.
    Step {
        /// Of which swap.
        id: u64,
        /// Of which slot.
        slot: String,
        /// How it went.
        #[serde(flatten)]
        report: StepReport,
    },
    /// A swap came to its end.
    Ended(Box<SwapReport>),
    /// The server is stopped: nothing happens any more.
    Stopped,
}

impl SwapEvent {
    /// Its name, as in the JSON field `event`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Begun { .. } => "begun",
            Self::StepBegun { .. } => "step_begun",
            Self::Progress { .. } => "progress",
            Self::Step { .. } => "step",
            Self::Ended(_) => "ended",
            Self::Stopped => "stopped",
        }
    }
}
