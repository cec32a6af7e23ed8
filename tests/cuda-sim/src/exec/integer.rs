//! Integer, logic, comparison and selection instructions.
//!
//! A 16-bit register is the low half of a 32-bit slot; its upper half means nothing, so each operation
//! narrows what it reads.

use super::table::{Entry, op};

/// See [`super::table`].
#[rustfmt::skip]
pub(super) static TABLE: &[Entry] = &[
    op("mov.b32 mov.u32 mov.s32 mov.f32 mov.b16 mov.u16 mov.s16", "rr", each!(r <- a r => a)),
    op("mov.b64 mov.u64 mov.s64 mov.f64", "qq", each!(q <- a q => a)),
    op("mov.pred", "pp", each!(p <- a p => a)),
    op("add.s32 add.u32 add.s16 add.u16", "rrr", each!(r <- a r, b r => a.wrapping_add(b))),
    op("add.s64 add.u64", "qqq", each!(q <- a q, b q => a.wrapping_add(b))),
    op("sub.s32 sub.u32 sub.s16 sub.u16", "rrr", each!(r <- a r, b r => a.wrapping_sub(b))),
    op("sub.s64 sub.u64", "qqq", each!(q <- a q, b q => a.wrapping_sub(b))),
    op("add.sat.s32", "rrr", each!(r <- a r, b r => (a as i32).saturating_add(b as i32) as u32)),
    op("sub.sat.s32", "rrr", each!(r <- a r, b r => (a as i32).saturating_sub(b as i32) as u32)),
    op("mul.lo.s32 mul.lo.u32 mul.lo.s16 mul.lo.u16", "rrr", each!(r <- a r, b r => a.wrapping_mul(b))),
    op("mul.lo.s64 mul.lo.u64", "qqq", each!(q <- a q, b q => a.wrapping_mul(b))),
    op("mul.wide.s32", "qrr", each!(q <- a r, b r => (a as i32 as i64 * b as i32 as i64) as u64)),
    op("mul.wide.u32", "qrr", each!(q <- a r, b r => a as u64 * b as u64)),
    op("mul.wide.s16", "rrr", each!(r <- a r, b r => (a as i16 as i32 * b as i16 as i32) as u32)),
    op("mul.wide.u16", "rrr", each!(r <- a r, b r => a as u16 as u32 * b as u16 as u32)),
    op("mul.hi.s32", "rrr", each!(r <- a r, b r => ((a as i32 as i64 * b as i32 as i64) >> 32) as u32)),
    op("mul.hi.u32", "rrr", each!(r <- a r, b r => ((a as u64 * b as u64) >> 32) as u32)),
    op("mul.hi.s16", "rrr", each!(r <- a r, b r => ((a as i16 as i32 * b as i16 as i32) >> 16) as u32)),
    op("mul.hi.u16", "rrr", each!(r <- a r, b r => (a as u16 as u32 * b as u16 as u32) >> 16)),
    op("mul.hi.u64", "qqq", each!(q <- a q, b q => ((a as u128 * b as u128) >> 64) as u64)),
    op("mul.hi.s64", "qqq", each!(q <- a q, b q => ((a as i64 as i128 * b as i64 as i128) >> 64) as u64)),
    op("mul24.lo.u32", "rrr", each!(r <- a r, b r => (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff))),
    op("mad.lo.s32 mad.lo.u32 mad.lo.s16 mad.lo.u16", "rrrr",
        each!(r <- a r, b r, c r => a.wrapping_mul(b).wrapping_add(c))),
    op("mad.lo.s64 mad.lo.u64", "qqqq", each!(q <- a q, b q, c q => a.wrapping_mul(b).wrapping_add(c))),
    op("mad.wide.s32", "qrrq",
        each!(q <- a r, b r, c q => ((a as i32 as i64 * b as i32 as i64) as u64).wrapping_add(c))),
    op("mad.wide.u32", "qrrq", each!(q <- a r, b r, c q => (a as u64 * b as u64).wrapping_add(c))),
    op("mad.wide.s16", "rrrr",
        each!(r <- a r, b r, c r => ((a as i16 as i32 * b as i16 as i32) as u32).wrapping_add(c))),
    op("mad.wide.u16", "rrrr",
        each!(r <- a r, b r, c r => (a as u16 as u32 * b as u16 as u32).wrapping_add(c))),
    op("mad.hi.s32", "rrrr",
        each!(r <- a r, b r, c r => (((a as i32 as i64 * b as i32 as i64) >> 32) as u32).wrapping_add(c))),
    op("mad.hi.u32", "rrrr",
        each!(r <- a r, b r, c r => (((a as u64 * b as u64) >> 32) as u32).wrapping_add(c))),
    op("sad.s32", "rrrr", each!(r <- a r, b r, c r => (a as i32).abs_diff(b as i32).wrapping_add(c))),
    op("sad.u32", "rrrr", each!(r <- a r, b r, c r => a.abs_diff(b).wrapping_add(c))),
    // Division by zero gives all ones and leaves the dividend as the remainder, as the card does.
    op("div.s32", "rrr",
        each!(r <- a r, b r => if b == 0 { !0 } else { (a as i32).wrapping_div(b as i32) as u32 })),
    op("div.u32", "rrr", each!(r <- a r, b r => a.checked_div(b).unwrap_or(!0))),
    op("div.u16", "rrr", each!(r <- a r, b r => (a as u16).checked_div(b as u16).unwrap_or(!0) as u32)),
    op("div.s16", "rrr",
        each!(r <- a r, b r => if b as u16 == 0 { !0 } else { (a as i16).wrapping_div(b as i16) as u32 })),
    op("div.s64", "qqq",
        each!(q <- a q, b q => if b == 0 { !0 } else { (a as i64).wrapping_div(b as i64) as u64 })),
    op("div.u64", "qqq", each!(q <- a q, b q => a.checked_div(b).unwrap_or(!0))),
    op("rem.s32", "rrr",
        each!(r <- a r, b r => if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 })),
    op("rem.u32", "rrr", each!(r <- a r, b r => a.checked_rem(b).unwrap_or(a))),
    op("rem.u16", "rrr", each!(r <- a r, b r => (a as u16).checked_rem(b as u16).unwrap_or(a as u16) as u32)),
    op("rem.s16", "rrr",
        each!(r <- a r, b r => if b as u16 == 0 { a } else { (a as i16).wrapping_rem(b as i16) as u32 })),
    op("rem.s64", "qqq",
        each!(q <- a q, b q => if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 })),
    op("rem.u64", "qqq", each!(q <- a q, b q => a.checked_rem(b).unwrap_or(a))),
    op("min.s32", "rrr", each!(r <- a r, b r => (a as i32).min(b as i32) as u32)),
    op("max.s32", "rrr", each!(r <- a r, b r => (a as i32).max(b as i32) as u32)),
    op("min.u32", "rrr", each!(r <- a r, b r => a.min(b))),
    op("max.u32", "rrr", each!(r <- a r, b r => a.max(b))),
    op("min.s16", "rrr", each!(r <- a r, b r => (a as i16).min(b as i16) as u32)),
    op("max.s16", "rrr", each!(r <- a r, b r => (a as i16).max(b as i16) as u32)),
    op("min.u16", "rrr", each!(r <- a r, b r => (a as u16).min(b as u16) as u32)),
    op("max.u16", "rrr", each!(r <- a r, b r => (a as u16).max(b as u16) as u32)),
    op("min.s64", "qqq", each!(q <- a q, b q => (a as i64).min(b as i64) as u64)),
    op("max.s64", "qqq", each!(q <- a q, b q => (a as i64).max(b as i64) as u64)),
    op("min.u64", "qqq", each!(q <- a q, b q => a.min(b))),
    op("max.u64", "qqq", each!(q <- a q, b q => a.max(b))),
    op("neg.s32 neg.s16", "rr", each!(r <- a r => a.wrapping_neg())),
    op("neg.s64", "qq", each!(q <- a q => a.wrapping_neg())),
    op("abs.s32", "rr", each!(r <- a r => (a as i32).wrapping_abs() as u32)),
    op("abs.s16", "rr", each!(r <- a r => (a as i16).wrapping_abs() as u32)),
    op("abs.s64", "qq", each!(q <- a q => (a as i64).wrapping_abs() as u64)),
    op("and.b32 and.b16", "rrr", each!(r <- a r, b r => a & b)),
    op("and.b64", "qqq", each!(q <- a q, b q => a & b)),
    op("and.pred", "ppp", each!(p <- a p, b p => a & b)),
    op("or.b32 or.b16", "rrr", each!(r <- a r, b r => a | b)),
    op("or.b64", "qqq", each!(q <- a q, b q => a | b)),
    op("or.pred", "ppp", each!(p <- a p, b p => a | b)),
    op("xor.b32 xor.b16", "rrr", each!(r <- a r, b r => a ^ b)),
    op("xor.b64", "qqq", each!(q <- a q, b q => a ^ b)),
    op("xor.pred", "ppp", each!(p <- a p, b p => a ^ b)),
    op("not.b32 not.b16", "rr", each!(r <- a r => !a)),
    op("not.b64", "qq", each!(q <- a q => !a)),
    op("not.pred", "pp", each!(p <- a p => !a)),
    op("cnot.b32", "rr", each!(r <- a r => (a == 0) as u32)),
    op("shl.b32", "rrr", each!(r <- a r, b r => if b > 31 { 0 } else { a << b })),
    op("shr.u32 shr.b32", "rrr", each!(r <- a r, b r => if b > 31 { 0 } else { a >> b })),
    op("shr.s32", "rrr", each!(r <- a r, b r => (a as i32 >> b.min(31)) as u32)),
    op("shl.b16", "rrr", each!(r <- a r, b r => if b > 15 { 0 } else { a << b })),
    op("shr.u16 shr.b16", "rrr", each!(r <- a r, b r => if b > 15 { 0 } else { (a & 0xffff) >> b })),
    op("shr.s16", "rrr", each!(r <- a r, b r => (a as i16 as i32 >> b.min(15)) as u32)),
    op("shl.b64", "qqr", each!(q <- a q, b r => if b > 63 { 0 } else { a << b })),
    op("shr.u64 shr.b64", "qqr", each!(q <- a q, b r => if b > 63 { 0 } else { a >> b })),
    op("shr.s64", "qqr", each!(q <- a q, b r => (a as i64 >> b.min(63)) as u64)),
    op("shf.l.wrap.b32", "rrrr", each!(r <- a r, b r, c r => (join(a, b) << (c & 31) >> 32) as u32)),
    op("shf.r.wrap.b32", "rrrr", each!(r <- a r, b r, c r => (join(a, b) >> (c & 31)) as u32)),
    op("shf.l.clamp.b32", "rrrr", each!(r <- a r, b r, c r => (join(a, b) << c.min(32) >> 32) as u32)),
    op("shf.r.clamp.b32", "rrrr", each!(r <- a r, b r, c r => (join(a, b) >> c.min(32)) as u32)),
    op("popc.b32", "rr", each!(r <- a r => a.count_ones())),
    op("popc.b64", "rq", each!(r <- a q => a.count_ones())),
    op("clz.b32", "rr", each!(r <- a r => a.leading_zeros())),
    op("clz.b64", "rq", each!(r <- a q => a.leading_zeros())),
    op("brev.b32", "rr", each!(r <- a r => a.reverse_bits())),
    op("brev.b64", "qq", each!(q <- a q => a.reverse_bits())),
    op("bfind.u32", "rr", each!(r <- a r => 31u32.wrapping_sub(a.leading_zeros()))),
    op("bfind.shiftamt.u32", "rr", each!(r <- a r => if a == 0 { !0 } else { a.leading_zeros() })),
    op("bfe.u32", "rrrr", each!(r <- a r, b r, c r => extract(a as u64, b, c, 32) as u32)),
    op("bfe.s32", "rrrr", each!(r <- a r, b r, c r => extract_signed(a as i32 as i64, b, c, 32) as u32)),
    op("bfe.u64", "qqrr", each!(q <- a q, b r, c r => extract(a, b, c, 64))),
    op("bfe.s64", "qqrr", each!(q <- a q, b r, c r => extract_signed(a as i64, b, c, 64))),
    op("bfi.b32", "rrrrr", each!(r <- a r, b r, c r, d r => insert(a as u64, b as u64, c, d, 32) as u32)),
    op("bfi.b64", "qqqrr", each!(q <- a q, b q, c r, d r => insert(a, b, c, d, 64))),
    op("prmt.b32", "rrrr", each!(r <- a r, b r, c r => permute(a, b, c))),
    op("dp2a.lo.u32.u32", "rrrr",
        each!(r <- a r, b r, c r => dot2(a, b, c, |x| x as i32, |x| x as i32))),
    op("dp2a.lo.u32.s32", "rrrr",
        each!(r <- a r, b r, c r => dot2(a, b, c, |x| x as i32, |x| x as i8 as i32))),
    op("dp2a.lo.s32.u32", "rrrr",
        each!(r <- a r, b r, c r => dot2(a, b, c, |x| x as i16 as i32, |x| x as i32))),
    op("dp2a.lo.s32.s32", "rrrr",
        each!(r <- a r, b r, c r => dot2(a, b, c, |x| x as i16 as i32, |x| x as i8 as i32))),
    op("dp2a.hi.u32.u32", "rrrr",
        each!(r <- a r, b r, c r => dot2(a, b >> 16, c, |x| x as i32, |x| x as i32))),
    op("dp2a.hi.u32.s32", "rrrr",
        each!(r <- a r, b r, c r => dot2(a, b >> 16, c, |x| x as i32, |x| x as i8 as i32))),
    op("dp2a.hi.s32.u32", "rrrr",
        each!(r <- a r, b r, c r => dot2(a, b >> 16, c, |x| x as i16 as i32, |x| x as i32))),
    op("dp2a.hi.s32.s32", "rrrr",
        each!(r <- a r, b r, c r => dot2(a, b >> 16, c, |x| x as i16 as i32, |x| x as i8 as i32))),
    op("dp4a.s32.s32", "rrrr",
        each!(r <- a r, b r, c r => dot(a, b, c, |x| x as i8 as i32, |x| x as i8 as i32))),
    op("dp4a.u32.u32", "rrrr", each!(r <- a r, b r, c r => dot(a, b, c, |x| x as i32, |x| x as i32))),
    op("dp4a.u32.s32", "rrrr", each!(r <- a r, b r, c r => dot(a, b, c, |x| x as i32, |x| x as i8 as i32))),
    op("dp4a.s32.u32", "rrrr", each!(r <- a r, b r, c r => dot(a, b, c, |x| x as i8 as i32, |x| x as i32))),
    op("selp.b32 selp.u32 selp.s32 selp.f32 selp.b16 selp.u16 selp.s16", "rrrp",
        each!(r <- a r, b r, c p => if c { a } else { b })),
    op("selp.b64 selp.u64 selp.s64 selp.f64", "qqqp", each!(q <- a q, b q, c p => if c { a } else { b })),
    op("slct.b32.s32 slct.u32.s32 slct.s32.s32 slct.f32.s32", "rrrr",
        each!(r <- a r, b r, c r => if c as i32 >= 0 { a } else { b })),
    op("setp.eq.s32 setp.eq.u32 setp.eq.b32", "prr", each!(p <- a r, b r => a == b)),
    op("setp.ne.s32 setp.ne.u32 setp.ne.b32", "prr", each!(p <- a r, b r => a != b)),
    op("setp.lt.s32", "prr", each!(p <- a r, b r => (a as i32) < b as i32)),
    op("setp.le.s32", "prr", each!(p <- a r, b r => a as i32 <= b as i32)),
    op("setp.gt.s32", "prr", each!(p <- a r, b r => a as i32 > b as i32)),
    op("setp.ge.s32", "prr", each!(p <- a r, b r => a as i32 >= b as i32)),
    op("setp.lt.u32 setp.lo.u32", "prr", each!(p <- a r, b r => a < b)),
    op("setp.le.u32 setp.ls.u32", "prr", each!(p <- a r, b r => a <= b)),
    op("setp.gt.u32 setp.hi.u32", "prr", each!(p <- a r, b r => a > b)),
    op("setp.ge.u32 setp.hs.u32", "prr", each!(p <- a r, b r => a >= b)),
    op("setp.eq.s16 setp.eq.u16 setp.eq.b16", "prr", each!(p <- a r, b r => a as u16 == b as u16)),
    op("setp.ne.s16 setp.ne.u16 setp.ne.b16", "prr", each!(p <- a r, b r => a as u16 != b as u16)),
    op("setp.lt.s16", "prr", each!(p <- a r, b r => (a as i16) < b as i16)),
    op("setp.le.s16", "prr", each!(p <- a r, b r => a as i16 <= b as i16)),
    op("setp.gt.s16", "prr", each!(p <- a r, b r => a as i16 > b as i16)),
    op("setp.ge.s16", "prr", each!(p <- a r, b r => a as i16 >= b as i16)),
    op("setp.lt.u16 setp.lo.u16", "prr", each!(p <- a r, b r => (a as u16) < b as u16)),
    op("setp.le.u16 setp.ls.u16", "prr", each!(p <- a r, b r => a as u16 <= b as u16)),
    op("setp.gt.u16 setp.hi.u16", "prr", each!(p <- a r, b r => a as u16 > b as u16)),
    op("setp.ge.u16 setp.hs.u16", "prr", each!(p <- a r, b r => a as u16 >= b as u16)),
    op("setp.eq.s64 setp.eq.u64 setp.eq.b64", "pqq", each!(p <- a q, b q => a == b)),
    op("setp.ne.s64 setp.ne.u64 setp.ne.b64", "pqq", each!(p <- a q, b q => a != b)),
    op("setp.lt.s64", "pqq", each!(p <- a q, b q => (a as i64) < b as i64)),
    op("setp.le.s64", "pqq", each!(p <- a q, b q => a as i64 <= b as i64)),
    op("setp.gt.s64", "pqq", each!(p <- a q, b q => a as i64 > b as i64)),
    op("setp.ge.s64", "pqq", each!(p <- a q, b q => a as i64 >= b as i64)),
    op("setp.lt.u64 setp.lo.u64", "pqq", each!(p <- a q, b q => a < b)),
    op("setp.le.u64 setp.ls.u64", "pqq", each!(p <- a q, b q => a <= b)),
    op("setp.gt.u64 setp.hi.u64", "pqq", each!(p <- a q, b q => a > b)),
    op("setp.ge.u64 setp.hs.u64", "pqq", each!(p <- a q, b q => a >= b)),
    // Generic addresses of shared and local memory lie in windows of their own.
    op("cvta.global.u64 cvta.to.global.u64 cvta.const.u64 cvta.to.const.u64", "qq", each!(q <- a q => a)),
    op("cvta.shared.u64", "qq", each!(q <- a q => a.wrapping_add(super::SHARED_WINDOW))),
    op("cvta.to.shared.u64", "qq", each!(q <- a q => a.wrapping_sub(super::SHARED_WINDOW))),
    op("cvta.local.u64", "qq", each!(q <- a q => a.wrapping_add(super::LOCAL_WINDOW))),
    op("cvta.to.local.u64", "qq", each!(q <- a q => a.wrapping_sub(super::LOCAL_WINDOW))),
];

