//! The CPU implementation.

pub mod buffer;
pub mod team;

pub use buffer::Buffer;
pub use team::Team;
