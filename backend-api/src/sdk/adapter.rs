//! From an author's plain traits to the guarded trait objects of the boundary.

use super::{Backend, BackendModel, Output, guard, log};
use crate::abi::*;
use abi_stable::{
    sabi_trait::TD_Opaque,
    std_types::{RResult, RSlice, RSliceMut, RVec},
};
use std::{cell::Cell, mem::ManuallyDrop};

/// An author's object behind the boundary. After a panic it is out of use but for release and sweep; its
/// `Drop` is guarded like a call.
struct Guarded<T> {
    inner: ManuallyDrop<T>,
    poisoned: Cell<bool>,
}

impl<T> Guarded<T> {
    fn new(inner: T) -> Self {
        Self {
            inner: ManuallyDrop::new(inner),
            poisoned: Cell::new(false),
        }
    }

    fn read<R>(&self, f: impl FnOnce(&T) -> Result<R, Error>) -> RResult<R, Error> {
        self.note(guard(|| f(&self.inner)))
    }

    fn call<R>(&mut self, f: impl FnOnce(&mut T) -> Result<R, Error>) -> RResult<R, Error> {
        if self.poisoned.get() {
            return RResult::RErr(Error::bug("an earlier call panicked; tear this generation down"));
        }
        self.teardown(f)
    }

    /// Like [`call`](Self::call), but also after a panic: memory must come back whatever happened.
    fn teardown<R>(&mut self, f: impl FnOnce(&mut T) -> Result<R, Error>) -> RResult<R, Error> {
        let result = guard(|| f(&mut self.inner));
        self.note(result)
    }

    fn note<R>(&self, result: RResult<R, Error>) -> RResult<R, Error> {
        if let RResult::RErr(e) = &result
            && e.kind == ErrorKind::Bug
        {
            self.poisoned.set(true);
        }
        result
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        let dropped = guard(|| {
            // SAFETY: `inner` is dropped here and nowhere else; `self` is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
            Ok(())
        });
        if let RResult::RErr(e) = dropped {
            crate::event!(Error, "{} while it was dropped", e.message);
        }
    }
}

struct BackendAdapter<B: Backend>(ManuallyDrop<Guarded<B>>);

impl<B: Backend> Drop for BackendAdapter<B> {
    fn drop(&mut self) {
        // SAFETY: dropped here and nowhere else. It goes first so that its last words still reach the log.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        log::detach();
    }
}

impl<B: Backend> GpuBackend for BackendAdapter<B> {
    fn info(&self) -> RResult<DeviceInfo, Error> {
        self.0.read(B::info)
    }
    fn memory(&self) -> RResult<MemoryInfo, Error> {
        self.0.read(B::memory)
    }
    fn ledger(&self) -> RResult<RVec<LedgerEntry>, Error> {
        self.0.read(|b| Ok(b.ledger()?.into()))
    }
    fn load_model(&mut self, spec: &ModelSpec) -> RResult<ModelBox, Error> {
        self.0.call(|b| {
            let model = ModelAdapter(Guarded::new(b.load_model(spec)?));
            Ok(Model_TO::from_value(model, TD_Opaque))
        })
    }
    fn synchronize(&mut self, stream: u32) -> RResult<(), Error> {
        self.0.call(|b| b.synchronize(stream))
    }
    fn sweep_unreleased(&mut self) -> RResult<SweepReport, Error> {
        self.0.teardown(B::sweep_unreleased)
    }
}

struct ModelAdapter<M: BackendModel>(Guarded<M>);

impl<M: BackendModel> Model for ModelAdapter<M> {
    fn info(&self) -> RResult<ModelInfo, Error> {
        self.0.read(M::info)
    }
    fn resources(&self) -> RResult<RVec<ResourceReport>, Error> {
        self.0.read(|m| Ok(m.resources()?.into()))
    }
    fn submit(&mut self, batch: Batch<'_>) -> RResult<Ticket, Error> {
        self.0.call(|m| m.submit(&batch))
    }
    fn collect(&mut self, ticket: Ticket, mut out: BatchOutput<'_>) -> RResult<(), Error> {
        self.0.call(|m| {
            m.collect(
                ticket,
                &mut Output {
                    rows: out.rows.as_mut_slice(),
                    top: out.top.as_mut_slice(),
                    logits: out.logits.as_mut_slice(),
                },
            )
        })
    }
    fn copy_blocks_out(
        &mut self,
        blocks: RSlice<'_, u32>,
        mut data: RSliceMut<'_, u8>,
    ) -> RResult<(), Error> {
        self.0
            .call(|m| m.copy_blocks_out(blocks.as_slice(), data.as_mut_slice()))
    }
    fn copy_blocks_in(&mut self, blocks: RSlice<'_, u32>, data: RSlice<'_, u8>) -> RResult<(), Error> {
        self.0
            .call(|m| m.copy_blocks_in(blocks.as_slice(), data.as_slice()))
    }
    fn save_state(&mut self, slot: u32, mut data: RSliceMut<'_, u8>) -> RResult<(), Error> {
        self.0.call(|m| m.save_state(slot, data.as_mut_slice()))
    }
    fn restore_state(&mut self, slot: u32, position: u32, data: RSlice<'_, u8>) -> RResult<(), Error> {
        self.0.call(|m| m.restore_state(slot, position, data.as_slice()))
    }
    fn free_state(&mut self, slot: u32) -> RResult<(), Error> {
        self.0.call(|m| m.free_state(slot))
    }
    fn take_snapshot(&mut self, slot: u32, snapshot: u32) -> RResult<(), Error> {
        self.0.call(|m| m.take_snapshot(slot, snapshot))
    }
    fn use_snapshot(&mut self, snapshot: u32, slot: u32) -> RResult<(), Error> {
        self.0.call(|m| m.use_snapshot(snapshot, slot))
    }
    fn release_pools(&mut self) -> RResult<ReleaseReport, Error> {
        self.0.teardown(M::release_pools)
    }
}

/// `probe` of the root module, guarded. Used by [`crate::export_backend!`].
pub fn probe<B: Backend>(host: &HostServicesArc) -> RResult<ProbeReport, Error> {
    guard(|| B::probe(host))
}

/// `open` of the root module, guarded. Used by [`crate::export_backend!`].
pub fn open<B: Backend>(host: HostServicesArc, spec: &OpenSpec) -> RResult<BackendBox, Error> {
    log::attach(&host);
    let opened = guard(|| {
        let backend = BackendAdapter(ManuallyDrop::new(Guarded::new(B::open(host, spec)?)));
        Ok(GpuBackend_TO::from_value(backend, TD_Opaque))
    });
    if opened.is_err() {
        log::detach();
    }
    opened
}
