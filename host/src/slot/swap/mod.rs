//! Swaps: the six verbs load, verify, switch, drain, teardown, unload.
//!
//! ```text
//! Order ─▶ Supervisor ── one thread a swap ──▶ Performer ⇄ Machine (pure) ─▶ SwapReport
//!              │                                    └─ SwapEvent ─▶ whoever listens
//!              └─ busy slots, cancel, reports
//! ```
//!
//! - The machine says which verb comes next; the performer does it and says how it went. Only the machine decides.
//! - One swap at a time a slot. It can be cancelled until `switch`.
//! - Every step is attempted and reported, whatever happened before it; the report is complete when the swap ends.

mod control;
mod events;
mod machine;
mod memory;
mod order;
mod perform;
mod plan;
mod report;
#[cfg(test)]
mod simulation;
mod supervisor;
mod verify;

pub use events::SwapEvent;
pub use machine::{Machine, Next, Outcome, Plan, Step, Subject, Verb};
pub use order::{DRAIN_DEADLINE, InFlight, Order, SwapOrder, Verify};
pub use plan::choose;
pub use report::{GenerationCard, Released, StepReport, SwapMemory, SwapReport};
pub use supervisor::{Begun, NotCancelled, Refusal, Supervisor};
