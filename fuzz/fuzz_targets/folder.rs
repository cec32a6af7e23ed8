//! A Hugging Face folder's files of any bytes. `cargo +nightly fuzz run folder`; the same function runs on random
//! damage in `cargo test`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| met_model::fuzz::folder(bytes));
