//! Linear layers: `out = x · weightᵀ + bias`, for every [`crate::TensorType`].
//!
//! Quantised weights are repacked once into panels of sixteen rows (`format`), in which a lane is a row, so
//! a product needs no horizontal sums; activations are quantised to 16 bits (`quantize`). One kernel
//! (`kernel`) is compiled for every type, tile height and instruction set (`simd`); where there is none,
//! plain Rust serves (`portable`). Unquantised weights are kept as they are (`float`). `product` shares out the
//! work of a product, `experts` that of products with the chosen experts of each row.
//!
//! What must stay true: an output element is the same to the bit for any number of rows in the batch, any
//! number of threads, and with AVX2 as with AVX-512.

mod blocks;
mod dispatch;
mod experts;
mod float;
mod format;
#[cfg(target_arch = "x86_64")]
mod kernel;
mod pack;
mod portable;
mod product;
mod quantize;
mod read;
#[cfg(target_arch = "x86_64")]
mod simd;
#[cfg(test)]
mod tests;
mod weight;

pub use experts::{ExpertProduct, expert_linear};
pub use product::{Product, linear};
pub use quantize::QuantizedRows;
pub use weight::PackedWeight;
