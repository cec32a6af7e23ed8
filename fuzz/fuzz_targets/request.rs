//! The body of a chat or completion request of any bytes. `cargo +nightly fuzz run request`; met-host's tests
//! send ten thousand malformed ones to a running server.

#![no_main]

use met_host::http::openai::{ChatRequest, CompletionRequest};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // Either answer is right; a panic is not.
    let _ = ChatRequest::parse(bytes);
    let _ = CompletionRequest::parse(bytes);
});
