//! The product of a panel with a tile in plain Rust, which the compiler turns into whatever vectors the target
//! has. The sums are those of [`super::kernel`], but for the rounding of a multiplication before an addition.

use super::{
    dispatch::Call,
    format::{GROUP, LANES, PAIRS, Record, Scales, Shape},
    quantize::{Field, GROUP_WORDS},
};
use half::f16;

/// Pairs of codes, a lane a row.
type Pairs = [[[i16; 2]; LANES]; PAIRS];

/// Multiplies one panel of `shape` with a tile of as many rows as there are results.
pub(super) fn multiply(shape: Shape, call: Call<'_>) {
    let height = call.out.len();
    let record = shape.record();
    call.out.fill([0.0; LANES]);
    let mut codes = [[[0; 2]; LANES]; PAIRS];
    for (index, tile) in call.tile.chunks_exact(GROUP_WORDS * height).enumerate() {
        let bytes = &call.panel[index / record.groups * record.bytes..][..record.bytes];
        let group = index % record.groups;
        unpack(
            shape,
            &bytes[group * shape.group_bytes()..][..shape.group_bytes()],
            &mut codes,
        );
        let parts = if shape.halves() { 2 } else { 1 };
        for (part, codes) in codes.chunks_exact(PAIRS / parts).enumerate() {
            let (scale, min) = scale_and_min(shape, record, bytes, group * parts + part);
            for (row, out) in call.out.iter_mut().enumerate() {
                let field = |field: Field| tile[(PAIRS + field as usize) * height + row];
                let negative_sum = field(match (parts, part) {
                    (1, _) => Field::NegativeSum,
                    (_, 0) => Field::NegativeSumFirst,
                    _ => Field::NegativeSumSecond,
                })
                .cast_signed();
                let mut dots = [shape.zero.map_or(0, |zero| negative_sum << zero); LANES];
                for (pair, codes) in codes.iter().enumerate() {
                    let x = tile[(part * PAIRS / parts + pair) * height + row].cast_signed();
                    let x = [x as i16, (x >> 16) as i16].map(i32::from);
                    for (dot, code) in dots.iter_mut().zip(codes) {
                        *dot += i32::from(code[0]) * x[0] + i32::from(code[1]) * x[1];
                    }
                }
                let scale_x = f32::from_bits(field(Field::Scale));
                let sum_x = -(negative_sum as f32) * scale_x;
                for lane in 0..LANES {
                    out[lane] = mul_add(dots[lane] as f32, scale[lane] * scale_x, out[lane]);
                    if shape.min {
                        out[lane] = mul_add(min[lane], sum_x, out[lane]);
                    }
                }
            }
        }
    }
}

/// `a * b + c`, rounded once only where that is an instruction and no call into the C library.
#[inline(always)]
fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// All codes of a group.
fn unpack(shape: Shape, words: &[u8], codes: &mut Pairs) {
    let mut words = words.as_chunks::<4>().0.chunks_exact(LANES);
    let mut below = 0;
    for bits in shape.planes().into_iter().filter(|&bits| bits > 0) {
        let mask = (1 << bits) - 1;
        for (codes, words) in codes.chunks_exact_mut(GROUP / 2 / bits).zip(&mut words) {
            for (pair, codes) in codes.iter_mut().enumerate() {
                for (code, word) in codes.iter_mut().zip(words) {
                    let word = u32::from_le_bytes(*word) >> (pair * bits);
                    let both = [word & mask, word >> 16 & mask].map(|code| (code as i16) << below);
                    *code = match (below, shape.bits) {
                        (0, 8) => both.map(|code| i16::from(code as i8)),
                        (0, _) => both,
                        _ => [code[0] | both[0], code[1] | both[1]],
                    };
                }
            }
        }
        below += bits;
    }
}

/// The scales of a record's group (or half group), and what is added.
fn scale_and_min(shape: Shape, record: Record, bytes: &[u8], index: usize) -> ([f32; LANES], [f32; LANES]) {
    let halves = |section: usize, index: usize| -> [f32; LANES] {
        let bytes = &bytes[section + index * LANES * 2..];
        std::array::from_fn(|lane| f16::from_le_bytes([bytes[lane * 2], bytes[lane * 2 + 1]]).to_f32())
    };
    if shape.scales == Scales::F16 {
        let min = if shape.min {
            halves(record.mins, index)
        } else {
            [0.0; LANES]
        };
        return (halves(record.scales, index), min);
    }
    let parts = &bytes[record.scales + index * LANES..][..LANES];
    let mut scale = halves(record.super_scales, 0);
    let mut min = if shape.min {
        halves(record.super_mins, 0)
    } else {
        [0.0; LANES]
    };
    for lane in 0..LANES {
        let (s, m) = match shape.scales {
            Scales::SignedBytes => (f32::from(parts[lane].cast_signed()), 0.0),
            Scales::Nibbles => (f32::from(parts[lane] & 15), f32::from(parts[lane] >> 4)),
            _ => (
                f32::from(parts[lane]),
                f32::from(bytes[record.mins + index * LANES + lane]),
            ),
        };
        scale[lane] *= s;
        min[lane] *= -m;
    }
    (scale, min)
}
