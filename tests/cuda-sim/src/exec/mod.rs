//! Executes decoded kernels: instructions over 32 lanes at once, warps of a block by turns, blocks
//! one after another.

#[macro_use]
mod lanes;
mod access;
mod atomic;
mod block;
mod collective;
mod convert;
mod copy;
mod float;
mod half;
mod integer;
mod matrix;
mod memory;
mod registers;
mod repack;
mod run;
mod table;
mod warp;

pub(crate) use atomic::atomic;
pub(crate) use block::{Launch, Limits, launch};
pub(crate) use collective::{SHUFFLES, VOTES};
pub(crate) use copy::{copy_async, copy_commit, copy_wait};
pub(crate) use matrix::{MATRIX_LOADS, MULTIPLIES};
pub(crate) use memory::{element, load, load_parameter, store};
pub(crate) use repack::{active_lanes, logic, pack_halves, pack_quarters, pack_words};
pub(crate) use repack::{unpack_halves, unpack_quarters, unpack_words};
pub(crate) use table::lookup;
pub(crate) use warp::{Flow, Inst, Run, Warp, nothing};

use crate::code::Code;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;
/// Added to a shared-memory address by `cvta`, so that a generic address tells its space.
pub(crate) const SHARED_WINDOW: u64 = 1 << 40;
/// The same for local memory.
pub(crate) const LOCAL_WINDOW: u64 = 1 << 41;
/// Bytes behind each window.
pub(crate) const WINDOW_BYTES: u64 = 1 << 32;

/// An error that a kernel made: where, and what.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("kernel {kernel}, line {line}, block {block:?}, thread {thread:?}, address {address:#x}: {what}")]
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) kernel: String,
    /// Line of the PTX text.
    pub(crate) line: u32,
    pub(crate) block: [u32; 3],
    pub(crate) thread: [u32; 3],
    pub(crate) address: u64,
    pub(crate) what: String,
}

/// The space of a memory access, as a const parameter.
pub(crate) mod space {
    pub(crate) const GLOBAL: u8 = 0;
    pub(crate) const SHARED: u8 = 1;
    pub(crate) const LOCAL: u8 = 2;
    pub(crate) const GENERIC: u8 = 3;
}

/// Whether this processor has what the instruction functions are compiled for.
pub(crate) fn is_supported() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi2")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        true
    }
}
