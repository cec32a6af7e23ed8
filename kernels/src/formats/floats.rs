//! Formats without blocks.

pub(super) fn f32(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

pub(super) fn f16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = half::f16::from_le_bytes(*block).to_f32();
}

pub(super) fn bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = half::bf16::from_le_bytes(*block).to_f32();
}
