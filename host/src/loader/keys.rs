//! The C library's thread-specific keys that a library takes.
//!
//! Rust's standard library takes one for each image and never gives it back; there are 1,024 in a
//! process. A key whose destructor was unmapped also crashes the next thread that ends with a value. So
//! keys are noted as they are made, and an image's own are deleted before it is closed.

use super::interpose::Hidden;
use std::{
    ffi::{c_int, c_void},
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

const MOST: usize = 1024;
static REAL: Hidden = Hidden::new(c"pthread_key_create");
/// The address of each key's destructor; 0 where it has none.
static DESTRUCTORS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];

type Destructor = Option<unsafe extern "C" fn(*mut c_void)>;
type Create = unsafe extern "C" fn(*mut libc::pthread_key_t, Destructor) -> c_int;

/// Whether libraries call the function below.
pub(super) fn are_watched() -> bool {
    REAL.is_hidden_by(pthread_key_create as Create as *const ())
}

/// Deletes the keys whose destructor lies in an image. No thread may run the image's code any more.
pub(super) fn delete_those_of(image: &Range<usize>) {
    for (key, destructor) in DESTRUCTORS.iter().enumerate() {
        let address = destructor.load(Ordering::Acquire);
        let is_taken = image.contains(&address)
            && destructor
                .compare_exchange(address, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        // A key that the library has deleted itself is refused, which is as good.
        if is_taken {
            // SAFETY: only the image that is about to go knew this key.
            unsafe { libc::pthread_key_delete(key as libc::pthread_key_t) };
        }
    }
}

/// Hides the C library's function of this name, and notes the destructor.
///
/// # Safety
/// As the C library's own.
// SAFETY: keeps the contract of the function whose name it takes.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_key_create(key: *mut libc::pthread_key_t, destructor: Destructor) -> c_int {
    let real = REAL.address();
    if real.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: the C library's function of this name has this type.
    let real: Create = unsafe { std::mem::transmute(real) };
    // SAFETY: the caller's promise.
    let result = unsafe { real(key, destructor) };
    if result == 0 {
        // SAFETY: the call has just written the key.
        let key = unsafe { *key } as usize;
        if let Some(noted) = DESTRUCTORS.get(key) {
            noted.store(destructor.map_or(0, |d| d as usize), Ordering::Release);
        }
    }
    result
}
