//! A weight matrix in the form that the kernels read.

use super::{
    format::{GROUP, LANES, Shape},
    pack::unpack_row,
    read::{read_panels, read_rows},
};
use crate::{
    Error, Ledger, Progress, Result, TensorType, WeightFootprint, WeightSource,
    cpu::{Buffer, Region, Team, Tensor, tensor::same},
    formats,
    ledger::owner,
};
use std::ops::Range;

/// A weight matrix: packed, or the checkpoint's own bytes.
#[derive(Debug)]
pub struct PackedWeight {
    name: String,
    ty: TensorType,
    rows: usize,
    cols: usize,
    storage: Storage,
}

#[derive(Debug)]
pub(super) enum Storage {
    /// Panels of [`LANES`] rows.
    Panels(Shape, Buffer<u8>),
    /// Rows as they are in the checkpoint.
    Rows(Buffer<u8>),
    Released,
}

impl PackedWeight {
    /// Reads a matrix, on `team`, once: a quantised one is packed, piece by piece, into memory that is on the ledger
    /// as "derived weights"; an unquantised one is kept as it is, as "weight store". Both are cut from `region`, so
    /// that weights that are loaded one after another are neighbours.
    ///
    /// [`crate::ErrorKind::Invalid`] where the source's shape and data disagree,
    /// [`crate::ErrorKind::Exhausted`] where the memory isn't to be had, the source's error where it can't be read,
    /// and `progress`'s own error where it stops.
    pub fn load(
        source: &WeightSource,
        ledger: &Ledger,
        region: &mut Region,
        team: &Team,
        progress: &mut Progress<'_>,
    ) -> Result<Self> {
        let &WeightSource { ty, rows, cols, .. } = source;
        let row_bytes = source.row_bytes()?;
        let storage = match Shape::of(ty) {
            None => {
                let mut bytes = Buffer::zeroed_in(region, ledger, owner::WEIGHTS, source.data.len())?;
                read_rows(source, &mut bytes, team, progress)?;
                Storage::Rows(bytes)
            }
            Some(shape) => {
                let bytes = shape.panel_bytes(cols / GROUP) * rows.div_ceil(LANES);
                let mut panels = Buffer::zeroed_in(region, ledger, owner::DERIVED, bytes)?;
                read_panels(source, row_bytes, shape, &mut panels, team, progress)?;
                Storage::Panels(shape, panels)
            }
        };
        Ok(Self {
            name: source.name.clone(),
            ty,
            rows,
            cols,
            storage,
        })
    }

    /// Its name in the checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How its elements are stored.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of packed memory, and of rows as they are in the checkpoint.
    pub fn footprint(&self) -> WeightFootprint {
        match &self.storage {
            Storage::Panels(_, panels) => WeightFootprint {
                derived: panels.bytes() as u64,
                store: 0,
            },
            Storage::Rows(data) => WeightFootprint {
                derived: 0,
                store: data.len() as u64,
            },
            Storage::Released => WeightFootprint::default(),
        }
    }

    /// The rows of `tokens`, one after another.
    ///
    /// [`crate::ErrorKind::Invalid`] where a token has none or the columns differ.
    pub(crate) fn embed(&self, tokens: &[u32], team: &Team, out: &mut Tensor) -> Result<()> {
        same(self.cols, out.cols)?;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.rows) {
            return Err(Error::invalid(format!(
                "token {token} isn't one of the {} embedded",
                self.rows
            )));
        }
        let (grain, cols) = (out.grain(), out.cols);
        let out = out.rows_mut(tokens.len())?.chunks_mut(grain * cols);
        let mut tasks: Vec<_> = tokens.chunks(grain).zip(out).map(|x| (x, Ok(()))).collect();
        team.for_each(&mut tasks, |((tokens, out), result)| {
            let mut rows = tokens.iter().zip(out.chunks_exact_mut(cols));
            *result = rows.try_for_each(|(&token, out)| self.row_into(token as usize, out));
        })?;
        tasks.into_iter().try_for_each(|(_, result)| result)
    }

    /// Dequantises one row, exactly.
    ///
    /// [`crate::ErrorKind::Invalid`] where there is no such row or `out` isn't a row long.
    pub fn row_into(&self, row: usize, out: &mut [f32]) -> Result<()> {
        if row >= self.rows || out.len() != self.cols {
            return Err(Error::invalid(format!(
                "{}: row {row} of {} asked for, {} values of {}",
                self.name,
                self.rows,
                out.len(),
                self.cols
            )));
        }
        match &self.storage {
            Storage::Panels(shape, panels) => {
                let bytes = self.panel_bytes();
                unpack_row(*shape, &panels[row / LANES * bytes..][..bytes], row % LANES, out);
                Ok(())
            }
            Storage::Rows(data) => {
                let bytes = data.len() / self.rows;
                formats::dequantize(self.ty, &data[row * bytes..][..bytes], out)
            }
            Storage::Released => Err(self.released()),
        }
    }

    /// Gives packed memory back and returns its bytes; then the weight is of no use. 0 where there is none.
    pub fn release_derived(&mut self) -> Result<u64> {
        match self.storage {
            Storage::Panels(..) => self.release(),
            Storage::Rows(_) | Storage::Released => Ok(0),
        }
    }

    /// Gives back all that it holds and returns its bytes; the weight is of no use afterwards. A second call
    /// returns 0.
    pub fn release(&mut self) -> Result<u64> {
        match std::mem::replace(&mut self.storage, Storage::Released) {
            Storage::Panels(_, panels) => panels.release(),
            Storage::Rows(data) => data.release(),
            Storage::Released => Ok(0),
        }
    }

    /// Bytes of [`LANES`] rows.
    pub(super) fn panel_bytes(&self) -> usize {
        match &self.storage {
            Storage::Panels(shape, _) => shape.panel_bytes(self.cols / GROUP),
            Storage::Rows(data) => data.len() / self.rows * LANES,
            Storage::Released => 0,
        }
    }

    /// The bytes of `panels`; the last one may have fewer rows where rows are kept as they are.
    pub(super) fn panels(&self, panels: Range<usize>) -> &[u8] {
        let size = self.panel_bytes();
        match &self.storage {
            Storage::Panels(_, bytes) | Storage::Rows(bytes) => {
                &bytes[panels.start * size..bytes.len().min(panels.end * size)]
            }
            Storage::Released => &[],
        }
    }

    pub(super) fn storage(&self) -> &Storage {
        &self.storage
    }

    pub(super) fn released(&self) -> Error {
        Error::bug(format!("{} is used after its release", self.name))
    }
}
