//! Host memory that the device can reach.

use std::ffi::{c_int, c_uint, c_void};

use super::Driver;
use super::memory::{Owned, Owner};
use super::pointer::put;
use crate::code::Code;

impl Driver {
    fn pin(&mut self, bytes: usize) -> Result<*mut c_void, Code> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        Ok(self.context()?.allocate(bytes as u64, Owner::Pinned)? as *mut c_void)
    }
}

api! {
    /// Allocates host memory that kernels can read and write.
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) |d| {
        d.context()?;
        if flags & !7 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        put(address, d.pin(bytes)?)
    }

    /// The same.
    fn cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) |d| {
        d.context()?;
        put(address, d.pin(bytes)?)
    }

    /// Frees such memory, after all work is done.
    fn cuMemFreeHost(address: *mut c_void) |d| {
        d.context()?;
        d.drain_all();
        let context = d.context()?;
        match context.allocations.get(&(address as u64)) {
            Some(Owned { owner: Owner::Pinned, .. }) => context.release(address as u64),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// The device's address of such memory, which is the host's.
    fn cuMemHostGetDevicePointer_v2(device: *mut u64, address: *mut c_void, flags: c_uint) |d| {
        if !d.context()?.arena.contains(address as u64, 1) || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        put(device, address as u64)
    }

    /// What kind of memory an address is: attribute 2, 1 for host and 2 for device memory.
    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: u64) |d| {
        let context = d.context()?;
        let (start, _) = context.arena.allocation(address).ok_or(Code::INVALID_VALUE)?;
        let owned = context.allocations.get(&start).ok_or(Code::INVALID_VALUE)?;
        match attribute {
            2 => put(value.cast(), if owned.owner == Owner::Pinned { 1 as c_uint } else { 2 }),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }
}
