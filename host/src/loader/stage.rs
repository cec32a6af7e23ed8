//! A private, sealed copy of a library file.
//!
//! The dynamic linker maps a file in place: whoever overwrites it crashes the process, and whoever asks
//! for the same path again gets the old image. So what is opened is a copy in memory that nobody can
//! change, under a name that is used once.

use super::{LoadError, elf};
use std::{
    ffi::CString,
    fs::{self, File, Metadata},
    io::{self, Read},
    os::fd::{AsRawFd, FromRawFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Where set, the copy is a file in this folder, so that debuggers and profilers find its symbols.
const FOLDER_VARIABLE: &str = "MET_STAGE_DIR";
/// No backend is larger than this.
const LARGEST: u64 = 8 << 30;
/// Accepted under every `vm.memfd_noexec` policy; it keeps `execve` off the copy, not the linker's map.
const MFD_NOEXEC_SEAL: libc::c_uint = 8;
/// How long the kernel may hold a page of the copy, as it does while it reclaims or moves memory: until then the copy
/// can't be sealed.
const HELD: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// A copy. It must be kept while the image is mapped: the linker knows images by file name, and the name
/// holds a descriptor number that would be given out again.
pub(super) struct Staged {
    /// What the dynamic linker opens.
    pub(super) path: PathBuf,
    /// What stands in `/proc/self/maps` while it is mapped, and never stood there before.
    pub(super) unique_name: String,
    copy: File,
    is_on_disk: bool,
}

impl Staged {
    /// Copies `file`.
    pub(super) fn copy_of(file: &Path) -> Result<Self, LoadError> {
        let unreadable = |e: io::Error| LoadError::Unreadable {
            file: file.display().to_string(),
            reason: e.to_string(),
        };
        let source = Source::open(file).map_err(unreadable)?;
        let unique_name = unique_name(file);
        let folder = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
        let staged = match &folder {
            Some(folder) => Self::on_disk(&source.file, Path::new(folder), unique_name),
            None => Self::in_memory(&source.file, unique_name),
        };
        let staged = staged.map_err(|e| LoadError::NotCopied {
            file: file.display().to_string(),
            to: folder.map_or_else(
                || "memory".to_owned(),
                |f| format!("{FOLDER_VARIABLE}={}", f.display()),
            ),
            reason: e.to_string(),
        })?;
        source.check_unchanged().map_err(unreadable)?;
        elf::check(&staged.copy).map_err(|reason| LoadError::NotALibrary {
            file: file.display().to_string(),
            reason,
        })?;
        Ok(staged)
    }

    /// The copy.
    pub(super) fn copy(&self) -> &File {
        &self.copy
    }

    fn in_memory(source: &File, unique_name: String) -> io::Result<Self> {
        let mut copy = create_memfd(&unique_name)?;
        io::copy(&mut source.take(LARGEST), &mut copy)?;
        seal(&copy)?;
        // The process id and not "self": a debugger opens the name from its own process.
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), copy.as_raw_fd()));
        Ok(Self {
            path,
            unique_name,
            copy,
            is_on_disk: false,
        })
    }

    fn on_disk(source: &File, folder: &Path, unique_name: String) -> io::Result<Self> {
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = folder.canonicalize()?.join(&unique_name);
        let mut copy = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o500)
            .open(&path)?;
        io::copy(&mut source.take(LARGEST), &mut copy)?;
        Ok(Self {
            path,
            unique_name,
            copy,
            is_on_disk: true,
        })
    }
}

/// A file to copy, and the size and time that it had when it was opened.
struct Source {
    file: File,
    state: (u64, Option<SystemTime>),
}

impl Source {
    fn open(file: &Path) -> io::Result<Self> {
        let check = |metadata: &Metadata| match metadata.is_file() && metadata.len() <= LARGEST {
            true => Ok(()),
            false => Err(io::Error::other("not a regular file of a sensible size")),
        };
        // Before it is opened: opening a named pipe waits for a writer.
        check(&fs::metadata(file)?)?;
        let file = File::open(file)?;
        let metadata = file.metadata()?;
        check(&metadata)?;
        Ok(Self {
            file,
            state: state(&metadata),
        })
    }

    /// A copy of a file that was written to meanwhile may be of neither content.
    fn check_unchanged(&self) -> io::Result<()> {
        match state(&self.file.metadata()?) == self.state {
            true => Ok(()),
            false => Err(io::Error::other(
                "it was changed while it was being copied, load it again when it is complete",
            )),
        }
    }
}

fn state(metadata: &Metadata) -> (u64, Option<SystemTime>) {
    (metadata.len(), metadata.modified().ok())
}

