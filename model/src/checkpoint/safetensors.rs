//! safetensors: the length of a JSON header, the header, the tensors' data.
//!
//! The format is described in the README of Hugging Face's `safetensors`.

use super::{
    source::Source,
    tensor::{MAX_DIMS, Tensor, checked_shape},
};
use crate::{Error, Result};
use met_kernels::{ReadAt, TensorType};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};
use std::fmt;

/// The longest header, the same as in the format's own library.
const MAX_HEADER: u64 = 100_000_000;
/// Bytes of the header's length.
const LENGTH: u64 = 8;

/// Checks and reads a file's header: its tensors, and the bytes before their data.
pub(super) fn read(source: &Source) -> Result<(Vec<Tensor>, usize)> {
    let file_bytes = source.bytes();
    if file_bytes < LENGTH {
        return Err(Error::invalid(format!(
            "not a safetensors file: it has {file_bytes} bytes, but its header's length alone takes {LENGTH}"
        )));
    }
    let mut length = [0; LENGTH as usize];
    source.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > file_bytes - LENGTH {
        return Err(Error::invalid(format!(
            "the header's length is {length}, but the file has {} bytes after it, and a header {MAX_HEADER} at most; it is damaged or its download incomplete",
            file_bytes - LENGTH
        )));
    }
    let mut header = vec![0; length as usize];
    source.read_at(LENGTH, &mut header)?;
    let tensors = parse(&header, LENGTH + length, file_bytes)?;
    Ok((tensors, (LENGTH + length) as usize))
}

/// Reads a header; its tensors' data is from `start` to `end`.
fn parse(header: &[u8], start: u64, end: u64) -> Result<Vec<Tensor>> {
    let Entries(entries) =
        serde_json::from_slice(header).map_err(|e| Error::invalid(format!("the header: {e}")))?;
    entries
        .into_iter()
        .map(|(name, entry)| entry.place(name, start, end))
        .collect()
}

/// The header's entries in their order: a map would hide that a name occurs twice.
struct Entries(Vec<(String, Entry)>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Entry {
    fn place(self, name: String, start: u64, file_end: u64) -> Result<Tensor> {
        let Self {
            dtype,
            shape: dims,
            data_offsets: [from, to],
        } = self;
        let ty = match dtype.as_str() {
            "F32" => TensorType::F32,
            "F16" => TensorType::F16,
            "BF16" => TensorType::BF16,
            other => {
                return Err(Error::invalid(format!(
                    "`dtype` of tensor `{name}` is `{other}`, which is not supported; supported are F32, F16, BF16"
                )));
            }
        };
        if !(1..=MAX_DIMS).contains(&dims.len()) {
            return Err(Error::invalid(format!(
                "`shape` of tensor `{name}` has {} dimensions, but must have 1 to {MAX_DIMS}",
                dims.len()
            )));
        }
        let (shape, elements) = checked_shape(&name, dims.into_iter().rev())?;
        let bytes = ty.bytes_of(elements).map(|bytes| bytes as u64);
        if bytes.is_none() || to.checked_sub(from) != bytes {
            return Err(Error::invalid(format!(
                "`data_offsets` of tensor `{name}` are {from} and {to}, which isn't what {} elements of {dtype} take",
                elements
            )));
        }
        let place = |offset: u64| {
            let at = start.checked_add(offset).filter(|&at| at <= file_end)?;
            usize::try_from(at).ok()
        };
        let (Some(from), Some(to)) = (place(from), place(to)) else {
            return Err(Error::invalid(format!(
                "`data_offsets` of tensor `{name}` reach to {to}, past the end of the data ({} bytes); the file is damaged or its download incomplete",
                file_end - start
            )));
        };
        Ok(Tensor {
            name,
            ty,
            shape,
            file: 0,
            range: from..to,
        })
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Header;
        impl<'de> Visitor<'de> for Header {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let entry = map.next_value();
                    let entry = entry.map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
                    entries.push((name, entry));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Header)
    }
}
