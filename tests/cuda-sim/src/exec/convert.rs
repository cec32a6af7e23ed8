//! Conversions. A value narrower than its register fills it by its own sign; out of range a float goes to
//! the nearest integer there is, and what is no number to zero, which is what `as` does.

use super::float::{f, most, out, sat};
use super::half::{brain, half, to_brain, to_half};
use super::table::{Entry, op};

/// The rows of one way to round: its PTX name and Rust's.
#[rustfmt::skip]
macro_rules! rounded {
    ($mode:literal, $round:ident) => {
        &[
            op(concat!("cvt.", $mode, ".u8.f32 cvt.", $mode, ".ftz.u8.f32 cvt.", $mode, ".sat.u8.f32 cvt.", $mode, ".ftz.sat.u8.f32"), "rr",
                each!(r <- a r => f32::from_bits(a).$round() as u8 as u32)),
            op(concat!("cvt.", $mode, ".u8.f16"), "rr", each!(r <- a r => half(a).$round() as u8 as u32)),
            op(concat!("cvt.", $mode, ".s8.f32 cvt.", $mode, ".ftz.s8.f32 cvt.", $mode, ".sat.s8.f32 cvt.", $mode, ".ftz.sat.s8.f32"), "rr",
                each!(r <- a r => f32::from_bits(a).$round() as i8 as u32)),
            op(concat!("cvt.", $mode, ".s8.f16"), "rr", each!(r <- a r => half(a).$round() as i8 as u32)),
            op(concat!("cvt.", $mode, ".u16.f32 cvt.", $mode, ".ftz.u16.f32 cvt.", $mode, ".sat.u16.f32 cvt.", $mode, ".ftz.sat.u16.f32"), "rr",
                each!(r <- a r => f32::from_bits(a).$round() as u16 as u32)),
            op(concat!("cvt.", $mode, ".u16.f16"), "rr", each!(r <- a r => half(a).$round() as u16 as u32)),
            op(concat!("cvt.", $mode, ".s16.f32 cvt.", $mode, ".ftz.s16.f32 cvt.", $mode, ".sat.s16.f32 cvt.", $mode, ".ftz.sat.s16.f32"), "rr",
                each!(r <- a r => f32::from_bits(a).$round() as i16 as u32)),
            op(concat!("cvt.", $mode, ".s16.f16"), "rr", each!(r <- a r => half(a).$round() as i16 as u32)),
            op(concat!("cvt.", $mode, ".u32.f32 cvt.", $mode, ".ftz.u32.f32 cvt.", $mode, ".sat.u32.f32 cvt.", $mode, ".ftz.sat.u32.f32"), "rr",
                each!(r <- a r => f32::from_bits(a).$round() as u32)),
            op(concat!("cvt.", $mode, ".u32.f64"), "rq",
                each!(r <- a q => f64::from_bits(a).$round() as u32)),
            op(concat!("cvt.", $mode, ".u32.f16"), "rr", each!(r <- a r => half(a).$round() as u32)),
            op(concat!("cvt.", $mode, ".s32.f32 cvt.", $mode, ".ftz.s32.f32 cvt.", $mode, ".sat.s32.f32 cvt.", $mode, ".ftz.sat.s32.f32"), "rr",
                each!(r <- a r => f32::from_bits(a).$round() as i32 as u32)),
            op(concat!("cvt.", $mode, ".s32.f64"), "rq",
                each!(r <- a q => f64::from_bits(a).$round() as i32 as u32)),
            op(concat!("cvt.", $mode, ".s32.f16"), "rr", each!(r <- a r => half(a).$round() as i32 as u32)),
            op(concat!("cvt.", $mode, ".u64.f32 cvt.", $mode, ".ftz.u64.f32 cvt.", $mode, ".sat.u64.f32 cvt.", $mode, ".ftz.sat.u64.f32"), "qr",
                each!(q <- a r => f32::from_bits(a).$round() as u64)),
            op(concat!("cvt.", $mode, ".u64.f64"), "qq",
                each!(q <- a q => f64::from_bits(a).$round() as u64)),
            op(concat!("cvt.", $mode, ".u64.f16"), "qr", each!(q <- a r => half(a).$round() as u64)),
            op(concat!("cvt.", $mode, ".s64.f32 cvt.", $mode, ".ftz.s64.f32 cvt.", $mode, ".sat.s64.f32 cvt.", $mode, ".ftz.sat.s64.f32"), "qr",
                each!(q <- a r => f32::from_bits(a).$round() as i64 as u64)),
            op(concat!("cvt.", $mode, ".s64.f64"), "qq",
                each!(q <- a q => f64::from_bits(a).$round() as i64 as u64)),
            op(concat!("cvt.", $mode, ".s64.f16"), "qr", each!(q <- a r => half(a).$round() as i64 as u64)),
            op(concat!("cvt.", $mode, ".f32.f32"), "rr",
                each!(r <- a r => out::<false>(f::<false>(a).$round()))),
            op(concat!("cvt.", $mode, ".ftz.f32.f32"), "rr",
                each!(r <- a r => out::<true>(f::<true>(a).$round()))),
            op(concat!("cvt.", $mode, ".f16.f16"), "rr", each!(r <- a r => to_half(half(a).$round()))),
            op(concat!("cvt.", $mode, ".f64.f64"), "qq",
                each!(q <- a q => f64::from_bits(a).$round().to_bits())),
        ]
    };
}

