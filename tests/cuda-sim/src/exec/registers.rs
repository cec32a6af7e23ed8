//! The registers of a warp, each with a value for every lane.

use std::sync::{Mutex, PoisonError};

use super::{LANES, Warp};

/// Register files that no warp has now; a launch takes them from here, since fresh pages are dear.
static SPARE: Mutex<Vec<Registers>> = Mutex::new(Vec::new());
/// Most of them that are kept.
const MOST_SPARE: usize = 64;

/// One 32-bit register of all lanes.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Lanes32(pub(crate) [u32; LANES]);

/// One 64-bit register of all lanes.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Lanes64(pub(crate) [u64; LANES]);

/// The registers of a warp by class.
#[derive(Default)]
pub(super) struct Registers {
    words: Vec<Lanes32>,
    longs: Vec<Lanes64>,
    predicates: Vec<u32>,
}

impl Registers {
    /// Room for as many 32-bit registers, 64-bit registers and predicates. Predicate 0 is true and the others
    /// false; what the registers hold is left from before.
    pub(super) fn take(slots: [usize; 3]) -> Registers {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut registers = spare.unwrap_or_default();
        if registers.words.len() < slots[0] {
            registers.words.resize(slots[0], Lanes32([0; LANES]));
        }
        if registers.longs.len() < slots[1] {
            registers.longs.resize(slots[1], Lanes64([0; LANES]));
        }
        registers.predicates.clear();
        registers.predicates.resize(slots[2], 0);
        registers.predicates[0] = !0;
        registers
    }
}

impl Drop for Warp {
    fn drop(&mut self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < MOST_SPARE {
            spare.push(std::mem::take(&mut self.registers));
        }
    }
}

impl Warp {
    #[inline(always)]
    pub(super) fn r(&self, slot: u16) -> &[u32; LANES] {
        debug_assert!((slot as usize) < self.registers.words.len());
        // SAFETY: the decoder hands out slots and counts them, and the kernel's count made this slice.
        unsafe { &self.registers.words.get_unchecked(slot as usize).0 }
    }

    #[inline(always)]
    pub(super) fn q(&self, slot: u16) -> &[u64; LANES] {
        debug_assert!((slot as usize) < self.registers.longs.len());
        // SAFETY: as in `r`.
        unsafe { &self.registers.longs.get_unchecked(slot as usize).0 }
    }

    #[inline(always)]
    pub(super) fn p(&self, slot: u16) -> u32 {
        debug_assert!((slot as usize) < self.registers.predicates.len());
        // SAFETY: as in `r`.
        unsafe { *self.registers.predicates.get_unchecked(slot as usize) }
    }

    #[inline(always)]
    pub(super) fn set_r(&mut self, slot: u16, value: &[u32; LANES], mask: u32) {
        debug_assert!((slot as usize) < self.registers.words.len());
        // SAFETY: as in `r`.
        let to = unsafe { &mut self.registers.words.get_unchecked_mut(slot as usize).0 };
        if mask == !0 {
            *to = *value;
        } else {
            for lane in 0..LANES {
                to[lane] = if mask >> lane & 1 != 0 {
                    value[lane]
                } else {
                    to[lane]
                };
            }
        }
    }

    #[inline(always)]
    pub(super) fn set_q(&mut self, slot: u16, value: &[u64; LANES], mask: u32) {
        debug_assert!((slot as usize) < self.registers.longs.len());
        // SAFETY: as in `r`.
        let to = unsafe { &mut self.registers.longs.get_unchecked_mut(slot as usize).0 };
        if mask == !0 {
            *to = *value;
        } else {
            for lane in 0..LANES {
                to[lane] = if mask >> lane & 1 != 0 {
                    value[lane]
                } else {
                    to[lane]
                };
            }
        }
    }

    #[inline(always)]
    pub(super) fn set_p(&mut self, slot: u16, value: u32, mask: u32) {
        debug_assert!((slot as usize) < self.registers.predicates.len());
        // SAFETY: as in `r`.
        let to = unsafe { self.registers.predicates.get_unchecked_mut(slot as usize) };
        *to = (*to & !mask) | (value & mask);
    }
}
