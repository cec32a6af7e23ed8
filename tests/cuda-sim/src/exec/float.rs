//! Floating point of 32 and 64 bits.
//!
//! `.ftz` takes and gives signed zero for a subnormal; in the functions below it is the const parameter `Z`.
//! The approximate functions are computed to nearest, which is within the card's stated error.

use super::table::{Entry, op};

/// See [`super::table`].
#[rustfmt::skip]
pub(super) static TABLE: &[Entry] = &[
    op("add.f32 add.rn.f32", "rrr", each!(r <- a r, b r => out::<false>(f::<false>(a) + f::<false>(b)))),
    op("add.ftz.f32 add.rn.ftz.f32", "rrr", each!(r <- a r, b r => out::<true>(f::<true>(a) + f::<true>(b)))),
    op("sub.f32 sub.rn.f32", "rrr", each!(r <- a r, b r => out::<false>(f::<false>(a) - f::<false>(b)))),
    op("sub.ftz.f32 sub.rn.ftz.f32", "rrr", each!(r <- a r, b r => out::<true>(f::<true>(a) - f::<true>(b)))),
    op("mul.f32 mul.rn.f32", "rrr", each!(r <- a r, b r => out::<false>(f::<false>(a) * f::<false>(b)))),
    op("mul.ftz.f32 mul.rn.ftz.f32", "rrr", each!(r <- a r, b r => out::<true>(f::<true>(a) * f::<true>(b)))),
    op("div.rn.f32 div.approx.f32 div.full.f32", "rrr",
        each!(r <- a r, b r => out::<false>(f::<false>(a) / f::<false>(b)))),
    op("div.rn.ftz.f32 div.approx.ftz.f32 div.full.ftz.f32", "rrr",
        each!(r <- a r, b r => out::<true>(f::<true>(a) / f::<true>(b)))),
    op("fma.rn.f32", "rrrr",
        each!(r <- a r, b r, c r => out::<false>(f::<false>(a).mul_add(f::<false>(b), f::<false>(c))))),
    op("fma.rn.ftz.f32", "rrrr",
        each!(r <- a r, b r, c r => out::<true>(f::<true>(a).mul_add(f::<true>(b), f::<true>(c))))),
    op("min.f32", "rrr", each!(r <- a r, b r => out::<false>(least(f::<false>(a), f::<false>(b))))),
    op("min.ftz.f32", "rrr", each!(r <- a r, b r => out::<true>(least(f::<true>(a), f::<true>(b))))),
    op("max.f32", "rrr", each!(r <- a r, b r => out::<false>(most(f::<false>(a), f::<false>(b))))),
    op("max.ftz.f32", "rrr", each!(r <- a r, b r => out::<true>(most(f::<true>(a), f::<true>(b))))),
    op("neg.f32", "rr", each!(r <- a r => out::<false>(f::<false>(a ^ 0x8000_0000)))),
    op("neg.ftz.f32", "rr", each!(r <- a r => out::<true>(f::<true>(a ^ 0x8000_0000)))),
    op("abs.f32", "rr", each!(r <- a r => out::<false>(f::<false>(a & 0x7fff_ffff)))),
    op("abs.ftz.f32", "rr", each!(r <- a r => out::<true>(f::<true>(a & 0x7fff_ffff)))),
    op("sqrt.rn.f32 sqrt.approx.f32", "rr", each!(r <- a r => out::<false>(f::<false>(a).sqrt()))),
    op("sqrt.rn.ftz.f32 sqrt.approx.ftz.f32", "rr", each!(r <- a r => out::<true>(f::<true>(a).sqrt()))),
    op("rsqrt.approx.f32", "rr", each!(r <- a r => out::<false>(1.0 / f::<false>(a).sqrt()))),
    op("rsqrt.approx.ftz.f32", "rr", each!(r <- a r => out::<true>(1.0 / f::<true>(a).sqrt()))),
    op("rcp.rn.f32 rcp.approx.f32", "rr", each!(r <- a r => out::<false>(1.0 / f::<false>(a)))),
    op("rcp.rn.ftz.f32 rcp.approx.ftz.f32", "rr", each!(r <- a r => out::<true>(1.0 / f::<true>(a)))),
    op("ex2.approx.f32", "rr", each!(r <- a r => out::<false>(exp2(f::<false>(a))))),
    op("ex2.approx.ftz.f32", "rr", each!(r <- a r => out::<true>(exp2(f::<true>(a))))),
    op("lg2.approx.f32", "rr", each!(r <- a r => out::<false>(f::<false>(a).log2()))),
    op("lg2.approx.ftz.f32", "rr", each!(r <- a r => out::<true>(f::<true>(a).log2()))),
    op("sin.approx.f32", "rr", each!(r <- a r => out::<false>(f::<false>(a).sin()))),
    op("sin.approx.ftz.f32", "rr", each!(r <- a r => out::<true>(f::<true>(a).sin()))),
    op("cos.approx.f32", "rr", each!(r <- a r => out::<false>(f::<false>(a).cos()))),
    op("cos.approx.ftz.f32", "rr", each!(r <- a r => out::<true>(f::<true>(a).cos()))),
    op("fma.rm.f32", "rrrr", each!(r <- a r, b r, c r => directed(exact(a, b, c), f64::lt))),
    op("fma.rp.f32", "rrrr", each!(r <- a r, b r, c r => directed(exact(a, b, c), f64::gt))),
    op("tanh.approx.f32", "rr", each!(r <- a r => out::<false>(f::<false>(a).tanh()))),
    op("add.sat.f32 add.rn.sat.f32", "rrr",
        each!(r <- a r, b r => out::<false>(sat(f::<false>(a) + f::<false>(b))))),
    op("add.ftz.sat.f32", "rrr", each!(r <- a r, b r => out::<true>(sat(f::<true>(a) + f::<true>(b))))),
    op("mul.sat.f32", "rrr", each!(r <- a r, b r => out::<false>(sat(f::<false>(a) * f::<false>(b))))),
    op("mul.ftz.sat.f32", "rrr", each!(r <- a r, b r => out::<true>(sat(f::<true>(a) * f::<true>(b))))),
    op("fma.rn.sat.f32", "rrrr",
        each!(r <- a r, b r, c r => out::<false>(sat(f::<false>(a).mul_add(f::<false>(b), f::<false>(c)))))),
    op("fma.rn.ftz.sat.f32", "rrrr",
        each!(r <- a r, b r, c r => out::<true>(sat(f::<true>(a).mul_add(f::<true>(b), f::<true>(c)))))),
    op("copysign.f32", "rrr", each!(r <- a r, b r => (a & 0x8000_0000) | (b & 0x7fff_ffff))),
    op("testp.infinite.f32", "pr", each!(p <- a r => f::<false>(a).is_infinite())),
    op("testp.finite.f32", "pr", each!(p <- a r => f::<false>(a).is_finite())),
    op("testp.notanumber.f32", "pr", each!(p <- a r => f::<false>(a).is_nan())),
    op("add.f64 add.rn.f64", "qqq", each!(q <- a q, b q => (d(a) + d(b)).to_bits())),
    op("sub.f64 sub.rn.f64", "qqq", each!(q <- a q, b q => (d(a) - d(b)).to_bits())),
    op("mul.f64 mul.rn.f64", "qqq", each!(q <- a q, b q => (d(a) * d(b)).to_bits())),
    op("div.rn.f64", "qqq", each!(q <- a q, b q => (d(a) / d(b)).to_bits())),
    op("fma.rn.f64", "qqqq", each!(q <- a q, b q, c q => d(a).mul_add(d(b), d(c)).to_bits())),
    op("min.f64", "qqq", each!(q <- a q, b q => d(a).min(d(b)).to_bits())),
    op("max.f64", "qqq", each!(q <- a q, b q => d(a).max(d(b)).to_bits())),
    op("neg.f64", "qq", each!(q <- a q => (-d(a)).to_bits())),
    op("abs.f64", "qq", each!(q <- a q => d(a).abs().to_bits())),
    op("sqrt.rn.f64", "qq", each!(q <- a q => d(a).sqrt().to_bits())),
    op("rcp.rn.f64", "qq", each!(q <- a q => (1.0 / d(a)).to_bits())),
    op("rcp.approx.ftz.f64", "qq", each!(q <- a q => ((1.0 / d(a)).to_bits() >> 32) << 32)),
    op("rsqrt.approx.f64", "qq", each!(q <- a q => (1.0 / d(a).sqrt()).to_bits())),
];

