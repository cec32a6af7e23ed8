//! Checkpoints: metadata and tensors of a model file.
//!
//! Every length, offset, count and type of a file is checked before it is used. What is needed of it is read into
//! memory, never mapped: a file that is cut short, overwritten, renamed or removed meanwhile gives an error or the
//! bytes that it had when it was opened.

mod cursor;
mod find;
mod folder;
mod gguf;
mod identity;
mod metadata;
mod names;
mod parts;
pub(crate) mod pieces;
mod python;
mod safetensors;
mod source;
mod tensor;

pub use find::stored_bytes;
pub use metadata::{Array, FromMetadata, Metadata, Value};
pub use tensor::Tensor;

use crate::{Error, Result};
use find::Found;
pub(crate) use folder::Folder;
use met_kernels::{TensorType, WeightData, WeightSource};
use names::Names;
use source::Source;
use std::{collections::HashMap, path::Path, sync::Arc};
use tensor::Directory;

/// An opened checkpoint.
///
/// Tensors are asked for by GGUF's names, whatever the files call them.
#[derive(Debug)]
pub struct Checkpoint {
    parts: Vec<Part>,
    metadata: Metadata,
    directory: Directory,
    names: Names,
    folder: Option<Folder>,
}

/// One of a checkpoint's files.
#[derive(Debug)]
struct Part {
    source: Arc<Source>,
    /// Bytes before the tensors' data, without padding.
    header_bytes: usize,
}

impl Checkpoint {
    /// Opens a GGUF file (any part of a split one), a folder that holds exactly one, or a folder with `config.json` and
    /// safetensors.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        match find::find(path.as_ref())? {
            Found::Gguf(files) => {
                let sources = files.into_iter().map(Source::open);
                Self::from_gguf(sources.collect::<Result<_>>()?)
            }
            Found::Folder(path) => {
                let folder = Folder::open(&path)?;
                Ok(Self::from_folder(folder, folder::read(&path)?))
            }
        }
    }

    /// A GGUF file's contents that are in memory already.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::from_gguf(vec![Source::Memory(bytes)])
    }

    /// A folder's `config.json` and `model.safetensors` that are in memory already.
    pub fn from_folder_bytes(config: &[u8], weights: Vec<u8>) -> Result<Self> {
        let folder = Folder::from_bytes(config)?;
        Ok(Self::from_folder(
            folder,
            folder::read_files(vec![Source::Memory(weights)])?,
        ))
    }

    fn from_gguf(sources: Vec<Source>) -> Result<Self> {
        let (metadata, directory, parts) = parts::read(sources)?;
        Ok(Self {
            parts,
            metadata,
            directory,
            names: Names::Gguf,
            folder: None,
        })
    }

    fn from_folder(folder: Folder, (directory, parts): (Directory, Vec<Part>)) -> Self {
        Self {
            parts,
            metadata: Metadata::default(),
            directory,
            names: folder.names(),
            folder: Some(folder),
        }
    }

    /// GGUF's metadata; a folder has none.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Whether it is a folder with `config.json`, whose vocabulary is in files of its own.
    pub fn is_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// What a folder has instead of metadata.
    pub(crate) fn folder(&self) -> Option<&Folder> {
        self.folder.as_ref()
    }

    /// The tensors in the order of the files.
    pub fn tensors(&self) -> &[Tensor] {
        self.directory.tensors()
    }

    /// A tensor by GGUF's name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.directory.get(&self.stored_name(name))
    }

    /// What the files call a tensor, there or not.
    pub fn stored_name(&self, name: &str) -> String {
        self.names.of(name)
    }

    /// Whether a tensor of [`tensors`](Self::tensors) is none that a step needs.
    pub(crate) fn is_beside(&self, tensor: &Tensor) -> bool {
        self.names.is_beside(&tensor.name)
    }

    /// A tensor as a matrix of `shape[0]` columns, not yet read; `None` where there is no such tensor.
    pub fn weight(&self, name: &str) -> Option<WeightSource> {
        let tensor = self.tensor(name)?;
        let cols = *tensor.shape.first()?;
        let source = self.parts.get(tensor.file)?.source.clone();
        Some(WeightSource {
            name: tensor.name.clone(),
            ty: tensor.ty,
            rows: tensor.elements() / cols,
            cols,
            data: WeightData::new(source, tensor.range.clone()),
        })
    }

    /// The values of a tensor of shape `[len]` of any type; `None` where there is no such tensor.
    pub fn floats(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        let (Some(tensor), Some(source)) = (self.tensor(name), self.weight(name)) else {
            return Ok(None);
        };
        if tensor.shape != [len] {
            return Err(Error::invalid(format!(
                "tensor `{}` has shape {:?}, but the metadata asks for [{len}]",
                tensor.name, tensor.shape
            )));
        }
        let (mut bytes, mut values) = (vec![0; source.data.len()], vec![0.0; len]);
        source.read(0, &mut bytes)?;
        met_kernels::formats::dequantize(tensor.ty, &bytes, &mut values)?;
        Ok(Some(values))
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.source.bytes()).sum()
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

    /// Identity of the weights: equal for two copies of one checkpoint. A hash over the metadata, the tensor
    /// directory, and the first, middle and last bytes of every tensor, so it reads little of a large file.
    /// It tells models apart; it is no proof against a forger.
    pub fn identity(&self) -> Result<String> {
        identity::of(self)
    }
}
