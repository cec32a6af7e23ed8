//! From a checkpoint to memory: a weight is read in pieces, each by whichever thread is free.

use super::{
    format::{GROUP, LANES, Shape},
    pack::pack_panel,
};
use crate::{Progress, Result, WeightSource, cpu::Team};
use std::{
    mem,
    sync::{Mutex, PoisonError},
};

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
    pieces.each(out, 0, team, progress, |at, _, out| source.read(at, out))
}

/// Reads a matrix whose rows have `row_bytes`, and packs it into `panels`, which have room for it.
pub(super) fn read_panels(
    source: &WeightSource,
    row_bytes: usize,
    shape: Shape,
    panels: &mut [u8],
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
    pieces.each(panels, pieces.read, team, progress, |at, staging, panels| {
        let left = source.data.len() - at;
        let rows = &mut staging[..left.min(pieces.read)];
        source.read(at, rows)?;
        let panels = panels.chunks_exact_mut(panel_kept);
        for (panel, rows) in panels.zip(rows.chunks(panel_read)) {
            pack_panel(source.ty, shape, rows, groups, panel);
        }
        Ok(())
    })
}

/// How a matrix is cut: the bytes of a piece in the checkpoint, and in memory.
struct Pieces {
    read: usize,
    kept: usize,
}

impl Pieces {
    /// Calls `read` once for each piece, until one fails: with its place in the source, the thread's `staging` bytes,
    /// and its part of `out`.
    fn each(
        &self,
        out: &mut [u8],
        staging: usize,
        team: &Team,
        progress: &mut Progress<'_>,
        read: impl Fn(usize, &mut [u8], &mut [u8]) -> Result<()> + Sync,
    ) -> Result<()> {
        let mut shares: Vec<_> = (0..team.size()).map(|_| (vec![0; staging], Ok(()))).collect();
        let in_a_round = (ROUND / self.read).max(1);
        for (round, out) in out.chunks_mut(self.kept * in_a_round).enumerate() {
            let start = round * in_a_round * self.read;
            progress(start as u64)?;
            let left = Mutex::new(out.chunks_mut(self.kept).enumerate());
            let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
            team.for_each(&mut shares, |(staging, result)| {
                while let Some((piece, out)) = next()
                    && result.is_ok()
                {
                    *result = read(start + piece * self.read, staging, out);
                }
            })?;
            for (_, result) in &mut shares {
                mem::replace(result, Ok(()))?;
            }
        }
        Ok(())
    }
}
