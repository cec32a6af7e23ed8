//! A step's metadata in host memory, for implementations whose operations read it there.

use crate::{Error, Result, StepRows};
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
    /// Copies a step. [`crate::ErrorKind::Invalid`] where its rows don't cover its tokens in order.
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NO_STATE, StepRow};

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
}
