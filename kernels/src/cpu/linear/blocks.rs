//! GGUF's blocks as plain codes and scales. The layouts are told in [`crate::formats`].

use super::format::GROUP;
use crate::TensorType;

/// The codes and scales of a block.
pub(super) struct Block {
    /// Codes in the order of the columns, without a zero point.
    pub(super) codes: [u8; 256],
    /// The f16 scale, or super-scale.
    pub(super) scale: [u8; 2],
    /// The f16 minimum, or super-scale of the minimums.
    pub(super) min: [u8; 2],
    /// Of a K type: what multiplies the scale, a group (a half group).
    pub(super) scales: [u8; 16],
    /// The same for the minimum.
    pub(super) mins: [u8; 8],
}

impl Default for Block {
    fn default() -> Self {
        Self {
            codes: [0; 256],
            scale: [0; 2],
            min: [0; 2],
            scales: [0; 16],
            mins: [0; 8],
        }
    }
}

/// Decodes one block; `bytes` has `ty`'s block size. Does nothing for the float types, which have no blocks, and for those
/// that are packed without being taken apart.
pub(super) fn decode(ty: TensorType, bytes: &[u8], block: &mut Block) {
    let half = |at: usize| [bytes[at], bytes[at + 1]];
    let codes = &mut block.codes;
    match ty {
        TensorType::F32
        | TensorType::F16
        | TensorType::BF16
        | TensorType::Q4_0
        | TensorType::Q4_1
        | TensorType::Q8_0 => {}
        TensorType::Q5_0 => {
            block.scale = half(0);
            nibbles(&bytes[6..], codes);
            fifth_bits(&bytes[2..6], codes);
        }
        TensorType::Q5_1 => {
            (block.scale, block.min) = (half(0), half(2));
            nibbles(&bytes[8..], codes);
            fifth_bits(&bytes[4..8], codes);
        }
        TensorType::Q2_K => {
            (block.scale, block.min) = (half(80), half(82));
            block.scales.copy_from_slice(&bytes[..16]);
            codes.fill(0);
            two_bits(&bytes[16..80], 0, codes);
        }
        TensorType::Q3_K => {
            block.scale = half(108);
            for (i, scale) in block.scales.iter_mut().enumerate() {
                let low = bytes[96 + i % 8] >> (i / 8 * 4) & 15;
                let high = bytes[104 + i % 4] >> (i / 4 * 2) & 3;
                *scale = (low | high << 4).wrapping_sub(32);
            }
            codes.fill(0);
            two_bits(&bytes[32..96], 0, codes);
            for (bit, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                for (code, high) in codes.iter_mut().zip(&bytes[..32]) {
                    *code |= (high >> bit & 1) << 2;
                }
            }
        }
        TensorType::Q4_K => {
            scales_and_mins(bytes, block);
            pair_nibbles(&bytes[16..], &mut block.codes);
        }
        TensorType::Q5_K => {
            scales_and_mins(bytes, block);
            pair_nibbles(&bytes[48..], &mut block.codes);
            for (bit, codes) in block.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                for (code, high) in codes.iter_mut().zip(&bytes[16..48]) {
                    *code |= (high >> bit & 1) << 4;
                }
            }
        }
        TensorType::Q6_K => {
            block.scale = half(208);
            block.scales.copy_from_slice(&bytes[192..208]);
            for (codes, bytes) in codes
                .as_chunks_mut::<128>()
                .0
                .iter_mut()
                .zip(bytes.as_chunks::<64>().0)
            {
                for i in 0..64 {
                    (codes[i], codes[i + 64]) = (bytes[i] & 15, bytes[i] >> 4);
                }
            }
            two_bits(&bytes[128..192], 4, codes);
        }
    }
}

/// 16 bytes: low nibbles first.
fn nibbles(bytes: &[u8], codes: &mut [u8; 256]) {
    for (i, byte) in bytes.iter().take(16).enumerate() {
        (codes[i], codes[i + 16]) = (byte & 15, byte >> 4);
    }
}

/// 4 bytes: one bit a code.
fn fifth_bits(bytes: &[u8], codes: &mut [u8; 256]) {
    for (i, code) in codes.iter_mut().take(GROUP).enumerate() {
        *code |= (bytes[i / 8] >> (i % 8) & 1) << 4;
    }
}

/// 64 bytes: each half of the block has 32 of them, whose bits 0–1 are its first 32 codes.
fn two_bits(bytes: &[u8], shift: usize, codes: &mut [u8; 256]) {
    for (part, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (code, byte) in codes.iter_mut().zip(&bytes[part / 4 * 32..]) {
            *code |= (byte >> (part % 4 * 2) & 3) << shift;
        }
    }
}

/// 128 bytes: every 64 codes take 32 of them, low nibbles first.
fn pair_nibbles(bytes: &[u8], codes: &mut [u8; 256]) {
    for (codes, bytes) in codes
        .as_chunks_mut::<64>()
        .0
        .iter_mut()
        .zip(bytes.as_chunks::<32>().0)
    {
        for (i, byte) in bytes.iter().enumerate() {
            (codes[i], codes[i + 32]) = (byte & 15, byte >> 4);
        }
    }
}

/// Scale, minimum and the 12 bytes of 6-bit scales and minimums of Q4_K and Q5_K: the first four in the low
/// bits of bytes 0–3 and 4–7, the last four in the nibbles of bytes 8–11 and the top bits of the others.
fn scales_and_mins(bytes: &[u8], block: &mut Block) {
    (block.scale, block.min) = ([bytes[0], bytes[1]], [bytes[2], bytes[3]]);
    let packed = &bytes[4..16];
    for i in 0..4 {
        (block.scales[i], block.mins[i]) = (packed[i] & 63, packed[i + 4] & 63);
        block.scales[i + 4] = packed[i + 8] & 15 | packed[i] >> 6 << 4;
        block.mins[i + 4] = packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4;
    }
}
