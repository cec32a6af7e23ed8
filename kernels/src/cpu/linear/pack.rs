//! From a checkpoint's blocks to panels, and a row of a panel back to f32.

use super::{
    blocks::{Block, decode},
    format::{GROUP, LANES, Record, Scales, Shape},
};
use crate::TensorType;
use half::f16;

/// Packs `rows` (at most [`LANES`] whole rows of `ty`, one after another) into `panel`. Lanes without a row
/// stay as they are: zero, which makes their results zero.
pub(super) fn pack_panel(ty: TensorType, shape: Shape, rows: &[u8], groups: usize, panel: &mut [u8]) {
    let record = shape.record();
    let block_groups = ty.block_len() / GROUP;
    let row_bytes = groups / block_groups * ty.block_bytes();
    let mut block = Block::default();
    let is_nibbles = matches!(ty, TensorType::Q4_0 | TensorType::Q4_1);
    for first in (0..groups).step_by(block_groups) {
        let panel = &mut panel[first / record.groups * record.bytes..][..record.bytes];
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            let bytes = &row[first / block_groups * ty.block_bytes()..][..ty.block_bytes()];
            if let (true, Some((scales, nibbles))) = (is_nibbles, bytes.split_last_chunk()) {
                let group = first % record.groups;
                pack_halves(record, scales, group, lane, panel);
                pack_nibbles(
                    nibbles,
                    &mut panel[group * shape.group_bytes()..][..shape.group_bytes()],
                    lane,
                );
                continue;
            }
            decode(ty, bytes, &mut block);
            pack_scales(shape, record, &block, first % record.groups, lane, panel);
            for (group, codes) in block.codes.as_chunks().0.iter().take(block_groups).enumerate() {
                let group = first % record.groups + group;
                let words = &mut panel[group * shape.group_bytes()..][..shape.group_bytes()];
                pack_codes(shape, codes, words, lane);
            }
        }
    }
}

/// Row `lane` of a panel, exactly as dequantising the checkpoint's blocks gives it.
pub(super) fn unpack_row(shape: Shape, panel: &[u8], lane: usize, out: &mut [f32]) {
    let record = shape.record();
    let zero = shape.zero.map_or(0.0, |zero| (1 << zero) as f32);
    for (index, out) in out.chunks_exact_mut(GROUP).enumerate() {
        let panel = &panel[index / record.groups * record.bytes..][..record.bytes];
        let group = index % record.groups;
        let codes = unpack_codes(
            shape,
            &panel[group * shape.group_bytes()..][..shape.group_bytes()],
            lane,
        );
        for (half, (out, codes)) in out.chunks_mut(GROUP / 2).zip(codes.chunks(GROUP / 2)).enumerate() {
            let (scale, min) = unpack_scale(shape, record, panel, group, half, lane);
            for (value, &code) in out.iter_mut().zip(codes) {
                *value = scale * (code as f32 - zero);
                if shape.min {
                    *value += min;
                }
            }
        }
    }
}

/// Writes a block's scales; a block without super-scales is group `group` of its record.
fn pack_scales(shape: Shape, record: Record, block: &Block, group: usize, lane: usize, panel: &mut [u8]) {
    let mut half = |section: usize, value: [u8; 2]| {
        panel[section + (group * LANES + lane) * 2..][..2].copy_from_slice(&value);
    };
    if shape.scales == Scales::F16 {
        half(record.scales, block.scale);
        if shape.min {
            half(record.mins, block.min);
        }
        return;
    }
    half(record.super_scales, block.scale);
    if shape.min {
        half(record.super_mins, block.min);
    }
    let parts = if shape.halves() {
        2 * record.groups
    } else {
        record.groups
    };
    for part in 0..parts {
        let at = part * LANES + lane;
        panel[record.scales + at] = block.scales[part];
        if shape.scales == Scales::Bytes {
            panel[record.mins + at] = block.mins[part];
        }
    }
}

