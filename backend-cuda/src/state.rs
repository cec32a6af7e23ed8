//! Recurrent states: f32, slot after slot.

use crate::{
    context::Stream,
    memory::{Allocator, DeviceBuffer},
};
use met_kernels::{Error, HostStep, Result};

/// Slots of as many values each.
#[derive(Debug)]
pub struct State {
    slots: usize,
    pub(crate) values: usize,
    pub(crate) data: DeviceBuffer,
}

impl State {
    pub(crate) fn new(allocator: &Allocator, owner: &str, slots: usize, values: usize) -> Result<Self> {
        let len = slots.checked_mul(values);
        // Kernels count slots and values in 32 bits.
        let len = len.filter(|_| [slots, values].iter().all(|&n| n > 0 && u32::try_from(n).is_ok()));
        let len = len.ok_or_else(|| Error::invalid(format!("{owner}: {slots} states of {values} values")))?;
        Ok(Self {
            slots,
            values,
            data: allocator.zeroed::<f32>(owner, len)?,
        })
    }

    /// `self[to_slot] = from[slot]`, in the order of the stream.
    pub(crate) fn copy_from(&self, to_slot: u32, from: &Self, slot: u32, stream: &Stream) -> Result<()> {
        let bytes = self.bytes_of_a_slot();
        self.data.copy_from(
            self.place_of(to_slot, bytes)?,
            &from.data,
            from.place_of(slot, bytes)?,
            bytes,
            stream,
        )
    }

    pub(crate) fn read(&self, slot: u32, data: &mut [u8], stream: &Stream) -> Result<()> {
        let at = self.place_of(slot, data.len())?;
        self.data.read(at, data, stream)
    }

    pub(crate) fn write(&self, slot: u32, data: &[u8], stream: &Stream) -> Result<()> {
        let at = self.place_of(slot, data.len())?;
        self.data.write(at, data, stream)
    }

    /// Checks that each row has a slot, and that an operation's part, `values` from `offset` on, lies within it.
    /// Returns where that part of slot 0 is.
    pub(crate) fn check(&self, offset: usize, values: usize, step: &HostStep) -> Result<u64> {
        step.check_states(self.slots, self.values, offset, values)?;
        Ok(self.data.address() + (offset * size_of::<f32>()) as u64)
    }

    fn bytes_of_a_slot(&self) -> usize {
        self.values * size_of::<f32>()
    }

    /// Where a slot starts; `bytes` must be what it takes.
    fn place_of(&self, slot: u32, bytes: usize) -> Result<usize> {
        let expected = self.bytes_of_a_slot();
        if slot as usize >= self.slots || bytes != expected {
            return Err(Error::invalid(format!(
                "state slot {slot} with {bytes} bytes: there are {} of {expected}",
                self.slots
            )));
        }
        Ok(slot as usize * expected)
    }
}
