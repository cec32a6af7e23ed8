//! What the host gives to a backend.

use abi_stable::{
    StableAbi, sabi_trait,
    std_types::{RArc, RSlice, RStr},
};

/// How urgent a log event is.
#[repr(u8)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// An operator must act.
    Error = 1,
    /// An operator should know.
    Warn,
    /// What an operator would want to read later.
    Info,
    /// For the author.
    Debug,
    /// Everything.
    Trace,
}

/// A field of a log event.
#[repr(u8)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub enum LogValue<'a> {
    /// A signed number.
    I64(i64),
    /// An unsigned number.
    U64(u64),
    /// A real number.
    F64(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Str(RStr<'a>),
}

/// A named field.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct LogField<'a> {
    /// Its name.
    pub name: RStr<'a>,
    /// Its value.
    pub value: LogValue<'a>,
}

/// A log event.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct LogRecord<'a> {
    /// How urgent.
    pub level: LogLevel,
    /// Line in `file`.
    pub line: u32,
    /// Module path.
    pub target: RStr<'a>,
    /// Source file.
    pub file: RStr<'a>,
    /// What happened.
    pub message: RStr<'a>,
    /// With what.
    pub fields: RSlice<'a, LogField<'a>>,
}

/// The host's services. May be called from any thread of the backend until `sweep_unreleased` of its
/// `GpuBackend` has returned.
#[sabi_trait]
pub trait HostServices: Send + Sync + Clone {
    /// Whether an event of this level and target would be kept: ask before formatting.
    fn log_enabled(&self, level: LogLevel, target: RStr<'_>) -> bool;

    /// Hands over a log event.
    fn log(&self, record: &LogRecord<'_>);

    /// How far a load is: `done` of `total` bytes of `stage`.
    fn progress(&self, stage: RStr<'_>, done: u64, total: u64);

    /// Whether the load that is running should stop.
    #[sabi(last_prefix_field)]
    fn cancelled(&self) -> bool;
}

/// A shared handle on the host's services.
pub type HostServicesArc = HostServices_TO<'static, RArc<()>>;
