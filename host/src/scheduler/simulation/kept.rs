//! What the simulated host keeps of parked sequences.

use crate::{
    engine::{DeviceIo, testing::FakeDevice},
    scheduler::{DeviceOp, RequestId},
};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Kept(BTreeMap<RequestId, Vec<u8>>);

impl Kept {
    /// Does on the device what the engine does.
    pub fn perform(&mut self, device: &mut FakeDevice, op: &DeviceOp) {
        let bytes = device.model().block_bytes as usize;
        let state_bytes = device.model().state_bytes as usize;
        let done = match op {
            DeviceOp::CopyOut { id, blocks, slot, .. } => {
                let mut data = vec![0; blocks.len() * bytes + state_bytes];
                let (cache, state) = data.split_at_mut(blocks.len() * bytes);
                let copied = device.copy_blocks_out(blocks, cache);
                let saved = slot.map(|slot| device.save_state(slot, state));
                self.0.insert(*id, data);
                copied.and(saved.unwrap_or(Ok(())))
            }
            DeviceOp::CopyIn {
                id,
                blocks,
                slot,
                position,
            } => {
                let data = self
                    .0
                    .remove(id)
                    .unwrap_or_else(|| panic!("nothing was kept of {id:?}"));
                assert_eq!(data.len(), blocks.len() * bytes + state_bytes, "{id:?}");
                let (cache, state) = data.split_at(blocks.len() * bytes);
                let copied = device.copy_blocks_in(blocks, cache);
                let restored = slot.map(|slot| device.restore_state(slot, *position, state));
                copied.and(restored.unwrap_or(Ok(())))
            }
            DeviceOp::UseSnapshot { snapshot, slot, .. } => device.use_snapshot(*snapshot, *slot),
            DeviceOp::TakeSnapshot { slot, snapshot } => device.take_snapshot(*slot, *snapshot),
            DeviceOp::FreeState { slot } => device.free_state(*slot),
        };
        done.expect("no failure was ordered");
    }

    /// Keeps nothing of a request any more.
    pub fn forget(&mut self, id: RequestId) {
        self.0.remove(&id);
    }

    /// Whose copies are kept.
    pub fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.0.keys().copied()
    }
}
