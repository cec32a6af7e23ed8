//! From a checkpoint to memory: a weight is read in pieces, each by whichever thread is free.

use super::{
    format::{GROUP, LANES, Shape},
    pack::pack_panel,
};
use crate::{
    Ledger, Progress, Result, WeightSource,
    cpu::{Buffer, Team},
    ledger::owner,
};
use std::sync::{Mutex, PoisonError};

/// Bytes that are read between two reports of progress: some tens of milliseconds on one thread.
const ROUND: usize = 8 << 20;
/// Bytes of a piece that is kept as it is.
const PIECE: usize = 1 << 20;
/// Bytes of a piece that is packed, where a panel has no more: it stays in the nearest caches meanwhile.
const STAGING: usize = 32 << 10;

/// Reads a matrix as it is to `out`, which has its size.
pub(super) fn read_rows(
    source: &WeightSource,
    out: &mut [u8],
    team: &Team,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let pieces = Pieces {
        read: PIECE,
        kept: PIECE,
    };
    pieces.each(out, &mut [], team, progress, |at, _, out| source.read(at, out))
}

/// Reads a matrix whose rows have `row_bytes`, and packs it into `panels`, which have room for it.
pub(super) fn read_panels(
    source: &WeightSource,
    row_bytes: usize,
    shape: Shape,
    panels: &mut [u8],
    ledger: &Ledger,
    team: &Team,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let groups = source.cols / GROUP;
    let (panel_read, panel_kept) = (row_bytes * LANES, shape.panel_bytes(groups));
    let in_a_piece = (STAGING / panel_read).max(1);
    let pieces = Pieces {
        read: panel_read * in_a_piece,
        kept: panel_kept * in_a_piece,
    };
    let mut staging = Buffer::zeroed(ledger, owner::WORKSPACE, pieces.read * team.size())?;
    pieces.each(panels, &mut staging, team, progress, |at, staging, panels| {
        let left = source.data.len() - at;
        let rows = &mut staging[..left.min(pieces.read)];
        source.read(at, rows)?;
        let panels = panels.chunks_exact_mut(panel_kept);
        for (panel, rows) in panels.zip(rows.chunks(panel_read)) {
            pack_panel(source.ty, shape, rows, groups, panel);
        }
        Ok(())
    })?;
    staging.release().map(|_| ())
}

/// How a matrix is cut: the bytes of a piece in the checkpoint, and in memory.
struct Pieces {
    read: usize,
    kept: usize,
}

impl Pieces {
    /// Calls `read` once for each piece, until one fails: with its place in the source, a thread's part of `staging`,
    /// and its part of `out`.
    fn each(
        &self,
        out: &mut [u8],
        staging: &mut [u8],
        team: &Team,
        progress: &mut Progress<'_>,
        read: impl Fn(usize, &mut [u8], &mut [u8]) -> Result<()> + Sync,
    ) -> Result<()> {
        let in_a_round = (ROUND / self.read).max(1);
        for (round, out) in out.chunks_mut(self.kept * in_a_round).enumerate() {
            let start = round * in_a_round * self.read;
            progress(start as u64)?;
            let left = Mutex::new(out.chunks_mut(self.kept).enumerate());
            let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let mut shares = shares(staging, team.size());
            team.for_each(&mut shares, |(staging, result)| {
                while let Some((piece, out)) = next()
                    && result.is_ok()
                {
                    *result = read(start + piece * self.read, staging, out);
                }
            })?;
            shares.into_iter().try_for_each(|(_, result)| result)?;
        }
        Ok(())
    }
}

/// Each thread's part of the staging memory, and how its work went.
fn shares(mut staging: &mut [u8], threads: usize) -> Vec<(&mut [u8], Result<()>)> {
    let part = staging.len() / threads;
    let split = |_| {
        let (mine, rest) = std::mem::take(&mut staging).split_at_mut(part);
        staging = rest;
        (mine, Ok(()))
    };
    (0..threads).map(split).collect()
}