#[inline(always)]
fn join(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

#[inline(always)]
fn extract(value: u64, from: u32, length: u32, bits: u32) -> u64 {
    let (from, length) = (from & 0xff, length & 0xff);
    if from >= bits || length == 0 {
        return 0;
    }
    let shifted = value >> from;
    if length >= 64 {
        shifted
    } else {
        shifted & ((1 << length) - 1)
    }
}

/// The field's top bit fills what lies above it; past the end of the value that is the value's sign.
#[inline(always)]
fn extract_signed(value: i64, from: u32, length: u32, bits: u32) -> u64 {
    let (from, length) = (from & 0xff, length & 0xff);
    if length == 0 {
        return 0;
    }
    let shifted = value >> from.min(bits - 1);
    let unused = 64u32.saturating_sub(length);
    (shifted << unused >> unused) as u64
}

#[inline(always)]
fn insert(field: u64, into: u64, from: u32, length: u32, bits: u32) -> u64 {
    let (from, length) = (from & 0xff, length & 0xff);
    if from >= bits || length == 0 {
        return into;
    }
    let ones = if length >= 64 { !0 } else { (1u64 << length) - 1 };
    into & !(ones << from) | (field & ones) << from
}

#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = join(a, b);
    let mut out = 0;
    for at in 0..4 {
        let pick = selector >> (4 * at) & 15;
        let byte = (bytes >> (8 * (pick & 7))) as u8;
        let byte = if pick & 8 != 0 {
            (byte as i8 >> 7) as u8
        } else {
            byte
        };
        out |= (byte as u32) << (8 * at);
    }
    out
}

#[inline(always)]
fn dot(a: u32, b: u32, c: u32, x: impl Fn(u8) -> i32, y: impl Fn(u8) -> i32) -> u32 {
    let mut sum = c as i32;
    for at in 0..4 {
        sum = sum.wrapping_add(x((a >> (8 * at)) as u8) * y((b >> (8 * at)) as u8));
    }
    sum as u32
}

#[inline(always)]
fn dot2(a: u32, b: u32, c: u32, x: impl Fn(u16) -> i32, y: impl Fn(u8) -> i32) -> u32 {
    let low = x(a as u16).wrapping_mul(y(b as u8));
    let high = x((a >> 16) as u16).wrapping_mul(y((b >> 8) as u8));
    (c as i32).wrapping_add(low).wrapping_add(high) as u32
}