/// The scale and what is added of a half group.
fn unpack_scale(
    shape: Shape,
    record: Record,
    panel: &[u8],
    group: usize,
    half: usize,
    lane: usize,
) -> (f32, f32) {
    let float = |section: usize, index: usize| {
        let at = section + (index * LANES + lane) * 2;
        f16::from_le_bytes([panel[at], panel[at + 1]]).to_f32()
    };
    if shape.scales == Scales::F16 {
        let min = if shape.min { float(record.mins, group) } else { 0.0 };
        return (float(record.scales, group), min);
    }
    let part = if shape.halves() { group * 2 + half } else { group };
    let at = part * LANES + lane;
    let byte = panel[record.scales + at];
    let (scale, min) = match shape.scales {
        Scales::SignedBytes => (f32::from(byte.cast_signed()), 0.0),
        Scales::Nibbles => (f32::from(byte & 15), f32::from(byte >> 4)),
        _ => (f32::from(byte), f32::from(panel[record.mins + at])),
    };
    let super_min = if shape.min {
        float(record.super_mins, 0)
    } else {
        0.0
    };
    (float(record.super_scales, 0) * scale, -(super_min * min))
}

/// Writes the codes of one group and row to its lane of the group's words.
fn pack_codes(shape: Shape, codes: &[u8; GROUP], words: &mut [u8], lane: usize) {
    let mut words = words.as_chunks_mut::<4>().0.iter_mut().skip(lane).step_by(LANES);
    let mut below = 0;
    for bits in shape.planes().into_iter().filter(|&bits| bits > 0) {
        for (codes, word) in codes.chunks_exact(32 / bits).zip(&mut words) {
            *word = pack_word(bits, below, codes).to_le_bytes();
        }
        below += bits;
    }
}

/// What [`pack_scales`] does with the scale, and the minimum where there is one, of a Q4_0's or Q4_1's block.
fn pack_halves(record: Record, scales: &[u8], group: usize, lane: usize, panel: &mut [u8]) {
    for (half, section) in scales.as_chunks::<2>().0.iter().zip([record.scales, record.mins]) {
        panel[section + (group * LANES + lane) * 2..][..2].copy_from_slice(half);
    }
}

/// What [`pack_codes`] does to the codes of a Q4_0's or Q4_1's block, without taking them apart first.
fn pack_nibbles(nibbles: &[u8; 16], words: &mut [u8], lane: usize) {
    let words = words.as_chunks_mut::<4>().0.iter_mut().skip(lane).step_by(LANES);
    let nibbles = u128::from_le_bytes(*nibbles);
    // The low nibbles of all bytes, then the high ones.
    for (word, shift) in words.zip([0, 64, 4, 68]) {
        let codes = (nibbles >> shift) as u64;
        *word = (squeeze(4, codes) | squeeze(4, codes >> 8) << 16).to_le_bytes();
    }
}

/// The word of a plane of `bits` bits, of which the plane below has `below`: pair `p` at bits `p * bits` and
/// 16 higher.
fn pack_word(bits: usize, below: usize, codes: &[u8]) -> u32 {
    if let (8, &[first, second, third, fourth]) = (bits, codes) {
        return u32::from_le_bytes([first, third, second, fourth]);
    }
    codes
        .as_chunks()
        .0
        .iter()
        .enumerate()
        .fold(0, |word, (index, codes)| {
            let codes = u64::from_le_bytes(*codes) >> below;
            let both = squeeze(bits, codes) | squeeze(bits, codes >> 8) << 16;
            word | both << (4 * bits * index)
        })
}

/// The low `bits` (at most 4) of bytes 0, 2, 4 and 6, side by side. The multiplication copies each to its place
/// above bit 48; no two copies overlap.
fn squeeze(bits: usize, codes: u64) -> u32 {
    let mask = 0x0001_0001_0001_0001 * ((1 << bits) - 1);
    let places = (0..4).fold(0, |places, code| places | 1u64 << (48 + code * bits - 16 * code));
    ((codes & mask).wrapping_mul(places) >> 48) as u32 & ((1 << (4 * bits)) - 1)
}

fn unpack_codes(shape: Shape, words: &[u8], lane: usize) -> [i32; GROUP] {
    let mut words = words.as_chunks::<4>().0.iter().skip(lane).step_by(LANES);
    let mut codes = [0; GROUP];
    let mut below = 0;
    for bits in shape.planes().into_iter().filter(|&bits| bits > 0) {
        for (codes, word) in codes.chunks_exact_mut(32 / bits).zip(&mut words) {
            let word = u32::from_le_bytes(*word);
            for (pair, codes) in codes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let mask = (1 << bits) - 1;
                codes[0] |= (word >> (pair * bits) & mask).cast_signed() << below;
                codes[1] |= (word >> (pair * bits + 16) & mask).cast_signed() << below;
            }
        }
        below += bits;
    }
    if shape.bits == 8 {
        codes = codes.map(|code| i32::from(code as i8));
    }
    codes
}
