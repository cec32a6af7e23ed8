//! The operators' listener: what the slots hold. Never a part of the public one.

mod listen;
mod routes;

pub use listen::{AdminAddress, AdminListener};
pub use routes::router;

#[cfg(test)]
mod tests;
