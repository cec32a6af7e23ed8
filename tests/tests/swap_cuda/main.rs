//! Swaps to the CUDA backend's library and back, on a card that is simulated.

mod faults;
mod hybrid;
mod libraries;
mod model;
mod server;
#[path = "../../../backend-cuda/tests/support/simulator.rs"]
#[allow(dead_code, reason = "a part is used")]
mod simulator;
mod world;
