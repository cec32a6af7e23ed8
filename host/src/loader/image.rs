//! A mapped library: opened from its staged copy, closed on request, and checked to be gone.

use super::{LoadError, checks, elf, error, keys, stage::Staged};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use met_backend_api::BackendModule_Ref;
use std::{ffi::c_void, fmt, io, mem::ManuallyDrop, ops::Range, path::Path};

/// What is left to think of where a library's file gives no reason to stay.
const THREAD_LOCAL: &str = "a thread that has not ended holds a thread-local of it that has a destructor";

/// A mapped library. Dropping it leaves it mapped: only [`Image::close`] unmaps.
pub(super) struct Image {
    library: ManuallyDrop<Library>,
    staged: ManuallyDrop<Staged>,
    /// Where it lies in memory.
    range: Range<usize>,
}

impl Image {
    /// Maps a copy of a file and links it, which runs its initialisers on this thread.
    pub(super) fn open(staged: Staged, file: &Path) -> Result<Self, LoadError> {
        // SAFETY: initialisers run; that a backend's are sound is what the operator vouches for by naming it.
        let library = unsafe { Library::open(Some(&staged.path), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| {
            let file = file.display().to_string();
            let copy = staged.path.display().to_string();
            let reason = error::with_causes(&e).replace(&copy, &file);
            LoadError::Unlinkable {
                reason: error::one_line(&reason, 300),
                file,
            }
        })?;
        Ok(Self {
            library: ManuallyDrop::new(library),
            staged: ManuallyDrop::new(staged),
            range: 0..0,
        })
    }

    /// Its root module, after every check. Runs the module's constructor on this thread.
    pub(super) fn root_module(&mut self, file: &Path) -> Result<BackendModule_Ref, LoadError> {
        let file = file.display().to_string();
        let header = checks::header(&self.library, &file)?;
        self.range = object_around(std::ptr::from_ref(header) as usize);
        checks::root_module(header, &file)
    }

    /// Unmaps it, which runs its finalisers on this thread. Gives the reason where it stays mapped.
    ///
    /// # Safety
    /// No thread runs its code or will, and nothing that points into it is used any more.
    pub(super) unsafe fn close(mut self) -> Result<(), String> {
        keys::delete_those_of(&self.range);
        // SAFETY: taken once, because `self` is consumed.
        let library = unsafe { ManuallyDrop::take(&mut self.library) };
        if let Err(e) = library.close() {
            return Err(error::with_causes(&e));
        }
        match is_mapped(&self.staged.unique_name) {
            Ok(false) => {}
            Ok(true) => {
                let of_file = elf::reason_to_stay(self.staged.copy());
                return Err(of_file.unwrap_or(THREAD_LOCAL).to_owned());
            }
            Err(e) => return Err(format!("it may be gone, but the memory map can't be read: {e}")),
        }
        // SAFETY: taken once. Only now may the copy's name be used again.
        drop(unsafe { ManuallyDrop::take(&mut self.staged) });
        Ok(())
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("name", &self.staged.unique_name)
            .finish()
    }
}

/// Whether code of this name stands in the process's memory map. Addresses prove nothing, for they are
/// used again; nor does a mapping without code: the standard library keeps some of files whose symbols it
/// has read for a backtrace.
fn is_mapped(unique_name: &str) -> io::Result<bool> {
    let is_code = |line: &str| line.split(' ').nth(1).is_some_and(|access| access.contains('x'));
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    Ok(maps
        .lines()
        .any(|line| is_code(line) && line.contains(unique_name)))
}

/// The extent of the loaded object that holds an address; empty where there is none.
fn object_around(address: usize) -> Range<usize> {
    struct Search {
        address: usize,
        found: Range<usize>,
    }

    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> i32 {
        // SAFETY: the linker gives a valid object; `search` is the struct of the call below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        // SAFETY: the linker's own table of `dlpi_phnum` headers.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let segments = headers.iter().filter(|h| h.p_type == libc::PT_LOAD).map(|h| {
            let begin = info.dlpi_addr as usize + h.p_vaddr as usize;
            begin..begin + h.p_memsz as usize
        });
        let object = segments.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        match object {
            Some(object) if object.contains(&search.address) => {
                search.found = object;
                1
            }
            _ => 0,
        }
    }

    let mut search = Search { address, found: 0..0 };
    // SAFETY: `look` is called before this returns, with the pointer given here.
    unsafe { libc::dl_iterate_phdr(Some(look), std::ptr::from_mut(&mut search).cast()) };
    search.found
}