/// Comparisons; the unordered ones hold where an operand is no number.
#[rustfmt::skip]
pub(super) static COMPARE: &[Entry] = &[
    op("setp.eq.f32", "prr", each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); x == y })),
    op("setp.eq.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); x == y })),
    op("setp.eq.f64", "pqq", each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); x == y })),
    op("setp.ne.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); x != y && !unordered(x, y) })),
    op("setp.ne.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); x != y && !unordered(x, y) })),
    op("setp.ne.f64", "pqq",
        each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); x != y && !unordered(x, y) })),
    op("setp.lt.f32", "prr", each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); x < y })),
    op("setp.lt.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); x < y })),
    op("setp.lt.f64", "pqq", each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); x < y })),
    op("setp.le.f32", "prr", each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); x <= y })),
    op("setp.le.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); x <= y })),
    op("setp.le.f64", "pqq", each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); x <= y })),
    op("setp.gt.f32", "prr", each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); x > y })),
    op("setp.gt.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); x > y })),
    op("setp.gt.f64", "pqq", each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); x > y })),
    op("setp.ge.f32", "prr", each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); x >= y })),
    op("setp.ge.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); x >= y })),
    op("setp.ge.f64", "pqq", each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); x >= y })),
    op("setp.equ.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); x == y || unordered(x, y) })),
    op("setp.equ.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); x == y || unordered(x, y) })),
    op("setp.equ.f64", "pqq",
        each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); x == y || unordered(x, y) })),
    op("setp.neu.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); x != y })),
    op("setp.neu.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); x != y })),
    op("setp.neu.f64", "pqq", each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); x != y })),
    op("setp.ltu.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); x < y || unordered(x, y) })),
    op("setp.ltu.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); x < y || unordered(x, y) })),
    op("setp.ltu.f64", "pqq",
        each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); x < y || unordered(x, y) })),
    op("setp.leu.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); x <= y || unordered(x, y) })),
    op("setp.leu.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); x <= y || unordered(x, y) })),
    op("setp.leu.f64", "pqq",
        each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); x <= y || unordered(x, y) })),
    op("setp.gtu.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); x > y || unordered(x, y) })),
    op("setp.gtu.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); x > y || unordered(x, y) })),
    op("setp.gtu.f64", "pqq",
        each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); x > y || unordered(x, y) })),
    op("setp.geu.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); x >= y || unordered(x, y) })),
    op("setp.geu.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); x >= y || unordered(x, y) })),
    op("setp.geu.f64", "pqq",
        each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); x >= y || unordered(x, y) })),
    op("setp.nan.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); unordered(x, y) })),
    op("setp.nan.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); unordered(x, y) })),
    op("setp.nan.f64", "pqq",
        each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); unordered(x, y) })),
    op("setp.num.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<false>(a), f::<false>(b)); !unordered(x, y) })),
    op("setp.num.ftz.f32", "prr",
        each!(p <- a r, b r => { let (x, y) = (f::<true>(a), f::<true>(b)); !unordered(x, y) })),
    op("setp.num.f64", "pqq",
        each!(p <- a q, b q => { let (x, y) = (d(a), d(b)); !unordered(x, y) })),
];

