//! The contract between met-host and a model backend.
//!
//! A backend is a dynamic library that exports one root module ([`BackendModule`]). Its life, in order:
//!
//! ```text
//! probe ─ open ─┬─ load_model ─┬─ submit / collect ... ─ release_pools ─ (drop the model)
//!               └─ memory, ledger, synchronize ... ─ sweep_unreleased ─ (drop the backend) ─ close
//! ```
//!
//! - [`abi`] holds what crosses the boundary: plain records and three trait objects
//!   ([`abi::GpuBackend`], [`abi::Model`], [`abi::HostServices`]).
//! - [`sdk`] is what a backend author writes against: two ordinary Rust traits and
//!   [`export_backend!`], which guards every call so that nothing unwinds across the boundary.
//!
//! Rules that hold on every call: one thread per generation (its *engine thread*) opens the backend,
//! makes all calls and drops every object of it, and is joined before the library is closed. What the
//! host keeps from a call it copies at once to its own memory. Each side frees what it allocated.

pub mod abi;
pub mod sdk;

pub use abi::{
    BackendModule, BackendModule_Ref, Batch, BatchOutput, DeviceInfo, Error, ErrorKind, LedgerEntry,
    LogLevel, MemoryInfo, ModelInfo, ModelSpec, OpenSpec, ProbeReport, ReleaseReport, ReleaseStep,
    ResourceKind, ResourceReport, Row, RowOutput, SampledBy, Sampling, SweepReport, SweptEntry, Ticket,
    TokenBias, TokenCount, TokenLogprob, Want,
};
pub use abi_stable;

/// The version of the contract. A backend built for another one is refused by name before anything
/// else of it is looked at; within one version the layout check decides.
pub const API_VERSION: u32 = 1;

/// No state slot: the row belongs to a model without recurrent state.
pub const NO_SLOT: u32 = u32::MAX;
