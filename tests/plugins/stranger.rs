//! A sound library that is no backend.

/// Something to export.
#[unsafe(no_mangle)]
pub extern "C" fn answer() -> u32 {
    42
}
