//! Atomic operations, lane after lane in lane order.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::access::allowed;
use super::half::{brain, half, to_brain, to_half};
use super::{Inst, LANES, Run, Warp, space};
use crate::arena::WRITTEN;
use crate::code::Code;

/// What becomes of the old value, given the operands.
type Word = fn(u32, u32, u32) -> u32;
type Long = fn(u64, u64, u64) -> u64;

const WORDS: &[(&str, Word)] = &[
    ("add.u32", |old, b, _| old.wrapping_add(b)),
    ("add.s32", |old, b, _| old.wrapping_add(b)),
    ("add.f32", |old, b, _| {
        (f32::from_bits(old) + f32::from_bits(b)).to_bits()
    }),
    ("add.noftz.f16x2", |old, b, _| {
        let one = |a, b| to_half(half(a) + half(b)) & 0xffff;
        one(old, b) | one(old >> 16, b >> 16) << 16
    }),
    ("add.noftz.bf16x2", |old, b, _| {
        let one = |a, b| to_brain(brain(a) + brain(b)) & 0xffff;
        one(old, b) | one(old >> 16, b >> 16) << 16
    }),
    ("min.s32", |old, b, _| (old as i32).min(b as i32) as u32),
    ("max.s32", |old, b, _| (old as i32).max(b as i32) as u32),
    ("min.u32", |old, b, _| old.min(b)),
    ("max.u32", |old, b, _| old.max(b)),
    ("and.b32", |old, b, _| old & b),
    ("or.b32", |old, b, _| old | b),
    ("xor.b32", |old, b, _| old ^ b),
    ("exch.b32", |_, b, _| b),
    ("cas.b32", |old, b, c| if old == b { c } else { old }),
    ("inc.u32", |old, b, _| if old >= b { 0 } else { old + 1 }),
    (
        "dec.u32",
        |old, b, _| if old == 0 || old > b { b } else { old - 1 },
    ),
];

const LONGS: &[(&str, Long)] = &[
    ("add.u64", |old, b, _| old.wrapping_add(b)),
    ("add.s64", |old, b, _| old.wrapping_add(b)),
    ("add.f64", |old, b, _| {
        (f64::from_bits(old) + f64::from_bits(b)).to_bits()
    }),
    ("min.s64", |old, b, _| (old as i64).min(b as i64) as u64),
    ("max.s64", |old, b, _| (old as i64).max(b as i64) as u64),
    ("min.u64", |old, b, _| old.min(b)),
    ("max.u64", |old, b, _| old.max(b)),
    ("and.b64", |old, b, _| old & b),
    ("or.b64", |old, b, _| old | b),
    ("xor.b64", |old, b, _| old ^ b),
    ("exch.b64", |_, b, _| b),
    ("cas.b64", |old, b, c| if old == b { c } else { old }),
];

/// An atomic operation by name, such as `add.u32`: the function, the index of its rule (for `more[1]`),
/// and whether it is 64 bits wide. The address is in `a` (64-bit where `wide`) plus `imm`, the operands in
/// `b` and `c`, the old value goes to `d`.
pub(crate) fn atomic(name: &str, place: u8, wide: bool) -> Option<(Run, u16, bool)> {
    let word = WORDS.iter().position(|(known, _)| *known == name);
    let long = LONGS.iter().position(|(known, _)| *known == name);
    let run: Run = match (place, wide, long.is_some()) {
        (space::GLOBAL, _, false) => words::<{ space::GLOBAL }, true>,
        (space::SHARED, false, false) => words::<{ space::SHARED }, false>,
        (space::SHARED, true, false) => words::<{ space::SHARED }, true>,
        (space::GLOBAL, _, true) => longs::<{ space::GLOBAL }, true>,
        (space::SHARED, false, true) => longs::<{ space::SHARED }, false>,
        (space::SHARED, true, true) => longs::<{ space::SHARED }, true>,
        (_, _, false) => words::<{ space::GENERIC }, true>,
        (_, _, true) => longs::<{ space::GENERIC }, true>,
    };
    Some((run, word.or(long)? as u16, long.is_some()))
}

macro_rules! atomics {
    ($name:ident, $table:ident, $atomic:ty, $value:ty, $bytes:literal, $read:ident, $write:ident) => {
        vector_fn! {
        fn $name<const SPACE: u8, const WIDE: bool>(w: &mut Warp, i: &Inst, mask: u32) {
            let rule = $table[i.more[1] as usize].1;
            let parts = if SPACE == space::GENERIC { w.by_space(i.a, i.imm, mask) } else {
                let mut parts = [0; 3];
                parts[SPACE as usize] = mask;
                parts
            };
            if parts[space::LOCAL as usize] != 0 {
                return w.fail(i.line, 0, Code::ILLEGAL_ADDRESS, 0, "atomic operation on local memory");
            }
            let (b, c) = (*w.$read(i.b), *w.$read(i.c));
            let mut out = [0 as $value; LANES];
            for place in [space::GLOBAL, space::SHARED] {
                let lanes = parts[place as usize];
                if lanes == 0 {
                    continue;
                }
                let (at, mut offsets) = if SPACE == space::GENERIC {
                    w.generic_offsets(place, i.a, i.imm)
                } else {
                    w.offsets::<SPACE, WIDE>(i.a, i.imm)
                };
                if allowed::<$bytes>(at, &mut offsets, lanes, WRITTEN).is_none() {
                    return w.refuse_access(i.line, place, (at, &offsets), $bytes, lanes, WRITTEN);
                }
                for lane in (0..LANES).filter(|lane| lanes >> lane & 1 != 0) {
                    // SAFETY: the offset lies within the space and is aligned; other threads of this launch
                    // reach it by atomic operations too.
                    let cell = unsafe { <$atomic>::from_ptr(at.data.add(offsets[lane] as usize).cast()) };
                    let mut old = cell.load(Ordering::Relaxed);
                    while let Err(now) = cell.compare_exchange_weak(
                        old, rule(old, b[lane], c[lane]), Ordering::Relaxed, Ordering::Relaxed) {
                        old = now;
                    }
                    out[lane] = old;
                }
            }
            w.$write(i.d, &out, mask);
        }
        }
    };
}

atomics!(words, WORDS, AtomicU32, u32, 4, r, set_r);
atomics!(longs, LONGS, AtomicU64, u64, 8, q, set_q);
