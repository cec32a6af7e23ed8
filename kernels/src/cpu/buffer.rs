//! Memory of the CPU backend: zeroed pages taken straight from the system, on the ledger.
//!
//! A release gives the pages back at once, and pages that were never written take no memory.

use super::Region;
use crate::{Error, Kind, Ledger, Result, Serial};
use std::{
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

/// Elements that a [`Buffer`] may hold: any bit pattern is a value, zeros are one, nothing is dropped.
///
/// # Safety
/// The above must be true of the type.
pub unsafe trait Element: Copy + Send + Sync + 'static {}

// SAFETY: plain numbers; every bit pattern is a value.
unsafe impl Element for f32 {}
// SAFETY: as above.
unsafe impl Element for f64 {}
// SAFETY: a `repr(transparent)` u16.
unsafe impl Element for half::f16 {}
// SAFETY: as above.
unsafe impl Element for u8 {}
// SAFETY: as above.
unsafe impl Element for i8 {}
// SAFETY: as above.
unsafe impl Element for u32 {}

/// A slice of zeroed, page-aligned memory. Dropping it gives the memory back, too; [`Buffer::release`]
/// is the way that reports.
#[derive(Debug)]
pub struct Buffer<T: Element> {
    start: NonNull<T>,
    len: usize,
    entry: Option<(Ledger, Serial)>,
}

// SAFETY: it owns its memory as a `Vec` does, and its elements are `Send` and `Sync`.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Buffer<T> {}

/// From this size on, huge pages may be asked for.
const HUGE: usize = 4 << 20;

impl<T: Element> Buffer<T> {
    /// `len` zeros, on the ledger under `owner`. [`crate::ErrorKind::Exhausted`] where the limit or the
    /// system refuses.
    pub fn zeroed(ledger: &Ledger, owner: &str, len: usize) -> Result<Self> {
        Self::with_pages(ledger, owner, len, |bytes| map_pages(bytes, false))
    }

    /// The same, cut from a region.
    pub fn zeroed_in(region: &mut Region, ledger: &Ledger, owner: &str, len: usize) -> Result<Self> {
        Self::with_pages(ledger, owner, len, |bytes| region.take(bytes))
    }

    /// `pages` makes a mapping of at least so many bytes, of whole pages, that is the buffer's alone.
    fn with_pages(
        ledger: &Ledger,
        owner: &str,
        len: usize,
        pages: impl FnOnce(usize) -> std::io::Result<NonNull<libc::c_void>>,
    ) -> Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| {
                Error::exhausted(format!("{owner} of {len} elements exceeds the address space"))
            })?;
        let serial = ledger.enter(Kind::Memory, owner, bytes as u64)?;
        let start = pages(bytes).map_err(|cause| {
            // The entry was made just now.
            let _ = ledger.strike(serial);
            Error::exhausted(format!(
                "the system refused {bytes} bytes for {owner}: {cause}; free memory or load a smaller model"
            ))
        })?;
        let address = start.as_ptr() as usize;
        // SAFETY: the mapping made above; its owner, below, is out of use when it releases, and a sweep follows
        // the last use by its contract.
        ledger.attach(serial, Box::new(move || unsafe { unmap_pages(address, bytes) }))?;
        Ok(Self {
            start: start.cast(),
            len,
            entry: Some((ledger.clone(), serial)),
        })
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Gives the memory back and returns its bytes.
    pub fn release(mut self) -> Result<u64> {
        self.free()
    }

    fn free(&mut self) -> Result<u64> {
        match self.entry.take() {
            Some((ledger, serial)) => ledger.release(serial),
            None => Ok(0),
        }
    }
}

/// Gives pages back to the system.
///
/// # Safety
/// They must be a mapping of this size that nobody uses any more.
pub(super) unsafe fn unmap_pages(address: usize, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    if unsafe { libc::munmap(address as *mut libc::c_void, bytes) } != 0 {
        let cause = std::io::Error::last_os_error();
        return Err(Error::bug(format!("unmapping {bytes} bytes failed: {cause}")));
    }
    Ok(())
}

