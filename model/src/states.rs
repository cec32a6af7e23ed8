//! Recurrent states as pools: a slot for each live sequence, and slots for copies that are kept for later.

use crate::{
    Error, ModelConfig, Result,
    pools::{ModelResource, Released},
    slots::Slots,
};
use met_kernels::{Ops, ledger::owner};

/// Snapshots a live sequence, where the host doesn't say how many there are to be.
const SNAPSHOTS_A_SLOT: u64 = 2;

/// How many slots there are, and of what size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateSize {
    /// Values of a slot, f32; 0 for models without recurrent state.
    pub values: usize,
    /// Slots of live sequences.
    pub slots: usize,
    /// Slots of snapshots.
    pub snapshots: usize,
}

impl StateSize {
    /// A slot for each of `sequences`, and `snapshots` slots for snapshots; 0 asks for two a sequence, or for what fits
    /// into an eighth of the memory that is `free`. More than is free is an error.
    pub fn new(config: &ModelConfig, sequences: usize, snapshots: u32, free: u64) -> Result<Self> {
        let values = config.state_values();
        if values == 0 {
            return Ok(Self::default());
        }
        let bytes = (values * size_of::<f32>()) as u64;
        let pool = bytes.saturating_mul(sequences as u64);
        let left = free.saturating_sub(pool);
        let snapshots = match u64::from(snapshots) {
            0 => (SNAPSHOTS_A_SLOT * sequences as u64).min(left / 8 / bytes),
            asked => asked,
        };
        if pool > free || bytes.saturating_mul(snapshots) > left {
            return Err(Error::exhausted(format!(
                "{sequences} slots and {snapshots} snapshots of {bytes} bytes each are asked for, but {free} bytes are free"
            )));
        }
        Ok(Self {
            values,
            slots: sequences,
            snapshots: snapshots as usize,
        })
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> u64 {
        (self.values * size_of::<f32>()) as u64
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.slot_bytes() * (self.slots + self.snapshots) as u64
    }
}

/// Both pools; neither is there in models without recurrent state.
pub struct States<O: Ops> {
    pool: Option<O::State>,
    snapshots: Option<O::State>,
    size: StateSize,
    /// Who holds what, and where each is.
    pub(crate) slots: Slots,
}

impl<O: Ops> Default for States<O> {
    fn default() -> Self {
        Self {
            pool: None,
            snapshots: None,
            size: StateSize::default(),
            slots: Slots::default(),
        }
    }
}

impl<O: Ops> States<O> {
    /// Allocates them. What was allocated before an error stays here, to be released with the pools.
    pub fn alloc(&mut self, ops: &mut O, size: StateSize) -> Result<()> {
        self.size = size;
        if size.values == 0 {
            return Ok(());
        }
        self.pool = Some(ops.alloc_state(owner::STATES, size.slots, size.values)?);
        if size.snapshots > 0 {
            self.snapshots = Some(ops.alloc_state(owner::SNAPSHOTS, size.snapshots, size.values)?);
        }
        self.slots = Slots::new(size.slots, size.snapshots);
        Ok(())
    }

    /// Whether the model has recurrent state.
    pub fn are_there(&self) -> bool {
        self.size.values > 0
    }

    /// The states of live sequences.
    pub fn get(&mut self) -> Option<&mut O::State> {
        self.pool.as_mut()
    }

    /// Copies a slot to `data`.
    pub(crate) fn save(&mut self, ops: &mut O, slot: u32, data: &mut [u8]) -> Result<()> {
        self.slots.position(slot)?;
        self.check_len(data.len())?;
        ops.read_state(there(&self.pool)?, slot, data)
    }

    /// Fills a slot from `data`; its sequence is at `position`.
    pub(crate) fn restore(&mut self, ops: &mut O, slot: u32, position: usize, data: &[u8]) -> Result<()> {
        self.slots.check(slot)?;
        self.check_len(data.len())?;
        let pool = self.pool.as_mut().ok_or_else(released)?;
        self.slots.lose(slot);
        ops.write_state(pool, slot, data)?;
        self.slots.hold(slot, position);
        Ok(())
    }

