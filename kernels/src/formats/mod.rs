//! Exact dequantisation of every [`TensorType`] to f32, and quantisation to those that a load can make.
//!
//! The layouts are GGUF's. Products and sums are rounded in the order of the format's definition
//! (`scale · code`, then the minimum), so that every implementation that follows it gives the same bits.

mod blocks32;
mod floats;
mod k_quants;
mod quantize;

use crate::{Error, Result, TensorType};
pub use quantize::quantize;

/// Dequantises `bytes`, a whole number of `ty`'s blocks, to `out`.
///
/// [`crate::ErrorKind::Invalid`] where `bytes` isn't what `out.len()` elements take.
pub fn dequantize(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    if ty.bytes_of(out.len()) != Some(bytes.len()) {
        return Err(Error::invalid(format!(
            "{} bytes aren't {} elements of {}; the tensor's shape and its data disagree",
            bytes.len(),
            out.len(),
            ty.name()
        )));
    }
    match ty {
        TensorType::F32 => blocks(bytes, out, floats::f32),
        TensorType::F16 => blocks(bytes, out, floats::f16),
        TensorType::BF16 => blocks(bytes, out, floats::bf16),
        TensorType::Q4_0 => blocks(bytes, out, blocks32::q4_0),
        TensorType::Q4_1 => blocks(bytes, out, blocks32::q4_1),
        TensorType::Q5_0 => blocks(bytes, out, blocks32::q5_0),
        TensorType::Q5_1 => blocks(bytes, out, blocks32::q5_1),
        TensorType::Q8_0 => blocks(bytes, out, blocks32::q8_0),
        TensorType::Q2_K => blocks(bytes, out, k_quants::q2_k),
        TensorType::Q3_K => blocks(bytes, out, k_quants::q3_k),
        TensorType::Q4_K => blocks(bytes, out, k_quants::q4_k),
        TensorType::Q5_K => blocks(bytes, out, k_quants::q5_k),
        TensorType::Q6_K => blocks(bytes, out, k_quants::q6_k),
    }
    Ok(())
}

/// Applies `one` to each block: `BYTES` bytes that hold `LEN` elements.
fn blocks<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    one: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (bytes, _) = bytes.as_chunks::<BYTES>();
    let (out, _) = out.as_chunks_mut::<LEN>();
    for (block, values) in bytes.iter().zip(out) {
        one(block, values);
    }
}

/// The f16 that `block` holds at byte `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

#[cfg(test)]
mod tests;
