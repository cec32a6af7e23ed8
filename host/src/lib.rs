//! The host: HTTP, text, the scheduler, slots and the loader of backends.

pub mod admin;
pub mod bench;
pub mod cli;
pub mod config;
pub mod engine;
pub mod fetch;
pub mod http;
pub mod kept;
pub mod loader;
pub mod request;
pub mod scheduler;
pub mod slot;
pub mod text;
