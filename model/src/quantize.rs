//! Quantising at load: matrices of floats are quantised as they are read, a piece at a time.

use crate::{Error, Result};
use met_kernels::{
    ReadAt, TensorType, WeightData, WeightSource,
    formats::{dequantize, quantize},
};
use std::sync::Arc;

/// What matrices can become.
const CHOICES: [TensorType; 2] = [TensorType::Q8_0, TensorType::Q4_K];
/// Elements that are held as f32 at a time: whole blocks of every type.
const PIECE: usize = 1 << 14;

/// What a load is asked to make of matrices, in letters of any case; `None` for an empty text.
pub(crate) fn choice(text: &str) -> Result<Option<TensorType>> {
    if text.is_empty() {
        return Ok(None);
    }
    let chosen = CHOICES.iter().find(|ty| ty.name().eq_ignore_ascii_case(text));
    chosen.copied().map(Some).ok_or_else(|| {
        let names: Vec<_> = CHOICES.iter().map(|ty| ty.name()).collect();
        Error::invalid(format!(
            "weights can't be quantised to `{text}`; the choices are {}",
            names.join(", ")
        ))
    })
}

/// Makes a matrix of floats one of `ty`, where its rows are whole blocks of that; others stay as they are.
pub(crate) fn quantized(matrix: &mut WeightSource, ty: TensorType) {
    let is_float = matches!(matrix.ty, TensorType::F32 | TensorType::F16 | TensorType::BF16);
    let bytes = ty.bytes_of(matrix.rows * matrix.cols);
    if let Some(bytes) = bytes.filter(|_| is_float && matrix.cols.is_multiple_of(ty.block_len())) {
        let floats = Quantized {
            floats: matrix.clone(),
            ty,
        };
        matrix.ty = ty;
        matrix.data = WeightData::new(Arc::new(floats), 0..bytes);
    }
}

/// Reads floats, gives blocks.
struct Quantized {
    floats: WeightSource,
    ty: TensorType,
}

impl Quantized {
    /// Fills `out` with whole blocks, from block `first` on.
    fn blocks(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let (len, float) = (self.ty.block_len(), self.floats.ty.block_bytes());
        let piece = PIECE / len;
        let (mut bytes, mut values) = (Vec::new(), Vec::new());
        for (i, out) in out.chunks_mut(piece * self.ty.block_bytes()).enumerate() {
            let count = out.len() / self.ty.block_bytes() * len;
            bytes.resize(count * float, 0);
            values.resize(count, 0.0);
            self.floats.read((first + i * piece) * len * float, &mut bytes)?;
            dequantize(self.floats.ty, &bytes, &mut values)?;
            quantize(self.ty, &values, out)?;
        }
        Ok(())
    }
}

impl ReadAt for Quantized {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let (block, start) = (self.ty.block_bytes(), offset as usize);
        let end = start + out.len();
        let (first, last) = (start / block, end.div_ceil(block));
        if start.is_multiple_of(block) && end.is_multiple_of(block) {
            return self.blocks(first, out);
        }
        let mut whole = vec![0; (last - first) * block];
        self.blocks(first, &mut whole)?;
        out.copy_from_slice(&whole[start - first * block..][..out.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{PIECE, quantized};
    use met_kernels::{TensorType, WeightSource};

    #[test]
    fn any_part_can_be_read_and_a_long_one_is_the_sum_of_its_pieces() {
        let (rows, cols) = (3, PIECE);
        let values = (0..rows * cols).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0);
        for ty in [TensorType::Q8_0, TensorType::Q4_K] {
            let mut matrix = WeightSource {
                name: "w".to_owned(),
                ty: TensorType::F32,
                rows,
                cols,
                data: values
                    .clone()
                    .flat_map(f32::to_le_bytes)
                    .collect::<Vec<_>>()
                    .into(),
            };
            quantized(&mut matrix, ty);
            let row_bytes = matrix.row_bytes().unwrap();
            let read = |from: usize, to: usize| {
                let mut out = vec![0; to - from];
                matrix.read(from, &mut out).map(|()| out)
            };
            let whole = read(0, rows * row_bytes).unwrap();
            let by_rows = (0..rows).flat_map(|row| read(row * row_bytes, (row + 1) * row_bytes).unwrap());
            assert!(by_rows.eq(whole.iter().copied()), "{}", ty.name());
            for (from, to) in [(0, 1), (5, 7), (33, 300), (row_bytes - 1, row_bytes + 1), (9, 9)] {
                assert_eq!(read(from, to).unwrap(), whole[from..to]);
            }
            assert!(read(whole.len() - 1, whole.len() + 1).is_err());
        }
    }
}
