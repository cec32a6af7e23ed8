//! The CPU implementation.

pub mod buffer;
pub mod isa;
pub mod linear;
pub mod simd;
pub mod team;

pub use buffer::Buffer;
pub use isa::Isa;
pub use team::Team;
