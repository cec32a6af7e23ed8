//! Matrices put together from rows of others, which are read where they are.

use crate::{Error, Result};
use met_kernels::{ReadAt, WeightData, WeightSource};
use std::{ops::Range, sync::Arc};

/// The rows `ranges` of a matrix, one range after another; they must be inside.
pub(crate) fn rows(
    source: &WeightSource,
    ranges: impl IntoIterator<Item = Range<usize>>,
) -> Result<WeightSource> {
    let row_bytes = source.row_bytes()?;
    let mut pieces = Pieces::default();
    for range in ranges {
        if range.start > range.end || range.end > source.rows {
            return Err(Error::bug(format!(
                "{}: rows {range:?} are asked for, but there are {}",
                source.name, source.rows
            )));
        }
        pieces.add(source, range.start * row_bytes..range.end * row_bytes);
    }
    let rows = pieces.len / row_bytes;
    Ok(pieces.into_source(source, rows))
}

/// Matrices one below another: all of the same type and width.
pub(crate) fn stack(sources: &[WeightSource]) -> Result<WeightSource> {
    let (mut pieces, mut rows) = (Pieces::default(), 0);
    let first = sources
        .first()
        .ok_or_else(|| Error::bug("no matrix to put together"))?;
    for source in sources {
        if (source.ty, source.cols) != (first.ty, first.cols) {
            return Err(Error::invalid(format!(
                "tensors `{}` and `{}` belong together, but are of {} and {}",
                first.name,
                source.name,
                first.ty.name(),
                source.ty.name()
            )));
        }
        pieces.add(source, 0..source.data.len());
        rows += source.rows;
    }
    Ok(pieces.into_source(first, rows))
}

/// Parts of sources, one after another.
#[derive(Default)]
struct Pieces {
    pieces: Vec<Piece>,
    len: usize,
}

struct Piece {
    source: WeightSource,
    /// Where it begins in its source.
    from: usize,
    /// Its place in the whole.
    place: Range<usize>,
}

impl Pieces {
    fn add(&mut self, source: &WeightSource, bytes: Range<usize>) {
        let place = self.len..self.len + bytes.len();
        self.len = place.end;
        self.pieces.push(Piece {
            source: source.clone(),
            from: bytes.start,
            place,
        });
    }

    fn into_source(self, like: &WeightSource, rows: usize) -> WeightSource {
        let all = 0..self.len;
        WeightSource {
            name: like.name.clone(),
            ty: like.ty,
            rows,
            cols: like.cols,
            data: WeightData::new(Arc::new(self), all),
        }
    }
}

impl ReadAt for Pieces {
    fn read_at(&self, offset: u64, mut out: &mut [u8]) -> Result<()> {
        let mut at = offset as usize;
        let first = self.pieces.partition_point(|piece| piece.place.end <= at);
        for piece in &self.pieces[first..] {
            if out.is_empty() {
                break;
            }
            let (part, rest) = out.split_at_mut(out.len().min(piece.place.end - at));
            piece.source.read(piece.from + (at - piece.place.start), part)?;
            at += part.len();
            out = rest;
        }
        match out.len() {
            0 => Ok(()),
            left => Err(Error::bug(format!(
                "{left} bytes past the end of a matrix are asked for"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{rows, stack};
    use met_kernels::{TensorType, WeightSource};

    fn source(ty: TensorType, rows: usize, first: u8) -> WeightSource {
        let len = ty.bytes_of(rows * 32).unwrap();
        WeightSource {
            name: "w".to_owned(),
            ty,
            rows,
            cols: 32,
            data: (0..len)
                .map(|i| first.wrapping_add(i as u8))
                .collect::<Vec<_>>()
                .into(),
        }
    }

    fn all(source: &WeightSource) -> Vec<u8> {
        let mut bytes = vec![0; source.data.len()];
        source.read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn rows_are_taken_in_the_order_asked_for_and_read_at_any_place() {
        let whole = source(TensorType::Q8_0, 6, 3);
        let bytes = all(&whole);
        let picked = rows(&whole, [4..6, 0..1, 2..3]).unwrap();
        assert_eq!((picked.rows, picked.row_bytes().unwrap()), (4, 34));
        let expected = [&bytes[136..204], &bytes[..34], &bytes[68..102]].concat();
        assert_eq!(all(&picked), expected);
        for (from, to) in [(0, 1), (33, 35), (67, 69), (67, 103), (101, 136), (136, 136)] {
            let mut part = vec![0; to - from];
            picked.read(from, &mut part).unwrap();
            assert_eq!(part, expected[from..to]);
        }
        assert!(rows(&whole, [0..1, 5..7]).is_err());
    }

    #[test]
    fn matrices_are_stacked_where_they_are_alike() {
        let (a, b) = (source(TensorType::F16, 2, 0), source(TensorType::F16, 1, 9));
        let stacked = stack(&[a.clone(), b.clone()]).unwrap();
        assert_eq!((stacked.rows, stacked.row_bytes().unwrap()), (3, 64));
        assert_eq!(all(&stacked), [all(&a), all(&b)].concat());
        let error = stack(&[a, source(TensorType::F32, 1, 0)]).unwrap_err();
        assert!(error.message.contains("F16 and F32"), "{}", error.message);
    }
}
