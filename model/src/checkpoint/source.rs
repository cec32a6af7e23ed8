//! A checkpoint's bytes: a mapped file, or memory.

use crate::{Error, Result};
use memmap2::{Mmap, UncheckedAdvice};
use std::{
    fmt, fs,
    ops::Range,
    path::{Path, PathBuf},
};

/// Where a checkpoint's bytes are.
pub(super) enum Source {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Source {
    pub(super) fn map(path: &Path) -> Result<Self> {
        let failed = |e: std::io::Error| Error::invalid(format!("can't be opened: {e}"));
        // Before it is opened: opening a named pipe waits for a writer.
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(Error::invalid("not a regular file"));
        }
        let file = fs::File::open(path).map_err(failed)?;
        // SAFETY: the mapping is shared and read-only, and nothing here writes to the file. Whoever replaces
        // a model file must do it by renaming a new one over it: cutting a mapped file short raises SIGBUS
        // in every program that maps it.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Ok(Self::Mapped(map))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }

    /// Lets go of the pages that lie wholly within `range`.
    pub(super) fn forget(&self, range: Range<usize>) {
        let Self::Mapped(map) = self else {
            return;
        };
        let (start, end) = (range.start.next_multiple_of(PAGE), range.end / PAGE * PAGE);
        if start < end {
            // SAFETY: for a shared, file-backed, read-only mapping this only drops clean pages, which are
            // read from the file again when they are touched. A refusal leaves them resident: no harm.
            let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        }
    }
}

/// The largest page size in use: advice on its multiples is valid for the smaller ones, too.
const PAGE: usize = 64 << 10;

impl AsRef<[u8]> for Source {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({} bytes)", self.bytes().len())
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
