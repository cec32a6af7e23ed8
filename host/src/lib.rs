//! The host: HTTP, text, the scheduler, slots and the loader of backends.

pub mod http;
pub mod request;
