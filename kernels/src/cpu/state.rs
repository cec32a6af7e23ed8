//! Recurrent states, and how the heads of an operation with one are shared out.

use super::{Buffer, Team, tensor::GRAIN};
use crate::{Error, HostStep, Ledger, Place, Result, step::HostRow};
use std::ops::Range;

/// Slots of as many f32 each.
#[derive(Debug)]
pub struct State {
    values: usize,
    data: Buffer<f32>,
}

impl State {
    /// `slots` slots of `values` zeros. [`crate::ErrorKind::Invalid`] where either is 0.
    pub(super) fn new(ledger: &Ledger, owner: &str, slots: usize, values: usize) -> Result<Self> {
        let len = slots.checked_mul(values).filter(|&len| len > 0);
        let len = len.ok_or_else(|| Error::invalid(format!("{owner}: {slots} states of {values} values")))?;
        Ok(Self {
            values,
            data: Buffer::zeroed(ledger, owner, len)?,
        })
    }

    pub(super) fn release(self) -> Result<u64> {
        self.data.release()
    }

    /// Copies slot `from_slot` of `from` to `slot`.
    pub(super) fn copy(&mut self, slot: u32, from: &Self, from_slot: u32) -> Result<()> {
        let from = &from.data[from.range(from_slot, self.values)?];
        let to = self.range(slot, self.values)?;
        self.data[to].copy_from_slice(from);
        Ok(())
    }

    /// Copies a slot to `data`, little-endian.
    pub(super) fn read(&self, slot: u32, data: &mut [u8]) -> Result<()> {
        let (values, rest) = data.as_chunks_mut();
        let from = &self.data[self.range(slot, values.len() + rest.len())?];
        for (to, from) in values.iter_mut().zip(from) {
            *to = from.to_le_bytes();
        }
        Ok(())
    }

    /// Fills a slot from what [`State::read`] wrote.
    pub(super) fn write(&mut self, slot: u32, data: &[u8]) -> Result<()> {
        let (values, rest) = data.as_chunks();
        let range = self.range(slot, values.len() + rest.len())?;
        for (to, &from) in self.data[range].iter_mut().zip(values) {
            *to = f32::from_le_bytes(from);
        }
        Ok(())
    }

    /// Where a slot is, which must have `values` values.
    fn range(&self, slot: u32, values: usize) -> Result<Range<usize>> {
        let slots = self.data.len() / self.values;
        if slot as usize >= slots || values != self.values {
            return Err(Error::invalid(format!(
                "slot {slot} with {values} values: the state has {slots} slots of {}",
                self.values
            )));
        }
        let start = slot as usize * self.values;
        Ok(start..start + self.values)
    }
}

/// The `len` values of each row's state, in the order of the rows.
pub(super) fn parts<'a>(place: Place<'a, State>, step: &HostStep, len: usize) -> Result<Vec<&'a mut [f32]>> {
    let Place { state, offset } = place;
    let values = state.values;
    step.check_states(state.data.len() / values, values, offset, len)?;
    let mut slots: Vec<_> = state.data.chunks_exact_mut(values).map(Some).collect();
    let parts = step.rows().iter().map(|row| {
        let slot = slots[row.state as usize].take();
        slot.map(|slot| &mut slot[offset..][..len])
            .ok_or_else(|| Error::bug("two rows of a step have one state slot"))
    });
    parts.collect()
}

/// One head of one row.
pub(super) struct Head<'a> {
    pub row: &'a HostRow,
    pub head: usize,
    /// Its part of the state.
    pub state: &'a mut [f32],
    /// Its columns of each of the row's tokens.
    pub out: Vec<&'a mut [f32]>,
}

/// Every head of every row: `len` values of state and `width` columns of `out` each.
pub(super) fn heads<'a>(
    place: Place<'a, State>,
    step: &'a HostStep,
    heads: usize,
    len: usize,
    out: &'a mut [f32],
    width: usize,
) -> Result<Vec<Head<'a>>> {
    let mut rest = out;
    let mut tasks = Vec::with_capacity(step.rows().len() * heads);
    for (row, state) in step.rows().iter().zip(parts(place, step, heads * len)?) {
        let (mine, after) = rest.split_at_mut(row.tokens.len() * heads * width);
        rest = after;
        let outs = columns(mine, heads * width, width);
        for (head, (state, out)) in state.chunks_exact_mut(len).zip(outs).enumerate() {
            tasks.push(Head {
                row,
                head,
                state,
                out,
            });
        }
    }
    Ok(tasks)
}

/// Calls `work` with each head, as many a task as make it worth handing out.
pub(super) fn for_each_head<'a>(
    team: &Team,
    heads: &mut [Head<'a>],
    work: impl Fn(&mut Head<'a>) + Sync,
) -> Result<()> {
    let values: usize = heads.iter().map(|head| head.state.len() * head.out.len()).sum();
    let grain = (GRAIN * heads.len() / values.max(1)).max(1);
    let mut tasks: Vec<_> = heads.chunks_mut(grain).collect();
    team.for_each(&mut tasks, |heads| heads.iter_mut().for_each(&work))
}

/// Rows of `cols` cut into columns of `width`, the last of which may be narrower: each row's part of each.
pub(super) fn columns(data: &mut [f32], cols: usize, width: usize) -> Vec<Vec<&mut [f32]>> {
    let rows = data.len() / cols.max(1);
    let mut parts: Vec<_> = (0..cols.div_ceil(width))
        .map(|_| Vec::with_capacity(rows))
        .collect();
    for row in data.chunks_exact_mut(cols.max(1)) {
        for (part, columns) in parts.iter_mut().zip(row.chunks_mut(width)) {
            part.push(columns);
        }
    }
    parts
}
