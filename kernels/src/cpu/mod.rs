//! The CPU implementation: [`CpuOps`].
//!
//! A kernel is written once over [`simd`] vectors of 16 lanes and compiled for each instruction set; the
//! [`Team`] shares its work among threads. Quantised products are in [`linear`].

mod attention;
mod buffer;
mod elementwise;
pub mod isa;
mod kv;
pub mod linear;
mod ops;
mod region;
mod rope;
pub mod simd;
pub mod team;
#[cfg(test)]
mod tests;

pub use buffer::{Buffer, Element};
pub use isa::Isa;
pub use kv::KvCache;
pub use ops::{CpuOps, CpuStep, Tensor};
pub use region::Region;
pub use team::Team;
