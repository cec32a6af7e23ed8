//! The operators' side: a listener of its own, never a part of the public one, and its client.

pub mod client;
mod events;
mod listen;
mod routes;
mod show;

pub(crate) use listen::default_path;
pub use listen::{AdminAddress, AdminListener};
pub use routes::{Operators, router};

#[cfg(test)]
mod tests;
