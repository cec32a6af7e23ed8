//! The driver that stands for a card's, and what it says of the resources that are alive.

use libloading::Library;
use std::{
    collections::BTreeMap,
    ffi::{CString, c_char, c_int},
    sync::OnceLock,
};

/// The simulated driver. Whoever looks for `libcuda.so.1` after it was opened gets it.
pub struct Simulator(Library);

/// Opens it, once a process.
pub fn simulator() -> &'static Simulator {
    static SIMULATOR: OnceLock<Simulator> = OnceLock::new();
    SIMULATOR.get_or_init(|| {
        let program = std::env::current_exe().expect("a program has a path");
        let library = program.with_file_name("libmet_cuda_sim.so");
        // SAFETY: the library's initialisers do nothing.
        Simulator(unsafe { Library::new(library) }.expect("the simulator opens"))
    })
}

/// What a program holds of a card: bytes of memory and of pinned memory, and how many of the rest. A context that has ended
/// is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    pub memory: u64,
    pub pinned: u64,
    pub streams: u64,
    pub events: u64,
    pub graphs: u64,
    pub modules: u64,
    pub pools: u64,
    pub contexts: u64,
}

impl Holdings {
    /// By the entries of a ledger: each one's kind and bytes.
    pub fn of<'a>(entries: impl IntoIterator<Item = (&'a str, u64)>) -> Self {
        let mut all = Self::default();
        for (kind, bytes) in entries {
            match kind {
                "memory" => all.memory += bytes,
                "pinned" => all.pinned += bytes,
                "stream" => all.streams += 1,
                "event" => all.events += 1,
                "graph" => all.graphs += 1,
                "module" => all.modules += 1,
                "pool" => all.pools += 1,
                "context" => all.contexts += 1,
                other => panic!("a {other} is nothing of a card's"),
            }
        }
        all
    }

    /// Without the context itself, which goes with its backend.
    pub fn in_the_context(self) -> Self {
        Self { contexts: 0, ..self }
    }
}

impl Simulator {
    /// Bytes and number of live allocations of device memory.
    pub fn live(&self) -> (u64, u64) {
        (
            self.ask("met_sim_objects", "bytes"),
            self.ask("met_sim_objects", "allocations"),
        )
    }

    /// How many objects of a kind are alive.
    pub fn objects(&self, kind: &str) -> u64 {
        self.ask("met_sim_objects", kind)
    }

    /// What is alive.
    pub fn alive(&self) -> Holdings {
        Holdings {
            contexts: self.objects("contexts"),
            ..self.holdings("met_sim_objects")
        }
    }

    /// What was alive when contexts ended, all together since the last reset.
    pub fn left(&self) -> Holdings {
        self.holdings("met_sim_left")
    }

    /// Checks that there is no context, and that nothing was alive when any ended since the last reset.
    pub fn assert_empty(&self, what: &str) {
        assert_eq!(self.objects("contexts"), 0, "{what}: contexts");
        assert_eq!(self.left(), Holdings::default(), "{what}: at the context's end");
    }

    /// Makes the `n`-th call from now of any function fail with a driver's error code.
    pub fn fail(&self, n: u64, code: c_int) {
        self.fail_of("*", n, code);
    }

    /// Makes the `n`-th call from now of a function fail with a driver's error code.
    pub fn fail_of(&self, function: &str, n: u64, code: c_int) {
        let function = CString::new(function).expect("no zero byte");
        // SAFETY: the signature is that of the exported function; the text ends in a zero.
        let refused = unsafe {
            let fail = self
                .0
                .get::<unsafe extern "C" fn(*const c_char, u64, c_int) -> c_int>(b"met_sim_fail");
            fail.expect("exported")(function.as_ptr(), n, code)
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

    /// Forgets failures to come, counts, and what contexts left.
    pub fn reset(&self) {
        // SAFETY: the signature is that of the exported function.
        unsafe {
            self.0
                .get::<unsafe extern "C" fn()>(b"met_sim_reset")
                .expect("exported")()
        }
    }

    /// Driver calls since the last reset.
    pub fn calls(&self) -> u64 {
        self.calls_of("*")
    }

    /// Calls of a function since the last reset.
    pub fn calls_of(&self, function: &str) -> u64 {
        self.ask("met_sim_count", function)
    }

    /// Calls since the last reset, by function.
    pub fn calls_by_function(&self) -> BTreeMap<String, u64> {
        let text = self.text("met_sim_calls");
        let line = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.parse().ok()?))
        };
        text.lines().filter_map(line).collect()
    }

    /// A setting of the simulated card.
    pub fn set(&self, name: &str, value: u64) {
        let name = CString::new(name).expect("no zero byte");
        // SAFETY: the signature is that of the exported function; the text ends in a zero.
        let unknown = unsafe {
            let set = self
                .0
                .get::<unsafe extern "C" fn(*const c_char, u64) -> c_int>(b"met_sim_set");
            set.expect("exported")(name.as_ptr(), value)
        };
        assert_eq!(unknown, 0, "the simulator knows the setting");
    }

    /// What a kernel or a module's text did wrong last.
    pub fn last_error(&self) -> String {
        self.text("met_sim_last_error")
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
            pools: count("pools"),
            contexts: 0,
        }
    }

    /// What an exported function says of a name.
    fn ask(&self, function: &str, name: &str) -> u64 {
        let name = CString::new(name).expect("no zero byte");
        // SAFETY: each function that is asked takes a text that ends in a zero and gives 64 bits.
        let count = unsafe {
            let function = self
                .0
                .get::<unsafe extern "C" fn(*const c_char) -> i64>(function.as_bytes());
            function.expect("exported")(name.as_ptr())
        };
        u64::try_from(count).expect("the simulator knows the name")
    }

    /// The text that an exported function writes.
    fn text(&self, function: &str) -> String {
        let mut text = vec![0u8; 1 << 14];
        // SAFETY: each of these functions takes a place for a text and its size; the text has this much room.
        let length = unsafe {
            let function = self
                .0
                .get::<unsafe extern "C" fn(*mut c_char, usize) -> usize>(function.as_bytes());
            function.expect("exported")(text.as_mut_ptr().cast(), text.len())
        };
        assert!(length < text.len(), "there is room for the whole text");
        String::from_utf8_lossy(&text[..length]).into_owned()
    }
}
