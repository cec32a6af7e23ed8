//! The driver that stands for a card's, in this process.

use libloading::Library;
use std::{
    ffi::{CStr, c_char, c_int},
    path::PathBuf,
    sync::OnceLock,
};

/// The simulated driver. Whoever looks for `libcuda.so.1` after it was opened gets it.
pub struct Simulator(Library);

/// Opens it, once a process.
pub fn simulator() -> &'static Simulator {
    static SIMULATOR: OnceLock<Simulator> = OnceLock::new();
    SIMULATOR.get_or_init(|| {
        // SAFETY: the library's initialisers do nothing.
        Simulator(unsafe { Library::new(library("libmet_cuda_sim.so")) }.expect("the simulator opens"))
    })
}

/// A library that cargo has put beside this program.
pub fn library(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("a program has a path");
    program.with_file_name(name)
}

/// What a failed call leaves: nothing, no memory, or a context that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidValue = 1,
    OutOfMemory = 2,
    LaunchFailed = 719,
}

impl Simulator {
    /// Bytes of device memory that the program holds.
    pub fn live_bytes(&self) -> u64 {
        let (mut bytes, mut count) = (0, 0);
        // SAFETY: the signature is that of the exported function; the pointers are those of locals.
        unsafe {
            let live = self
                .0
                .get::<unsafe extern "C" fn(*mut u64, *mut u64)>(b"met_sim_live");
            live.expect("exported")(&raw mut bytes, &raw mut count);
        }
        bytes
    }

    /// Every kind of which something is alive, with how much.
    pub fn alive(&self) -> Vec<(&'static CStr, i64)> {
        let kinds = [
            c"contexts",
            c"streams",
            c"events",
            c"modules",
            c"graphs",
            c"executables",
            c"pinned",
        ];
        let memory = self.live_bytes().cast_signed();
        let counts = kinds.map(|kind| (kind, self.objects(kind)));
        let all = counts.into_iter().chain([(c"bytes", memory)]);
        all.filter(|(_, count)| *count != 0).collect()
    }

    /// Makes the `n`-th call from now, of any function, fail.
    pub fn fail(&self, n: u64, code: Code) {
        // SAFETY: the signature is that of the exported function; the text ends in a zero.
        let refused = unsafe {
            let fail = self
                .0
                .get::<unsafe extern "C" fn(*const c_char, u64, c_int) -> c_int>(b"met_sim_fail");
            fail.expect("exported")(c"*".as_ptr(), n, code as c_int)
        };
        assert_eq!(refused, 0, "the simulator takes the order");
    }

    /// Whether a failure that was asked for has not struck.
    pub fn is_armed(&self) -> bool {
        // SAFETY: the signature is that of the exported function.
        unsafe {
            let pending = self
                .0
                .get::<unsafe extern "C" fn() -> u64>(b"met_sim_pending_failures");
            pending.expect("exported")() > 0
        }
    }

    /// Forgets failures to come, and counts anew.
    pub fn reset(&self) {
        // SAFETY: the signature is that of the exported function.
        unsafe {
            self.0
                .get::<unsafe extern "C" fn()>(b"met_sim_reset")
                .expect("exported")()
        }
    }

    /// Calls since the last reset.
    pub fn calls(&self) -> u64 {
        // SAFETY: the signature is that of the exported function; the text ends in a zero.
        unsafe {
            let count = self
                .0
                .get::<unsafe extern "C" fn(*const c_char) -> u64>(b"met_sim_count");
            count.expect("exported")(c"*".as_ptr())
        }
    }

    fn objects(&self, kind: &CStr) -> i64 {
        // SAFETY: the signature is that of the exported function; the text ends in a zero.
        unsafe {
            let objects = self
                .0
                .get::<unsafe extern "C" fn(*const c_char) -> i64>(b"met_sim_objects");
            objects.expect("exported")(kind.as_ptr())
        }
    }
}
