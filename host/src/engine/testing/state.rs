//! The recurrent states of the fake model: each has seen so many tokens, and knows which.

use met_backend_api::{NO_SLOT, Ticket};

/// Bytes of a state in host memory.
pub(super) const BYTES: usize = 12;

#[derive(Default)]
pub(super) struct States {
    slots: Vec<Option<State>>,
    snapshots: Vec<Option<State>>,
}

/// What has seen `position` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    position: u32,
    /// Stands for these.
    hash: u64,
    /// The last step that it was in.
    step: Ticket,
}

/// What a failed step leaves behind.
const SPOILT: u32 = u32::MAX;
const EMPTY: State = State {
    position: 0,
    hash: 0xcbf2_9ce4_8422_2325,
    step: 0,
};

impl State {
    fn see(self, tokens: &[u32], step: Ticket) -> Self {
        let hash = |hash: u64, token: &u32| {
            (hash ^ u64::from(*token))
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(9)
        };
        Self {
            position: self.position + tokens.len() as u32,
            hash: tokens.iter().fold(self.hash, hash),
            step,
        }
    }
}

impl States {
    pub fn new(slots: u32, snapshots: u32) -> Self {
        Self {
            slots: vec![None; slots as usize],
            snapshots: vec![None; snapshots as usize],
        }
    }

    /// A row at `position` is computed, after which its sequence is `seen`.
    pub fn see(&mut self, slot: u32, position: u32, seen: &[u32], step: Ticket) {
        if self.slots.is_empty() {
            return assert_eq!(slot, NO_SLOT, "a slot of a model without state");
        }
        let (before, new) = seen.split_at(position as usize);
        if position == 0 {
            self.slots[slot as usize] = Some(EMPTY);
        }
        let state = self.slots[slot as usize].unwrap_or_else(|| panic!("nobody holds slot {slot}"));
        let expected = EMPTY.see(before, state.step);
        assert_eq!(
            state, expected,
            "the state in slot {slot} isn't that of the tokens before the row"
        );
        self.slots[slot as usize] = Some(state.see(new, step));
    }

    /// A step failed: what it and later ones have computed is spoilt, wherever it is now.
    pub fn spoil(&mut self, failed: Ticket) {
        for state in self.slots.iter_mut().chain(&mut self.snapshots).flatten() {
            if state.step >= failed {
                state.position = SPOILT;
            }
        }
    }

    /// A step failed halfway: what is in a row's slot is spoilt.
    pub fn lose(&mut self, slot: u32) {
        if let Some(Some(state)) = self.slots.get_mut(slot as usize) {
            state.position = SPOILT;
        }
    }

    pub fn save(&self, slot: u32, data: &mut [u8]) {
        let state = sound(&self.slots, slot);
        data[..4].copy_from_slice(&state.position.to_le_bytes());
        data[4..].copy_from_slice(&state.hash.to_le_bytes());
    }

    pub fn restore(&mut self, slot: u32, position: u32, data: &[u8]) {
        let (length, hash) = data.split_at(4);
        let saved = u32::from_le_bytes(length.try_into().expect("four bytes"));
        assert_eq!(saved, position, "the state was saved elsewhere");
        self.slots[slot as usize] = Some(State {
            position,
            hash: u64::from_le_bytes(hash.try_into().expect("eight bytes")),
            step: 0,
        });
    }

    pub fn free(&mut self, slot: u32) {
        self.slots[slot as usize] = None;
    }

    /// Copies a slot to a snapshot.
    pub fn take(&mut self, slot: u32, snapshot: u32) {
        self.snapshots[snapshot as usize] = Some(sound(&self.slots, slot));
    }

    /// Copies a snapshot to a slot.
    pub fn take_from(&mut self, snapshot: u32, slot: u32) {
        self.slots[slot as usize] = Some(sound(&self.snapshots, snapshot));
    }

    /// The position of each slot that is held.
    pub fn held(&self) -> impl Iterator<Item = (u32, u32)> {
        let slots = self.slots.iter().zip(0..);
        slots.filter_map(|(state, slot)| Some((slot, state.as_ref()?.position)))
    }
}

/// What is there, which no failed step may have spoilt.
fn sound(states: &[Option<State>], at: u32) -> State {
    let state = states[at as usize].unwrap_or_else(|| panic!("nothing is in {at}"));
    assert_ne!(state.position, SPOILT, "a failed step has spoilt {at}");
    state
}
