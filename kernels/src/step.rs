//! A step's metadata in host memory, for implementations whose operations read it there.

use crate::{Error, NO_STATE, Result, StepRows};
use std::ops::Range;

/// An owned copy of [`StepRows`].
#[derive(Clone, Debug, Default)]
pub struct HostStep {
    tokens: Vec<u32>,
    rows: Vec<HostRow>,
    blocks: Vec<u32>,
    highest_block: u32,
}

/// One sequence's part of a step.
#[derive(Clone, Debug)]
pub struct HostRow {
    /// Its tokens among the step's.
    pub tokens: Range<usize>,
    /// Position of its first token.
    pub position: usize,
    /// Slot of its recurrent state, or [`NO_STATE`](crate::NO_STATE).
    pub state: u32,
    blocks: Range<usize>,
}

impl HostStep {
    /// Copies a step. [`crate::ErrorKind::Invalid`] where its rows don't cover its tokens in order, or two have one
    /// state slot.
    pub fn new(step: &StepRows<'_>) -> Result<Self> {
        let mut copy = Self {
            tokens: step.tokens.to_vec(),
            ..Self::default()
        };
        let mut covered = 0;
        for row in step.rows {
            if row.first != covered || row.len == 0 || row.len > step.tokens.len() - covered {
                return Err(Error::invalid(format!(
                    "a row of {} tokens from {} doesn't follow the {covered} of {} tokens before it",
                    row.len,
                    row.first,
                    step.tokens.len()
                )));
            }
            covered += row.len;
            let start = copy.blocks.len();
            copy.blocks.extend_from_slice(row.blocks);
            copy.rows.push(HostRow {
                tokens: row.first..covered,
                position: row.position,
                state: row.state,
                blocks: start..copy.blocks.len(),
            });
        }
        if covered != step.tokens.len() {
            return Err(Error::invalid(format!(
                "the step's rows cover {covered} of its {} tokens",
                step.tokens.len()
            )));
        }
        let mut states: Vec<u32> = copy.rows.iter().map(|row| row.state).collect();
        states.retain(|&state| state != NO_STATE);
        states.sort_unstable();
        if let Some(pair) = states.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!(
                "two rows of a step have state slot {}",
                pair[0]
            )));
        }
        copy.highest_block = copy.blocks.iter().copied().max().unwrap_or(0);
        Ok(copy)
    }

    /// Token ids.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The rows, in order.
    pub fn rows(&self) -> &[HostRow] {
        &self.rows
    }

    /// The position of each token in its sequence, in order.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.rows
            .iter()
            .flat_map(|row| row.position..row.position + row.tokens.len())
    }

    /// The block table of a row of this step.
    pub fn blocks(&self, row: &HostRow) -> &[u32] {
        &self.blocks[row.blocks.clone()]
    }

    /// Checks that each row's block table reaches its last position and stays within a cache of `blocks`
    /// blocks of `block_size` positions.
    pub fn check_blocks(&self, block_size: usize, blocks: usize) -> Result<()> {
        if !self.blocks.is_empty() && self.highest_block as usize >= blocks {
            return Err(Error::invalid(format!(
                "block {} isn't one of the cache's {blocks}",
                self.highest_block
            )));
        }
        for row in &self.rows {
            let positions = row.position.checked_add(row.tokens.len());
            let needed = positions.map(|n| n.div_ceil(block_size));
            if needed.is_none_or(|needed| needed > row.blocks.len()) {
                return Err(Error::invalid(format!(
                    "{} tokens from position {} don't fit in {} blocks of {block_size}",
                    row.tokens.len(),
                    row.position,
                    row.blocks.len()
                )));
            }
        }
        Ok(())
    }

    /// Checks that each row has one of `slots` state slots, of `values` values each, which hold `len` values from
    /// `offset` on.
    pub fn check_states(&self, slots: usize, values: usize, offset: usize, len: usize) -> Result<()> {
        if offset.checked_add(len).is_none_or(|end| end > values) {
            return Err(Error::invalid(format!(
                "{len} values from {offset} on don't lie in a state of {values}"
            )));
        }
        let bad = |row: &&HostRow| row.state == NO_STATE || row.state as usize >= slots;
        match self.rows.iter().find(bad) {
            None => Ok(()),
            Some(row) => Err(Error::invalid(format!(
                "state slot {} of a row isn't one of the {slots}",
                row.state
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StepRow;

    fn row(first: usize, len: usize, position: usize, blocks: &[u32]) -> StepRow<'_> {
        StepRow {
            first,
            len,
            position,
            blocks,
            state: NO_STATE,
        }
    }

    #[test]
    fn rows_that_dont_cover_the_tokens_are_refused() {
        let blocks = [0];
        let tokens = [7, 8, 9];
        for rows in [
            vec![row(0, 2, 0, &blocks)],
            vec![row(0, 4, 0, &blocks)],
            vec![row(0, usize::MAX, 0, &blocks), row(usize::MAX, 4, 0, &blocks)],
            vec![row(1, 2, 0, &blocks)],
            vec![row(1, 3, 0, &blocks)],
            vec![row(0, 2, 0, &blocks), row(1, 2, 0, &blocks)],
            vec![row(0, 2, 0, &blocks), row(1, 1, 0, &blocks)],
            vec![row(0, 3, 0, &blocks), row(3, 0, 0, &blocks)],
        ] {
            let step = StepRows {
                tokens: &tokens,
                rows: &rows,
            };
            assert!(HostStep::new(&step).is_err(), "{rows:?}");
        }
    }

    #[test]
    fn block_tables_are_checked_against_the_cache() {
        let (short, far) = ([3], [2, 5]);
        let rows = [row(0, 1, 15, &short), row(1, 2, 15, &far)];
        let step = StepRows {
            tokens: &[7, 8, 9],
            rows: &rows,
        };
        let step = HostStep::new(&step).unwrap();
        assert_eq!(step.tokens(), [7, 8, 9]);
        assert_eq!(
            [step.rows()[0].tokens.clone(), step.rows()[1].tokens.clone()],
            [0..1, 1..3]
        );
        assert!(step.positions().eq([15, 15, 16]));
        assert_eq!(step.blocks(&step.rows()[1]), far);
        step.check_blocks(16, 6).unwrap();
        assert!(step.check_blocks(16, 5).is_err(), "block 5 of 5");
        assert!(
            step.check_blocks(15, 6).is_err(),
            "position 15 in one block of 15"
        );
    }
    #[test]
    fn state_slots_are_checked_against_the_states() {
        let of_slots = |slots: &[u32]| {
            let tokens = vec![7; slots.len()];
            let rows = slots.iter().enumerate().map(|(i, &state)| StepRow {
                state,
                ..row(i, 1, 0, &[])
            });
            HostStep::new(&StepRows {
                tokens: &tokens,
                rows: &rows.collect::<Vec<_>>(),
            })
        };
        assert!(of_slots(&[1, 0, 1]).is_err(), "two rows of one slot");
        of_slots(&[NO_STATE; 2]).unwrap();
        let step = of_slots(&[2, 0]).unwrap();
        step.check_states(3, 10, 4, 6).unwrap();
        assert!(step.check_states(2, 10, 4, 6).is_err(), "slot 2 of 2");
        assert!(step.check_states(3, 10, 5, 6).is_err(), "values past the slot");
        assert!(
            step.check_states(3, 10, usize::MAX, 6).is_err(),
            "values past all"
        );
        let without = of_slots(&[0, NO_STATE]).unwrap();
        assert!(without.check_states(usize::MAX, 10, 0, 1).is_err(), "no slot");
    }
}
