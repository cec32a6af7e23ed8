//! What every driver function does first: take the lock, count the call, and fail where a test asks for it.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::Driver;
use crate::code::Code;

thread_local! {
    /// Set while a function of the program runs in stream order; it may not call the driver.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Exports driver functions. The body sees the locked driver and gives `Ok` or the code to return.
macro_rules! api {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$driver:ident| $body:block)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As the CUDA driver API states for the function of this name: pointers are valid for what is
            /// read and written through them.
            // Names are the driver's; flags without a meaning here stay unused.
            #[allow(non_snake_case, unused_variables)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
                $crate::driver::with_driver(stringify!($name), |$driver| $body)
            }
        )*

        /// Name and address of each function here.
        pub(super) fn exported() -> Vec<(&'static str, *mut std::ffi::c_void)> {
            vec![$((stringify!($name), $name as *const () as *mut std::ffi::c_void)),*]
        }
    };
}

/// The driver, locked.
pub(crate) fn locked() -> MutexGuard<'static, Driver> {
    static DRIVER: OnceLock<Mutex<Driver>> = OnceLock::new();
    DRIVER
        .get_or_init(|| Mutex::new(Driver::new()))
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Runs the driver function `name`.
pub(crate) fn with_driver(name: &'static str, body: impl FnOnce(&mut Driver) -> Result<(), Code>) -> c_int {
    if IN_HOST_FUNCTION.get() {
        return Code::NOT_PERMITTED.0;
    }
    let mut driver = locked();
    let result = driver.begin(name).and_then(|()| body(&mut driver));
    match result {
        Ok(()) => 0,
        Err(code) => code.0,
    }
}

/// Runs a function of the program that may not call the driver.
pub(super) fn as_host_function(run: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    run();
    IN_HOST_FUNCTION.set(false);
}
