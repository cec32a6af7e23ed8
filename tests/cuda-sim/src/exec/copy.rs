//! Asynchronous copies from global to shared memory.
//!
//! A copy is done as late as the program allows, when its group is waited for; until then the destination
//! counts as never written, so that a missing wait shows.

use std::collections::VecDeque;

use super::access::allowed;
use super::{Inst, LANES, Warp, space};
use crate::arena::{ALLOCATED, WRITTEN};
use crate::code::Code;

/// One lane's copy.
#[derive(Clone, Copy)]
struct Copy {
    from: u64,
    to: u64,
    /// Bytes that come from global memory; the rest up to `bytes` becomes zero.
    source_bytes: u8,
    bytes: u8,
}

/// The copies of a warp that are not yet waited for.
#[derive(Default)]
pub(super) struct Copies {
    open: Vec<Copy>,
    groups: VecDeque<Vec<Copy>>,
}

impl Copies {
    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.groups.clear();
    }
}

vector_fn! {
/// `width` bytes from the address in `a` plus `imm` to the shared address in `b` (64-bit where `d` is 1).
/// Where `c` is 1, register `more[0]` holds how many bytes to read.
pub(crate) fn copy_async(w: &mut Warp, i: &Inst, mask: u32) {
    let (shared, mut to) =
        if i.d == 1 { w.offsets::<{ space::SHARED }, true>(i.b, 0) } else { w.offsets::<{ space::SHARED }, false>(i.b, 0) };
    let (global, from) = w.offsets::<{ space::GLOBAL }, true>(i.a, i.imm);
    let width = i.width as u64;
    let sizes = if i.c == 1 { *w.r(i.more[0]) } else { [width as u32; LANES] };
    let whole = (0..LANES).fold(0, |lanes, lane| lanes | ((sizes[lane] as u64 == width) as u32) << lane) & mask;
    let fine = match width {
        4 => allowed::<4>(shared, &mut to, mask, ALLOCATED),
        8 => allowed::<8>(shared, &mut to, mask, ALLOCATED),
        _ => allowed::<16>(shared, &mut to, mask, ALLOCATED),
    };
    if fine.is_none() {
        return w.refuse_access(i.line, space::SHARED, (shared, &to), width as usize, mask, ALLOCATED);
    }
    if whole != 0 {
        let mut checked = from;
        let fine = match width {
            4 => allowed::<4>(global, &mut checked, whole, WRITTEN),
            8 => allowed::<8>(global, &mut checked, whole, WRITTEN),
            _ => allowed::<16>(global, &mut checked, whole, WRITTEN),
        };
        if fine.is_none() {
            return w.refuse_access(i.line, space::GLOBAL, (global, &from), width as usize, whole, WRITTEN);
        }
    }
    for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
        let source_bytes = sizes[lane] as u64;
        if source_bytes > width {
            return w.fail(i.line, lane as u32, Code::LAUNCH_FAILED, 0, "cp.async reads more bytes than it writes");
        }
        if source_bytes != width {
            for at in 0..source_bytes {
                let mut one = [from[lane] + at; LANES];
                if allowed::<1>(global, &mut one, !0, WRITTEN).is_none() {
                    return w.refuse_access(i.line, space::GLOBAL, (global, &one), 1, 1 << lane, WRITTEN);
                }
            }
        }
        // SAFETY: checked above.
        unsafe { shared.shadow.add(to[lane] as usize).write_bytes(ALLOCATED, width as usize) };
        w.copies.open.push(Copy {
            from: from[lane],
            to: to[lane],
            source_bytes: source_bytes as u8,
            bytes: width as u8,
        });
    }
}
}

vector_fn! {
/// Closes a group.
pub(crate) fn copy_commit(w: &mut Warp, _i: &Inst, _mask: u32) {
    let group = std::mem::take(&mut w.copies.open);
    w.copies.groups.push_back(group);
}
}

vector_fn! {
/// Waits until at most `imm` groups are left; where `width` is 1, also for copies in no group.
pub(crate) fn copy_wait(w: &mut Warp, i: &Inst, _mask: u32) {
    while w.copies.groups.len() > i.imm as usize {
        let Some(group) = w.copies.groups.pop_front() else { break };
        perform(w, &group);
    }
    if i.width == 1 {
        let open = std::mem::take(&mut w.copies.open);
        perform(w, &open);
    }
}
}

fn perform(w: &mut Warp, group: &[Copy]) {
    for copy in group {
        let (source, bytes) = (copy.source_bytes as usize, copy.bytes as usize);
        // SAFETY: both ranges were inside their spaces when the copy was asked for, and neither space
        // shrinks during a launch.
        unsafe {
            let to = w.shared.data.add(copy.to as usize);
            if source != 0 {
                w.global
                    .data
                    .add(copy.from as usize)
                    .copy_to_nonoverlapping(to, source);
            }
            to.add(source).write_bytes(0, bytes - source);
            w.shared.shadow.add(copy.to as usize).write_bytes(WRITTEN, bytes);
        }
    }
}