impl Drop for Staged {
    fn drop(&mut self) {
        if self.is_on_disk
            && let Err(e) = fs::remove_file(&self.path)
        {
            tracing::warn!("{} is left over, remove it: {e}", self.path.display());
        }
    }
}

fn unique_name(file: &Path) -> String {
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    // Names of memory files are limited to 249 bytes; what else is not plain would be escaped in `maps`.
    let stem: String = stem
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .take(64)
        .collect();
    format!("met-{stem}-{}-{serial}-.so", std::process::id())
}

fn create_memfd(name: &str) -> io::Result<File> {
    let name = CString::new(name)?;
    let create = |flags| {
        // SAFETY: `name` is a C string that lives through the call.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(unsafe { File::from_raw_fd(fd) })
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Kernels before 6.3 don't know the flag.
    create(flags | MFD_NOEXEC_SEAL).or_else(|_| create(flags))
}

fn seal(copy: &File) -> io::Result<()> {
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    let began = Instant::now();
    loop {
        // SAFETY: a plain call on a descriptor that we own.
        if unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_ADD_SEALS, seals) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::ResourceBusy || began.elapsed() >= HELD {
            return Err(error);
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn library() -> Vec<u8> {
        // Any sound shared object will do; this program is one.
        fs::read("/proc/self/exe").unwrap()
    }

    fn file(content: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn a_copy_cannot_be_changed_and_names_are_used_once() {
        let mut file = file(&library());
        let one = Staged::copy_of(file.path()).unwrap();
        let two = Staged::copy_of(file.path()).unwrap();
        assert_ne!(one.unique_name, two.unique_name);
        file.write_all(b" and more").unwrap();
        assert_eq!(fs::read(&one.path).unwrap(), library());
        let error = (&one.copy).write(b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_copy_is_sealed_once_nobody_holds_a_page_of_it() {
        let mut copy = create_memfd("held").unwrap();
        copy.write_all(&[7; 4096]).unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let (copy_fd, pipe_fd) = (copy.as_raw_fd(), writer.as_raw_fd());
        let mut offset = 0;
        // SAFETY: both descriptors are ours, and `offset` lives through the call. The page is in the pipe now.
        let moved = unsafe { libc::splice(copy_fd, &mut offset, pipe_fd, std::ptr::null_mut(), 4096, 0) };
        assert_eq!(moved, 4096);
        let reader = thread::spawn(move || {
            // Longer than the kernel itself waits.
            thread::sleep(Duration::from_millis(500));
            reader.read_exact(&mut [0; 4096]).unwrap();
        });
        seal(&copy).unwrap();
        reader.join().unwrap();
        assert!(copy.write(b"x").is_err());
    }

    #[test]
    fn a_copy_on_disk_is_private_and_goes_with_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("stage");
        let source = File::open("/proc/self/exe").unwrap();
        let staged = Staged::on_disk(&source, &folder, unique_name(Path::new("libx.so"))).unwrap();
        assert_eq!(fs::read(&staged.path).unwrap(), library());
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        drop(staged);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_written_to_while_it_is_copied_is_refused() {
        let mut file = file(&library());
        let source = Source::open(file.path()).unwrap();
        source.check_unchanged().unwrap();
        file.write_all(b" and more").unwrap();
        assert!(source.check_unchanged().is_err());
    }

    #[test]
    fn what_is_no_whole_library_is_refused_by_name() {
        let whole = library();
        let (script, stub, cut) = (
            file(b"#!/bin/sh"),
            file(&whole[..64]),
            file(&whole[..whole.len() / 2]),
        );
        let mut moved = whole.clone();
        // The first program header's offset in the file.
        moved[64 + 8..64 + 16].copy_from_slice(&u64::MAX.to_le_bytes());
        let moved = file(&moved);
        let mut foreign = whole.clone();
        // The processor: SPARC.
        foreign[18..20].copy_from_slice(&2_u16.to_le_bytes());
        let foreign = file(&foreign);
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let name = CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: `name` is a C string that lives through the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for (path, what) in [
            (script.path(), "not a shared library"),
            (stub.path(), "not a shared library"),
            (cut.path(), "not a shared library"),
            (moved.path(), "it is cut off"),
            (foreign.path(), "it is built for another processor"),
            (Path::new("/"), "not a regular file"),
            (&pipe, "not a regular file"),
            (Path::new("/no/such.so"), "No such file"),
        ] {
            let error = Staged::copy_of(path).err().unwrap().to_string();
            assert!(error.starts_with(&path.display().to_string()), "{error}");
            assert!(error.contains(what), "{error}");
        }
    }
}
