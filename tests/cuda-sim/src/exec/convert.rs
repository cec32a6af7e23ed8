//! Conversions. A value narrower than its register fills it by its own sign; out of range a float goes to
//! the nearest integer there is, and what is no number to zero, which is what `as` does.

use super::float::{f, most, out, sat};
use super::half::{brain, half, to_brain, to_half};
use super::table::{Entry, op};

/// See [`super::table`].
pub(super) static TABLE: &[Entry] = &[
    op("cvt.u8.u8 cvt.u8.s8", "rr", each!(r <- a r => a as u8 as u32)),
    op("cvt.s8.u8 cvt.s8.s8", "rr", each!(r <- a r => a as i8 as u32)),
    op("cvt.u8.u16 cvt.u8.s16", "rr", each!(r <- a r => a as u8 as u32)),
    op("cvt.s8.u16 cvt.s8.s16", "rr", each!(r <- a r => a as i8 as u32)),
    op("cvt.u8.u32 cvt.u8.s32", "rr", each!(r <- a r => a as u8 as u32)),
    op("cvt.s8.u32 cvt.s8.s32", "rr", each!(r <- a r => a as i8 as u32)),
    op("cvt.u8.u64 cvt.u8.s64", "rq", each!(r <- a q => a as u8 as u32)),
    op("cvt.s8.u64 cvt.s8.s64", "rq", each!(r <- a q => a as i8 as u32)),
    op(
        "cvt.u16.u8 cvt.s16.u8",
        "rr",
        each!(r <- a r => a as u8 as u16 as u32),
    ),
    op(
        "cvt.u16.s8 cvt.s16.s8",
        "rr",
        each!(r <- a r => a as i8 as i16 as u32),
    ),
    op(
        "cvt.u16.u16 cvt.u16.s16",
        "rr",
        each!(r <- a r => a as u16 as u32),
    ),
    op(
        "cvt.s16.u16 cvt.s16.s16",
        "rr",
        each!(r <- a r => a as i16 as u32),
    ),
    op(
        "cvt.u16.u32 cvt.u16.s32",
        "rr",
        each!(r <- a r => a as u16 as u32),
    ),
    op(
        "cvt.s16.u32 cvt.s16.s32",
        "rr",
        each!(r <- a r => a as i16 as u32),
    ),
    op(
        "cvt.u16.u64 cvt.u16.s64",
        "rq",
        each!(r <- a q => a as u16 as u32),
    ),
    op(
        "cvt.s16.u64 cvt.s16.s64",
        "rq",
        each!(r <- a q => a as i16 as u32),
    ),
    op(
        "cvt.u32.u8 cvt.s32.u8",
        "rr",
        each!(r <- a r => a as u8 as u32 as u32),
    ),
    op(
        "cvt.u32.s8 cvt.s32.s8",
        "rr",
        each!(r <- a r => a as i8 as i32 as u32),
    ),
    op(
        "cvt.u32.u16 cvt.s32.u16",
        "rr",
        each!(r <- a r => a as u16 as u32 as u32),
    ),
    op(
        "cvt.u32.s16 cvt.s32.s16",
        "rr",
        each!(r <- a r => a as i16 as i32 as u32),
    ),
    op(
        "cvt.u32.u32 cvt.u32.s32 cvt.s32.u32 cvt.s32.s32",
        "rr",
        each!(r <- a r => a as u32 as u32),
    ),
    op(
        "cvt.u32.u64 cvt.u32.s64 cvt.s32.u64 cvt.s32.s64",
        "rq",
        each!(r <- a q => a as u32 as u32),
    ),
    op(
        "cvt.u64.u8 cvt.s64.u8",
        "qr",
        each!(q <- a r => a as u8 as u64 as u64),
    ),
    op(
        "cvt.u64.s8 cvt.s64.s8",
        "qr",
        each!(q <- a r => a as i8 as i64 as u64),
    ),
    op(
        "cvt.u64.u16 cvt.s64.u16",
        "qr",
        each!(q <- a r => a as u16 as u64 as u64),
    ),
    op(
        "cvt.u64.s16 cvt.s64.s16",
        "qr",
        each!(q <- a r => a as i16 as i64 as u64),
    ),
    op(
        "cvt.u64.u32 cvt.s64.u32",
        "qr",
        each!(q <- a r => a as u32 as u64 as u64),
    ),
    op(
        "cvt.u64.s32 cvt.s64.s32",
        "qr",
        each!(q <- a r => a as i32 as i64 as u64),
    ),
    op(
        "cvt.u64.u64 cvt.u64.s64 cvt.s64.u64 cvt.s64.s64",
        "qq",
        each!(q <- a q => a as u64 as u64),
    ),
    op(
        "cvt.sat.u8.s32",
        "rr",
        each!(r <- a r => (a as i32 as i64).clamp(u8::MIN as i64, u8::MAX as i64) as u32),
    ),
    op(
        "cvt.sat.s8.s32",
        "rr",
        each!(r <- a r => (a as i32 as i64).clamp(i8::MIN as i64, i8::MAX as i64) as u32),
    ),
    op(
        "cvt.sat.u8.s16",
        "rr",
        each!(r <- a r => (a as i16 as i64).clamp(u8::MIN as i64, u8::MAX as i64) as u32),
    ),
    op(
        "cvt.sat.s8.s16",
        "rr",
        each!(r <- a r => (a as i16 as i64).clamp(i8::MIN as i64, i8::MAX as i64) as u32),
    ),
    op(
        "cvt.sat.u16.s32",
        "rr",
        each!(r <- a r => (a as i32 as i64).clamp(u16::MIN as i64, u16::MAX as i64) as u32),
    ),
    op(
        "cvt.sat.s16.s32",
        "rr",
        each!(r <- a r => (a as i32 as i64).clamp(i16::MIN as i64, i16::MAX as i64) as u32),
    ),
    op(
        "cvt.rn.f32.u8",
        "rr",
        each!(r <- a r => (a as u8 as f32).to_bits()),
    ),
    op(
        "cvt.rn.f64.u8",
        "qr",
        each!(q <- a r => (a as u8 as f64).to_bits()),
    ),
    op("cvt.rn.f16.u8", "rr", each!(r <- a r => to_half(a as u8 as f32))),
    op(
        "cvt.rn.f32.s8",
        "rr",
        each!(r <- a r => (a as i8 as f32).to_bits()),
    ),
    op(
        "cvt.rn.f64.s8",
        "qr",
        each!(q <- a r => (a as i8 as f64).to_bits()),
    ),
    op("cvt.rn.f16.s8", "rr", each!(r <- a r => to_half(a as i8 as f32))),
    op(
        "cvt.rn.f32.u16",
        "rr",
        each!(r <- a r => (a as u16 as f32).to_bits()),
    ),
    op(
        "cvt.rn.f64.u16",
        "qr",
        each!(q <- a r => (a as u16 as f64).to_bits()),
    ),
    op(
        "cvt.rn.f16.u16",
        "rr",
        each!(r <- a r => to_half(a as u16 as f32)),
    ),
    op(
        "cvt.rn.f32.s16",
        "rr",
        each!(r <- a r => (a as i16 as f32).to_bits()),
    ),
    op(
        "cvt.rn.f64.s16",
        "qr",
        each!(q <- a r => (a as i16 as f64).to_bits()),
    ),
    op(
        "cvt.rn.f16.s16",
        "rr",
        each!(r <- a r => to_half(a as i16 as f32)),
    ),
    op(
        "cvt.rn.f32.u32",
        "rr",
        each!(r <- a r => (a as u32 as f32).to_bits()),
    ),
    op(
        "cvt.rn.f64.u32",
        "qr",
        each!(q <- a r => (a as u32 as f64).to_bits()),
    ),
    op(
        "cvt.rn.f16.u32",
        "rr",
        each!(r <- a r => to_half(a as u32 as f32)),
    ),
    op(
        "cvt.rn.f32.s32",
        "rr",
        each!(r <- a r => (a as i32 as f32).to_bits()),
    ),
    op(
        "cvt.rn.f64.s32",
        "qr",
        each!(q <- a r => (a as i32 as f64).to_bits()),
    ),
    op(
        "cvt.rn.f16.s32",
        "rr",
        each!(r <- a r => to_half(a as i32 as f32)),
    ),
    op(
        "cvt.rn.f32.u64",
        "rq",
        each!(r <- a q => (a as u64 as f32).to_bits()),
    ),
    op(
        "cvt.rn.f64.u64",
        "qq",
        each!(q <- a q => (a as u64 as f64).to_bits()),
    ),
    op(
        "cvt.rn.f16.u64",
        "rq",
        each!(r <- a q => to_half(a as u64 as f32)),
    ),
    op(
        "cvt.rn.f32.s64",
        "rq",
        each!(r <- a q => (a as i64 as f32).to_bits()),
    ),
    op(
        "cvt.rn.f64.s64",
        "qq",
        each!(q <- a q => (a as i64 as f64).to_bits()),
    ),
    op(
        "cvt.rn.f16.s64",
        "rq",
        each!(r <- a q => to_half(a as i64 as f32)),
    ),
    op(
        "cvt.rz.f32.u32",
        "rr",
        each!(r <- a r => toward_zero(a as u32 as f64)),
    ),
    op(
        "cvt.rz.f32.s32",
        "rr",
        each!(r <- a r => toward_zero(a as i32 as f64)),
    ),
    op(
        "cvt.rni.u8.f32 cvt.rni.ftz.u8.f32 cvt.rni.sat.u8.f32 cvt.rni.ftz.sat.u8.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).round_ties_even() as u8 as u32),
    ),
    op(
        "cvt.rni.u8.f16",
        "rr",
        each!(r <- a r => half(a).round_ties_even() as u8 as u32),
    ),
    op(
        "cvt.rni.s8.f32 cvt.rni.ftz.s8.f32 cvt.rni.sat.s8.f32 cvt.rni.ftz.sat.s8.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).round_ties_even() as i8 as u32),
    ),
    op(
        "cvt.rni.s8.f16",
        "rr",
        each!(r <- a r => half(a).round_ties_even() as i8 as u32),
    ),
    op(
        "cvt.rni.u16.f32 cvt.rni.ftz.u16.f32 cvt.rni.sat.u16.f32 cvt.rni.ftz.sat.u16.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).round_ties_even() as u16 as u32),
    ),
    op(
        "cvt.rni.u16.f16",
        "rr",
        each!(r <- a r => half(a).round_ties_even() as u16 as u32),
    ),
    op(
        "cvt.rni.s16.f32 cvt.rni.ftz.s16.f32 cvt.rni.sat.s16.f32 cvt.rni.ftz.sat.s16.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).round_ties_even() as i16 as u32),
    ),
    op(
        "cvt.rni.s16.f16",
        "rr",
        each!(r <- a r => half(a).round_ties_even() as i16 as u32),
    ),
    op(
        "cvt.rni.u32.f32 cvt.rni.ftz.u32.f32 cvt.rni.sat.u32.f32 cvt.rni.ftz.sat.u32.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).round_ties_even() as u32 as u32),
    ),
    op(
        "cvt.rni.u32.f64",
        "rq",
        each!(r <- a q => f64::from_bits(a).round_ties_even() as u32 as u32),
    ),
    op(
        "cvt.rni.u32.f16",
        "rr",
        each!(r <- a r => half(a).round_ties_even() as u32 as u32),
    ),
    op(
        "cvt.rni.s32.f32 cvt.rni.ftz.s32.f32 cvt.rni.sat.s32.f32 cvt.rni.ftz.sat.s32.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).round_ties_even() as i32 as u32),
    ),
    op(
        "cvt.rni.s32.f64",
        "rq",
        each!(r <- a q => f64::from_bits(a).round_ties_even() as i32 as u32),
    ),
    op(
        "cvt.rni.s32.f16",
        "rr",
        each!(r <- a r => half(a).round_ties_even() as i32 as u32),
    ),
    op(
        "cvt.rni.u64.f32 cvt.rni.ftz.u64.f32 cvt.rni.sat.u64.f32 cvt.rni.ftz.sat.u64.f32",
        "qr",
        each!(q <- a r => f32::from_bits(a).round_ties_even() as u64 as u64),
    ),
    op(
        "cvt.rni.u64.f64",
        "qq",
        each!(q <- a q => f64::from_bits(a).round_ties_even() as u64 as u64),
    ),
    op(
        "cvt.rni.u64.f16",
        "qr",
        each!(q <- a r => half(a).round_ties_even() as u64 as u64),
    ),
    op(
        "cvt.rni.s64.f32 cvt.rni.ftz.s64.f32 cvt.rni.sat.s64.f32 cvt.rni.ftz.sat.s64.f32",
        "qr",
        each!(q <- a r => f32::from_bits(a).round_ties_even() as i64 as u64),
    ),
    op(
        "cvt.rni.s64.f64",
        "qq",
        each!(q <- a q => f64::from_bits(a).round_ties_even() as i64 as u64),
    ),
    op(
        "cvt.rni.s64.f16",
        "qr",
        each!(q <- a r => half(a).round_ties_even() as i64 as u64),
    ),
    op(
        "cvt.rni.f32.f32",
        "rr",
        each!(r <- a r => out::<false>(f::<false>(a).round_ties_even())),
    ),
    op(
        "cvt.rni.ftz.f32.f32",
        "rr",
        each!(r <- a r => out::<true>(f::<true>(a).round_ties_even())),
    ),
    op(
        "cvt.rni.f16.f16",
        "rr",
        each!(r <- a r => to_half(half(a).round_ties_even())),
    ),
    op(
        "cvt.rni.f64.f64",
        "qq",
        each!(q <- a q => f64::from_bits(a).round_ties_even().to_bits()),
    ),
    op(
        "cvt.rzi.u8.f32 cvt.rzi.ftz.u8.f32 cvt.rzi.sat.u8.f32 cvt.rzi.ftz.sat.u8.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).trunc() as u8 as u32),
    ),
    op(
        "cvt.rzi.u8.f16",
        "rr",
        each!(r <- a r => half(a).trunc() as u8 as u32),
    ),
    op(
        "cvt.rzi.s8.f32 cvt.rzi.ftz.s8.f32 cvt.rzi.sat.s8.f32 cvt.rzi.ftz.sat.s8.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).trunc() as i8 as u32),
    ),
    op(
        "cvt.rzi.s8.f16",
        "rr",
        each!(r <- a r => half(a).trunc() as i8 as u32),
    ),
    op(
        "cvt.rzi.u16.f32 cvt.rzi.ftz.u16.f32 cvt.rzi.sat.u16.f32 cvt.rzi.ftz.sat.u16.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).trunc() as u16 as u32),
    ),
    op(
        "cvt.rzi.u16.f16",
        "rr",
        each!(r <- a r => half(a).trunc() as u16 as u32),
    ),
    op(
        "cvt.rzi.s16.f32 cvt.rzi.ftz.s16.f32 cvt.rzi.sat.s16.f32 cvt.rzi.ftz.sat.s16.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).trunc() as i16 as u32),
    ),
    op(
        "cvt.rzi.s16.f16",
        "rr",
        each!(r <- a r => half(a).trunc() as i16 as u32),
    ),
    op(
        "cvt.rzi.u32.f32 cvt.rzi.ftz.u32.f32 cvt.rzi.sat.u32.f32 cvt.rzi.ftz.sat.u32.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).trunc() as u32 as u32),
    ),
    op(
        "cvt.rzi.u32.f64",
        "rq",
        each!(r <- a q => f64::from_bits(a).trunc() as u32 as u32),
    ),
    op(
        "cvt.rzi.u32.f16",
        "rr",
        each!(r <- a r => half(a).trunc() as u32 as u32),
    ),
    op(
        "cvt.rzi.s32.f32 cvt.rzi.ftz.s32.f32 cvt.rzi.sat.s32.f32 cvt.rzi.ftz.sat.s32.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).trunc() as i32 as u32),
    ),
    op(
        "cvt.rzi.s32.f64",
        "rq",
        each!(r <- a q => f64::from_bits(a).trunc() as i32 as u32),
    ),
    op(
        "cvt.rzi.s32.f16",
        "rr",
        each!(r <- a r => half(a).trunc() as i32 as u32),
    ),
    op(
        "cvt.rzi.u64.f32 cvt.rzi.ftz.u64.f32 cvt.rzi.sat.u64.f32 cvt.rzi.ftz.sat.u64.f32",
        "qr",
        each!(q <- a r => f32::from_bits(a).trunc() as u64 as u64),
    ),
    op(
        "cvt.rzi.u64.f64",
        "qq",
        each!(q <- a q => f64::from_bits(a).trunc() as u64 as u64),
    ),
    op(
        "cvt.rzi.u64.f16",
        "qr",
        each!(q <- a r => half(a).trunc() as u64 as u64),
    ),
    op(
        "cvt.rzi.s64.f32 cvt.rzi.ftz.s64.f32 cvt.rzi.sat.s64.f32 cvt.rzi.ftz.sat.s64.f32",
        "qr",
        each!(q <- a r => f32::from_bits(a).trunc() as i64 as u64),
    ),
    op(
        "cvt.rzi.s64.f64",
        "qq",
        each!(q <- a q => f64::from_bits(a).trunc() as i64 as u64),
    ),
    op(
        "cvt.rzi.s64.f16",
        "qr",
        each!(q <- a r => half(a).trunc() as i64 as u64),
    ),
    op(
        "cvt.rzi.f32.f32",
        "rr",
        each!(r <- a r => out::<false>(f::<false>(a).trunc())),
    ),
    op(
        "cvt.rzi.ftz.f32.f32",
        "rr",
        each!(r <- a r => out::<true>(f::<true>(a).trunc())),
    ),
    op(
        "cvt.rzi.f16.f16",
        "rr",
        each!(r <- a r => to_half(half(a).trunc())),
    ),
    op(
        "cvt.rzi.f64.f64",
        "qq",
        each!(q <- a q => f64::from_bits(a).trunc().to_bits()),
    ),
    op(
        "cvt.rmi.u8.f32 cvt.rmi.ftz.u8.f32 cvt.rmi.sat.u8.f32 cvt.rmi.ftz.sat.u8.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).floor() as u8 as u32),
    ),
    op(
        "cvt.rmi.u8.f16",
        "rr",
        each!(r <- a r => half(a).floor() as u8 as u32),
    ),
    op(
        "cvt.rmi.s8.f32 cvt.rmi.ftz.s8.f32 cvt.rmi.sat.s8.f32 cvt.rmi.ftz.sat.s8.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).floor() as i8 as u32),
    ),
    op(
        "cvt.rmi.s8.f16",
        "rr",
        each!(r <- a r => half(a).floor() as i8 as u32),
    ),
    op(
        "cvt.rmi.u16.f32 cvt.rmi.ftz.u16.f32 cvt.rmi.sat.u16.f32 cvt.rmi.ftz.sat.u16.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).floor() as u16 as u32),
    ),
    op(
        "cvt.rmi.u16.f16",
        "rr",
        each!(r <- a r => half(a).floor() as u16 as u32),
    ),
    op(
        "cvt.rmi.s16.f32 cvt.rmi.ftz.s16.f32 cvt.rmi.sat.s16.f32 cvt.rmi.ftz.sat.s16.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).floor() as i16 as u32),
    ),
    op(
        "cvt.rmi.s16.f16",
        "rr",
        each!(r <- a r => half(a).floor() as i16 as u32),
    ),
    op(
        "cvt.rmi.u32.f32 cvt.rmi.ftz.u32.f32 cvt.rmi.sat.u32.f32 cvt.rmi.ftz.sat.u32.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).floor() as u32 as u32),
    ),
    op(
        "cvt.rmi.u32.f64",
        "rq",
        each!(r <- a q => f64::from_bits(a).floor() as u32 as u32),
    ),
    op(
        "cvt.rmi.u32.f16",
        "rr",
        each!(r <- a r => half(a).floor() as u32 as u32),
    ),
    op(
        "cvt.rmi.s32.f32 cvt.rmi.ftz.s32.f32 cvt.rmi.sat.s32.f32 cvt.rmi.ftz.sat.s32.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).floor() as i32 as u32),
    ),
    op(
        "cvt.rmi.s32.f64",
        "rq",
        each!(r <- a q => f64::from_bits(a).floor() as i32 as u32),
    ),
    op(
        "cvt.rmi.s32.f16",
        "rr",
        each!(r <- a r => half(a).floor() as i32 as u32),
    ),
    op(
        "cvt.rmi.u64.f32 cvt.rmi.ftz.u64.f32 cvt.rmi.sat.u64.f32 cvt.rmi.ftz.sat.u64.f32",
        "qr",
        each!(q <- a r => f32::from_bits(a).floor() as u64 as u64),
    ),
    op(
        "cvt.rmi.u64.f64",
        "qq",
        each!(q <- a q => f64::from_bits(a).floor() as u64 as u64),
    ),
    op(
        "cvt.rmi.u64.f16",
        "qr",
        each!(q <- a r => half(a).floor() as u64 as u64),
    ),
    op(
        "cvt.rmi.s64.f32 cvt.rmi.ftz.s64.f32 cvt.rmi.sat.s64.f32 cvt.rmi.ftz.sat.s64.f32",
        "qr",
        each!(q <- a r => f32::from_bits(a).floor() as i64 as u64),
    ),
    op(
        "cvt.rmi.s64.f64",
        "qq",
        each!(q <- a q => f64::from_bits(a).floor() as i64 as u64),
    ),
    op(
        "cvt.rmi.s64.f16",
        "qr",
        each!(q <- a r => half(a).floor() as i64 as u64),
    ),
    op(
        "cvt.rmi.f32.f32",
        "rr",
        each!(r <- a r => out::<false>(f::<false>(a).floor())),
    ),
    op(
        "cvt.rmi.ftz.f32.f32",
        "rr",
        each!(r <- a r => out::<true>(f::<true>(a).floor())),
    ),
    op(
        "cvt.rmi.f16.f16",
        "rr",
        each!(r <- a r => to_half(half(a).floor())),
    ),
    op(
        "cvt.rmi.f64.f64",
        "qq",
        each!(q <- a q => f64::from_bits(a).floor().to_bits()),
    ),
    op(
        "cvt.rpi.u8.f32 cvt.rpi.ftz.u8.f32 cvt.rpi.sat.u8.f32 cvt.rpi.ftz.sat.u8.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).ceil() as u8 as u32),
    ),
    op(
        "cvt.rpi.u8.f16",
        "rr",
        each!(r <- a r => half(a).ceil() as u8 as u32),
    ),
    op(
        "cvt.rpi.s8.f32 cvt.rpi.ftz.s8.f32 cvt.rpi.sat.s8.f32 cvt.rpi.ftz.sat.s8.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).ceil() as i8 as u32),
    ),
    op(
        "cvt.rpi.s8.f16",
        "rr",
        each!(r <- a r => half(a).ceil() as i8 as u32),
    ),
    op(
        "cvt.rpi.u16.f32 cvt.rpi.ftz.u16.f32 cvt.rpi.sat.u16.f32 cvt.rpi.ftz.sat.u16.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).ceil() as u16 as u32),
    ),
    op(
        "cvt.rpi.u16.f16",
        "rr",
        each!(r <- a r => half(a).ceil() as u16 as u32),
    ),
    op(
        "cvt.rpi.s16.f32 cvt.rpi.ftz.s16.f32 cvt.rpi.sat.s16.f32 cvt.rpi.ftz.sat.s16.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).ceil() as i16 as u32),
    ),
    op(
        "cvt.rpi.s16.f16",
        "rr",
        each!(r <- a r => half(a).ceil() as i16 as u32),
    ),
    op(
        "cvt.rpi.u32.f32 cvt.rpi.ftz.u32.f32 cvt.rpi.sat.u32.f32 cvt.rpi.ftz.sat.u32.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).ceil() as u32 as u32),
    ),
    op(
        "cvt.rpi.u32.f64",
        "rq",
        each!(r <- a q => f64::from_bits(a).ceil() as u32 as u32),
    ),
    op(
        "cvt.rpi.u32.f16",
        "rr",
        each!(r <- a r => half(a).ceil() as u32 as u32),
    ),
    op(
        "cvt.rpi.s32.f32 cvt.rpi.ftz.s32.f32 cvt.rpi.sat.s32.f32 cvt.rpi.ftz.sat.s32.f32",
        "rr",
        each!(r <- a r => f32::from_bits(a).ceil() as i32 as u32),
    ),
    op(
        "cvt.rpi.s32.f64",
        "rq",
        each!(r <- a q => f64::from_bits(a).ceil() as i32 as u32),
    ),
    op(
        "cvt.rpi.s32.f16",
        "rr",
        each!(r <- a r => half(a).ceil() as i32 as u32),
    ),
    op(
        "cvt.rpi.u64.f32 cvt.rpi.ftz.u64.f32 cvt.rpi.sat.u64.f32 cvt.rpi.ftz.sat.u64.f32",
        "qr",
        each!(q <- a r => f32::from_bits(a).ceil() as u64 as u64),
    ),
    op(
        "cvt.rpi.u64.f64",
        "qq",
        each!(q <- a q => f64::from_bits(a).ceil() as u64 as u64),
    ),
    op(
        "cvt.rpi.u64.f16",
        "qr",
        each!(q <- a r => half(a).ceil() as u64 as u64),
    ),
    op(
        "cvt.rpi.s64.f32 cvt.rpi.ftz.s64.f32 cvt.rpi.sat.s64.f32 cvt.rpi.ftz.sat.s64.f32",
        "qr",
        each!(q <- a r => f32::from_bits(a).ceil() as i64 as u64),
    ),
    op(
        "cvt.rpi.s64.f64",
        "qq",
        each!(q <- a q => f64::from_bits(a).ceil() as i64 as u64),
    ),
    op(
        "cvt.rpi.s64.f16",
        "qr",
        each!(q <- a r => half(a).ceil() as i64 as u64),
    ),
    op(
        "cvt.rpi.f32.f32",
        "rr",
        each!(r <- a r => out::<false>(f::<false>(a).ceil())),
    ),
    op(
        "cvt.rpi.ftz.f32.f32",
        "rr",
        each!(r <- a r => out::<true>(f::<true>(a).ceil())),
    ),
    op(
        "cvt.rpi.f16.f16",
        "rr",
        each!(r <- a r => to_half(half(a).ceil())),
    ),
    op(
        "cvt.rpi.f64.f64",
        "qq",
        each!(q <- a q => f64::from_bits(a).ceil().to_bits()),
    ),
    op(
        "cvt.ftz.f32.f32",
        "rr",
        each!(r <- a r => out::<true>(f::<true>(a))),
    ),
    op(
        "cvt.sat.f32.f32",
        "rr",
        each!(r <- a r => out::<false>(sat(f::<false>(a)))),
    ),
    op(
        "cvt.sat.ftz.f32.f32 cvt.ftz.sat.f32.f32",
        "rr",
        each!(r <- a r => out::<true>(sat(f::<true>(a)))),
    ),
    op(
        "cvt.f32.f16 cvt.ftz.f32.f16",
        "rr",
        each!(r <- a r => half(a).to_bits()),
    ),
    op("cvt.f32.bf16", "rr", each!(r <- a r => brain(a).to_bits())),
    op("cvt.f64.f16", "qr", each!(q <- a r => (half(a) as f64).to_bits())),
    op(
        "cvt.rn.f16.f32",
        "rr",
        each!(r <- a r => to_half(f32::from_bits(a))),
    ),
    op(
        "cvt.rn.ftz.f16.f32",
        "rr",
        each!(r <- a r => to_half(f::<true>(a))),
    ),
    op(
        "cvt.rz.f16.f32",
        "rr",
        each!(r <- a r => half_toward_zero(f32::from_bits(a))),
    ),
    op(
        "cvt.rn.bf16.f32",
        "rr",
        each!(r <- a r => to_brain(f32::from_bits(a))),
    ),
    op(
        "cvt.rz.bf16.f32",
        "rr",
        each!(r <- a r => if f32::from_bits(a).is_nan() { 0x7fff } else { a >> 16 }),
    ),
    op(
        "cvt.rn.relu.f16.f32",
        "rr",
        each!(r <- a r => to_half(most(f32::from_bits(a), 0.0))),
    ),
    op(
        "cvt.rn.f16x2.f32",
        "rrr",
        each!(r <- a r, b r => to_half(f32::from_bits(a)) << 16 | to_half(f32::from_bits(b))),
    ),
    op(
        "cvt.rn.bf16x2.f32",
        "rrr",
        each!(r <- a r, b r => to_brain(f32::from_bits(a)) << 16 | to_brain(f32::from_bits(b))),
    ),
    op(
        "cvt.f64.f32 cvt.ftz.f64.f32",
        "qr",
        each!(q <- a r => (f32::from_bits(a) as f64).to_bits()),
    ),
    op(
        "cvt.rn.f32.f64",
        "rq",
        each!(r <- a q => (f64::from_bits(a) as f32).to_bits()),
    ),
    op(
        "cvt.rz.f32.f64",
        "rq",
        each!(r <- a q => toward_zero(f64::from_bits(a))),
    ),
    op(
        "cvt.rn.f16.f64",
        "rq",
        each!(r <- a q => to_half(f64::from_bits(a) as f32)),
    ),
    op(
        "cvt.rna.tf32.f32",
        "rr",
        each!(r <- a r => a.wrapping_add(0x1000) & 0xffff_e000),
    ),
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