/// The value of a 32-bit register.
#[inline(always)]
pub(super) fn f<const Z: bool>(bits: u32) -> f32 {
    let flushed = if Z && bits & 0x7f80_0000 == 0 {
        bits & 0x8000_0000
    } else {
        bits
    };
    f32::from_bits(flushed)
}

/// The bits of a result.
#[inline(always)]
pub(super) fn out<const Z: bool>(value: f32) -> u32 {
    let bits = value.to_bits();
    if Z && bits & 0x7f80_0000 == 0 {
        bits & 0x8000_0000
    } else {
        bits
    }
}

#[inline(always)]
fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// a × b + c in f64, where the product is exact.
#[inline(always)]
fn exact(a: u32, b: u32, c: u32) -> f64 {
    f::<false>(a) as f64 * f::<false>(b) as f64 + f::<false>(c) as f64
}

/// The float next to `value` on the side where `side(float, value)` holds, or `value` itself.
#[inline(always)]
fn directed(value: f64, side: impl Fn(&f64, &f64) -> bool) -> u32 {
    let nearest = value as f32;
    if nearest as f64 == value || side(&(nearest as f64), &value) {
        return nearest.to_bits();
    }
    let (down, up) = (nearest.next_down(), nearest.next_up());
    if side(&(down as f64), &value) {
        down.to_bits()
    } else {
        up.to_bits()
    }
}

/// Whether one of two is no number.
#[inline(always)]
pub(super) fn unordered<T: PartialOrd>(a: T, b: T) -> bool {
    a.partial_cmp(&b).is_none()
}

/// The lesser operand; a number wins over what is none, and -0 is below +0.
#[inline(always)]
pub(super) fn least(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if a < b || b.is_nan() || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

/// The greater operand, with [`least`]'s rules.
#[inline(always)]
pub(super) fn most(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if a > b || b.is_nan() || (a == b && a.is_sign_positive()) {
        a
    } else {
        b
    }
}

#[inline(always)]
pub(super) fn sat(value: f32) -> f32 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

/// 2^x within 1 unit in the last place or so, in operations that vectorise.
#[inline(always)]
pub(super) fn exp2(x: f32) -> f32 {
    let x = x.clamp(-160.0, 160.0);
    let whole = x.round_ties_even();
    // Taylor's series of e^(r ln 2) for |r| ≤ 1/2, in f64, whose error is below f32's rounding.
    let r = (x - whole) as f64 * std::f64::consts::LN_2;
    let series = 1.0
        + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0))))));
    // NaN passes: the clamp keeps it, and the product with anything is NaN.
    let scale = f64::from_bits(((whole as i32 as i64 + 1023) << 52) as u64);
    (series * scale) as f32
}
