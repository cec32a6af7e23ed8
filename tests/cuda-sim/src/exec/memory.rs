//! Loads and stores.

use super::access::{Layout, Offsets, allowed};
use super::{Inst, LANES, Run, Warp, space};
use crate::arena::{ALLOCATED, Space, WRITTEN};

/// The value of a memory element, as a const parameter: its width, and how a load extends it.
pub(crate) mod element {
    pub(crate) const U8: u8 = 0;
    pub(crate) const S8: u8 = 1;
    pub(crate) const U16: u8 = 2;
    pub(crate) const S16: u8 = 3;
    pub(crate) const B32: u8 = 4;
    pub(crate) const B64: u8 = 5;

    /// Bytes of an element.
    pub(crate) const fn bytes(element: u8) -> usize {
        [1, 1, 2, 2, 4, 8][element as usize]
    }
}

/// Local memory of a warp: one frame a lane.
pub(super) struct Frames {
    data: Vec<u128>,
    shadow: Vec<u8>,
    frame: usize,
}

impl Frames {
    /// Frames of `bytes` each.
    pub(super) fn new(bytes: u64) -> Frames {
        let frame = bytes.next_multiple_of(16) as usize;
        let length = frame * LANES;
        Frames {
            data: vec![0; length / 16],
            shadow: vec![0; length],
            frame,
        }
    }

    /// Makes every byte unwritten.
    pub(super) fn forget(&mut self) {
        self.shadow.fill(ALLOCATED);
    }

    pub(super) fn space(&self) -> Space {
        let (data, shadow) = (
            self.data.as_ptr().cast_mut().cast(),
            self.shadow.as_ptr().cast_mut(),
        );
        Space {
            data,
            shadow,
            bytes: self.shadow.len() as u64,
        }
    }

    /// Where a lane's byte lies; an offset outside its frame gives one outside the space.
    #[inline(always)]
    pub(super) fn offset(&self, lane: usize, offset: u64) -> u64 {
        if offset < self.frame as u64 {
            (lane * self.frame) as u64 + offset
        } else {
            u64::MAX / 2
        }
    }
}

/// The load of `count` elements into registers `more[..count]` (64-bit ones where `long`) from the
/// address in `a` (64-bit where `wide`) plus `imm`. `None` for a shape that PTX does not have.
pub(crate) fn load(place: u8, wide: bool, kind: u8, count: usize, long: bool) -> Option<Run> {
    pick(place, wide, kind, count, long, false)
}

/// The store that mirrors [`load`].
pub(crate) fn store(place: u8, wide: bool, kind: u8, count: usize, long: bool) -> Option<Run> {
    pick(place, wide, kind, count, long, true)
}

fn pick(place: u8, wide: bool, kind: u8, count: usize, long: bool, stores: bool) -> Option<Run> {
    macro_rules! shape {
        ($($kind:ident $count:literal $long:literal,)*) => {
            match (kind, count, long) {
                $((element::$kind, $count, $long) => Some(match (place, wide, stores) {
                    (space::GLOBAL, _, false) => load_lanes::<{ element::$kind }, $count, $long, 0, true>,
                    (space::SHARED, false, false) => load_lanes::<{ element::$kind }, $count, $long, 1, false>,
                    (space::SHARED, true, false) => load_lanes::<{ element::$kind }, $count, $long, 1, true>,
                    (space::LOCAL, false, false) => load_lanes::<{ element::$kind }, $count, $long, 2, false>,
                    (space::LOCAL, true, false) => load_lanes::<{ element::$kind }, $count, $long, 2, true>,
                    (_, _, false) => load_lanes::<{ element::$kind }, $count, $long, 3, true>,
                    (space::GLOBAL, _, true) => store_lanes::<{ element::$kind }, $count, $long, 0, true>,
                    (space::SHARED, false, true) => store_lanes::<{ element::$kind }, $count, $long, 1, false>,
                    (space::SHARED, true, true) => store_lanes::<{ element::$kind }, $count, $long, 1, true>,
                    (space::LOCAL, false, true) => store_lanes::<{ element::$kind }, $count, $long, 2, false>,
                    (space::LOCAL, true, true) => store_lanes::<{ element::$kind }, $count, $long, 2, true>,
                    (_, _, true) => store_lanes::<{ element::$kind }, $count, $long, 3, true>,
                }),)*
                _ => None,
            }
        };
    }
    shape! {
        U8 1 false, U8 2 false, U8 4 false, S8 1 false, S8 2 false, S8 4 false,
        U16 1 false, U16 2 false, U16 4 false, S16 1 false, S16 2 false, S16 4 false,
        B32 1 false, B32 2 false, B32 4 false,
        B64 1 true, B64 2 true, U8 1 true, S8 1 true, U16 1 true, S16 1 true, B32 1 true,
    }
}

