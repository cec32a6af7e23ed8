//! Floating point of 16 bits, alone and in pairs. Operations are computed in f32 and rounded once, which
//! for one addition or multiplication is exact rounding; `fma` goes over f64.

use super::float::{exp2, least, most, unordered};
use super::table::{Entry, op};

macro_rules! pair {
    ($from:ident, $to:ident, $a:ident => $e:expr) => {
        each!(r <- x r => {
            let one = |bits: u32| { let $a = $from(bits); $to($e) & 0xffff };
            one(x) | one(x >> 16) << 16
        })
    };
    ($from:ident, $to:ident, $a:ident, $b:ident => $e:expr) => {
        each!(r <- x r, y r => {
            let one = |x: u32, y: u32| { let ($a, $b) = ($from(x), $from(y)); $to($e) & 0xffff };
            one(x, y) | one(x >> 16, y >> 16) << 16
        })
    };
    ($from:ident, $to:ident, $a:ident, $b:ident, $c:ident => $e:expr) => {
        each!(r <- x r, y r, z r => {
            let one = |x: u32, y: u32, z: u32| {
                let ($a, $b, $c) = ($from(x), $from(y), $from(z));
                $to($e) & 0xffff
            };
            one(x, y, z) | one(x >> 16, y >> 16, z >> 16) << 16
        })
    };
}

macro_rules! flags {
    ($from:ident, $a:ident, $b:ident => $e:expr) => {
        each!(p <- x r, y r => { let ($a, $b) = ($from(x), $from(y)); $e })
    };
}

/// See [`super::table`]. A single value is the low half of the pair's operation.
#[rustfmt::skip]
pub(super) static TABLE: &[Entry] = &[
    op("add.f16 add.ftz.f16 add.rn.f16 add.rn.ftz.f16 add.f16x2 add.ftz.f16x2 add.rn.f16x2 \
        add.rn.ftz.f16x2", "rrr",
        pair!(half, to_half, a, b => a + b)),
    op("sub.f16 sub.ftz.f16 sub.rn.f16 sub.rn.ftz.f16 sub.f16x2 sub.ftz.f16x2 sub.rn.f16x2 \
        sub.rn.ftz.f16x2", "rrr",
        pair!(half, to_half, a, b => a - b)),
    op("mul.f16 mul.ftz.f16 mul.rn.f16 mul.rn.ftz.f16 mul.f16x2 mul.ftz.f16x2 mul.rn.f16x2 \
        mul.rn.ftz.f16x2", "rrr",
        pair!(half, to_half, a, b => a * b)),
    op("min.f16 min.ftz.f16 min.f16x2 min.ftz.f16x2", "rrr", pair!(half, to_half, a, b => least(a, b))),
    op("max.f16 max.ftz.f16 max.f16x2 max.ftz.f16x2", "rrr", pair!(half, to_half, a, b => most(a, b))),
    op("fma.rn.f16 fma.rn.ftz.f16 fma.rn.f16x2 fma.rn.ftz.f16x2", "rrrr",
        pair!(half, to_half, a, b, c => fused(a, b, c))),
    op("neg.f16 neg.ftz.f16 neg.f16x2 neg.ftz.f16x2", "rr", each!(r <- a r => a ^ 0x8000_8000)),
    op("abs.f16 abs.ftz.f16 abs.f16x2 abs.ftz.f16x2", "rr", each!(r <- a r => a & 0x7fff_7fff)),
    op("ex2.approx.f16 ex2.approx.f16x2 ex2.approx.ftz.f16 ex2.approx.ftz.f16x2", "rr",
        pair!(half, to_half, a => exp2(a))),
    op("tanh.approx.f16 tanh.approx.f16x2", "rr", pair!(half, to_half, a => a.tanh())),
    op("setp.eq.f16 setp.eq.ftz.f16", "prr", flags!(half, a, b => a == b)),
    op("setp.ne.f16 setp.ne.ftz.f16", "prr", flags!(half, a, b => a != b && !unordered(a, b))),
    op("setp.lt.f16 setp.lt.ftz.f16", "prr", flags!(half, a, b => a < b)),
    op("setp.le.f16 setp.le.ftz.f16", "prr", flags!(half, a, b => a <= b)),
    op("setp.gt.f16 setp.gt.ftz.f16", "prr", flags!(half, a, b => a > b)),
    op("setp.ge.f16 setp.ge.ftz.f16", "prr", flags!(half, a, b => a >= b)),
    op("setp.neu.f16 setp.neu.ftz.f16", "prr", flags!(half, a, b => a != b)),
    op("setp.ltu.f16 setp.ltu.ftz.f16", "prr", flags!(half, a, b => a < b || unordered(a, b))),
    op("setp.leu.f16 setp.leu.ftz.f16", "prr", flags!(half, a, b => a <= b || unordered(a, b))),
    op("setp.gtu.f16 setp.gtu.ftz.f16", "prr", flags!(half, a, b => a > b || unordered(a, b))),
    op("setp.geu.f16 setp.geu.ftz.f16", "prr", flags!(half, a, b => a >= b || unordered(a, b))),
    op("setp.nan.f16 setp.nan.ftz.f16", "prr", flags!(half, a, b => unordered(a, b))),
    op("setp.num.f16 setp.num.ftz.f16", "prr", flags!(half, a, b => !unordered(a, b))),
    op("add.bf16 add.rn.bf16 add.bf16x2 add.rn.bf16x2", "rrr", pair!(brain, to_brain, a, b => a + b)),
    op("sub.bf16 sub.rn.bf16 sub.bf16x2 sub.rn.bf16x2", "rrr", pair!(brain, to_brain, a, b => a - b)),
    op("mul.bf16 mul.rn.bf16 mul.bf16x2 mul.rn.bf16x2", "rrr", pair!(brain, to_brain, a, b => a * b)),
    op("min.bf16 min.bf16x2", "rrr", pair!(brain, to_brain, a, b => least(a, b))),
    op("max.bf16 max.bf16x2", "rrr", pair!(brain, to_brain, a, b => most(a, b))),
    op("fma.rn.bf16 fma.rn.bf16x2", "rrrr", pair!(brain, to_brain, a, b, c => fused(a, b, c))),
    op("neg.bf16 neg.bf16x2", "rr", each!(r <- a r => a ^ 0x8000_8000)),
    op("abs.bf16 abs.bf16x2", "rr", each!(r <- a r => a & 0x7fff_7fff)),
    op("ex2.approx.bf16 ex2.approx.bf16x2 ex2.approx.ftz.bf16 ex2.approx.ftz.bf16x2", "rr",
        pair!(brain, to_brain, a => exp2(a))),
    op("tanh.approx.bf16 tanh.approx.bf16x2", "rr", pair!(brain, to_brain, a => a.tanh())),
    op("setp.eq.bf16", "prr", flags!(brain, a, b => a == b)),
    op("setp.ne.bf16", "prr", flags!(brain, a, b => a != b && !unordered(a, b))),
    op("setp.lt.bf16", "prr", flags!(brain, a, b => a < b)),
    op("setp.le.bf16", "prr", flags!(brain, a, b => a <= b)),
    op("setp.gt.bf16", "prr", flags!(brain, a, b => a > b)),
    op("setp.ge.bf16", "prr", flags!(brain, a, b => a >= b)),
    op("setp.neu.bf16", "prr", flags!(brain, a, b => a != b)),
    op("setp.ltu.bf16", "prr", flags!(brain, a, b => a < b || unordered(a, b))),
    op("setp.leu.bf16", "prr", flags!(brain, a, b => a <= b || unordered(a, b))),
    op("setp.gtu.bf16", "prr", flags!(brain, a, b => a > b || unordered(a, b))),
    op("setp.geu.bf16", "prr", flags!(brain, a, b => a >= b || unordered(a, b))),
    op("setp.nan.bf16", "prr", flags!(brain, a, b => unordered(a, b))),
    op("setp.num.bf16", "prr", flags!(brain, a, b => !unordered(a, b))),
];

