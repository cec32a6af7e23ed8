//! Instructions that move bits between registers of different sizes, and three-way logic.

use super::{Inst, LANES, Warp};

vector_fn! {
/// `d` of 32 bits from the halves `more[0]` (low) and `more[1]`.
pub(crate) fn pack_halves(w: &mut Warp, i: &Inst, mask: u32) {
    let (low, high) = (w.r(i.more[0]), w.r(i.more[1]));
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = low[lane] & 0xffff | high[lane] << 16;
    }
    w.set_r(i.d, &out, mask);
}
}

vector_fn! {
/// The halves of `a` into `more[0]` (low) and `more[1]`.
pub(crate) fn unpack_halves(w: &mut Warp, i: &Inst, mask: u32) {
    let whole = w.r(i.a);
    let (mut low, mut high) = ([0; LANES], [0; LANES]);
    for lane in 0..LANES {
        (low[lane], high[lane]) = (whole[lane] & 0xffff, whole[lane] >> 16);
    }
    w.set_r(i.more[0], &low, mask);
    w.set_r(i.more[1], &high, mask);
}
}

vector_fn! {
/// `d` of 64 bits from `more[0]` (low) and `more[1]`.
pub(crate) fn pack_words(w: &mut Warp, i: &Inst, mask: u32) {
    let (low, high) = (w.r(i.more[0]), w.r(i.more[1]));
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = low[lane] as u64 | (high[lane] as u64) << 32;
    }
    w.set_q(i.d, &out, mask);
}
}

vector_fn! {
/// The two words of `a` into `more[0]` (low) and `more[1]`.
pub(crate) fn unpack_words(w: &mut Warp, i: &Inst, mask: u32) {
    let whole = w.q(i.a);
    let (mut low, mut high) = ([0; LANES], [0; LANES]);
    for lane in 0..LANES {
        (low[lane], high[lane]) = (whole[lane] as u32, (whole[lane] >> 32) as u32);
    }
    w.set_r(i.more[0], &low, mask);
    w.set_r(i.more[1], &high, mask);
}
}

vector_fn! {
/// `d` of 64 bits from four halves, the lowest first.
pub(crate) fn pack_quarters(w: &mut Warp, i: &Inst, mask: u32) {
    let mut out = [0; LANES];
    for part in 0..4 {
        let bits = w.r(i.more[part]);
        for lane in 0..LANES {
            out[lane] |= (bits[lane] as u64 & 0xffff) << (16 * part);
        }
    }
    w.set_q(i.d, &out, mask);
}
}

vector_fn! {
/// The four halves of `a` of 64 bits, the lowest first.
pub(crate) fn unpack_quarters(w: &mut Warp, i: &Inst, mask: u32) {
    let whole = *w.q(i.a);
    for part in 0..4 {
        w.set_r(i.more[part], &whole.map(|bits| (bits >> (16 * part)) as u32 & 0xffff), mask);
    }
}
}

vector_fn! {
/// `lop3`: bit `4x + 2y + z` of `imm` is the result where the bits of `a`, `b` and `c` are x, y and z.
pub(crate) fn logic(w: &mut Warp, i: &Inst, mask: u32) {
    let (a, b, c) = (w.r(i.a), w.r(i.b), w.r(i.c));
    let rule: [u32; 8] = std::array::from_fn(|bit| if i.imm >> bit & 1 != 0 { !0 } else { 0 });
    let mut out = [0; LANES];
    for lane in 0..LANES {
        let (x, y, z) = (a[lane], b[lane], c[lane]);
        let low = !y & (!z & rule[0] | z & rule[1]) | y & (!z & rule[2] | z & rule[3]);
        let high = !y & (!z & rule[4] | z & rule[5]) | y & (!z & rule[6] | z & rule[7]);
        out[lane] = !x & low | x & high;
    }
    w.set_r(i.d, &out, mask);
}
}

vector_fn! {
/// The mask of the lanes that run this together.
pub(crate) fn active_lanes(w: &mut Warp, i: &Inst, mask: u32) {
    w.set_r(i.d, &[mask; LANES], mask);
}
}
