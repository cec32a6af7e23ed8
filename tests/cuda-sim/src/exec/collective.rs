//! Instructions in which lanes see each other's values: shuffles and votes.

use super::{Inst, LANES, Run, Warp};
use crate::code::Code;

/// Shuffle modes. `d` result, `c`-th predicate says whether the source was in range (0: none wanted),
/// `a` value, `b` lane or distance, `more[0]` clamp and segment mask.
pub(crate) static SHUFFLES: &[(&str, Run)] = &[
    ("up", shuffle::<0>),
    ("down", shuffle::<1>),
    ("bfly", shuffle::<2>),
    ("idx", shuffle::<3>),
];

/// Votes: `d` result, `a` the predicate (a 32-bit register for `match`).
pub(crate) static VOTES: &[(&str, &str, Run)] = &[
    ("vote.sync.ballot.b32", "rp", ballot),
    ("vote.sync.all.pred", "pp", vote_all),
    ("vote.sync.any.pred", "pp", vote_any),
    ("vote.sync.uni.pred", "pp", vote_uni),
    ("match.any.sync.b32", "rr", match_any),
    ("match.any.sync.b64", "rq", match_any_long),
    ("redux.sync.add.s32", "rr", reduce::<0>),
    ("redux.sync.add.u32", "rr", reduce::<0>),
    ("redux.sync.min.s32", "rr", reduce::<1>),
    ("redux.sync.max.s32", "rr", reduce::<2>),
    ("redux.sync.min.u32", "rr", reduce::<3>),
    ("redux.sync.max.u32", "rr", reduce::<4>),
    ("redux.sync.and.b32", "rr", reduce::<5>),
    ("redux.sync.or.b32", "rr", reduce::<6>),
    ("redux.sync.xor.b32", "rr", reduce::<7>),
];

vector_fn! {
fn shuffle<const MODE: u8>(w: &mut Warp, i: &Inst, mask: u32) {
    let (value, lanes, clamps) = (w.r(i.a), w.r(i.b), w.r(i.more[0]));
    let (mut source, mut fine, mut out) = ([0u32; LANES], [0u32; LANES], [0; LANES]);
    for lane in 0..LANES {
        let at = lane as u32;
        let by = lanes[lane] & 31;
        let segment = clamps[lane] >> 8 & 31;
        let most = at & segment | clamps[lane] & 31 & !segment;
        let (from, inside) = match MODE {
            0 => (at.wrapping_sub(by), at as i32 - by as i32 >= most as i32),
            1 => (at + by, at + by <= most),
            2 => (at ^ by, at ^ by <= most),
            _ => {
                let from = at & segment | by & !segment;
                (from, from <= most)
            }
        };
        source[lane] = if inside { from & 31 } else { at };
        fine[lane] = inside as u32;
    }
    let (mut in_range, mut missing) = (0, 0);
    for lane in 0..LANES {
        out[lane] = value[source[lane] as usize & 31];
        in_range |= fine[lane] << lane;
        missing |= (!mask >> source[lane] & 1) << lane;
    }
    missing &= mask;
    if missing != 0 {
        let what = "shuffle reads a lane that does not take part";
        return w.fail(i.line, missing.trailing_zeros(), Code::LAUNCH_FAILED, 0, what);
    }
    w.set_r(i.d, &out, mask);
    if i.c != 0 {
        w.set_p(i.c, in_range, mask);
    }
}
}

vector_fn! {
fn ballot(w: &mut Warp, i: &Inst, mask: u32) {
    w.set_r(i.d, &[w.p(i.a) & mask; LANES], mask);
}
}

vector_fn! {
fn vote_all(w: &mut Warp, i: &Inst, mask: u32) {
    w.set_p(i.d, if w.p(i.a) & mask == mask { !0 } else { 0 }, mask);
}
}

vector_fn! {
fn vote_any(w: &mut Warp, i: &Inst, mask: u32) {
    w.set_p(i.d, if w.p(i.a) & mask != 0 { !0 } else { 0 }, mask);
}
}

vector_fn! {
fn vote_uni(w: &mut Warp, i: &Inst, mask: u32) {
    let set = w.p(i.a) & mask;
    w.set_p(i.d, if set == 0 || set == mask { !0 } else { 0 }, mask);
}
}

vector_fn! {
fn match_any(w: &mut Warp, i: &Inst, mask: u32) {
    let value = *w.r(i.a);
    w.set_r(i.d, &equal_lanes(&value, mask), mask);
}
}

vector_fn! {
fn match_any_long(w: &mut Warp, i: &Inst, mask: u32) {
    let value = *w.q(i.a);
    w.set_r(i.d, &equal_lanes(&value, mask), mask);
}
}

fn equal_lanes<T: PartialEq>(value: &[T; LANES], mask: u32) -> [u32; LANES] {
    std::array::from_fn(|lane| {
        let equal = (0..LANES).filter(|other| value[*other] == value[lane]);
        equal.fold(0, |lanes, other| lanes | 1 << other) & mask
    })
}

vector_fn! {
fn reduce<const HOW: u8>(w: &mut Warp, i: &Inst, mask: u32) {
    let value = *w.r(i.a);
    let lanes = (0..LANES).filter(|lane| mask >> lane & 1 != 0).map(|lane| value[lane]);
    let result = lanes.reduce(|a, b| match HOW {
        0 => a.wrapping_add(b),
        1 => (a as i32).min(b as i32) as u32,
        2 => (a as i32).max(b as i32) as u32,
        3 => a.min(b),
        4 => a.max(b),
        5 => a & b,
        6 => a | b,
        _ => a ^ b,
    });
    w.set_r(i.d, &[result.unwrap_or(0); LANES], mask);
}
}
