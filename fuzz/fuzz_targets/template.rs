//! A chat template of any bytes, and a message. `cargo +nightly fuzz run template`; the same function runs on
//! random input in met-host's tests.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| met_host::text::fuzz::template(bytes));
