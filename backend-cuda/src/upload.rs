//! Weights on their way to the card: through two pieces of pinned memory, so that reading the file and copying to the
//! card overlap.

use crate::{
    context::{Event, Stream},
    memory::{DeviceBuffer, Pinned},
};
use met_kernels::{Ledger, Progress, Result, WeightSource};

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

    /// Reads a weight and copies it to `to` on the stream `by`, and makes `then` wait for it. `progress` is told the
    /// bytes read, and stops the copy by an error.
    pub(crate) fn upload(
        &mut self,
        source: &WeightSource,
        to: &DeviceBuffer,
        by: &Stream,
        then: &Stream,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        for (i, start) in (0..source.data.len()).step_by(PIECE).enumerate() {
            progress(start as u64)?;
            let piece = &mut self.pieces[i % 2];
            // What was last copied from it has arrived.
            piece.free.synchronize()?;
            let bytes = &mut piece.memory[..PIECE.min(source.data.len() - start)];
            source.read(start, bytes)?;
            to.write(start, bytes, by)?;
            piece.free.record(by)?;
            then.wait(&piece.free)?;
        }
        Ok(())
    }
}
