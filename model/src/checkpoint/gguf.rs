//! GGUF, versions 2 and 3: magic, counts, metadata, tensor directory, aligned data.
//!
//! The format is described in ggml's `docs/gguf.md`.

use super::{
    cursor::Cursor,
    metadata::Metadata,
    tensor::{MAX_DIMS, Tensor, checked_shape},
};
use crate::{Error, Result};
use met_kernels::TensorType;

/// What a header says.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<Tensor>,
    /// Bytes before the tensors' data, without padding.
    pub(super) bytes: usize,
}

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 16;
const MAX_NAME: usize = 64;
/// The fewest bytes of a pair: a key of one byte, a type, a value of one byte.
const MIN_PAIR: usize = 8 + 1 + 4 + 1;
/// The fewest bytes of a directory entry: a name of one byte, one dimension.
const MIN_ENTRY: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// Checks and reads the header of a file, from its start.
pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Header> {
    check_version(cursor)?;
    let tensor_count = cursor.count(MIN_ENTRY, format_args!("number of tensors"))?;
    let pair_count = cursor.count(MIN_PAIR, format_args!("number of metadata keys"))?;

    let metadata = Metadata::read(cursor, pair_count)?;
    let alignment = alignment(&metadata)?;

    let mut entries = Vec::new();
    for i in 0..tensor_count {
        entries.push(Entry::read(cursor, i)?);
    }
    let header_bytes = cursor.position();
    let data_start = (header_bytes as u64).next_multiple_of(alignment);
    let tensors = entries
        .into_iter()
        .map(|entry| entry.place(data_start, alignment, cursor.file_bytes()))
        .collect::<Result<Vec<_>>>()?;
    Ok(Header {
        metadata,
        bytes: header_bytes,
        tensors,
    })
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    match metadata.get("general.alignment")? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(a) if u64::is_power_of_two(a) && (8..=MAX_ALIGNMENT).contains(&a) => Ok(a),
        Some(a) => Err(Error::invalid(format!(
            "metadata key `general.alignment` is {a}, but must be a power of two from 8 to {MAX_ALIGNMENT}"
        ))),
    }
}

fn check_version(cursor: &mut Cursor<'_>) -> Result<()> {
    let magic: [u8; 4] = cursor.array(format_args!("magic"))?;
    if magic != MAGIC {
        return Err(Error::invalid(format!(
            "not a GGUF file: it begins with \"{}\" instead of \"GGUF\"",
            magic.escape_ascii()
        )));
    }
    match cursor.u32(format_args!("version"))? {
        2 | 3 => Ok(()),
        v if matches!(v.swap_bytes(), 1..=3) => Err(Error::invalid(
            "the file is big-endian, which is not supported; convert it to little-endian",
        )),
        v => Err(Error::invalid(format!(
            "GGUF version is {v}, but 2 and 3 are supported"
        ))),
    }
}

/// A directory entry before its place in the file is known.
struct Entry {
    name: String,
    ty: TensorType,
    shape: Vec<usize>,
    elements: usize,
    offset: u64,
}

impl Entry {
    fn read(cursor: &mut Cursor<'_>, index: u64) -> Result<Self> {
        let name = cursor.text(format_args!("name of tensor {index}"))?.to_owned();
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Error::invalid(format!(
                "name of tensor {index}: {} bytes long, but 1 to {MAX_NAME} are allowed",
                name.len()
            )));
        }
        let dims = cursor.u32(format_args!("number of dimensions of tensor `{name}`"))?;
        if !(1..=MAX_DIMS).contains(&(dims as usize)) {
            return Err(Error::invalid(format!(
                "number of dimensions of tensor `{name}` is {dims}, but must be 1 to {MAX_DIMS}"
            )));
        }
        let dims = (0..dims)
            .map(|d| cursor.u64(format_args!("dimension {d} of tensor `{name}`")))
            .collect::<Result<Vec<_>>>()?;
        let (shape, elements) = checked_shape(&name, dims.into_iter())?;
        let id = cursor.u32(format_args!("type of tensor `{name}`"))?;
        let ty = tensor_type(id).ok_or_else(|| unsupported_type(&name, id))?;
        let offset = cursor.u64(format_args!("offset of tensor `{name}`"))?;
        Ok(Self {
            name,
            ty,
            shape,
            elements,
            offset,
        })
    }

    fn place(self, data_start: u64, alignment: u64, file_len: u64) -> Result<Tensor> {
        let Self {
            name,
            ty,
            shape,
            elements,
            offset,
        } = self;
        if !shape[0].is_multiple_of(ty.block_len()) {
            return Err(Error::invalid(format!(
                "dimension 0 of tensor `{name}` is {}, but must be a multiple of {} for {}",
                shape[0],
                ty.block_len(),
                ty.name()
            )));
        }
        if !offset.is_multiple_of(alignment) {
            return Err(Error::invalid(format!(
                "offset of tensor `{name}` is {offset}, but must be a multiple of the alignment {alignment}"
            )));
        }
        let start = data_start.checked_add(offset);
        let end = ty
            .bytes_of(elements)
            .and_then(|bytes| start?.checked_add(bytes as u64))
            .filter(|&end| end <= file_len);
        let place = |at: Option<u64>| usize::try_from(at?).ok();
        let (Some(start), Some(end)) = (place(start), place(end)) else {
            return Err(Error::invalid(format!(
                "tensor `{name}` ({} {shape:?} at offset {offset}) reaches past the end of the file ({file_len} bytes); the file is damaged or its download incomplete",
                ty.name()
            )));
        };
        Ok(Tensor {
            name,
            ty,
            shape,
            file: 0,
            range: start..end,
        })
    }
}

fn tensor_type(id: u32) -> Option<TensorType> {
    Some(match id {
        0 => TensorType::F32,
        1 => TensorType::F16,
        2 => TensorType::Q4_0,
        3 => TensorType::Q4_1,
        6 => TensorType::Q5_0,
        7 => TensorType::Q5_1,
        8 => TensorType::Q8_0,
        10 => TensorType::Q2_K,
        11 => TensorType::Q3_K,
        12 => TensorType::Q4_K,
        13 => TensorType::Q5_K,
        14 => TensorType::Q6_K,
        30 => TensorType::BF16,
        _ => return None,
    })
}

fn unsupported_type(tensor: &str, id: u32) -> Error {
    let name = match id {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24..=27 => "an integer type",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => "unknown",
    };
    let supported: Vec<_> = TensorType::ALL.iter().map(|ty| ty.name()).collect();
    Error::invalid(format!(
        "type of tensor `{tensor}` is {id} ({name}), which is not supported; supported are {}",
        supported.join(", ")
    ))
}
