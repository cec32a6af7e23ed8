//! What an operator asks of a slot.

use super::Plan;
use crate::slot::{Hold, LoadSpec};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What becomes of the requests that run when their generation is to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum InFlight {
    /// They finish, until the drain deadline; then they are cancelled.
    #[default]
    Finish,
    /// They go on in the new generation where that has the same model, and finish here where it has not.
    Carry,
    /// They are cancelled at once.
    Cancel,
}

impl InFlight {
    /// Its name, as in the orders.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Carry => "carry",
            Self::Cancel => "cancel",
        }
    }
}

/// How a candidate is tried before it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "VerifyForm", into = "VerifyForm")]
pub enum Verify {
    /// It answers fixed prompts: every number finite, every token in range.
    #[default]
    Prompts,
    /// It also continues `prompt` with `expect`, greedily.
    Text {
        /// A plain text.
        prompt: String,
        /// How its continuation must begin.
        expect: String,
    },
    /// Not at all.
    Skip,
}

#[derive(Deserialize, Serialize)]
#[serde(
    untagged,
    expecting = "verify is true, false, or {\"prompt\": …, \"expect\": …}"
)]
enum VerifyForm {
    Switch(bool),
    Text { prompt: String, expect: String },
}

impl From<VerifyForm> for Verify {
    fn from(form: VerifyForm) -> Self {
        match form {
            VerifyForm::Switch(true) => Self::Prompts,
            VerifyForm::Switch(false) => Self::Skip,
            VerifyForm::Text { prompt, expect } => Self::Text { prompt, expect },
        }
    }
}

impl From<Verify> for VerifyForm {
    fn from(verify: Verify) -> Self {
        match verify {
            Verify::Prompts => Self::Switch(true),
            Verify::Skip => Self::Switch(false),
            Verify::Text { prompt, expect } => Self::Text { prompt, expect },
        }
    }
}

/// What to do with a slot.
#[derive(Clone, Debug)]
pub enum Order {
    /// Make the slot, with its first generation.
    Load(SwapOrder),
    /// Bring a generation to a slot, in place of the one that serves, where one does.
    Swap(SwapOrder),
    /// Take the slot and its generation away.
    Unload {
        /// What becomes of running requests; there is nothing to carry them to.
        in_flight: InFlight,
        /// How long they may take.
        drain_deadline: Duration,
    },
}

/// A generation to bring, and how.
#[derive(Clone, Debug)]
pub struct SwapOrder {
    /// What to load. The model's path is still as the operator wrote it: a path, `hf:…` or `pypi:…`.
    pub spec: LoadSpec,
    /// The plan; `None` lets the measured memory decide.
    pub plan: Option<Plan>,
    /// What becomes of running requests.
    pub in_flight: InFlight,
    /// How long they may take.
    pub drain_deadline: Duration,
    /// How requests that find no generation are held.
    pub hold: Hold,
    /// How the candidate is tried.
    pub verify: Verify,
}

/// How long running requests may take where nobody says otherwise.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(30);

impl SwapOrder {
    /// To load `spec`, everything else as usual.
    pub fn new(spec: LoadSpec) -> Self {
        Self {
            spec,
            plan: None,
            in_flight: InFlight::default(),
            drain_deadline: DRAIN_DEADLINE,
            hold: Hold::default(),
            verify: Verify::default(),
        }
    }
}
