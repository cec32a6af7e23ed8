//! Memory in stream order, and the pools it comes from.
//!
//! A pool keeps what is freed until the next synchronisation, and then as much as its threshold says.

use std::ffi::{c_int, c_void};

use super::Driver;
use super::memory::{Owned, Owner};
use super::pointer::{get, put};
use super::queue::Op;
use super::state::Context;
use crate::code::Code;

/// A pool's accounts in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Pool {
    pub(super) used: u64,
    /// Taken from the device, used or not.
    pub(super) reserved: u64,
    pub(super) threshold: u64,
    used_high: u64,
    reserved_high: u64,
}

impl Pool {
    /// Gives back what is reserved beyond `keep` and not in use.
    fn trim(&mut self, keep: u64) {
        self.reserved = self.reserved.min(self.used.max(keep));
    }
}

impl Context {
    /// What a synchronisation does to every pool.
    pub(super) fn trim_pools(&mut self) {
        for pool in self.pools.values_mut() {
            pool.trim(pool.threshold);
        }
    }

    fn pool(&mut self, handle: usize) -> Result<&mut Pool, Code> {
        self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)
    }
}

impl Driver {
    fn allocate_from(&mut self, bytes: u64, handle: usize, stream: usize) -> Result<u64, Code> {
        self.context()?.stream(stream)?;
        self.refuse_capture(stream)?;
        if bytes == 0 {
            return Ok(0);
        }
        let pool = *self.context()?.pool(handle)?;
        let missing = (pool.used + bytes).saturating_sub(pool.reserved);
        if missing > 0 {
            self.make_room(missing)?;
        }
        let context = self.context()?;
        let address = context.allocate(bytes, Owner::Pool(handle))?;
        let pool = context.pool(handle)?;
        pool.used += bytes;
        pool.reserved = pool.reserved.max(pool.used);
        pool.used_high = pool.used_high.max(pool.used);
        pool.reserved_high = pool.reserved_high.max(pool.reserved);
        Ok(address)
    }
}

api! {
    /// Allocates in stream order from the current pool.
    fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: usize) |d| {
        if !d.settings.pools {
            return Err(Code::NOT_SUPPORTED);
        }
        let pool = d.context()?.current_pool;
        put(address, d.allocate_from(bytes as u64, pool, stream)?)
    }

    /// Allocates in stream order from a pool.
    fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, pool: usize, stream: usize) |d| {
        d.context()?;
        put(address, d.allocate_from(bytes as u64, pool, stream)?)
    }

    /// Frees in stream order.
    fn cuMemFreeAsync(address: u64, stream: usize) |d| {
        let context = d.context()?;
        context.stream(stream)?;
        if address == 0 {
            return Ok(());
        }
        match context.allocations.get_mut(&address) {
            Some(owned @ Owned { owner: Owner::Program | Owner::Pool(_), leaving: false, .. }) => {
                owned.leaving = true;
            }
            _ => return Err(Code::INVALID_VALUE),
        }
        d.submit(stream, Op::Free(address)).inspect_err(|_| {
            if let Ok(context) = d.context()
                && let Some(owned) = context.allocations.get_mut(&address)
            {
                owned.leaving = false;
            }
        })
    }

    /// The device's first pool.
    fn cuDeviceGetDefaultMemPool(pool: *mut usize, device: c_int) |d| {
        d.device(device)?;
        put(pool, d.context()?.default_pool)
    }

    /// The pool that `cuMemAllocAsync` takes from.
    fn cuDeviceGetMemPool(pool: *mut usize, device: c_int) |d| {
        d.device(device)?;
        put(pool, d.context()?.current_pool)
    }

    /// Sets the pool that `cuMemAllocAsync` takes from.
    fn cuDeviceSetMemPool(device: c_int, pool: usize) |d| {
        d.device(device)?;
        let context = d.context()?;
        context.pool(pool)?;
        context.current_pool = pool;
        Ok(())
    }

    /// Makes a pool; its properties make no difference here.
    fn cuMemPoolCreate(pool: *mut usize, properties: *const c_void) |d| {
        d.context()?;
        if properties.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let handle = d.handle();
        d.context()?.pools.insert(handle, Pool::default());
        put(pool, handle)
    }

    /// Destroys a pool. Its allocations stay until they are freed; the first pool cannot be destroyed.
    fn cuMemPoolDestroy(pool: usize) |d| {
        let context = d.context()?;
        if pool == context.default_pool || context.pool(pool)?.used != 0 {
            return Err(Code::INVALID_VALUE);
        }
        context.pools.remove(&pool);
        if context.current_pool == pool {
            context.current_pool = context.default_pool;
        }
        Ok(())
    }

    /// Gives back what a pool holds beyond `keep` bytes and does not use.
    fn cuMemPoolTrimTo(pool: usize, keep: usize) |d| {
        d.context()?.pool(pool)?.trim(keep as u64);
        Ok(())
    }

    /// An attribute of a pool.
    fn cuMemPoolGetAttribute(pool: usize, attribute: c_int, value: *mut c_void) |d| {
        let pool = *d.context()?.pool(pool)?;
        let number = match attribute {
            1..=3 => return put(value.cast(), 1 as c_int),
            4 => pool.threshold,
            5 => pool.reserved,
            6 => pool.reserved_high,
            7 => pool.used,
            8 => pool.used_high,
            _ => return Err(Code::INVALID_VALUE),
        };
        put(value.cast(), number)
    }

    /// Sets an attribute of a pool: the threshold, or a high-water mark back to zero.
    fn cuMemPoolSetAttribute(pool: usize, attribute: c_int, value: *mut c_void) |d| {
        let pool = d.context()?.pool(pool)?;
        match attribute {
            1..=3 => get(value.cast::<c_int>()).map(drop),
            4 => get(value.cast::<u64>()).map(|bytes| pool.threshold = bytes),
            6 | 8 if get(value.cast::<u64>())? == 0 => {
                if attribute == 6 { pool.reserved_high = pool.reserved } else { pool.used_high = pool.used }
                Ok(())
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
