//! Standing between a library and the C library.
//!
//! The dynamic linker resolves a library's imports in the executable first. So a function that the
//! executable defines and exports under a C library's name is the one that every later-loaded library
//! calls. The linker of this program exports such a definition by itself, because the C library, a shared
//! library, defines the name too.

use std::{
    ffi::{CStr, c_void},
    sync::atomic::{AtomicPtr, Ordering},
};

/// A function of the C library that the executable hides. Looked up once.
pub(super) struct Hidden {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Hidden {
    /// The function called `name`.
    pub(super) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Its address; null where there is none.
    pub(super) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a lookup by a C string; "next" is after this executable.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }

    /// Whether libraries that are loaded from now on find `definition` under the name.
    pub(super) fn is_hidden_by(&self, definition: *const ()) -> bool {
        // SAFETY: as above; "default" is the order in which a library's imports are resolved.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.name.as_ptr()) };
        std::ptr::eq(found.cast(), definition)
    }
}
