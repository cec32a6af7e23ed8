//! The checks of a memory access by the lanes of a warp, and the explanation of one that fails.

use super::{LANES, LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES, Warp, space};
use crate::arena::{ALLOCATED, Space, WRITTEN};
use crate::code::Code;

/// Byte offsets of the lanes into a [`Space`].
pub(super) type Offsets = [u64; LANES];

/// How the lanes' accesses lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// One after another without gaps, from this offset, in all lanes.
    Row(u64),
    /// At their offsets, all of which may be touched: an inactive lane has got an active one's.
    Scattered,
}

/// Whether every lane of `mask` may access `BYTES` bytes at its offset: inside the space, aligned, and
/// with the shadow `need` in every byte.
#[inline(always)]
pub(super) fn allowed<const BYTES: usize>(
    at: Space,
    offsets: &mut Offsets,
    mask: u32,
    need: u8,
) -> Option<Layout> {
    let limit = at.bytes.wrapping_sub(BYTES as u64);
    let first = offsets[0];
    let mut gaps = !mask as u64;
    for (lane, offset) in offsets.iter().enumerate() {
        gaps |= offset.wrapping_sub(first) ^ (lane * BYTES) as u64;
    }
    if gaps == 0 {
        let last = first.wrapping_add(((LANES - 1) * BYTES) as u64);
        if (limit | first | last | limit.wrapping_sub(last)) >> 63 != 0 || first & (BYTES as u64 - 1) != 0 {
            return None;
        }
        let mut all = [!0u8; 32];
        // SAFETY: all lanes' bytes are within the space, whose shadow is as long as its data.
        let shadow = unsafe { std::slice::from_raw_parts(at.shadow.add(first as usize), LANES * BYTES) };
        for part in shadow.as_chunks::<32>().0 {
            for (all, shadow) in all.iter_mut().zip(part) {
                *all &= shadow;
            }
        }
        return (all.iter().fold(!0, |every, byte| every & byte) & need == need)
            .then_some(Layout::Row(first));
    }
    if mask != !0 {
        let other = offsets[mask.trailing_zeros() as usize & 31];
        for (lane, offset) in offsets.iter_mut().enumerate() {
            *offset = if mask >> lane & 1 != 0 { *offset } else { other };
        }
    }
    let (mut outside, mut low) = (limit, 0);
    for offset in offsets.iter() {
        outside |= offset | limit.wrapping_sub(*offset);
        low |= offset;
    }
    if outside >> 63 != 0 || low & (BYTES as u64 - 1) != 0 {
        return None;
    }
    let (mut all, need_all) = ([!0u64; 2], u64::from_le_bytes([need; 8]));
    for offset in offsets.iter() {
        // SAFETY: the offset plus BYTES is within the space, whose shadow is as long as its data.
        unsafe {
            let shadow = at.shadow.add(*offset as usize);
            match BYTES {
                1 => all[0] &= *shadow as u64 | !0xff,
                2 => all[0] &= shadow.cast::<u16>().read_unaligned() as u64 | !0xffff,
                4 => all[0] &= shadow.cast::<u32>().read_unaligned() as u64 | !0xffff_ffff,
                8 => all[0] &= shadow.cast::<u64>().read_unaligned(),
                _ => {
                    all[0] &= shadow.cast::<u64>().read_unaligned();
                    all[1] &= shadow.add(8).cast::<u64>().read_unaligned();
                }
            }
        }
    }
    (all[0] & all[1] & need_all == need_all).then_some(Layout::Scattered)
}

