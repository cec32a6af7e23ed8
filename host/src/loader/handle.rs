//! Safe handles on a backend's objects. They live and die on the engine thread, and what they return is
//! in host memory.

use super::{Services, copy::Copied, library::Shared, threads};
use met_backend_api::{
    Batch, BatchOutput, DeviceInfo, Error, LedgerEntry, MemoryInfo, ModelInfo, ModelSpec, OpenSpec,
    ProbeReport, ReleaseReport, ResourceReport, SweepReport, Ticket,
    abi::{BackendBox, ModelBox},
    abi_stable::std_types::{RResult, RSlice, RSliceMut},
    sdk::Output,
};
use std::{marker::PhantomData, mem::ManuallyDrop, sync::Arc};

/// Goes to the engine thread, which opens the backend with it.
#[derive(Debug)]
pub struct Opener(Arc<Shared>);

/// An opened device.
///
/// It stays on the thread that opened it:
/// ```compile_fail
/// fn can_be_sent<T: Send>() {}
/// can_be_sent::<met_host::loader::Backend>();
/// ```
pub struct Backend(Object<BackendBox>);

/// A loaded model. Drop it after [`release_pools`](Self::release_pools), and before the backend is swept.
pub struct Model(Object<ModelBox>);

impl Opener {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Which devices the backend can open. The calling thread has to end before the library is closed.
    pub fn probe(&self, services: &Services) -> Result<ProbeReport, Error> {
        threads::adopt_current(self.0.owner);
        let _scope = threads::act_for(self.0.owner);
        host_result((self.0.module.probe())(services.for_backend()))
    }

    /// Opens a device. The calling thread becomes the engine thread.
    pub fn open(self, spec: &OpenSpec, services: &Services) -> Result<Backend, Error> {
        threads::adopt_current(self.0.owner);
        let scope = threads::act_for(self.0.owner);
        let opened = (self.0.module.open())(services.for_backend(), spec);
        let object = opened.into_result().map_err(Copied::copied)?;
        drop(scope);
        Ok(Backend(Object::new(object, self.0)))
    }
}

impl Backend {
    /// The device that was opened.
    pub fn info(&self) -> Result<DeviceInfo, Error> {
        self.0.read(|b| b.info())
    }

    /// Memory now. Cheap enough for every step.
    pub fn memory(&self) -> Result<MemoryInfo, Error> {
        self.0.read(|b| b.memory())
    }

    /// Every live entry of the ledger, in order of serial number.
    pub fn ledger(&self) -> Result<Vec<LedgerEntry>, Error> {
        self.0.read(|b| b.ledger()).map(Into::into)
    }

    /// Reads a checkpoint and makes the model's pools. Stops soon after [`Services::cancel`].
    pub fn load_model(&mut self, spec: &ModelSpec) -> Result<Model, Error> {
        let scope = threads::act_for(self.0.shared.owner);
        let loaded = self.0.inner.load_model(spec);
        let object = loaded.into_result().map_err(Copied::copied)?;
        drop(scope);
        Ok(Model(Object::new(object, self.0.shared.clone())))
    }

    /// Waits until all work of a stream (0 = default, 1 = prefill) is done.
    pub fn synchronize(&mut self, stream: u32) -> Result<(), Error> {
        self.0.call(|b| b.synchronize(stream))
    }

    /// Frees whatever the ledger still holds; after every model was dropped.
    pub fn sweep_unreleased(&mut self) -> Result<SweepReport, Error> {
        self.0.call(|b| b.sweep_unreleased())
    }
}

impl Model {
    /// What was loaded.
    pub fn info(&self) -> Result<ModelInfo, Error> {
        self.0.read(|m| m.info())
    }

    /// One report a pool.
    pub fn resources(&self) -> Result<Vec<ResourceReport>, Error> {
        self.0.read(|m| m.resources()).map(Into::into)
    }

    /// Starts a step. At most [`ModelInfo::max_in_flight`] may be outstanding. Allocates nothing.
    pub fn submit(&mut self, batch: Batch<'_>) -> Result<Ticket, Error> {
        self.0.call(|m| m.submit(batch))
    }

