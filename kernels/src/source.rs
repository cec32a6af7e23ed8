//! Weights as a checkpoint stores them, and where their bytes are read from.

use crate::{Error, Result, TensorType};
use std::{fmt, ops::Range, sync::Arc};

/// More than a process can address: sizes that are made of such a one by small factors don't overflow.
const MOST: usize = 1 << 48;

/// Something that can be read at any place, such as a file. Several threads may read at a time.
pub trait ReadAt: Send + Sync {
    /// Fills `out` with the bytes from `offset` on; after an error it holds anything.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;
}

/// A part of something that can be read.
#[derive(Clone)]
pub struct WeightData {
    source: Arc<dyn ReadAt>,
    start: u64,
    len: usize,
}

/// A weight matrix as the checkpoint stores it: `rows` outputs of `cols` inputs, each row contiguous.
#[derive(Clone, Debug)]
pub struct WeightSource {
    /// Its name, for errors.
    pub name: String,
    /// How elements are stored.
    pub ty: TensorType,
    /// Outputs.
    pub rows: usize,
    /// Inputs; a whole number of `ty`'s blocks.
    pub cols: usize,
    /// `ty.bytes_of(rows * cols)` bytes.
    pub data: WeightData,
}

impl WeightData {
    /// The part `range` of what `source` holds.
    pub fn new(source: Arc<dyn ReadAt>, range: Range<usize>) -> Self {
        Self {
            source,
            start: range.start as u64,
            len: range.len(),
        }
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl From<Vec<u8>> for WeightData {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self::new(Arc::new(bytes), range)
    }
}

impl fmt::Debug for WeightData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeightData({} bytes)", self.len)
    }
}

impl WeightSource {
    /// Fills `out` with the data from byte `offset` on. An error names the weight.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let inside = offset
            .checked_add(out.len())
            .is_some_and(|end| end <= self.data.len);
        if !inside {
            return Err(Error::bug(format!(
                "{}: {} bytes at {offset} are asked for, but there are {}",
                self.name,
                out.len(),
                self.data.len
            )));
        }
        self.data
            .source
            .read_at(self.data.start + offset as u64, out)
            .map_err(|e| Error::new(e.kind, format!("{}: {}", self.name, e.message)))
    }

    /// Bytes of a row; [`crate::ErrorKind::Invalid`] where shape, type and data disagree.
    pub fn row_bytes(&self) -> Result<usize> {
        let Self { ty, rows, cols, .. } = *self;
        let row_bytes = ty.bytes_of(cols).filter(|_| rows > 0 && cols > 0);
        let bytes = row_bytes
            .and_then(|bytes| bytes.checked_mul(rows))
            .filter(|&bytes| bytes <= MOST);
        let (Some(row_bytes), Some(bytes)) = (row_bytes, bytes) else {
            return Err(Error::invalid(format!(
                "{}: [{rows}, {cols}] is no shape for {}; its rows must be whole blocks of {}",
                self.name,
                ty.name(),
                ty.block_len()
            )));
        };
        if bytes != self.data.len {
            return Err(Error::invalid(format!(
                "{}: [{rows}, {cols}] of {} takes {bytes} bytes, but there are {}",
                self.name,
                ty.name(),
                self.data.len
            )));
        }
        Ok(row_bytes)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(out.len())?));
        let Some(bytes) = range.and_then(|range| self.get(range)) else {
            return Err(Error::invalid(format!(
                "{} bytes at {offset} are asked for, but there are {}",
                out.len(),
                self.len()
            )));
        };
        out.copy_from_slice(bytes);
        Ok(())
    }
}
