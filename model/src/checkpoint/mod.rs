//! Checkpoints: metadata and tensors of a model file.
//!
//! A file is mapped, and every length, offset, count and type in it is checked before it is used. The
//! metadata is then copied, so that only tensor data is read from the mapping.

mod cursor;
mod gguf;
mod identity;
mod metadata;
mod source;

pub use gguf::Tensor;
pub use metadata::{Array, FromMetadata, Metadata, Value};

use crate::{Error, Result};
use gguf::Directory;
use met_kernels::{SharedBytes, TensorType, WeightSource};
use source::Source;
use std::{collections::HashMap, path::Path, sync::Arc};

/// An opened checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    source: Arc<Source>,
    directory: Directory,
}

impl Checkpoint {
    /// Opens a GGUF file, or a folder that holds exactly one.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = source::find_file(path.as_ref())?;
        Source::map(&path)
            .and_then(Self::parse)
            .map_err(|e| Error::new(e.kind, format!("{}: {}", path.display(), e.message)))
    }

    /// A GGUF file's contents that are in memory already.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::parse(Source::Owned(bytes))
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

    /// A tensor as a matrix of `shape[0]` columns; `None` where there is no such tensor.
    pub fn weight(&self, name: &str) -> Option<WeightSource> {
        let tensor = self.tensor(name)?;
        let cols = *tensor.shape.first()?;
        Some(WeightSource {
            name: tensor.name.clone(),
            ty: tensor.ty,
            rows: tensor.elements() / cols,
            cols,
            data: SharedBytes::new(self.source.clone(), tensor.range.clone())?,
        })
    }

    /// The values of a tensor of shape `[len]` of any type; `None` where there is no such tensor.
    pub fn floats(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.tensor(name) else {
            return Ok(None);
        };
        if tensor.shape != [len] {
            return Err(Error::invalid(format!(
                "tensor `{name}` has shape {:?}, but the metadata asks for [{len}]",
                tensor.shape
            )));
        }
        let mut values = vec![0.0; len];
        let bytes = self.source.bytes().get(tensor.range.clone()).unwrap_or_default();
        met_kernels::formats::dequantize(tensor.ty, bytes, &mut values)?;
        Ok(Some(values))
    }

    /// Tells the system that a tensor's mapped pages aren't needed soon. Reading them later is still right.
    pub fn forget(&self, name: &str) {
        if let Some(tensor) = self.tensor(name) {
            self.source.forget(tensor.range.clone());
        }
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.source.bytes().len() as u64
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
    pub fn identity(&self) -> String {
        identity::of(&self.directory, self.source.bytes())
    }

    fn parse(source: Source) -> Result<Self> {
        let directory = gguf::parse(source.bytes())?;
        Ok(Self {
            source: Arc::new(source),
            directory,
        })
    }
}
