//! Swaps to the CUDA backend's library and back, on a card that is simulated.

mod faults;
mod hybrid;
mod server;
mod simulator;
