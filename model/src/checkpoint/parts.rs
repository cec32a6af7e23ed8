//! A GGUF file, or the parts that it is split into: the first has the metadata, each has some tensors.

use super::{
    Part,
    cursor::{Cursor, MAX_HEADER},
    gguf::{self, Header},
    metadata::Metadata,
    source::Source,
    tensor::Directory,
};
use crate::{Error, Result};
use met_kernels::ReadAt;
use std::sync::Arc;

/// Bytes of a file that are read at first: most headers have fewer.
const FIRST_READ: u64 = 4 << 20;

/// Reads the headers of all parts, in order.
pub(super) fn read(sources: Vec<Source>) -> Result<(Metadata, Directory, Vec<Part>)> {
    let count = sources.len();
    let (mut metadata, mut directory, mut parts) = (Metadata::default(), Directory::default(), Vec::new());
    for (index, source) in sources.into_iter().enumerate() {
        let mut add = || {
            let mut header = read_header(&source)?;
            check_part(&header.metadata, index, count)?;
            header.tensors.iter_mut().for_each(|tensor| tensor.file = index);
            directory.add(header.tensors)?;
            if index == 0 {
                metadata = header.metadata;
            }
            Ok(header.bytes)
        };
        let header_bytes = add().map_err(|e| source.wrong(e))?;
        parts.push(Part {
            source: Arc::new(source),
            header_bytes,
        });
    }
    let there = directory.tensors().len() as u64;
    match metadata.get::<u64>("split.tensors.count")? {
        Some(stated) if stated != there => Err(Error::invalid(format!(
            "metadata key `split.tensors.count` is {stated}, but the {count} files hold {there} tensors"
        ))),
        _ => Ok((metadata, directory, parts)),
    }
}

/// As much of the file as its header turns out to need.
fn read_header(source: &Source) -> Result<Header> {
    let mut head = Vec::new();
    let mut wanted = FIRST_READ;
    loop {
        let known = head.len();
        head.resize(wanted.min(source.bytes()).min(MAX_HEADER) as usize, 0);
        source.read_at(known as u64, &mut head[known..])?;
        let mut cursor = Cursor::new(&head, source.bytes());
        match (gguf::parse(&mut cursor), cursor.wanted()) {
            (Err(_), Some(more)) if more <= MAX_HEADER => wanted = more.max(wanted * 2),
            (parsed, _) => return parsed,
        }
    }
}

fn check_part(metadata: &Metadata, index: usize, count: usize) -> Result<()> {
    let stated = metadata.get::<usize>("split.count")?.unwrap_or(1).max(1);
    if stated != count {
        return Err(Error::invalid(format!(
            "metadata key `split.count` says that the model is split over {stated} files, but by its name it is one of {count}; the files' names must end in -00001-of-{stated:05}.gguf and so on"
        )));
    }
    let number = metadata.get::<usize>("split.no")?.unwrap_or(0);
    if count > 1 && number != index {
        return Err(Error::invalid(format!(
            "metadata key `split.no` is {number}, but must be {index} in part {} of {count}",
            index + 1
        )));
    }
    Ok(())
}
