//! What is done on the device between two steps: blocks and states are copied, and slots of state are freed.

use super::{RequestId, Scheduler, Sequence, State};
use std::time::Duration;

/// Something to be done after all steps submitted so far and before the next one, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceOp {
    /// Keep what these blocks and this slot hold, under the request's name.
    CopyOut {
        /// Whose they are.
        id: RequestId,
        /// The blocks, in the order of the tokens.
        blocks: Vec<u32>,
        /// The slot of its recurrent state; of models that have such state.
        slot: Option<u32>,
        /// The tokens that they have seen.
        position: u32,
    },
    /// Put what was kept under the request's name into these blocks and this slot, and keep it no longer.
    CopyIn {
        /// Whose they are.
        id: RequestId,
        /// As many blocks as were kept.
        blocks: Vec<u32>,
        /// The slot of its recurrent state; of models that have such state.
        slot: Option<u32>,
        /// The tokens that the state has seen.
        position: u32,
    },
    /// Copy a snapshot to a slot.
    UseSnapshot {
        /// Whose slot it is.
        id: RequestId,
        /// The snapshot.
        snapshot: u32,
        /// The slot.
        slot: u32,
    },
    /// Copy a slot to a snapshot.
    TakeSnapshot {
        /// The slot.
        slot: u32,
        /// The snapshot.
        snapshot: u32,
    },
    /// Nobody holds this slot any more. Of a device that was lost, nothing else is asked.
    FreeState {
        /// The slot.
        slot: u32,
    },
}

impl Scheduler {
    /// The next thing to be done; its outcome is told with [`Input::OpDone`](super::Input::OpDone) before anything else is.
    pub fn next_op(&mut self) -> Option<DeviceOp> {
        // What was decided first is first: a slot is freed before it is somebody else's.
        if let Some(op) = self.ops.pop_front() {
            return Some(op);
        }
        let sequence = self.running.iter().find(|sequence| sequence.waits_for_op())?;
        let (id, slot, size) = (sequence.id, sequence.slot, self.limits.block_size);
        Some(match (sequence.state, sequence.snapshot, slot) {
            (State::Restoring, Some(snapshot), Some(slot)) => DeviceOp::UseSnapshot { id, snapshot, slot },
            (State::SwappingIn, ..) => DeviceOp::CopyIn {
                id,
                blocks: sequence.blocks[..sequence.saved.div_ceil(size) as usize].to_vec(),
                slot,
                position: sequence.saved,
            },
            _ => self.copy_of(sequence),
        })
    }

    /// Copies of what is held by sequences that are to go on elsewhere, where that is quicker than to compute it again.
    /// No step may be in flight, and nothing else to be done.
    pub fn holdings(&self) -> Vec<DeviceOp> {
        let held = self.running.iter().enumerate();
        held.filter(|(at, sequence)| sequence.is_admitted() && !sequence.is_lost && self.is_copied(*at))
            .map(|(_, sequence)| self.copy_of(sequence))
            .collect()
    }

    fn copy_of(&self, sequence: &Sequence) -> DeviceOp {
        let blocks = sequence.placed.div_ceil(self.limits.block_size);
        DeviceOp::CopyOut {
            id: sequence.id,
            blocks: sequence.blocks[..blocks as usize].to_vec(),
            slot: sequence.slot,
            position: sequence.placed,
        }
    }

    pub(super) fn op_done(&mut self, op: &DeviceOp, succeeded: bool, elapsed: Duration) {
        match *op {
            DeviceOp::CopyOut { id, .. } => self.copied_out(id, succeeded, elapsed),
            DeviceOp::CopyIn { id, .. } => self.copied_in(id, succeeded, elapsed),
            DeviceOp::UseSnapshot { id, .. } => self.restored(id, succeeded),
            DeviceOp::TakeSnapshot { snapshot, .. } if !succeeded => self.not_taken(snapshot),
            // A slot that could not be freed can be begun anew; the pool's release says that it was held.
            DeviceOp::TakeSnapshot { .. } | DeviceOp::FreeState { .. } => {}
        }
    }
}
