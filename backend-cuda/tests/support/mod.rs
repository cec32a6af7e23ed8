//! The driver that stands for a card's, and what it says of the resources that are alive.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod life;

use std::{
    ffi::{CString, c_char, c_int},
    sync::OnceLock,
};

/// The simulated driver, opened before anything looks for a real one.
pub struct Simulator(libloading::Library);

/// Opens it, once a process.
pub fn simulator() -> &'static Simulator {
    static SIMULATOR: OnceLock<Simulator> = OnceLock::new();
    SIMULATOR.get_or_init(|| {
        let program = std::env::current_exe().unwrap();
        let library = program.with_file_name("libmet_cuda_sim.so");
        // SAFETY: the library's initialisers do nothing.
        Simulator(unsafe { libloading::Library::new(library) }.unwrap())
    })
}

impl Simulator {
    /// Bytes and number of live allocations of device memory.
    pub fn live(&self) -> (u64, u64) {
        let (mut bytes, mut count) = (0, 0);
        // SAFETY: the signature is that of the exported function; the pointers are those of locals.
        unsafe {
            let live = self
                .0
                .get::<unsafe extern "C" fn(*mut u64, *mut u64)>(b"met_sim_live");
            live.unwrap()(&raw mut bytes, &raw mut count);
        }
        (bytes, count)
    }

    /// How many objects of a kind are alive.
    pub fn objects(&self, kind: &str) -> i64 {
        let kind = CString::new(kind).unwrap();
        // SAFETY: the signature is that of the exported function; the text ends in a zero.
        let count = unsafe {
            let objects = self
                .0
                .get::<unsafe extern "C" fn(*const c_char) -> i64>(b"met_sim_objects");
            objects.unwrap()(kind.as_ptr())
        };
        assert!(count >= 0, "the simulator doesn't know {kind:?}");
        count
    }

    /// Checks that nothing of any kind is alive.
    pub fn assert_empty(&self, what: &str) {
        assert_eq!(self.live(), (0, 0), "{what}: device memory");
        for kind in [
            "contexts",
            "streams",
            "events",
            "modules",
            "graphs",
            "executables",
            "pinned",
        ] {
            assert_eq!(self.objects(kind), 0, "{what}: {kind}");
        }
    }

    /// Makes the `n`-th call from now of any function fail with a driver's error code.
    pub fn fail(&self, n: u64, code: c_int) {
        self.fail_of("*", n, code);
    }

    /// Makes the `n`-th call from now of a function fail with a driver's error code.
    pub fn fail_of(&self, function: &str, n: u64, code: c_int) {
        let function = CString::new(function).unwrap();
        // SAFETY: the signature is that of the exported function; the text ends in a zero.
        let refused = unsafe {
            let fail = self
                .0
                .get::<unsafe extern "C" fn(*const c_char, u64, c_int) -> c_int>(b"met_sim_fail");
            fail.unwrap()(function.as_ptr(), n, code)
        };
        assert_eq!(refused, 0);
    }

    /// Forgets failures to come and counts.
    pub fn reset(&self) {
        // SAFETY: the signature is that of the exported function.
        unsafe { self.0.get::<unsafe extern "C" fn()>(b"met_sim_reset").unwrap()() }
    }

    /// Driver calls since the last reset.
    pub fn calls(&self) -> u64 {
        self.calls_of("*")
    }

    /// Calls of a function since the last reset.
    pub fn calls_of(&self, function: &str) -> u64 {
        let function = CString::new(function).unwrap();
        // SAFETY: the signature is that of the exported function; the text ends in a zero.
        unsafe {
            let count = self
                .0
                .get::<unsafe extern "C" fn(*const c_char) -> u64>(b"met_sim_count");
            count.unwrap()(function.as_ptr())
        }
    }

    /// A setting of the simulated card.
    pub fn set(&self, name: &str, value: u64) {
        let name = CString::new(name).unwrap();
        // SAFETY: the signature is that of the exported function; the text ends in a zero.
        let unknown = unsafe {
            let set = self
                .0
                .get::<unsafe extern "C" fn(*const c_char, u64) -> c_int>(b"met_sim_set");
            set.unwrap()(name.as_ptr(), value)
        };
        assert_eq!(unknown, 0);
    }

    /// What a kernel or a module's text did wrong last.
    pub fn last_error(&self) -> String {
        let mut text = vec![0u8; 4096];
        // SAFETY: the signature is that of the exported function; the text has this much room.
        let len = unsafe {
            let last_error = self
                .0
                .get::<unsafe extern "C" fn(*mut c_char, usize) -> usize>(b"met_sim_last_error");
            last_error.unwrap()(text.as_mut_ptr().cast(), text.len())
        };
        String::from_utf8_lossy(&text[..len.min(text.len() - 1)]).into_owned()
    }
}