/// New zeroed pages; a dangling pointer for no bytes. `huge` wishes for huge ones, which suit what is written
/// whole: a cache that fills slowly would take a huge page for each block.
pub(super) fn map_pages(bytes: usize, huge: bool) -> std::io::Result<NonNull<libc::c_void>> {
    if bytes == 0 {
        return Ok(NonNull::<[u64; 512]>::dangling().cast());
    }
    // SAFETY: a new private anonymous mapping at an address of the kernel's choice touches no memory of ours.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    #[cfg(target_os = "linux")]
    if huge && bytes >= HUGE {
        // SAFETY: the range is the mapping made above. The advice is a wish: where it is refused,
        // ordinary pages serve, so the result doesn't matter.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
    }
    NonNull::new(start).ok_or_else(|| std::io::Error::other("mapped at address 0"))
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements that live as long as `self`; zeros and whatever was written are values of T.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        // A drop without `release` is an error path of a load: its first error is the one that is reported.
        let _ = self.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn is_zeroed_aligned_and_returns_its_bytes() {
        let ledger = Ledger::default();
        let mut buffer = Buffer::<f32>::zeroed(&ledger, "test", 1000).unwrap();
        assert_eq!(buffer.as_ptr() as usize % 64, 0);
        assert!(buffer.iter().all(|&x| x == 0.0));
        buffer[999] = 1.0;
        assert_eq!(ledger.owned_by("test"), (4000, 1));
        assert_eq!(buffer.release().unwrap(), 4000);
        assert_eq!(ledger.total(), (0, 0));
    }

    #[test]
    fn buffers_of_a_region_are_neighbours_and_given_back_each_by_itself() {
        let ledger = Ledger::default();
        let mut region = Region::default();
        let mut buffers: Vec<_> = (0..200)
            .map(|_| Buffer::<u8>::zeroed_in(&mut region, &ledger, "test", 1_000_001).unwrap())
            .collect();
        let page = buffers[1].as_ptr() as usize - buffers[0].as_ptr() as usize - 1_000_001;
        assert!(page < 1 << 16, "no more than the rest of a page lies between two");
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.as_ptr() as usize % 64, 0);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(i as u8);
        }
        // Every other one, then the region, and the others still hold what they held.
        let kept: Vec<_> = buffers
            .into_iter()
            .enumerate()
            .filter(|(i, _)| i % 2 == 1)
            .collect();
        drop(region);
        for (i, buffer) in kept {
            assert!(buffer.iter().all(|&byte| byte == i as u8));
            assert_eq!(buffer.release().unwrap(), 1_000_001);
        }
        assert_eq!(ledger.total(), (0, 0));
        let huge = Buffer::<u8>::zeroed_in(&mut Region::default(), &ledger, "test", isize::MAX as usize);
        assert_eq!(huge.unwrap_err().kind, ErrorKind::Exhausted);
        let empty = Buffer::<u8>::zeroed_in(&mut Region::default(), &ledger, "test", 0).unwrap();
        assert_eq!(empty.release().unwrap(), 0);
    }

    #[test]
    fn empty_and_dropped_buffers_leave_nothing() {
        let ledger = Ledger::default();
        let empty = Buffer::<u8>::zeroed(&ledger, "test", 0).unwrap();
        assert!(empty.is_empty());
        assert_eq!(empty.release().unwrap(), 0);
        drop(Buffer::<half::f16>::zeroed(&ledger, "test", 5 << 20).unwrap());
        assert_eq!(ledger.total(), (0, 0));
    }

    /// Address space is what would run out: pages that were never written take no memory.
    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_released_goes_back_to_the_system() {
        let ledger = Ledger::default();
        for _ in 0..20 {
            let large = Buffer::<u8>::zeroed(&ledger, "test", 1 << 44).unwrap();
            large.release().unwrap();
        }
        let pages = || -> u64 {
            let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
            sizes.split(' ').next().unwrap().parse().unwrap()
        };
        let before = pages();
        for _ in 0..1000 {
            let mut region = Region::default();
            drop(Buffer::<u8>::zeroed_in(&mut region, &ledger, "test", 1).unwrap());
        }
        assert!(
            pages() < before + (32 << 30 >> 12),
            "the rests of the regions are still mapped"
        );
    }

    #[test]
    fn a_refusal_is_exhausted_and_leaves_nothing() {
        let ledger = Ledger::with_limit(100);
        let over_limit = Buffer::<f32>::zeroed(&ledger, "test", 26).unwrap_err();
        assert_eq!(over_limit.kind, ErrorKind::Exhausted);
        let ledger = Ledger::default();
        for len in [usize::MAX, isize::MAX as usize / 8] {
            let refused = Buffer::<f32>::zeroed(&ledger, "test", len).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Exhausted);
        }
        assert_eq!(ledger.total(), (0, 0));
    }
}
