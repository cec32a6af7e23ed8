//! Formats of 256 elements a block, whose groups of 16 or 32 have quantised scales of their own.

use super::half_at;

/// 16 scale bytes (low nibble scale, high nibble minimum, a group of 16); 64 code bytes; scale, minimum.
/// Each half of the block takes 32 code bytes: bits 0–1 are its first 32 elements, bits 2–3 the next.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (scale, min) = (half_at(block, 80), half_at(block, 82));
    for (i, value) in out.iter_mut().enumerate() {
        let group = scales[i / 16];
        let (scale, min) = (scale * f32::from(group & 15), min * f32::from(group >> 4));
        *value = scale * f32::from(two_bits(codes, i)) - min;
    }
}

/// 32 bytes of third bits; 64 code bytes as in Q2_K; 12 bytes of 6-bit scales around 32; scale.
/// The third bit of element `i` is bit `i / 32` of byte `i % 32`.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, codes, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let scale = half_at(block, 108);
    for (i, value) in out.iter_mut().enumerate() {
        let group = i / 16;
        let low = scales[group % 8] >> (group / 8 * 4) & 15;
        let top = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = scale * (f32::from(low | top << 4) - 32.0);
        let code = two_bits(codes, i) | (high[i % 32] >> (i / 32) & 1) << 2;
        *value = scale * (f32::from(code) - 4.0);
    }
}

/// Scale, minimum; 12 bytes of 6-bit scales and minimums, a group of 32; 128 code bytes.
/// Every 64 elements take 32 code bytes: the low nibbles are the first 32.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (s, m) = scale_and_min(&block[4..16], group);
        let (scale, min) = (scale * f32::from(s), min * f32::from(m));
        for (i, value) in values.iter_mut().enumerate() {
            *value = scale * f32::from(pair_nibble(&block[16..], group, i)) - min;
        }
    }
}

/// As Q4_K, with 32 bytes of fifth bits before the codes: bit `group` of byte `i`.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    let high = &block[16..48];
    for (group, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (s, m) = scale_and_min(&block[4..16], group);
        let (scale, min) = (scale * f32::from(s), min * f32::from(m));
        for (i, value) in values.iter_mut().enumerate() {
            let code = pair_nibble(&block[48..], group, i) | (high[i] >> group & 1) << 4;
            *value = scale * f32::from(code) - min;
        }
    }
}

/// 128 bytes of low nibbles; 64 bytes of top two bits; 16 signed scales, a group of 16; scale. Codes
/// around 32. Each half of the block takes 64 nibble bytes: the low nibbles are its first 64 elements.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (nibbles, tops, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let scale = half_at(block, 208);
    for (i, value) in out.iter_mut().enumerate() {
        let (half, i_half) = (i / 128, i % 128);
        let low = nibbles[half * 64 + i_half % 64] >> (i_half / 64 * 4) & 15;
        let scale = scale * f32::from(scales[i / 16].cast_signed());
        *value = scale * (f32::from(low | two_bits(tops, i) << 4) - 32.0);
    }
}

/// Two bits of element `i`: each half of the block has 32 bytes, of which bits 0–1 are its first 32 elements.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    let (half, i_half) = (i / 128, i % 128);
    bytes[half * 32 + i_half % 32] >> (i_half / 32 * 2) & 3
}

/// The nibble of element `i` of `group`: two groups share 32 bytes.
fn pair_nibble(codes: &[u8], group: usize, i: usize) -> u8 {
    codes[group / 2 * 32 + i] >> (group % 2 * 4) & 15
}

/// The 6-bit scale and minimum of `group` (of 8). The first four have theirs in the low bits of bytes 0–3
/// and 4–7; the others' low nibbles are bytes 8–11, and their top two bits those that were left.
fn scale_and_min(packed: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        (
            packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
            packed[group + 4] >> 4 | packed[group] >> 6 << 4,
        )
    }
}
