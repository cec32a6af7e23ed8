//! From a checkpoint's blocks to panels, and a row of a panel back to f32.

use super::{
    blocks::{Block, decode},
    format::{GROUP, LANES, Record, Scales, Shape},
};
use crate::TensorType;
use half::f16;
use std::array;

/// Packs `rows` (at most [`LANES`] whole rows of `ty`, one after another) into `panel`. Lanes without a row
/// are zero, which makes their results zero.
pub(super) fn pack_panel(ty: TensorType, shape: Shape, rows: &[u8], groups: usize, panel: &mut [u8]) {
    match ty {
        TensorType::Q4_0 | TensorType::Q4_1 => pack_words(ty, shape, rows, groups, panel, nibble_words),
        TensorType::Q8_0 => pack_words(ty, shape, rows, groups, panel, byte_words),
        _ => pack_decoded(ty, shape, rows, groups, panel),
    }
}

/// Packs a type whose blocks are f16 scales and then the codes of a group, as `N` words of which `words_of` makes the
/// panel's. A group of all lanes is packed at once, so that the compiler makes SIMD of it.
fn pack_words<const N: usize>(
    ty: TensorType,
    shape: Shape,
    rows: &[u8],
    groups: usize,
    panel: &mut [u8],
    words_of: fn(&[[u32; LANES]; N]) -> [[u32; LANES]; N],
) {
    let record = shape.record();
    for group in 0..groups {
        let panel = &mut panel[group / record.groups * record.bytes..][..record.bytes];
        let in_record = group % record.groups;
        let mut lanes = [[0; LANES]; N];
        for (lane, row) in rows.chunks_exact(groups * ty.block_bytes()).enumerate() {
            let block = &row[group * ty.block_bytes()..][..ty.block_bytes()];
            let (scales, codes) = block.split_at(block.len() - 4 * N);
            for (half, section) in scales.as_chunks::<2>().0.iter().zip([record.scales, record.mins]) {
                panel[section + (in_record * LANES + lane) * 2..][..2].copy_from_slice(half);
            }
            for (lanes, word) in lanes.iter_mut().zip(codes.as_chunks().0) {
                lanes[lane] = u32::from_le_bytes(*word);
            }
        }
        let out = &mut panel[in_record * shape.group_bytes()..][..shape.group_bytes()];
        for (out, word) in out
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(words_of(&lanes).as_flattened())
        {
            *out = word.to_le_bytes();
        }
    }
}

/// The words of a plane of four bits. A block's low nibbles are its first half, the high ones its second.
fn nibble_words(lanes: &[[u32; LANES]; 4]) -> [[u32; LANES]; 4] {
    // The codes of bytes 0 and 2 to byte 0, those of 1 and 3 to byte 2.
    let spread = |word: u32| {
        let codes = word & 0x0f0f_0f0f;
        let pairs = codes | codes >> 12;
        pairs & 0xff | (pairs & 0xff00) << 8
    };
    array::from_fn(|word| {
        let (first, shift) = (word % 2 * 2, word / 2 * 4);
        array::from_fn(|lane| {
            spread(lanes[first][lane] >> shift) | spread(lanes[first + 1][lane] >> shift) << 8
        })
    })
}

/// The words of codes of eight bits: the two in the middle change places.
fn byte_words(lanes: &[[u32; LANES]; 8]) -> [[u32; LANES]; 8] {
    lanes.map(|lanes| lanes.map(|word| word & 0xff00_00ff | (word & 0xff00) << 8 | word >> 8 & 0xff00))
}

/// Packs any type: takes each block apart, then writes its codes plane by plane.
fn pack_decoded(ty: TensorType, shape: Shape, rows: &[u8], groups: usize, panel: &mut [u8]) {
    let record = shape.record();
    let block_groups = ty.block_len() / GROUP;
    let row_bytes = groups / block_groups * ty.block_bytes();
    let mut block = Block::default();
    for first in (0..groups).step_by(block_groups) {
        let panel = &mut panel[first / record.groups * record.bytes..][..record.bytes];
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            let bytes = &row[first / block_groups * ty.block_bytes()..][..ty.block_bytes()];
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

/// The word of a plane of `bits` bits, of which the plane below has `below`: pair `p` at bits `p * bits` and
/// 16 higher.
fn pack_word(bits: usize, below: usize, codes: &[u8]) -> u32 {
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
