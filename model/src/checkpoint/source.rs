//! A checkpoint's bytes: a file that is read where it is asked for, or memory.

use crate::{Error, Result};
use met_kernels::ReadAt;
use std::{
    fmt,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Where a checkpoint's bytes are.
pub(super) enum Source {
    Opened { file: File, path: PathBuf, state: State },
    Memory(Vec<u8>),
}

/// What tells that a file was written to. Its name and its links may change: what is open stays the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Source {
    /// Errors name the file, here and later.
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let open = || -> io::Result<_> {
            // Before it is opened: opening a named pipe waits for a writer.
            check_regular(&fs::metadata(&path)?)?;
            let file = File::open(&path)?;
            let metadata = file.metadata()?;
            check_regular(&metadata)?;
            Ok((State::of(&metadata), file))
        };
        match open() {
            Ok((state, file)) => Ok(Self::Opened { file, path, state }),
            Err(error) => Err(Error::invalid(format!(
                "{}: can't be opened: {error}",
                path.display()
            ))),
        }
    }

    /// Its size.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Opened { state, .. } => state.bytes,
            Self::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// An error of its contents, with the file's name.
    pub(super) fn wrong(&self, error: Error) -> Error {
        match self {
            Self::Opened { path, .. } => {
                Error::new(error.kind, format!("{}: {}", path.display(), error.message))
            }
            Self::Memory(_) => error,
        }
    }
}

impl State {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
        }
    }
}

impl ReadAt for Source {
    /// Bytes of the file as it was when it was opened: where it was written to since, that is an error.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let (file, state) = match self {
            Self::Opened { file, state, .. } => (file, state),
            Self::Memory(bytes) => return bytes.read_at(offset, out),
        };
        let read = file.read_exact_at(out, offset);
        // Afterwards: whoever writes changes the time first.
        let now = file.metadata().map(|metadata| State::of(&metadata));
        let failed = |message: String| Err(self.wrong(Error::invalid(message)));
        match (read, now) {
            (_, Ok(now)) if now != *state => failed(format!(
                "the file was changed while it was being loaded ({} bytes when it was opened, {} now); load it again when it is complete",
                state.bytes, now.bytes
            )),
            (Err(error), _) | (_, Err(error)) => {
                failed(format!("{} bytes at {offset} can't be read: {error}", out.len()))
            }
            (Ok(()), Ok(_)) => Ok(()),
        }
    }
}

fn check_regular(metadata: &fs::Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::other("not a regular file")),
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({} bytes)", self.bytes())
    }
}

/// The file that `path` names: itself, or the one GGUF file in the folder.
pub(super) fn find_file(path: &Path) -> Result<PathBuf> {
    let fail = |message: String| Error::invalid(format!("{}: {message}", path.display()));
    if !path.is_dir() {
        return if has_extension(path, "safetensors") {
            Err(fail(
                "safetensors checkpoints are not supported; use a GGUF file".to_owned(),
            ))
        } else {
            Ok(path.to_owned())
        };
    }
    let entries = fs::read_dir(path)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .map_err(|e| fail(format!("can't be read: {e}")))?;
    let files: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    let mut found: Vec<_> = files.iter().filter(|file| has_extension(file, "gguf")).collect();
    found.sort();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] if files.iter().any(|file| has_extension(file, "safetensors")) => Err(fail(
            "the folder holds safetensors, which are not supported; use a GGUF file".to_owned(),
        )),
        [] => Err(fail("the folder holds no .gguf file".to_owned())),
        several => {
            let names: Vec<_> = several
                .iter()
                .filter_map(|file| file.file_name())
                .map(|name| name.to_string_lossy())
                .collect();
            Err(fail(format!(
                "the folder holds several .gguf files; name one of {}",
                names.join(", ")
            )))
        }
    }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension()
        .is_some_and(|e| e.eq_ignore_ascii_case(extension))
}
