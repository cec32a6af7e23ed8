//! The CPU implementation: [`CpuOps`].
//!
//! A kernel is written once over [`simd`] vectors of 16 lanes and compiled for each instruction set; the
//! [`Team`] shares its work among threads. Quantised products are in [`linear`].

mod attention;
mod buffer;
mod conv;
mod delta;
mod elementwise;
pub mod isa;
mod kv;
pub mod linear;
mod ops;
mod region;
mod rope;
mod routing;
mod scan;
pub mod simd;
mod state;
pub mod team;
mod tensor;
#[cfg(test)]
mod tests;

pub use buffer::{Buffer, Element};
pub use isa::Isa;
pub use kv::KvCache;
pub use ops::{CpuOps, CpuStep};
pub use region::Region;
pub use state::State;
pub use team::Team;
pub use tensor::Tensor;

/// Who does the work, and with what.
#[derive(Clone, Copy)]
struct Workers<'a> {
    team: &'a Team,
    isa: Isa,
}
