//! What the tests share: the simulated driver, and generations on any backend.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod life;
mod simulator;

#[allow(unused_imports, reason = "as above")]
pub use simulator::{Holdings, Simulator, simulator};
