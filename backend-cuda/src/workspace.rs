//! What a step takes on the card: a step's own where it is a prefill, and what decodes use again and again, so that
//! each finds the same things at the same addresses.

use crate::memory::{Allocator, DeviceBuffer, Plain, as_bytes};
use cudarc::driver::sys::CUdeviceptr;
use met_kernels::{Result, ledger::owner};
use std::{cell::Cell, cell::RefCell, rc::Rc};

/// Owner label of what a step takes for itself.
pub(crate) const STEP: &str = "step";
/// What a decode takes is rounded up to a power of two, this at least, so that the next one fits.
const SMALLEST: usize = 4096;

/// What decodes use again, in the order in which they take it. It is kept as long as there are activations.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    buffers: RefCell<Vec<DeviceBuffer>>,
    activations: Cell<usize>,
}

impl Workspace {
    /// An activation was made.
    pub(crate) fn enter(&self) {
        self.activations.set(self.activations.get() + 1);
    }

    /// An activation is about to go. Returns whether it is the last one, and with it the workspace.
    pub(crate) fn leave(&self) -> bool {
        let left = self.activations.get().saturating_sub(1);
        self.activations.set(left);
        left == 0
    }

    /// Gives it back and returns its bytes.
    pub(crate) fn release(&self) -> Result<u64> {
        let buffers = self.buffers.take();
        let released: Vec<_> = buffers.into_iter().map(DeviceBuffer::release).collect();
        released.into_iter().sum()
    }
}

/// A step's room. What is taken stays as long as the step, and is overwritten in the order of the stream.
#[derive(Debug)]
pub(crate) struct Room {
    allocator: Allocator,
    buffers: Vec<DeviceBuffer>,
    taken: usize,
    /// Where the buffers go back to, for a decode.
    workspace: Option<Rc<Workspace>>,
}

impl Room {
    /// In the workspace, where one is given.
    pub(crate) fn new(allocator: &Allocator, workspace: Option<Rc<Workspace>>) -> Self {
        Self {
            allocator: allocator.clone(),
            // Where two steps live at a time, the second one has buffers of its own.
            buffers: workspace.as_ref().map_or_else(Vec::new, |w| w.buffers.take()),
            taken: 0,
            workspace,
        }
    }

    /// Bytes, unwritten.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<CUdeviceptr> {
        let (owner, bytes) = match self.workspace {
            Some(_) => (owner::WORKSPACE, bytes.next_power_of_two().max(SMALLEST)),
            None => (STEP, bytes),
        };
        let at = self.taken;
        match self.buffers.get(at) {
            Some(buffer) if buffer.bytes() >= bytes => {}
            Some(_) => self.buffers[at] = self.allocator.scratch(owner, bytes)?,
            None => self.buffers.push(self.allocator.scratch(owner, bytes)?),
        }
        self.taken += 1;
        Ok(self.buffers[at].address())
    }

    /// The same, filled.
    pub(crate) fn upload<T: Plain>(&mut self, values: &[T]) -> Result<CUdeviceptr> {
        let address = self.take(size_of_val(values))?;
        self.buffers[self.taken - 1].write(0, as_bytes(values), &self.allocator.stream)?;
        Ok(address)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(workspace) = &self.workspace
            && workspace.activations.get() > 0
        {
            workspace.buffers.replace(std::mem::take(&mut self.buffers));
        }
    }
}
