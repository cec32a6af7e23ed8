//! Weights on their way to the card: through two pieces of pinned memory, so that reading the file and copying to the
//! card overlap.

use crate::{
    context::{Event, Stream},
    memory::{DeviceBuffer, Pinned},
};
use met_kernels::{Ledger, Progress, Result};

/// Owner label of the pinned memory and its events.
const OWNER: &str = "weight staging";
/// Bytes of a piece: some milliseconds of a file's reading, and enough for a copy at full speed.
const PIECE: usize = 4 << 20;

/// The pinned memory.
#[derive(Debug)]
pub(crate) struct Staging {
    pieces: [Piece; 2],
}

#[derive(Debug)]
struct Piece {
    memory: Pinned,
    /// When what was last copied from it has arrived.
    free: Event,
}

impl Staging {
    pub(crate) fn new(ledger: &Ledger) -> Result<Self> {
        let piece = || {
            Ok(Piece {
                memory: Pinned::new(ledger, OWNER, PIECE)?,
                free: Event::new(ledger, OWNER)?,
            })
        };
        Ok(Self {
            pieces: [piece()?, piece()?],
        })
    }

    /// Copies `data` to `to` on the stream `by`, and makes `then` wait for it. `progress` is told the bytes read, and
    /// stops the copy by an error.
    pub(crate) fn upload(
        &mut self,
        data: &[u8],
        to: &DeviceBuffer,
        by: &Stream,
        then: &Stream,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        progress(0)?;
        for (i, chunk) in data.chunks(PIECE).enumerate() {
            let piece = &mut self.pieces[i % 2];
            piece.free.synchronize()?;
            piece.memory[..chunk.len()].copy_from_slice(chunk);
            to.write(i * PIECE, &piece.memory[..chunk.len()], by)?;
            piece.free.record(by)?;
            then.wait(&piece.free)?;
            progress((i * PIECE + chunk.len()) as u64)?;
        }
        Ok(())
    }
}
