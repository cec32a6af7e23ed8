//! Nothing unwinds across the boundary.

use crate::abi::{Error, ErrorKind};
use abi_stable::std_types::RResult;
use std::{
    any::Any,
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
};

thread_local! {
    // Const and without a destructor: a thread-local that has one would pin the library.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is inside [`guard`].
pub(super) fn is_guarded() -> bool {
    DEPTH.get() > 0
}

/// Runs `f`; a panic becomes an error of kind `bug` that carries its message.
pub fn guard<T>(f: impl FnOnce() -> Result<T, Error>) -> RResult<T, Error> {
    DEPTH.set(DEPTH.get() + 1);
    let outcome = catch_unwind(AssertUnwindSafe(f));
    DEPTH.set(DEPTH.get() - 1);
    match outcome {
        Ok(result) => result.into(),
        Err(payload) => {
            let message = panic_message(&*payload);
            // A payload's own Drop may panic; what is leaked then is that payload.
            if let Err(second) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
                std::mem::forget(second);
            }
            RResult::RErr(Error::new(
                ErrorKind::Bug,
                format!("the backend panicked: {message}"),
            ))
        }
    }
}

pub(super) fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a payload that is not a text".to_owned())
}
