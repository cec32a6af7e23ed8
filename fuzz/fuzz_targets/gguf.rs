//! A model file of any bytes: its tensors, and the text that its metadata makes. `cargo +nightly fuzz run gguf`; the
//! same functions run on random damage in `cargo test`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    met_model::fuzz::checkpoint(bytes);
    met_host::text::fuzz::metadata(bytes);
});
