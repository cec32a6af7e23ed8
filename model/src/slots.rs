//! Who holds which state slot, and after how many tokens each state is.

use crate::{Error, Result};

/// The slots of a pool of recurrent states, and those of its snapshots.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// The position that each snapshot was taken at.
    snapshots: Vec<Option<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Nobody's.
    Free,
    /// Held, and after so many tokens.
    At(usize),
    /// Held, but by nobody knows where: what was to change it failed halfway.
    Lost,
}

impl Slots {
    pub(crate) fn new(slots: usize, snapshots: usize) -> Self {
        Self {
            slots: vec![Slot::Free; slots],
            snapshots: vec![None; snapshots],
        }
    }

    /// How many are held.
    pub(crate) fn held(&self) -> usize {
        self.slots.iter().filter(|&&slot| slot != Slot::Free).count()
    }

    /// Checks that there is such a slot.
    pub(crate) fn check(&self, slot: u32) -> Result<()> {
        self.get(slot).map(drop)
    }

    /// Checks that a row at `position` may go on with a slot, or begin it anew.
    pub(crate) fn check_row(&self, slot: u32, position: usize) -> Result<()> {
        self.check(slot)?;
        if position == 0 {
            return Ok(());
        }
        match self.position(slot)? {
            at if at == position => Ok(()),
            at => Err(Error::invalid(format!(
                "it is at position {position}, but its state slot {slot} is at {at}"
            ))),
        }
    }

    /// The position that a slot is at.
    pub(crate) fn position(&self, slot: u32) -> Result<usize> {
        match self.get(slot)? {
            Slot::At(position) => Ok(position),
            Slot::Free => Err(Error::invalid(format!(
                "state slot {slot} is held by no sequence"
            ))),
            Slot::Lost => Err(Error::invalid(format!(
                "the state in slot {slot} was lost by a call that failed; begin its sequence anew"
            ))),
        }
    }

    /// A slot is held, and after `position` tokens.
    pub(crate) fn hold(&mut self, slot: u32, position: usize) {
        self.set(slot, Slot::At(position));
    }

    /// Its state was changed halfway.
    pub(crate) fn lose(&mut self, slot: u32) {
        self.set(slot, Slot::Lost);
    }

    /// Nobody holds it any more.
    pub(crate) fn free(&mut self, slot: u32) -> Result<()> {
        self.check(slot)?;
        self.set(slot, Slot::Free);
        Ok(())
    }

    /// Checks that there is such a snapshot.
    pub(crate) fn check_snapshot(&self, snapshot: u32) -> Result<()> {
        match (snapshot as usize) < self.snapshots.len() {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "snapshot {snapshot} is not one of the {} there are",
                self.snapshots.len()
            ))),
        }
    }

    /// The position that a snapshot was taken at.
    pub(crate) fn kept(&self, snapshot: u32) -> Result<usize> {
        self.check_snapshot(snapshot)?;
        self.snapshots[snapshot as usize]
            .ok_or_else(|| Error::invalid(format!("snapshot {snapshot} holds nothing yet")))
    }

    /// A snapshot is of `position`, or of nothing.
    pub(crate) fn keep(&mut self, snapshot: u32, position: Option<usize>) {
        if let Some(kept) = self.snapshots.get_mut(snapshot as usize) {
            *kept = position;
        }
    }

    fn get(&self, slot: u32) -> Result<Slot> {
        self.slots.get(slot as usize).copied().ok_or_else(|| {
            Error::invalid(format!(
                "state slot {slot} is not one of the {} there are",
                self.slots.len()
            ))
        })
    }

    fn set(&mut self, slot: u32, to: Slot) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            *slot = to;
        }
    }
}
