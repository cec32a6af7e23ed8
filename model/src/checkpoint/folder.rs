//! A folder of Hugging Face: `config.json` and safetensors, in one file or in shards that an index lists.

use super::{
    Part,
    find::MAX_FILES,
    names::{Names, Style},
    python, safetensors,
    source::{Source, wrong_path},
    tensor::Directory,
};
use crate::{Error, Result};
use met_kernels::ReadAt;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value as Json};
use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

/// The largest `config.json` that is read.
const MAX_CONFIG: u64 = 1 << 20;
/// The largest index that is read: ten times those of the models with most tensors.
const MAX_INDEX: u64 = 64 << 20;

const CONFIG: &str = "config.json";
const ONE_FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// What a folder says besides its tensors.
#[derive(Debug)]
pub(crate) struct Folder {
    /// A name for people.
    pub(crate) name: String,
    /// `config.json`.
    pub(crate) config: Map<String, Json>,
    /// What errors of the configuration begin with.
    origin: String,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

impl Folder {
    /// Reads the configuration.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = path.join(CONFIG);
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let name = absolute.file_name().map(|name| name.to_string_lossy());
        Ok(Self {
            name: name.unwrap_or_default().into_owned(),
            origin: file.display().to_string(),
            config: read_json(Source::open(file)?, MAX_CONFIG)?,
        })
    }

    /// A configuration that is in memory already.
    pub(super) fn from_bytes(config: &[u8]) -> Result<Self> {
        Ok(Self {
            name: "unnamed".to_owned(),
            origin: CONFIG.to_owned(),
            config: read_json(Source::Memory(config.to_owned()), MAX_CONFIG)?,
        })
    }

    /// An error of the configuration, with the file's name.
    pub(crate) fn wrong(&self, error: Error) -> Error {
        Error::new(error.kind, format!("{}: {}", self.origin, error.message))
    }

    pub(super) fn names(&self) -> Names {
        let kind = self.config.get("model_type").and_then(Json::as_str);
        Names::HuggingFace(Style::of(kind.unwrap_or_default()))
    }
}

/// Reads the headers of a folder's files.
pub(super) fn read(path: &Path) -> Result<(Directory, Vec<Part>)> {
    if path.join(ONE_FILE).is_file() {
        return read_files(vec![Source::open(path.join(ONE_FILE))?]);
    }
    if !path.join(INDEX).is_file() {
        return Err(wrong_path(
            path,
            &format!("the folder holds neither {ONE_FILE} nor {INDEX}"),
        ));
    }
    let index = Source::open(path.join(INDEX))?;
    let wrong = |message: String| Err(wrong_path(&path.join(INDEX), &message));
    let Index { weight_map } = read_json(index, MAX_INDEX)?;
    let names: BTreeSet<&str> = weight_map.values().map(String::as_str).collect();
    if names.is_empty() || names.len() > MAX_FILES {
        return wrong(format!(
            "`weight_map` names {} files, but 1 to {MAX_FILES} are allowed",
            names.len()
        ));
    }
    if let Some(name) = names.iter().find(|name| !is_plain(name)) {
        return wrong(format!(
            "`weight_map` names the file {name:?}, which is not one of the folder"
        ));
    }
    let sources = names.iter().map(|name| Source::open(path.join(name)));
    let (directory, parts) = read_files(sources.collect::<Result<_>>()?)?;
    let names: Vec<_> = names.into_iter().collect();
    for tensor in directory.tensors() {
        let listed = weight_map.get(&tensor.name).map(String::as_str);
        if listed != Some(names[tensor.file]) {
            return wrong(format!(
                "`weight_map` doesn't say that tensor `{}` is in {}, where it is",
                tensor.name, names[tensor.file]
            ));
        }
    }
    match weight_map
        .iter()
        .find(|(tensor, _)| directory.get(tensor).is_none())
    {
        Some((tensor, file)) => wrong(format!(
            "`weight_map` says that tensor `{tensor}` is in {file}, which has none of this name"
        )),
        None => Ok((directory, parts)),
    }
}

/// Reads the headers of safetensors files.
pub(super) fn read_files(sources: Vec<Source>) -> Result<(Directory, Vec<Part>)> {
    let (mut directory, mut parts) = (Directory::default(), Vec::new());
    for (index, source) in sources.into_iter().enumerate() {
        let (mut tensors, header_bytes) = safetensors::read(&source).map_err(|e| source.wrong(e))?;
        tensors.iter_mut().for_each(|tensor| tensor.file = index);
        directory.add(tensors).map_err(|e| source.wrong(e))?;
        parts.push(Part {
            source: Arc::new(source),
            header_bytes,
        });
    }
    Ok((directory, parts))
}

/// Whether it names a file and no way out of the folder.
fn is_plain(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|file| file == name)
}

fn read_json<T: DeserializeOwned>(source: Source, most: u64) -> Result<T> {
    let bytes = source.bytes();
    if bytes > most {
        return Err(source.wrong(Error::invalid(format!(
            "it has {bytes} bytes, but at most {most} are allowed"
        ))));
    }
    let mut text = vec![0; bytes as usize];
    source.read_at(0, &mut text)?;
    let wrong = |e: &dyn std::fmt::Display| source.wrong(Error::invalid(e.to_string()));
    let text = String::from_utf8(text).map_err(|e| wrong(&e))?;
    serde_json::from_str(&python::to_json(&text)).map_err(|e| wrong(&e))
}
