//! The host's side of the backend boundary: it loads a library, hands out safe handles, and really
//! unloads it again.
//!
//! A life, with the thread that acts:
//!
//! ```text
//! owner                                engine thread
//! BackendSource::parse
//! Library::load ── opener() ─────────► Opener::open(spec, services) → Backend
//!                                      Backend::load_model → Model
//! Services::cancel, progress           Model::submit / collect ...
//!                                      Model::release_pools, drop the Model
//!                                      Backend::sweep_unreleased, drop the Backend
//! join the engine thread ◄──────────── ends
//! Library::close → Unload
//! ```
//!
//! What must stay true, and where it is enforced:
//! - A file that is replaced on disk never reaches a running image: a sealed copy is what runs (`stage`).
//! - No handle outlives the code it points to: each holds the library, and `close` refuses while one is alive.
//! - Nothing that a library allocated leaves this module: every result is copied at once (`copy`).
//! - No thread runs code that is unmapped: those that a library started are counted (`threads`), and the
//!   engine thread with them. One that stays keeps the library mapped, and [`Unload::Retained`] says so.
//! - Library code runs on its engine thread or on a short-lived thread made here, never on the owner's.

mod checks;
mod copy;
mod device;
mod elf;
mod error;
mod handle;
mod image;
mod interpose;
mod keys;
mod library;
mod log;
mod services;
mod source;
mod stage;
mod threads;

pub use device::Device;
pub use error::LoadError;
pub use handle::{Backend, Model, Opener};
pub use library::{Library, Unload};
pub use services::{Progress, Services};
pub use source::{BackendSource, Builtins};

/// Whether this executable sees the threads and keys that a library makes. Where it does not (its
/// `pthread_create` is not exported), libraries work, but a thread that one leaves behind is not noticed.
pub fn watches_threads() -> bool {
    threads::are_watched() && keys::are_watched()
}
