//! Checkpoints: metadata and tensors of a model file.
//!
//! Every length, offset, count and type of a file is checked before it is used. What is needed of it is read into
//! memory, never mapped: a file that is cut short, overwritten, renamed or removed meanwhile gives an error or the
//! bytes that it had when it was opened.

mod cursor;
mod gguf;
mod identity;
mod metadata;
mod source;

pub use gguf::Tensor;
pub use metadata::{Array, FromMetadata, Metadata, Value};

use crate::{Error, Result};
use cursor::{Cursor, MAX_HEADER};
use gguf::Directory;
use met_kernels::{ReadAt, TensorType, WeightData, WeightSource};
use source::Source;
use std::{collections::HashMap, path::Path, sync::Arc};

/// Bytes of a file that are read at first: most headers have fewer.
const FIRST_READ: u64 = 4 << 20;

/// An opened checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    source: Arc<Source>,
    directory: Directory,
}

impl Checkpoint {
    /// Opens a GGUF file, or a folder that holds exactly one.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        source::find_file(path.as_ref())
            .and_then(Source::open)
            .and_then(Self::read)
    }

    /// A GGUF file's contents that are in memory already.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::read(Source::Memory(bytes))
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.directory.metadata
    }

    /// The tensors in the order of the file's directory.
    pub fn tensors(&self) -> &[Tensor] {
        &self.directory.tensors
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.directory.tensor(name)
    }

    /// A tensor as a matrix of `shape[0]` columns, not yet read; `None` where there is no such tensor.
    pub fn weight(&self, name: &str) -> Option<WeightSource> {
        let tensor = self.tensor(name)?;
        let cols = *tensor.shape.first()?;
        Some(WeightSource {
            name: tensor.name.clone(),
            ty: tensor.ty,
            rows: tensor.elements() / cols,
            cols,
            data: WeightData::new(self.source.clone(), tensor.range.clone()),
        })
    }

    /// The values of a tensor of shape `[len]` of any type; `None` where there is no such tensor.
    pub fn floats(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        let (Some(tensor), Some(source)) = (self.tensor(name), self.weight(name)) else {
            return Ok(None);
        };
        if tensor.shape != [len] {
            return Err(Error::invalid(format!(
                "tensor `{name}` has shape {:?}, but the metadata asks for [{len}]",
                tensor.shape
            )));
        }
        let (mut bytes, mut values) = (vec![0; source.data.len()], vec![0.0; len]);
        source.read(0, &mut bytes)?;
        met_kernels::formats::dequantize(tensor.ty, &bytes, &mut values)?;
        Ok(Some(values))
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.source.bytes()
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        self.tensors().iter().map(|t| t.elements() as u64).sum()
    }

    /// Name of the type that most parameters are stored in.
    pub fn quantization(&self) -> &'static str {
        let mut counts: HashMap<TensorType, usize> = HashMap::new();
        for tensor in self.tensors() {
            *counts.entry(tensor.ty).or_default() += tensor.elements();
        }
        let most = counts.into_iter().max_by_key(|&(ty, n)| (n, ty.name()));
        most.map_or("none", |(ty, _)| ty.name())
    }

    /// Identity of the weights: equal for two copies of one file. A hash over the metadata, the tensor
    /// directory, and the first, middle and last bytes of every tensor, so it reads little of a large file.
    /// It tells models apart; it is no proof against a forger.
    pub fn identity(&self) -> Result<String> {
        identity::of(&self.directory, &*self.source, self.source.bytes())
    }

    /// Reads the header: as much of the file as it turns out to need.
    fn read(source: Source) -> Result<Self> {
        let mut head = Vec::new();
        let mut wanted = FIRST_READ;
        loop {
            let known = head.len();
            head.resize(wanted.min(source.bytes()).min(MAX_HEADER) as usize, 0);
            source.read_at(known as u64, &mut head[known..])?;
            let mut cursor = Cursor::new(&head, source.bytes());
            match (gguf::parse(&mut cursor), cursor.wanted()) {
                (Err(_), Some(more)) if more <= MAX_HEADER => wanted = more.max(wanted * 2),
                (parsed, _) => {
                    let directory = parsed.map_err(|e| source.wrong(e))?;
                    return Ok(Self {
                        source: Arc::new(source),
                        directory,
                    });
                }
            }
        }
    }
}
