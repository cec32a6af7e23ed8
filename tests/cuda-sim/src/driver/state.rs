//! The driver's state.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::capture::Capture;
use super::event::Event;
use super::fault::Failure;
use super::memory::{Owned, Owner};
use super::module::{Function, Module};
use super::pool::Pool;
use super::queue::Op;
use super::settings::Settings;
use super::stream::Stream;
use crate::arena::Arena;
use crate::code::Code;

/// Bytes that a context itself takes of the device's memory.
pub(super) const CONTEXT_BYTES: u64 = 16 << 20;

/// Kinds of what a program makes in a context and is to give back.
const MADE_BY_PROGRAMS: [&str; 10] = [
    "allocations",
    "bytes",
    "streams",
    "events",
    "modules",
    "graphs",
    "executables",
    "pinned",
    "pinned_bytes",
    "pools",
];

/// Everything that the driver knows.
pub(crate) struct Driver {
    pub(crate) settings: Settings,
    pub(super) initialised: bool,
    /// The device's primary context while it is retained.
    pub(super) context: Option<Context>,
    pub(crate) failures: Vec<Failure>,
    /// Calls so far, by function.
    pub(crate) calls: BTreeMap<&'static str, u64>,
    /// The last error that a kernel or a module's text made.
    pub(crate) last_error: String,
    /// Warp instructions that kernels have issued.
    pub(crate) issued: u64,
    /// What was alive when contexts ended, by kind.
    pub(crate) left: BTreeMap<&'static str, u64>,
    next_handle: usize,
}

/// The primary context and all that lives in it.
pub(super) struct Context {
    pub(super) handle: usize,
    pub(super) retained: u32,
    /// The error that ended it.
    pub(super) poison: Option<Code>,
    pub(super) arena: Arena,
    pub(super) allocations: BTreeMap<u64, Owned>,
    pub(super) pools: HashMap<usize, Pool>,
    pub(super) default_pool: usize,
    pub(super) current_pool: usize,
    pub(super) streams: HashMap<usize, Stream>,
    pub(super) events: HashMap<usize, Event>,
    pub(super) modules: HashMap<usize, Module>,
    pub(super) functions: HashMap<usize, Function>,
    pub(super) graphs: HashMap<usize, Arc<[Op]>>,
    pub(super) executables: HashMap<usize, Arc<[Op]>>,
    pub(super) captures: HashMap<usize, Capture>,
    pub(super) limits: HashMap<i32, usize>,
}

impl Driver {
    pub(super) fn new() -> Driver {
        let settings = Settings::from_environment();
        let failures = settings
            .failures
            .split(',')
            .filter(|text| !text.is_empty())
            .map(|text| {
                Failure::parse(text).unwrap_or_else(|| {
                    eprintln!("met-sim: MET_SIM_FAIL holds {text}, which is no name:n:code");
                    std::process::exit(2)
                })
            });
        Driver {
            failures: failures.collect(),
            settings,
            initialised: false,
            context: None,
            calls: BTreeMap::new(),
            last_error: String::new(),
            issued: 0,
            left: BTreeMap::new(),
            next_handle: 0x5ca1_e000_0000,
        }
    }

    /// A handle that was never given before.
    pub(super) fn handle(&mut self) -> usize {
        self.next_handle += 16;
        self.next_handle
    }

    /// Counts a call of `name`, and fails it where a test asks for that.
    pub(super) fn begin(&mut self, name: &'static str) -> Result<(), Code> {
        *self.calls.entry(name).or_default() += 1;
        if self.settings.trace {
            eprintln!("met-sim: {name}");
        }
        let mut code = None;
        self.failures.retain_mut(|failure| {
            let strikes = failure.strikes(name);
            if strikes {
                code = Some(failure.code);
            }
            !strikes
        });
        let Some(code) = code else { return Ok(()) };
        if code.is_sticky()
            && let Some(context) = &mut self.context
        {
            context.poison.get_or_insert(code);
        }
        Err(code)
    }

    /// The context that is current on this thread, unless an error has ended it.
    pub(super) fn context(&mut self) -> Result<&mut Context, Code> {
        if !self.initialised {
            return Err(Code::NOT_INITIALIZED);
        }
        let current = super::context::current();
        match &mut self.context {
            Some(context) if context.handle == current => match context.poison {
                Some(code) => Err(code),
                None => Ok(context),
            },
            _ if current == 0 => Err(Code::INVALID_CONTEXT),
            _ => Err(Code::CONTEXT_IS_DESTROYED),
        }
    }

    /// Ends the context with an error that a kernel made.
    pub(super) fn poison(&mut self, code: Code, what: String) {
        eprintln!("met-sim: {what}");
        self.last_error = what;
        if let Some(context) = &mut self.context {
            context.poison.get_or_insert(code);
        }
    }
}

impl Driver {
    /// How many objects of a kind are alive; `None` for an unknown kind.
    pub(crate) fn objects(&self, kind: &str) -> Option<u64> {
        match &self.context {
            Some(context) => context.objects(kind),
            None => Some(0),
        }
    }

    /// How many objects of a kind were alive when a context ended; `None` for a kind that programs don't make.
    pub(crate) fn left(&self, kind: &str) -> Option<u64> {
        let is_made = MADE_BY_PROGRAMS.contains(&kind);
        is_made.then(|| self.left.get(kind).copied().unwrap_or_default())
    }

    /// Ends the context and everything in it, and remembers what that was.
    pub(super) fn end_context(&mut self) {
        let Some(context) = self.context.take() else {
            return;
        };
        for kind in MADE_BY_PROGRAMS {
            *self.left.entry(kind).or_default() += context.objects(kind).unwrap_or_default();
        }
    }
}

impl Context {
    fn objects(&self, kind: &str) -> Option<u64> {
        let of = |owner| {
            self.allocations
                .values()
                .filter(move |owned| owned.owner == owner)
        };
        let mine = || {
            let all = self.allocations.values();
            all.filter(|owned| matches!(owned.owner, Owner::Program | Owner::Pool(_)))
        };
        Some(match kind {
            "contexts" => 1,
            "allocations" => mine().count() as u64,
            "bytes" => mine().map(|owned| owned.bytes).sum(),
            "streams" => self.streams.len() as u64 - 1,
            "events" => self.events.len() as u64,
            "modules" => self.modules.len() as u64,
            "graphs" => self.graphs.len() as u64,
            "executables" => self.executables.len() as u64,
            "pinned" => of(Owner::Pinned).count() as u64,
            "pinned_bytes" => of(Owner::Pinned).map(|owned| owned.bytes).sum(),
            "pools" => self.pools.len() as u64 - 1,
            "module_bytes" => of(Owner::Module).map(|owned| owned.bytes).sum(),
            "reserved_bytes" => self.pools.values().map(|pool| pool.reserved).sum(),
            _ => return None,
        })
    }
}
