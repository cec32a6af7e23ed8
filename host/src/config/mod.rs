//! What a server is told to serve: by the command line, by a file, or by an operator's request.
//!
//! One table of words for all three: [`SlotConfig`].

mod diff;
mod file;
mod reload;
mod size;
mod slot;

pub use diff::{Change, changes};
pub use file::Config;
pub use reload::{Applied, Reloaded, Reloader};
pub use size::Size;
pub(crate) use slot::{MAX_SEQS, seconds};
pub use slot::{Misfit, PlanChoice, SlotConfig};
