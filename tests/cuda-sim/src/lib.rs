//! A `libcuda.so.1` for machines without a card.
//!
//! It exports the driver functions that `cudarc` and a backend call, with the rules that the driver has for
//! them, and runs kernels by interpreting their PTX. Device memory is host memory with a shadow byte for each
//! byte, so that an access outside an allocation, a use after free and a read of memory never written are
//! found where they happen. `README.md` says what is covered and how tests steer it.

mod arena;
mod code;
pub mod control;
mod decode;
pub mod driver;
mod exec;
mod ptx;

pub use code::Code;