impl Warp {
    /// Where a memory instruction's lanes point: the space it names and the offsets into it.
    #[inline(always)]
    pub(super) fn offsets<const SPACE: u8, const WIDE: bool>(&self, slot: u16, add: i64) -> (Space, Offsets) {
        let mut offsets = [0; LANES];
        if WIDE {
            let address = self.q(slot);
            for lane in 0..LANES {
                offsets[lane] = address[lane].wrapping_add(add as u64);
            }
        } else {
            let address = self.r(slot);
            for lane in 0..LANES {
                offsets[lane] = address[lane].wrapping_add(add as u32) as u64;
            }
        }
        match SPACE {
            space::SHARED => (self.shared, offsets),
            space::LOCAL => {
                for (lane, offset) in offsets.iter_mut().enumerate() {
                    *offset = self.local.offset(lane, *offset);
                }
                (self.local.space(), offsets)
            }
            _ => {
                let base = self.global.data as u64;
                for offset in &mut offsets {
                    *offset = offset.wrapping_sub(base);
                }
                (self.global, offsets)
            }
        }
    }

    /// [`Warp::offsets`] for generic addresses that all lie in the space `place`.
    pub(super) fn generic_offsets(&self, place: u8, slot: u16, add: i64) -> (Space, Offsets) {
        if place == space::GLOBAL {
            return self.offsets::<{ space::GLOBAL }, true>(slot, add);
        }
        // A window's bits lie above the 32 that an offset has.
        let mut offsets = self
            .q(slot)
            .map(|address| address.wrapping_add(add as u64) % WINDOW_BYTES);
        if place == space::SHARED {
            return (self.shared, offsets);
        }
        for (lane, offset) in offsets.iter_mut().enumerate() {
            *offset = self.local.offset(lane, *offset);
        }
        (self.local.space(), offsets)
    }

    /// The lanes of `mask` whose generic address lies in shared, local and global memory.
    pub(super) fn by_space(&self, slot: u16, add: i64, mask: u32) -> [u32; 3] {
        let address = self.q(slot);
        let mut masks = [0; 3];
        for (lane, address) in address.iter().enumerate() {
            let address = address.wrapping_add(add as u64);
            let which = if address.wrapping_sub(SHARED_WINDOW) < WINDOW_BYTES {
                space::SHARED
            } else if address.wrapping_sub(LOCAL_WINDOW) < WINDOW_BYTES {
                space::LOCAL
            } else {
                space::GLOBAL
            };
            masks[which as usize] |= (mask >> lane & 1) << lane;
        }
        masks
    }

    /// Records why [`allowed`] said no.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse_access(
        &mut self,
        line: u32,
        place: u8,
        (at, offsets): (Space, &Offsets),
        bytes: usize,
        mask: u32,
        need: u8,
    ) {
        let (name, base) = match place {
            space::SHARED => ("shared", 0),
            space::LOCAL => ("local", 0),
            _ => ("global", at.data as u64),
        };
        let verb = if need == WRITTEN { "read" } else { "write" };
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let offset = offsets[lane];
            let inside = offset
                .checked_add(bytes as u64)
                .is_some_and(|end| end <= at.bytes);
            let mut states = [0u8; 16];
            if inside {
                // SAFETY: the range lies inside the space, and no access is wider than 16 bytes.
                unsafe { at.shadow.add(offset as usize).copy_to(states.as_mut_ptr(), bytes) };
            }
            let states = &states[..bytes];
            let (code, what) = if !inside || states.iter().any(|state| state & ALLOCATED == 0) {
                (
                    Code::ILLEGAL_ADDRESS,
                    format!("{name} {verb} of {bytes} bytes outside of what is allocated"),
                )
            } else if offset % bytes as u64 != 0 {
                (
                    Code::MISALIGNED_ADDRESS,
                    format!("{name} {verb} of {bytes} bytes is misaligned"),
                )
            } else if states.iter().any(|state| state & need != need) {
                (
                    Code::LAUNCH_FAILED,
                    format!("{name} read of {bytes} bytes of which some were never written"),
                )
            } else {
                continue;
            };
            self.fail(line, lane as u32, code, base.wrapping_add(offset), what);
            return;
        }
        self.fail(
            line,
            0,
            Code::LAUNCH_FAILED,
            0,
            format!("{name} {verb} refused for an unknown reason"),
        );
    }
}
