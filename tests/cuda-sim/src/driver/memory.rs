//! Device memory that is allocated at once, and how much there is.

use super::Driver;
use super::pointer::put;
use super::state::{CONTEXT_BYTES, Context};
use crate::arena::WRITTEN;
use crate::code::Code;

/// Who an allocation belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// The program, by `cuMemAlloc`.
    Program,
    /// The program, from the pool with this handle.
    Pool(usize),
    /// The program, in host memory.
    Pinned,
    /// A module's variables.
    Module,
}

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owned {
    pub(super) bytes: u64,
    pub(super) owner: Owner,
    /// Its release waits in a stream.
    pub(super) leaving: bool,
}

impl Context {
    /// Device memory in use outside pools, the context's own included.
    fn outside_pools(&self) -> u64 {
        let direct = |owned: &&Owned| matches!(owned.owner, Owner::Program | Owner::Module);
        CONTEXT_BYTES
            + self
                .allocations
                .values()
                .filter(direct)
                .map(|owned| owned.bytes)
                .sum::<u64>()
    }

    /// Bytes that neither an allocation nor a pool holds.
    pub(super) fn free_bytes(&self, memory: u64) -> u64 {
        let pooled: u64 = self.pools.values().map(|pool| pool.reserved).sum();
        memory.saturating_sub(self.outside_pools() + pooled)
    }

    /// Allocates, without asking whether there is room on the device.
    pub(super) fn allocate(&mut self, bytes: u64, owner: Owner) -> Result<u64, Code> {
        let address = self.arena.allocate(bytes).ok_or(Code::OUT_OF_MEMORY)?;
        if matches!(owner, Owner::Pinned | Owner::Module) {
            // The host writes where the shadow cannot see it.
            self.arena.mark(address, bytes, WRITTEN);
        }
        self.allocations.insert(
            address,
            Owned {
                bytes,
                owner,
                leaving: false,
            },
        );
        Ok(address)
    }

    /// Gives an allocation back.
    pub(super) fn release(&mut self, address: u64) -> Result<(), Code> {
        let owned = self.allocations.remove(&address).ok_or(Code::INVALID_VALUE)?;
        self.arena.release(address);
        if let Owner::Pool(handle) = owned.owner
            && let Some(pool) = self.pools.get_mut(&handle)
        {
            pool.used -= owned.bytes;
        }
        Ok(())
    }
}

impl Driver {
    /// Makes room for `bytes` on the device, waiting for releases in streams where that is needed.
    pub(super) fn make_room(&mut self, bytes: u64) -> Result<(), Code> {
        let memory = self.settings.memory;
        if self.context()?.free_bytes(memory) >= bytes {
            return Ok(());
        }
        self.drain_all();
        let context = self.context()?;
        context.trim_pools();
        if context.free_bytes(memory) >= bytes {
            return Ok(());
        }
        for pool in context.pools.values_mut() {
            pool.reserved = pool.used;
        }
        if context.free_bytes(memory) >= bytes {
            Ok(())
        } else {
            Err(Code::OUT_OF_MEMORY)
        }
    }
}

api! {
    /// Allocates device memory.
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) |d| {
        d.context()?;
        d.refuse_while_capturing()?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        d.make_room(bytes as u64)?;
        put(address, d.context()?.allocate(bytes as u64, Owner::Program)?)
    }

    /// Frees device memory, after all work is done.
    fn cuMemFree_v2(address: u64) |d| {
        d.context()?;
        d.refuse_while_capturing()?;
        if address == 0 {
            return Ok(());
        }
        d.drain_all();
        let context = d.context()?;
        match context.allocations.get(&address) {
            Some(Owned { owner: Owner::Program | Owner::Pool(_), leaving: false, .. }) => context.release(address),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Free and total bytes of the device.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |d| {
        let memory = d.settings.memory;
        put(free, d.context()?.free_bytes(memory) as usize)?;
        put(total, memory as usize)
    }

    /// The allocation around an address.
    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) |d| {
        let (start, length) = d.context()?.arena.allocation(address).ok_or(Code::NOT_FOUND)?;
        if !base.is_null() {
            put(base, start)?;
        }
        if bytes.is_null() { Ok(()) } else { put(bytes, length as usize) }
    }
}
