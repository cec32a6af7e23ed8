//! The exported driver functions, and the state behind them.

#[macro_use]
mod call;
mod capture;
mod context;
mod device;
mod event;
mod fault;
mod function;
mod graph;
mod launch;
mod memory;
mod module;
mod pinned;
mod pointer;
mod pool;
mod queue;
mod settings;
mod state;
mod stream;
mod transfer;

pub use context::*;
pub use device::*;
pub use event::*;
pub use function::*;
pub use graph::*;
pub use launch::*;
pub use memory::*;
pub use module::*;
pub use pinned::*;
pub use pool::*;
pub use stream::*;
pub use transfer::*;

pub(crate) use call::{locked, with_driver};
pub(crate) use fault::Failure;
pub(crate) use state::Driver;
