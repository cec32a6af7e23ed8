//! What the scheduler wants done on the device between two steps.

use super::run::Runner;
use crate::{
    kept::Kept,
    scheduler::{DeviceOp, Input, RequestId},
};
use met_backend_api::{Error, ErrorKind};
use std::time::Instant;

/// Why something was not done.
enum Problem {
    /// There is no room to keep it.
    NoRoom,
    /// On the host's side.
    Host(std::io::Error),
    /// On the device's.
    Device(Error),
}

impl Runner<'_> {
    /// Does what is to be done. Whether there was anything.
    pub(super) fn perform(&mut self) -> bool {
        let mut has_performed = false;
        while let Some(op) = self.scheduler.next_op() {
            let began = Instant::now();
            let outcome = self.perform_one(&op);
            self.tell(Input::OpDone {
                op: &op,
                succeeded: outcome.is_ok(),
                elapsed: began.elapsed(),
            });
            match outcome {
                Ok(()) | Err(Problem::NoRoom) => {}
                Err(Problem::Host(error)) => {
                    tracing::warn!("a parked request is computed again: {error}");
                }
                Err(Problem::Device(error)) => {
                    tracing::warn!(kind = ?error.kind, ?op, "not done: {error}");
                    if matches!(error.kind, ErrorKind::Fault | ErrorKind::Bug) {
                        self.tell(Input::Lost { error: &error });
                    }
                }
            }
            has_performed = true;
        }
        has_performed
    }

    fn perform_one(&mut self, op: &DeviceOp) -> Result<(), Problem> {
        let (board, device) = (self.board, self.device.as_mut());
        let done = match *op {
            DeviceOp::CopyOut {
                id,
                ref blocks,
                slot,
                position,
            } => return self.copy_out(id, blocks, slot, position),
            DeviceOp::CopyIn {
                id,
                ref blocks,
                slot,
                position,
            } => return self.copy_in(id, blocks, slot, position),
            DeviceOp::UseSnapshot { snapshot, slot, .. } => {
                board.calling("use_snapshot", || device.use_snapshot(snapshot, slot))
            }
            DeviceOp::TakeSnapshot { slot, snapshot } => {
                board.calling("take_snapshot", || device.take_snapshot(slot, snapshot))
            }
            DeviceOp::FreeState { slot } => board.calling("free_state", || device.free_state(slot)),
        };
        done.map_err(Problem::Device)
    }

    /// Copies what the requests hold that are to go on elsewhere, as far as there is room and it is worth it.
    pub(super) fn keep_all(&mut self) {
        self.perform();
        for op in self.scheduler.holdings() {
            if let Err(Problem::Device(error)) = self.perform_one(&op) {
                tracing::warn!(kind = ?error.kind, ?op, "a request is computed again where it goes: {error}");
            }
        }
    }

    /// Keeps what another generation has computed of a request. False where it can't be used here.
    pub(super) fn adopt(&mut self, id: RequestId, kept: Kept) -> bool {
        let block_size = self.device.model().block_size.max(1);
        let (block_bytes, state_bytes) = self.parked_bytes(kept.tokens().div_ceil(block_size) as usize);
        kept.bytes() == block_bytes.saturating_add(state_bytes) && self.parked.adopt(id, kept)
    }

    fn copy_out(
        &mut self,
        id: RequestId,
        blocks: &[u32],
        slot: Option<u32>,
        position: u32,
    ) -> Result<(), Problem> {
        let (block_bytes, state_bytes) = self.parked_bytes(blocks.len());
        let bytes = block_bytes.saturating_add(state_bytes);
        let Some(size) = usize::try_from(bytes)
            .ok()
            .filter(|_| self.parked.has_room(bytes))
        else {
            return Err(Problem::NoRoom);
        };
        let mut data = vec![0; size];
        let (cache, state) = data.split_at_mut(block_bytes as usize);
        let (board, device) = (self.board, self.device.as_mut());
        board
            .calling("copy_blocks_out", || device.copy_blocks_out(blocks, cache))
            .map_err(Problem::Device)?;
        if let Some(slot) = slot {
            board
                .calling("save_state", || device.save_state(slot, state))
                .map_err(Problem::Device)?;
        }
        self.parked.put(id, position, data).map_err(Problem::Host)
    }

    fn copy_in(
        &mut self,
        id: RequestId,
        blocks: &[u32],
        slot: Option<u32>,
        position: u32,
    ) -> Result<(), Problem> {
        let data = self.parked.take(id).map_err(Problem::Host)?;
        let (block_bytes, _) = self.parked_bytes(blocks.len());
        let (cache, state) = data.split_at(block_bytes as usize);
        let (board, device) = (self.board, self.device.as_mut());
        board
            .calling("copy_blocks_in", || device.copy_blocks_in(blocks, cache))
            .map_err(Problem::Device)?;
        match slot {
            Some(slot) => board
                .calling("restore_state", || device.restore_state(slot, position, state))
                .map_err(Problem::Device),
            None => Ok(()),
        }
    }

    /// Bytes of so many blocks, and of a state.
    fn parked_bytes(&self, blocks: usize) -> (u64, u64) {
        let model = self.device.model();
        let state = if model.state_slots > 0 {
            model.state_bytes
        } else {
            0
        };
        (model.block_bytes.saturating_mul(blocks as u64), state)
    }
}