vector_fn! {
fn load_lanes<const KIND: u8, const COUNT: usize, const LONG: bool, const SPACE: u8, const WIDE: bool>(
    w: &mut Warp, i: &Inst, mask: u32,
) {
    if SPACE == space::GENERIC {
        let parts = w.by_space(i.a, i.imm, mask);
        for place in [space::GLOBAL, space::SHARED, space::LOCAL] {
            if parts[place as usize] != 0 {
                let (at, offsets) = w.generic_offsets(place, i.a, i.imm);
                load_at::<KIND, COUNT, LONG>(w, i, parts[place as usize], place, at, offsets);
            }
        }
        return;
    }
    let (at, offsets) = w.offsets::<SPACE, WIDE>(i.a, i.imm);
    load_at::<KIND, COUNT, LONG>(w, i, mask, SPACE, at, offsets);
}
}

#[inline(always)]
fn load_at<const KIND: u8, const COUNT: usize, const LONG: bool>(
    w: &mut Warp,
    i: &Inst,
    mask: u32,
    place: u8,
    at: Space,
    mut offsets: Offsets,
) {
    let width = element::bytes(KIND);
    let layout = match width * COUNT {
        1 => allowed::<1>(at, &mut offsets, mask, WRITTEN),
        2 => allowed::<2>(at, &mut offsets, mask, WRITTEN),
        4 => allowed::<4>(at, &mut offsets, mask, WRITTEN),
        8 => allowed::<8>(at, &mut offsets, mask, WRITTEN),
        _ => allowed::<16>(at, &mut offsets, mask, WRITTEN),
    };
    let Some(layout) = layout else {
        return w.refuse_access(i.line, place, (at, &offsets), width * COUNT, mask, WRITTEN);
    };
    if let Layout::Row(first) = layout {
        // SAFETY: the lanes' accesses, one after another, lie within the space, and are aligned.
        let from = unsafe { at.data.add(first as usize) };
        load_parts::<KIND, COUNT, LONG>(w, i, mask, |lane, part| {
            from.wrapping_add((lane * COUNT + part) * width)
        });
    } else {
        // SAFETY: as above, for each lane's offset.
        let from = |lane: usize, part: usize| unsafe { at.data.add(offsets[lane] as usize + part * width) };
        load_parts::<KIND, COUNT, LONG>(w, i, mask, from);
    }
}

/// Loads from where `from` says for a lane and a part, all of which [`allowed`] has checked.
#[inline(always)]
fn load_parts<const KIND: u8, const COUNT: usize, const LONG: bool>(
    w: &mut Warp,
    i: &Inst,
    mask: u32,
    from: impl Fn(usize, usize) -> *mut u8,
) {
    for part in 0..COUNT {
        if KIND == element::B64 || LONG {
            let mut out = [0u64; LANES];
            for (lane, out) in out.iter_mut().enumerate() {
                // SAFETY: the caller has checked the place.
                *out = unsafe { extend64::<KIND>(from(lane, part)) };
            }
            w.set_q(i.more[part], &out, mask);
        } else {
            let mut out = [0u32; LANES];
            for (lane, out) in out.iter_mut().enumerate() {
                // SAFETY: the caller has checked the place.
                *out = unsafe { extend64::<KIND>(from(lane, part)) as u32 };
            }
            w.set_r(i.more[part], &out, mask);
        }
    }
}

/// # Safety
/// `from` is readable for the element's bytes and aligned to them.
#[inline(always)]
unsafe fn extend64<const KIND: u8>(from: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        match KIND {
            element::U8 => *from as u64,
            element::S8 => *from.cast::<i8>() as u64,
            element::U16 => *from.cast::<u16>() as u64,
            element::S16 => *from.cast::<i16>() as u64,
            element::B32 => *from.cast::<u32>() as u64,
            _ => *from.cast::<u64>(),
        }
    }
}