/// See [`super::table`].
#[rustfmt::skip]
pub(super) static TABLE: &[Entry] = &[
    op("cvt.u8.u8 cvt.u8.s8", "rr", each!(r <- a r => a as u8 as u32)),
    op("cvt.s8.u8 cvt.s8.s8", "rr", each!(r <- a r => a as i8 as u32)),
    op("cvt.u8.u16 cvt.u8.s16", "rr", each!(r <- a r => a as u8 as u32)),
    op("cvt.s8.u16 cvt.s8.s16", "rr", each!(r <- a r => a as i8 as u32)),
    op("cvt.u8.u32 cvt.u8.s32", "rr", each!(r <- a r => a as u8 as u32)),
    op("cvt.s8.u32 cvt.s8.s32", "rr", each!(r <- a r => a as i8 as u32)),
    op("cvt.u8.u64 cvt.u8.s64", "rq", each!(r <- a q => a as u8 as u32)),
    op("cvt.s8.u64 cvt.s8.s64", "rq", each!(r <- a q => a as i8 as u32)),
    op("cvt.u16.u8 cvt.s16.u8", "rr", each!(r <- a r => a as u8 as u32)),
    op("cvt.u16.s8 cvt.s16.s8", "rr", each!(r <- a r => a as i8 as u32)),
    op("cvt.u16.u16 cvt.u16.s16", "rr", each!(r <- a r => a as u16 as u32)),
    op("cvt.s16.u16 cvt.s16.s16", "rr", each!(r <- a r => a as i16 as u32)),
    op("cvt.u16.u32 cvt.u16.s32", "rr", each!(r <- a r => a as u16 as u32)),
    op("cvt.s16.u32 cvt.s16.s32", "rr", each!(r <- a r => a as i16 as u32)),
    op("cvt.u16.u64 cvt.u16.s64", "rq", each!(r <- a q => a as u16 as u32)),
    op("cvt.s16.u64 cvt.s16.s64", "rq", each!(r <- a q => a as i16 as u32)),
    op("cvt.u32.u8 cvt.s32.u8", "rr", each!(r <- a r => a as u8 as u32)),
    op("cvt.u32.s8 cvt.s32.s8", "rr", each!(r <- a r => a as i8 as u32)),
    op("cvt.u32.u16 cvt.s32.u16", "rr", each!(r <- a r => a as u16 as u32)),
    op("cvt.u32.s16 cvt.s32.s16", "rr", each!(r <- a r => a as i16 as u32)),
    op("cvt.u32.u32 cvt.u32.s32 cvt.s32.u32 cvt.s32.s32", "rr", each!(r <- a r => a)),
    op("cvt.u32.u64 cvt.u32.s64 cvt.s32.u64 cvt.s32.s64", "rq", each!(r <- a q => a as u32)),
    op("cvt.u64.u8 cvt.s64.u8", "qr", each!(q <- a r => a as u8 as u64)),
    op("cvt.u64.s8 cvt.s64.s8", "qr", each!(q <- a r => a as i8 as u64)),
    op("cvt.u64.u16 cvt.s64.u16", "qr", each!(q <- a r => a as u16 as u64)),
    op("cvt.u64.s16 cvt.s64.s16", "qr", each!(q <- a r => a as i16 as u64)),
    op("cvt.u64.u32 cvt.s64.u32", "qr", each!(q <- a r => a as u64)),
    op("cvt.u64.s32 cvt.s64.s32", "qr", each!(q <- a r => a as i32 as u64)),
    op("cvt.u64.u64 cvt.u64.s64 cvt.s64.u64 cvt.s64.s64", "qq", each!(q <- a q => a)),
    op("cvt.sat.u8.s32", "rr",
        each!(r <- a r => (a as i32 as i64).clamp(u8::MIN as i64, u8::MAX as i64) as u32)),
    op("cvt.sat.s8.s32", "rr",
        each!(r <- a r => (a as i32 as i64).clamp(i8::MIN as i64, i8::MAX as i64) as u32)),
    op("cvt.sat.u8.s16", "rr",
        each!(r <- a r => (a as i16 as i64).clamp(u8::MIN as i64, u8::MAX as i64) as u32)),
    op("cvt.sat.s8.s16", "rr",
        each!(r <- a r => (a as i16 as i64).clamp(i8::MIN as i64, i8::MAX as i64) as u32)),
    op("cvt.sat.u16.s32", "rr",
        each!(r <- a r => (a as i32 as i64).clamp(u16::MIN as i64, u16::MAX as i64) as u32)),
    op("cvt.sat.s16.s32", "rr",
        each!(r <- a r => (a as i32 as i64).clamp(i16::MIN as i64, i16::MAX as i64) as u32)),
    op("cvt.rn.f32.u8", "rr", each!(r <- a r => (a as u8 as f32).to_bits())),
    op("cvt.rn.f64.u8", "qr", each!(q <- a r => (a as u8 as f64).to_bits())),
    op("cvt.rn.f16.u8", "rr", each!(r <- a r => to_half(a as u8 as f32))),
    op("cvt.rn.f32.s8", "rr", each!(r <- a r => (a as i8 as f32).to_bits())),
    op("cvt.rn.f64.s8", "qr", each!(q <- a r => (a as i8 as f64).to_bits())),
    op("cvt.rn.f16.s8", "rr", each!(r <- a r => to_half(a as i8 as f32))),
    op("cvt.rn.f32.u16", "rr", each!(r <- a r => (a as u16 as f32).to_bits())),
    op("cvt.rn.f64.u16", "qr", each!(q <- a r => (a as u16 as f64).to_bits())),
    op("cvt.rn.f16.u16", "rr", each!(r <- a r => to_half(a as u16 as f32))),
    op("cvt.rn.f32.s16", "rr", each!(r <- a r => (a as i16 as f32).to_bits())),
    op("cvt.rn.f64.s16", "qr", each!(q <- a r => (a as i16 as f64).to_bits())),
    op("cvt.rn.f16.s16", "rr", each!(r <- a r => to_half(a as i16 as f32))),
    op("cvt.rn.f32.u32", "rr", each!(r <- a r => (a as f32).to_bits())),
    op("cvt.rn.f64.u32", "qr", each!(q <- a r => (a as f64).to_bits())),
    op("cvt.rn.f16.u32", "rr", each!(r <- a r => to_half(a as f32))),
    op("cvt.rn.f32.s32", "rr", each!(r <- a r => (a as i32 as f32).to_bits())),
    op("cvt.rn.f64.s32", "qr", each!(q <- a r => (a as i32 as f64).to_bits())),
    op("cvt.rn.f16.s32", "rr", each!(r <- a r => to_half(a as i32 as f32))),
    op("cvt.rn.f32.u64", "rq", each!(r <- a q => (a as f32).to_bits())),
    op("cvt.rn.f64.u64", "qq", each!(q <- a q => (a as f64).to_bits())),
    op("cvt.rn.f16.u64", "rq", each!(r <- a q => to_half(a as f32))),
    op("cvt.rn.f32.s64", "rq", each!(r <- a q => (a as i64 as f32).to_bits())),
    op("cvt.rn.f64.s64", "qq", each!(q <- a q => (a as i64 as f64).to_bits())),
    op("cvt.rn.f16.s64", "rq", each!(r <- a q => to_half(a as i64 as f32))),
    op("cvt.rz.f32.u32", "rr", each!(r <- a r => toward_zero(a as f64))),
    op("cvt.rz.f32.s32", "rr", each!(r <- a r => toward_zero(a as i32 as f64))),
    op("cvt.ftz.f32.f32", "rr", each!(r <- a r => out::<true>(f::<true>(a)))),
    op("cvt.sat.f32.f32", "rr", each!(r <- a r => out::<false>(sat(f::<false>(a))))),
    op("cvt.sat.ftz.f32.f32 cvt.ftz.sat.f32.f32", "rr", each!(r <- a r => out::<true>(sat(f::<true>(a))))),
    op("cvt.f32.f16 cvt.ftz.f32.f16", "rr", each!(r <- a r => half(a).to_bits())),
    op("cvt.f32.bf16", "rr", each!(r <- a r => brain(a).to_bits())),
    op("cvt.f64.f16", "qr", each!(q <- a r => (half(a) as f64).to_bits())),
    op("cvt.rn.f16.f32", "rr", each!(r <- a r => to_half(f32::from_bits(a)))),
    op("cvt.rn.ftz.f16.f32", "rr", each!(r <- a r => to_half(f::<true>(a)))),
    op("cvt.rz.f16.f32", "rr", each!(r <- a r => half_toward_zero(f32::from_bits(a)))),
    op("cvt.rn.bf16.f32", "rr", each!(r <- a r => to_brain(f32::from_bits(a)))),
    op("cvt.rz.bf16.f32", "rr", each!(r <- a r => if f32::from_bits(a).is_nan() { 0x7fff } else { a >> 16 })),
    op("cvt.rn.relu.f16.f32", "rr", each!(r <- a r => to_half(most(f32::from_bits(a), 0.0)))),
    op("cvt.rn.f16x2.f32", "rrr",
        each!(r <- a r, b r => to_half(f32::from_bits(a)) << 16 | to_half(f32::from_bits(b)) & 0xffff)),
    op("cvt.rn.bf16x2.f32", "rrr",
        each!(r <- a r, b r => to_brain(f32::from_bits(a)) << 16 | to_brain(f32::from_bits(b)) & 0xffff)),
    op("cvt.f64.f32 cvt.ftz.f64.f32", "qr", each!(q <- a r => (f32::from_bits(a) as f64).to_bits())),
    op("cvt.rn.f32.f64", "rq", each!(r <- a q => (f64::from_bits(a) as f32).to_bits())),
    op("cvt.rz.f32.f64", "rq", each!(r <- a q => toward_zero(f64::from_bits(a)))),
    op("cvt.rn.f16.f64", "rq", each!(r <- a q => to_half(f64::from_bits(a) as f32))),
    op("cvt.rna.tf32.f32", "rr", each!(r <- a r => a.wrapping_add(0x1000) & 0xffff_e000)),
];

/// Conversions of floats to whole numbers, by the four ways to round.
pub(super) static ROUNDED: [&[Entry]; 4] = [
    rounded!("rni", round_ties_even),
    rounded!("rzi", trunc),
    rounded!("rmi", floor),
    rounded!("rpi", ceil),
];

/// The float between zero and `value` that is nearest to it.
#[inline(always)]
fn toward_zero(value: f64) -> u32 {
    let nearest = value as f32;
    let beyond = (nearest as f64).abs() > value.abs();
    nearest.to_bits().wrapping_sub(beyond as u32)
}

/// The same for f16.
#[inline(always)]
fn half_toward_zero(value: f32) -> u32 {
    let nearest = to_half(value);
    let beyond = half(nearest).abs() > value.abs();
    nearest.wrapping_sub(beyond as u32)
}
