//! The driver that stands for a card's, in this process.

use libloading::Library;
use met_host::engine::LedgerItem;
use std::{
    collections::BTreeMap,
    ffi::{CString, c_char, c_int},
    path::{Path, PathBuf},
    process::Command,
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

/// The same without what only a debugger needs: nine tenths of the file, which each load copies. Where the tools of a C
/// compiler lack `strip`, as it is.
pub fn stripped(name: &str, folder: &Path) -> PathBuf {
    let (whole, stripped) = (library(name), folder.join(name));
    let made = Command::new("strip")
        .arg("-o")
        .arg(&stripped)
        .arg(&whole)
        .status();
    match made {
        Ok(status) if status.success() => stripped,
        _ => whole,
    }
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
        self.ask("met_sim_objects", "bytes")
    }

    /// What is alive.
    pub fn alive(&self) -> Holdings {
        self.holdings("met_sim_objects")
    }

    /// What was alive when contexts ended, since the last reset.
    pub fn left(&self) -> Holdings {
        self.holdings("met_sim_left")
    }

    /// Makes the `n`-th call of a function from now fail.
    pub fn fail(&self, function: &str, n: u64, code: Code) {
        let function = CString::new(function).expect("no zero byte");
        // SAFETY: the signature is that of the exported function; the text ends in a zero.
        let refused = unsafe {
            let fail = self
                .0
                .get::<unsafe extern "C" fn(*const c_char, u64, c_int) -> c_int>(b"met_sim_fail");
            fail.expect("exported")(function.as_ptr(), n, code as c_int)
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
        self.ask("met_sim_count", "*")
    }

    /// Calls since the last reset, by function.
    pub fn calls_by_function(&self) -> BTreeMap<String, u64> {
        let mut text = vec![0u8; 1 << 14];
        // SAFETY: the signature is that of the exported function; the text has this much room.
        let length = unsafe {
            let calls = self
                .0
                .get::<unsafe extern "C" fn(*mut c_char, usize) -> usize>(b"met_sim_calls");
            calls.expect("exported")(text.as_mut_ptr().cast(), text.len())
        };
        assert!(length < text.len(), "there is room for all");
        let text = str::from_utf8(&text[..length]).expect("names are ASCII");
        let line = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.parse().ok()?))
        };
        text.lines().filter_map(line).collect()
    }

    fn holdings(&self, function: &str) -> Holdings {
        let count = |kind: &str| self.ask(function, kind);
        Holdings {
            memory: count("bytes"),
            pinned: count("pinned_bytes"),
            streams: count("streams"),
            events: count("events"),
            graphs: count("graphs") + count("executables"),
            modules: count("modules"),
        }
    }

    /// What an exported function says of a name.
    fn ask(&self, function: &str, name: &str) -> u64 {
        let name = CString::new(name).expect("no zero byte");
        // SAFETY: all functions that are asked take a text that ends in a zero and give 64 bits.
        let count = unsafe {
            let function = self
                .0
                .get::<unsafe extern "C" fn(*const c_char) -> i64>(function.as_bytes());
            function.expect("exported")(name.as_ptr())
        };
        u64::try_from(count).expect("the simulator knows the name")
    }
}

/// Bytes of device memory and of pinned memory, and how many of the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    pub memory: u64,
    pub pinned: u64,
    pub streams: u64,
    pub events: u64,
    pub graphs: u64,
    pub modules: u64,
}

impl Holdings {
    /// Of entries of a ledger.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a LedgerItem>) -> Self {
        let mut all = Self::default();
        for LedgerItem { kind, bytes, .. } in entries {
            match kind.as_str() {
                "memory" => all.memory += bytes,
                "pinned" => all.pinned += bytes,
                "stream" => all.streams += 1,
                "event" => all.events += 1,
                "graph" => all.graphs += 1,
                "module" => all.modules += 1,
                other => panic!("{other} is nothing of a card's"),
            }
        }
        all
    }
}
