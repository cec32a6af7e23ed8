//! A `tokenizer.json` of any bytes. `cargo +nightly fuzz run tokenizer`; the same function runs on random damage in
//! met-host's tests.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| met_host::text::fuzz::tokenizer_json(bytes));
