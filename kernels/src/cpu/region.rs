//! Address space that buffers are cut from, one after another.
//!
//! A weight of half a megabyte can't have a huge page of its own, and without huge pages a third of the memory
//! bandwidth is lost to address translation. Neighbours in one region share huge pages. Each buffer is still
//! given back by itself; of a region itself there is only the rest, which was never touched.

use super::buffer::{map_pages, unmap_pages};
use std::{io, ptr::NonNull};

/// What is reserved at a time; it takes no memory until it is written.
const RESERVE: usize = 64 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// Reserved address space that isn't in use yet.
#[derive(Debug, Default)]
pub struct Region {
    start: usize,
    left: usize,
}

impl Region {
    /// Zeroed pages for `bytes`, to be given back with [`unmap_pages`].
    pub(super) fn take(&mut self, bytes: usize) -> io::Result<NonNull<libc::c_void>> {
        // SAFETY: asks for a constant of the system.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(HUGE_PAGE);
        if bytes == 0 {
            return map_pages(0, false);
        }
        let bytes = bytes
            .checked_next_multiple_of(page)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        if bytes > self.left {
            *self = Self::reserve(bytes.max(RESERVE))?;
        }
        let start = self.start as *mut libc::c_void;
        self.start += bytes;
        self.left -= bytes;
        NonNull::new(start).ok_or_else(|| io::Error::other("reserved at address 0"))
    }

    /// `bytes` that begin at a huge page's border.
    fn reserve(bytes: usize) -> io::Result<Self> {
        let whole = bytes.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let start = map_pages(whole, true)?.as_ptr() as usize;
        let before = start.next_multiple_of(HUGE_PAGE) - start;
        // SAFETY: a part of the new mapping that nobody will be given. A failure leaves address space, no memory.
        let _ = unsafe { unmap_pages(start, before) };
        Ok(Self {
            start: start + before,
            left: whole - before,
        })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: nobody has been given this part. A failure would leave untouched address space, no memory.
        let _ = unsafe { unmap_pages(self.start, self.left) };
    }
}