/// a × b + c, rounded once to f32 from a sum in f64: the product is exact there.
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    let sum = a as f64 * b as f64 + c as f64;
    // Rounding to odd on the way keeps the second rounding right.
    let nearest = sum as f32;
    let bits = nearest.to_bits();
    if nearest as f64 == sum || !nearest.is_finite() || bits & 1 != 0 {
        return nearest;
    }
    let away = (sum.abs() > (nearest as f64).abs()) as u32;
    f32::from_bits(bits.wrapping_add(away.wrapping_mul(2)).wrapping_sub(1))
}

/// The value of an f16 in the low half.
#[inline(always)]
pub(super) fn half(bits: u32) -> f32 {
    let sign = (bits & 0x8000) << 16;
    let magnitude = (bits & 0x7fff) << 13;
    // The exponent's bias grows by 112; multiplying also makes subnormals normal.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let value = if magnitude >= 0x0f80_0000 {
        magnitude | 0x7f80_0000
    } else {
        scaled
    };
    f32::from_bits(sign | value)
}

/// The nearest f16, ties to even.
#[inline(always)]
pub(super) fn to_half(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Adding one half makes the float unit round at an f16's smallest step.
    let small = (f32::from_bits(magnitude) + 0.5)
        .to_bits()
        .wrapping_sub(0x3f00_0000);
    let normal = magnitude
        .wrapping_sub(0x3800_0000)
        .wrapping_add(0xfff + (magnitude >> 13 & 1))
        >> 13;
    let finite = if magnitude < 0x3880_0000 { small } else { normal };
    let large = if magnitude > 0x7f80_0000 { 0x7fff } else { 0x7c00 };
    sign | if magnitude >= 0x477f_f000 { large } else { finite }
}

/// The value of a bf16 in the low half.
#[inline(always)]
pub(super) fn brain(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

/// The nearest bf16, ties to even.
#[inline(always)]
pub(super) fn to_brain(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { 0x7fff } else { rounded }
}