    /// Copies a slot to a snapshot's.
    pub(crate) fn take(&mut self, ops: &mut O, slot: u32, snapshot: u32) -> Result<()> {
        let position = self.slots.position(slot)?;
        self.slots.check_snapshot(snapshot)?;
        let snapshots = self.snapshots.as_mut().ok_or_else(released)?;
        self.slots.keep(snapshot, None);
        ops.copy_state(there(&self.pool)?, slot, snapshots, snapshot)?;
        self.slots.keep(snapshot, Some(position));
        Ok(())
    }

    /// Copies a snapshot to a slot.
    pub(crate) fn give(&mut self, ops: &mut O, snapshot: u32, slot: u32) -> Result<()> {
        let position = self.slots.kept(snapshot)?;
        self.slots.check(slot)?;
        let pool = self.pool.as_mut().ok_or_else(released)?;
        self.slots.lose(slot);
        ops.copy_state(there(&self.snapshots)?, snapshot, pool, slot)?;
        self.slots.hold(slot, position);
        Ok(())
    }

    fn check_len(&self, bytes: usize) -> Result<()> {
        let slot = self.size.slot_bytes();
        match bytes as u64 == slot {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "a state has {slot} bytes, but {bytes} are given"
            ))),
        }
    }

    /// The pool of snapshots.
    pub fn snapshot_pool(&mut self) -> Snapshots<'_, O> {
        Snapshots(self)
    }

    /// The pool of live sequences' states.
    pub fn state_pool(&mut self) -> StatePool<'_, O> {
        StatePool(self)
    }
}

fn there<S>(states: &Option<S>) -> Result<&S> {
    states.as_ref().ok_or_else(released)
}

fn released() -> Error {
    Error::bug("recurrent states were used after their release")
}

/// Copies of states.
pub struct Snapshots<'a, O: Ops>(&'a mut States<O>);

impl<O: Ops> ModelResource<O> for Snapshots<'_, O> {
    fn label(&self) -> &'static str {
        owner::SNAPSHOTS
    }
    fn bytes(&self) -> u64 {
        let size = self.0.size;
        match self.0.snapshots {
            Some(_) => size.slot_bytes() * size.snapshots as u64,
            None => 0,
        }
    }
    fn allocations(&self) -> u64 {
        u64::from(self.0.snapshots.is_some())
    }
    fn release(&mut self, ops: &mut O) -> Released {
        let snapshots = self.0.snapshots.take().into_iter();
        snapshots.map(|snapshots| ops.release_state(snapshots)).collect()
    }
}

/// States of live sequences.
pub struct StatePool<'a, O: Ops>(&'a mut States<O>);

impl<O: Ops> ModelResource<O> for StatePool<'_, O> {
    fn label(&self) -> &'static str {
        owner::STATES
    }
    fn bytes(&self) -> u64 {
        let size = self.0.size;
        match self.0.pool {
            Some(_) => size.slot_bytes() * size.slots as u64,
            None => 0,
        }
    }
    fn allocations(&self) -> u64 {
        u64::from(self.0.pool.is_some())
    }
    /// Slots that are held are an error that says how many; the pool is left for the sweep then.
    fn release(&mut self, ops: &mut O) -> Released {
        let held = self.0.slots.held();
        match self.0.pool.take() {
            Some(pool) if held > 0 => {
                // Dropping it might free it under those who hold its slots; the ledger still knows it.
                std::mem::forget(pool);
                Released {
                    bytes: 0,
                    error: Some(Error::invalid(format!(
                        "{held} state {} still held; the pool is left for the sweep",
                        if held == 1 { "slot is" } else { "slots are" }
                    ))),
                }
            }
            pool => pool.into_iter().map(|pool| ops.release_state(pool)).collect(),
        }
    }
}