vector_fn! {
fn store_lanes<const KIND: u8, const COUNT: usize, const LONG: bool, const SPACE: u8, const WIDE: bool>(
    w: &mut Warp, i: &Inst, mask: u32,
) {
    if SPACE == space::GENERIC {
        let parts = w.by_space(i.a, i.imm, mask);
        for place in [space::GLOBAL, space::SHARED, space::LOCAL] {
            if parts[place as usize] != 0 {
                let (at, offsets) = w.generic_offsets(place, i.a, i.imm);
                store_at::<KIND, COUNT, LONG>(w, i, parts[place as usize], place, at, offsets);
            }
        }
        return;
    }
    let (at, offsets) = w.offsets::<SPACE, WIDE>(i.a, i.imm);
    store_at::<KIND, COUNT, LONG>(w, i, mask, SPACE, at, offsets);
}
}

#[inline(always)]
fn store_at<const KIND: u8, const COUNT: usize, const LONG: bool>(
    w: &mut Warp,
    i: &Inst,
    mask: u32,
    place: u8,
    at: Space,
    mut offsets: Offsets,
) {
    let width = element::bytes(KIND);
    let layout = match width * COUNT {
        1 => allowed::<1>(at, &mut offsets, mask, ALLOCATED),
        2 => allowed::<2>(at, &mut offsets, mask, ALLOCATED),
        4 => allowed::<4>(at, &mut offsets, mask, ALLOCATED),
        8 => allowed::<8>(at, &mut offsets, mask, ALLOCATED),
        _ => allowed::<16>(at, &mut offsets, mask, ALLOCATED),
    };
    let Some(layout) = layout else {
        return w.refuse_access(i.line, place, (at, &offsets), width * COUNT, mask, ALLOCATED);
    };
    if let Layout::Row(first) = layout {
        // SAFETY: the lanes' accesses, one after another, lie within the space, and are aligned.
        let to = unsafe {
            at.shadow
                .add(first as usize)
                .write_bytes(WRITTEN, LANES * COUNT * width);
            at.data.add(first as usize)
        };
        for part in 0..COUNT {
            for lane in 0..LANES {
                // SAFETY: as above.
                unsafe { write::<KIND, LONG>(w, i.more[part], lane, to.add((lane * COUNT + part) * width)) };
            }
        }
        return;
    }
    for part in 0..COUNT {
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let offset = offsets[lane] as usize + part * width;
            // SAFETY: the lane's offset plus the access's bytes lies within the space, and is aligned.
            unsafe {
                at.shadow.add(offset).write_bytes(WRITTEN, width);
                write::<KIND, LONG>(w, i.more[part], lane, at.data.add(offset));
            }
        }
    }
}

/// Stores a lane's value.
///
/// # Safety
/// `to` is writable for the element's bytes and aligned to them.
#[inline(always)]
unsafe fn write<const KIND: u8, const LONG: bool>(w: &Warp, slot: u16, lane: usize, to: *mut u8) {
    let value = if KIND == element::B64 || LONG {
        w.q(slot)[lane]
    } else {
        w.r(slot)[lane] as u64
    };
    // SAFETY: the caller's promise.
    unsafe {
        match element::bytes(KIND) {
            1 => *to = value as u8,
            2 => *to.cast::<u16>() = value as u16,
            4 => *to.cast::<u32>() = value as u32,
            _ => *to.cast::<u64>() = value,
        }
    }
}

vector_fn! {
/// Loads `width` elements of 1, 2, 4 or 8 bytes (`b`) from byte `imm` of the kernel's parameters;
/// `c` is 1 where the element is signed and 2 where the destinations are 64-bit registers.
pub(crate) fn load_parameter(w: &mut Warp, i: &Inst, mask: u32) {
    for part in 0..i.width as usize {
        let bytes = (i.b as usize).min(8);
        let from = i.imm as usize + part * bytes;
        let Some(raw) = w.parameters.get(from..from + bytes) else {
            return w.fail(i.line, 0, crate::code::Code::LAUNCH_FAILED, 0, "the parameter lies outside the list");
        };
        let signed = i.c & 1 != 0;
        let value = match *raw {
            [a] if signed => a as i8 as u64,
            [a] => a as u64,
            [a, b] if signed => i16::from_le_bytes([a, b]) as u64,
            [a, b] => u16::from_le_bytes([a, b]) as u64,
            [a, b, c, d] if signed => i32::from_le_bytes([a, b, c, d]) as u64,
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]) as u64,
            _ => raw.iter().rev().fold(0, |value, byte| value << 8 | *byte as u64),
        };
        if i.c & 2 != 0 {
            w.set_q(i.more[part], &[value; LANES], mask);
        } else {
            w.set_r(i.more[part], &[value as u32; LANES], mask);
        }
    }
}
}