    /// Waits for the oldest outstanding step and writes its results into the caller's memory, whose
    /// lengths [`BatchOutput`] states. Allocates nothing.
    pub fn collect(&mut self, ticket: Ticket, out: Output<'_>) -> Result<(), Error> {
        let out = BatchOutput {
            rows: RSliceMut::from_mut_slice(out.rows),
            top: RSliceMut::from_mut_slice(out.top),
            logits: RSliceMut::from_mut_slice(out.logits),
        };
        self.0.call(|m| m.collect(ticket, out))
    }

    /// Copies KV blocks to host memory: `data` is `blocks.len() × block_bytes`.
    pub fn copy_blocks_out(&mut self, blocks: &[u32], data: &mut [u8]) -> Result<(), Error> {
        let (blocks, data) = (RSlice::from_slice(blocks), RSliceMut::from_mut_slice(data));
        self.0.call(|m| m.copy_blocks_out(blocks, data))
    }

    /// Copies KV blocks from host memory.
    pub fn copy_blocks_in(&mut self, blocks: &[u32], data: &[u8]) -> Result<(), Error> {
        let (blocks, data) = (RSlice::from_slice(blocks), RSlice::from_slice(data));
        self.0.call(|m| m.copy_blocks_in(blocks, data))
    }

    /// Copies a slot of recurrent state to host memory (`state_bytes` long).
    pub fn save_state(&mut self, slot: u32, data: &mut [u8]) -> Result<(), Error> {
        let data = RSliceMut::from_mut_slice(data);
        self.0.call(|m| m.save_state(slot, data))
    }

    /// Fills a slot of recurrent state with what it was after `position` tokens.
    pub fn restore_state(&mut self, slot: u32, position: u32, data: &[u8]) -> Result<(), Error> {
        let data = RSlice::from_slice(data);
        self.0.call(|m| m.restore_state(slot, position, data))
    }

    /// The sequence of a slot of recurrent state has ended.
    pub fn free_state(&mut self, slot: u32) -> Result<(), Error> {
        self.0.call(|m| m.free_state(slot))
    }

    /// Copies a slot of recurrent state to a snapshot.
    pub fn take_snapshot(&mut self, slot: u32, snapshot: u32) -> Result<(), Error> {
        self.0.call(|m| m.take_snapshot(slot, snapshot))
    }

    /// Copies a snapshot to a slot of recurrent state.
    pub fn use_snapshot(&mut self, snapshot: u32, slot: u32) -> Result<(), Error> {
        self.0.call(|m| m.use_snapshot(snapshot, slot))
    }

    /// Releases every pool in the fixed order; a second call reports no steps.
    pub fn release_pools(&mut self) -> Result<ReleaseReport, Error> {
        self.0.call(|m| m.release_pools())
    }
}

/// An object of a library, which the library cannot be closed under. Threads that are started during a
/// call on it belong to the library.
struct Object<T> {
    inner: ManuallyDrop<T>,
    shared: Arc<Shared>,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl<T> Object<T> {
    fn new(inner: T, shared: Arc<Shared>) -> Self {
        Self {
            inner: ManuallyDrop::new(inner),
            shared,
            stays_on_its_thread: PhantomData,
        }
    }

    #[inline]
    fn read<R: Copied>(&self, call: impl FnOnce(&T) -> RResult<R, Error>) -> Result<R, Error> {
        let _scope = threads::act_for(self.shared.owner);
        host_result(call(&self.inner))
    }

    #[inline]
    fn call<R: Copied>(&mut self, call: impl FnOnce(&mut T) -> RResult<R, Error>) -> Result<R, Error> {
        let _scope = threads::act_for(self.shared.owner);
        host_result(call(&mut self.inner))
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        let _scope = threads::act_for(self.shared.owner);
        // SAFETY: dropped here and nowhere else; the library is held by `shared`, which goes after it.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
    }
}

#[inline]
fn host_result<R: Copied>(result: RResult<R, Error>) -> Result<R, Error> {
    result.into_result().map(Copied::copied).map_err(Copied::copied)
}
