//! Swaps to the CUDA backend's library and back, on a card that is simulated.

mod faults;
mod hybrid;
mod model;
mod server;
mod simulator;
mod world;
