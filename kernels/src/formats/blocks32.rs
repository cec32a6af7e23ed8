//! Formats of 32 elements a block. The low nibbles of the code bytes are the first 16 elements, the high
//! nibbles the last 16; a fifth bit is kept in a word with one bit an element.

use super::half_at;

/// Scale; codes around 8.
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (i, value) in out.iter_mut().enumerate() {
        *value = scale * (f32::from(nibble(&block[2..], i)) - 8.0);
    }
}

/// Scale and minimum; codes from 0.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    for (i, value) in out.iter_mut().enumerate() {
        *value = scale * f32::from(nibble(&block[4..], i)) + min;
    }
}

/// Scale; fifth bits; codes around 16.
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (i, value) in out.iter_mut().enumerate() {
        let code = nibble(&block[6..], i) | bit(&block[2..], i) << 4;
        *value = scale * (f32::from(code) - 16.0);
    }
}

/// Scale and minimum; fifth bits; codes from 0.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    for (i, value) in out.iter_mut().enumerate() {
        let code = nibble(&block[8..], i) | bit(&block[4..], i) << 4;
        *value = scale * f32::from(code) + min;
    }
}

/// Scale; signed bytes.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (value, &code) in out.iter_mut().zip(&block[2..]) {
        *value = scale * f32::from(code.cast_signed());
    }
}

fn nibble(codes: &[u8], i: usize) -> u8 {
    codes[i % 16] >> (i / 16 * 4) & 15
}

fn bit(bits: &[u8], i: usize) -> u8 {
    bits[i / 8] >> (i % 8) & 1
}
