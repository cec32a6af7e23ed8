//! What crosses the boundary. Every type here has a layout that is checked when a library is loaded.

// abi_stable's macros write impls into a constant of their own, and name the root module's reference type.
#![allow(non_local_definitions, non_camel_case_types)]

mod batch;
mod device;
mod error;
mod host;
mod model;
mod module;

pub use batch::*;
pub use device::*;
pub use error::*;
pub use host::*;
pub use model::*;
pub use module::*;
