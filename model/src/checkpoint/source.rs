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

/// An error about a path.
pub(super) fn wrong_path(path: &Path, message: &str) -> Error {
    Error::invalid(format!("{}: {message}", path.display()))
}
