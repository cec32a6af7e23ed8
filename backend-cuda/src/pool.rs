//! A memory pool of our own: what it keeps between steps is nobody else's, and goes when it is destroyed.

use crate::{
    context::{Context, strike},
    error::Checked,
};
use cudarc::driver::{
    result::mem_pool,
    sys::{self, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemLocationType},
};
use met_kernels::{Kind, Ledger, Result, Serial};
use std::ptr::null_mut;

/// Memory in stream order is taken from it. Its default threshold lets it keep nothing past a synchronisation.
#[derive(Debug)]
pub(crate) struct Pool {
    raw: sys::CUmemoryPool,
    ledger: Ledger,
    serial: Serial,
}

impl Pool {
    /// On a context's card.
    pub(crate) fn new(context: &Context, ledger: &Ledger) -> Result<Self> {
        let properties = sys::CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: context.device(),
            },
            win32SecurityAttributes: null_mut(),
            maxSize: 0,
            reserved: [0; _],
        };
        let serial = ledger.enter(Kind::Pool, "memory pool", 0)?;
        // SAFETY: the properties are a device's, without handles to share.
        let made = unsafe { mem_pool::create(&properties) }.while_doing("making a memory pool");
        let raw = made.inspect_err(|_| strike(ledger, serial))?;
        let address = raw as usize;
        let give_back = move || {
            // SAFETY: made above; destroyed once, since the entry goes with it.
            unsafe { mem_pool::destroy(address as sys::CUmemoryPool) }
                .while_doing("destroying the memory pool")
        };
        ledger.attach(serial, Box::new(give_back))?;
        Ok(Self {
            raw,
            ledger: ledger.clone(),
            serial,
        })
    }

    pub(crate) fn raw(&self) -> sys::CUmemoryPool {
        self.raw
    }

    /// Its entry on the ledger, while it is there.
    pub(crate) fn serial(&self) -> Serial {
        self.serial
    }

    /// Destroys it; a second call does nothing. What was taken from it must be given back, and the card have come that
    /// far.
    pub(crate) fn close(&self) -> Result<()> {
        if !self.ledger.holds(self.serial) {
            return Ok(());
        }
        let release = || self.ledger.release(self.serial).map(|_| ());
        // It may be the last call of all.
        release().or_else(|_| release())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // A failure leaves it on the ledger.
        let _ = self.close();
    }
}
