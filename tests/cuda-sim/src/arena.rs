//! Device memory: one reserved range of host memory, and beside it one shadow byte a data byte.
//!
//! A device address is the host address of the data. The shadow byte says whether the data byte is
//! allocated and whether it was ever written, so one look at the shadow finds an access outside
//! every allocation, a use after free and a read of memory never written.

use std::collections::{BTreeMap, VecDeque};

use crate::code::Code;

/// The shadow of a byte that a kernel may write but not yet read.
pub(crate) const ALLOCATED: u8 = 1;
/// The shadow of a byte that a kernel may read and write.
pub(crate) const WRITTEN: u8 = 3;

/// Alignment of every allocation, and the least gap between two.
const GRANULE: usize = 256;
/// How many freed ranges are remembered to explain a use after free.
const REMEMBERED: usize = 4096;

/// A range of data bytes with its shadow, as the interpreter sees it.
#[derive(Clone, Copy)]
pub(crate) struct Space {
    pub(crate) data: *mut u8,
    pub(crate) shadow: *mut u8,
    pub(crate) bytes: u64,
}

// SAFETY: a `Space` is two addresses and a length; who reads and writes through it is ordered by the
// driver's lock, and by the simulated program's own synchronisation inside a launch.
unsafe impl Send for Space {}
// SAFETY: as above.
unsafe impl Sync for Space {}

/// What is known of an address outside every allocation.
pub(crate) enum Whereabouts {
    /// Inside an allocation that was freed: its start and length.
    Freed(u64, u64),
    /// After the end of the allocation that begins at the first number and has the second's length.
    After(u64, u64),
    /// Nothing near.
    Nowhere,
}

/// The reserved range and its allocator.
pub(crate) struct Arena {
    space: Space,
    reserved: usize,
    /// Free ranges: offset → length. Taken round-robin from `cursor`, so that an address is reused late.
    free: BTreeMap<usize, usize>,
    cursor: usize,
    live: BTreeMap<u64, u64>,
    freed: VecDeque<(u64, u64)>,
}

impl Arena {
    /// Reserves address space for `bytes` of data and as much shadow; pages are taken when touched.
    pub(crate) fn new(bytes: usize) -> Result<Arena, Code> {
        let data = reserve(bytes)?;
        let shadow = reserve(bytes).inspect_err(|_| {
            // SAFETY: `data` was mapped with this length just above and nothing else knows it.
            unsafe { libc::munmap(data.cast(), bytes) };
        })?;
        Ok(Arena {
            space: Space {
                data,
                shadow,
                bytes: bytes as u64,
            },
            reserved: bytes,
            free: BTreeMap::from([(0, bytes)]),
            cursor: 0,
            live: BTreeMap::new(),
            freed: VecDeque::new(),
        })
    }

    pub(crate) fn space(&self) -> Space {
        self.space
    }

    /// A fresh range of `bytes` > 0, all [`ALLOCATED`] and none written. `None` when no gap is large enough.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let length = usize::try_from(bytes)
            .ok()?
            .checked_add(GRANULE)?
            .checked_next_multiple_of(GRANULE)?;
        let fits = |(_, have): &(&usize, &usize)| **have >= length;
        let (&start, &have) = self
            .free
            .range(self.cursor..)
            .find(fits)
            .or_else(|| self.free.iter().find(fits))?;
        self.free.remove(&start);
        if have > length {
            self.free.insert(start + length, have - length);
        }
        self.cursor = start + length;
        let address = self.space.data as u64 + start as u64;
        self.live.insert(address, bytes);
        self.mark(address, bytes, ALLOCATED);
        Some(address)
    }

    /// Gives the allocation that begins at `address` back, pages and all; its length.
    pub(crate) fn release(&mut self, address: u64) -> Option<u64> {
        let bytes = self.live.remove(&address)?;
        let mut start = (address - self.space.data as u64) as usize;
        let mut length = (bytes as usize + GRANULE).next_multiple_of(GRANULE);
        clear(self.space.data, start, bytes as usize);
        clear(self.space.shadow, start, bytes as usize);
        if let Some((&before, &have)) = self.free.range(..start).next_back()
            && before + have == start
        {
            self.free.remove(&before);
            (start, length) = (before, length + have);
        }
        if let Some(have) = self.free.remove(&(start + length)) {
            length += have;
        }
        self.free.insert(start, length);
        if self.freed.len() == REMEMBERED {
            self.freed.pop_front();
        }
        self.freed.push_back((address, bytes));
        Some(bytes)
    }

    /// Whether `[address, address + bytes)` lies inside one live allocation.
    pub(crate) fn contains(&self, address: u64, bytes: u64) -> bool {
        self.live
            .range(..=address)
            .next_back()
            .is_some_and(|(&start, &have)| {
                address.checked_add(bytes).is_some_and(|end| end <= start + have)
                    && address < start + have.max(1)
            })
    }

    /// The start and length of the live allocation around `address`.
    pub(crate) fn allocation(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &have) = self.live.range(..=address).next_back()?;
        (address < start + have).then_some((start, have))
    }

    /// Explains an address that no live allocation contains.
    pub(crate) fn whereabouts(&self, address: u64) -> Whereabouts {
        let around = |&&(start, have): &&(u64, u64)| address >= start && address < start + have;
        if let Some(&(start, have)) = self.freed.iter().rev().find(around) {
            return Whereabouts::Freed(start, have);
        }
        match self.live.range(..=address).next_back() {
            Some((&start, &have)) if address - start <= have + (1 << 20) => Whereabouts::After(start, have),
            _ => Whereabouts::Nowhere,
        }
    }

    /// Sets the shadow of a range that one allocation contains.
    pub(crate) fn mark(&mut self, address: u64, bytes: u64, state: u8) {
        let start = (address - self.space.data as u64) as usize;
        debug_assert!(start + bytes as usize <= self.reserved);
        // SAFETY: the range lies inside the reservation, whose shadow has the same length.
        unsafe { self.space.shadow.add(start).write_bytes(state, bytes as usize) };
    }

    /// Copies the shadow of one allocated range to another, as a device-to-device copy does.
    pub(crate) fn copy_marks(&mut self, to: u64, from: u64, bytes: u64) {
        let base = self.space.data as u64;
        // SAFETY: both ranges lie inside the reservation, whose shadow has the same length.
        unsafe {
            let source = self.space.shadow.add((from - base) as usize);
            source.copy_to(self.space.shadow.add((to - base) as usize), bytes as usize);
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: both were mapped in `new` with this length, and no `Space` outlives its driver.
        unsafe {
            libc::munmap(self.space.data.cast(), self.reserved);
            libc::munmap(self.space.shadow.cast(), self.reserved);
        }
    }
}

fn reserve(bytes: usize) -> Result<*mut u8, Code> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping touches no memory that exists.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        Err(Code::OUT_OF_MEMORY)
    } else {
        Ok(at.cast())
    }
}

/// Zeroes a range and gives its whole pages back to the system.
fn clear(base: *mut u8, start: usize, bytes: usize) {
    const PAGE: usize = 4096;
    let end = start + bytes;
    let (first, last) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
    // SAFETY: the range lies inside the reservation that begins at `base`, which is page-aligned;
    // anonymous pages given back read as zero.
    unsafe {
        if first >= last {
            base.add(start).write_bytes(0, bytes);
            return;
        }
        base.add(start).write_bytes(0, first - start);
        base.add(last).write_bytes(0, end - last);
        if libc::madvise(base.add(first).cast(), last - first, libc::MADV_DONTNEED) != 0 {
            base.add(first).write_bytes(0, last - first);
        }
    }
}
