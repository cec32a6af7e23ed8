//! A weight matrix in the form that the kernels read.

use super::{
    format::{GROUP, LANES, Shape},
    pack::{pack_panel, unpack_row},
};
use crate::{
    Error, Ledger, Progress, Result, TensorType, WeightFootprint, WeightSource,
    cpu::{Buffer, Mapped, Region, Team},
    formats,
    ledger::owner,
};

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
    InPlace(Mapped),
    Released,
}

/// Bytes of a source that are packed between two reports of progress: some tens of milliseconds on one thread.
const ROUND: usize = 8 << 20;
/// Panels that a task packs.
const TASK: usize = 16;

impl PackedWeight {
    /// Packs a quantised matrix, its panels side by side on `team`; an unquantised one is kept in place. Packed
    /// memory is on the ledger as "derived weights", and the source's bytes are read once, in order, and not kept;
    /// bytes in place are on it as "weight store". The packed memory is cut from `region`, so that weights that
    /// are packed one after another are neighbours.
    ///
    /// [`crate::ErrorKind::Invalid`] where the source's shape and data disagree,
    /// [`crate::ErrorKind::Exhausted`] where the memory isn't to be had, and `progress`'s own error where it stops.
    pub fn pack(
        source: &WeightSource,
        ledger: &Ledger,
        region: &mut Region,
        team: &Team,
        progress: &mut Progress<'_>,
    ) -> Result<Self> {
        let &WeightSource { ty, rows, cols, .. } = source;
        let row_bytes = ty.bytes_of(cols).filter(|_| rows > 0 && cols > 0);
        let bytes = row_bytes.and_then(|bytes| bytes.checked_mul(rows));
        let (Some(row_bytes), Some(bytes)) = (row_bytes, bytes) else {
            return Err(Error::invalid(format!(
                "{}: [{rows}, {cols}] is no shape for {}; its rows must be whole blocks of {}",
                source.name,
                ty.name(),
                ty.block_len()
            )));
        };
        if bytes != source.data.len() {
            return Err(Error::invalid(format!(
                "{}: [{rows}, {cols}] of {} takes {bytes} bytes, but there are {}",
                source.name,
                ty.name(),
                source.data.len()
            )));
        }
        let storage = match Shape::of(ty) {
            None => Storage::InPlace(Mapped::new(ledger, owner::WEIGHTS, source.data.clone())?),
            Some(shape) => {
                let groups = cols / GROUP;
                let panel_bytes = shape.panel_bytes(groups);
                let bytes = panel_bytes * rows.div_ceil(LANES);
                let mut panels = Buffer::zeroed_in(region, ledger, owner::DERIVED, bytes)?;
                let panel_source = row_bytes * LANES;
                let in_a_round = (ROUND / panel_source).max(1);
                let rounds = panels
                    .chunks_mut(panel_bytes * in_a_round)
                    .zip(source.data.chunks(panel_source * in_a_round));
                for (round, (panels, rows)) in rounds.enumerate() {
                    progress((round * in_a_round * panel_source) as u64)?;
                    let panels = panels.chunks_mut(panel_bytes * TASK);
                    let mut tasks: Vec<_> = panels.zip(rows.chunks(panel_source * TASK)).collect();
                    team.for_each(&mut tasks, |(panels, rows)| {
                        let panels = panels.chunks_exact_mut(panel_bytes);
                        for (panel, rows) in panels.zip(rows.chunks(panel_source)) {
                            pack_panel(ty, shape, rows, groups, panel);
                        }
                    })?;
                }
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

    /// Bytes of packed memory, and bytes in place.
    pub fn footprint(&self) -> WeightFootprint {
        match &self.storage {
            Storage::Panels(_, panels) => WeightFootprint {
                derived: panels.bytes() as u64,
                store: 0,
            },
            Storage::InPlace(data) => WeightFootprint {
                derived: 0,
                store: data.len() as u64,
            },
            Storage::Released => WeightFootprint::default(),
        }
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
            Storage::InPlace(data) => {
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
            Storage::InPlace(_) | Storage::Released => Ok(0),
        }
    }

    /// Gives back all that it holds and returns its bytes; the weight is of no use afterwards. A second call
    /// returns 0.
    pub fn release(&mut self) -> Result<u64> {
        match std::mem::replace(&mut self.storage, Storage::Released) {
            Storage::Panels(_, panels) => panels.release(),
            Storage::InPlace(data) => data.release(),
            Storage::Released => Ok(0),
        }
    }

    /// Bytes of [`LANES`] rows.
    pub(super) fn panel_bytes(&self) -> usize {
        match &self.storage {
            Storage::Panels(shape, _) => shape.panel_bytes(self.cols / GROUP),
            Storage::InPlace(data) => data.len() / self.rows * LANES,
            Storage::Released => 0,
        }
    }

    pub(super) fn storage(&self) -> &Storage {
        &self.storage
    }

    pub(super) fn released(&self) -> Error {
        Error::bug(format!("{} is used after its release", self.name))
    }
}
