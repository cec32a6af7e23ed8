//! The "recurrent states": each is what the hash of its sequence's tokens has come to.

use met_backend_api::Error;

/// Slots for the states of sequences, and snapshots of them.
#[derive(Default)]
pub(crate) struct States {
    slots: Vec<Option<State>>,
    snapshots: Vec<Option<State>>,
}

/// After so many tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    pub position: u32,
    pub hash: u64,
}

impl State {
    /// Bytes of one.
    pub const BYTES: u64 = 8;
}

impl States {
    pub fn new(slots: u32, snapshots: u32) -> Self {
        Self {
            slots: vec![None; slots as usize],
            snapshots: vec![None; snapshots as usize],
        }
    }

    /// Slots that sequences hold.
    pub fn held(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// A row goes on from `state`: its slot must be there, unless it begins anew.
    pub fn check(&self, slot: u32, state: State) -> Result<(), Error> {
        if self.slots.is_empty() {
            return Ok(());
        }
        let held = get(&self.slots, slot)?;
        match held == Some(state) || state.position == 0 {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "slot {slot} is not at position {}",
                state.position
            ))),
        }
    }

    /// A row has brought its slot there.
    pub fn set(&mut self, slot: u32, state: State) {
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(state);
        }
    }

    pub fn save(&self, slot: u32, data: &mut [u8]) -> Result<(), Error> {
        let state = held(&self.slots, slot)?;
        data.copy_from_slice(&state.hash.to_le_bytes());
        Ok(())
    }

    pub fn restore(&mut self, slot: u32, position: u32, data: &[u8]) -> Result<(), Error> {
        let bytes = data
            .try_into()
            .map_err(|_| Error::invalid("a state has 8 bytes"))?;
        get(&self.slots, slot)?;
        let hash = u64::from_le_bytes(bytes);
        self.set(slot, State { position, hash });
        Ok(())
    }

    pub fn free(&mut self, slot: u32) -> Result<(), Error> {
        get(&self.slots, slot)?;
        self.slots[slot as usize] = None;
        Ok(())
    }

    /// Copies a slot to a snapshot.
    pub fn take(&mut self, slot: u32, snapshot: u32) -> Result<(), Error> {
        let state = held(&self.slots, slot)?;
        get(&self.snapshots, snapshot)?;
        self.snapshots[snapshot as usize] = Some(state);
        Ok(())
    }

    /// Copies a snapshot to a slot.
    pub fn give(&mut self, snapshot: u32, slot: u32) -> Result<(), Error> {
        let state = held(&self.snapshots, snapshot)?;
        get(&self.slots, slot)?;
        self.set(slot, state);
        Ok(())
    }
}

fn get(states: &[Option<State>], at: u32) -> Result<Option<State>, Error> {
    let state = states.get(at as usize).copied();
    state.ok_or_else(|| Error::invalid(format!("there is no state {at}")))
}

fn held(states: &[Option<State>], at: u32) -> Result<State, Error> {
    get(states, at)?.ok_or_else(|| Error::invalid(format!("nothing is in state {at}")))
}
