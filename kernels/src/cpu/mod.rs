//! The CPU implementation.

pub mod buffer;
pub mod linear;
pub mod simd;
pub mod team;

pub use buffer::Buffer;
pub use simd::Isa;
pub use team::Team;
