//! Pointers that a program gives to the driver. Every exported function demands of its caller that they are
//! valid; these helpers rely on that, and check what can be checked.

use std::ffi::{CStr, c_char};

use crate::code::Code;

/// Writes a result.
pub(super) fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and valid for a write by the contract of the exported function.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Reads a value.
pub(super) fn get<T: Copy>(from: *const T) -> Result<T, Code> {
    if from.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and valid for a read by the contract of the exported function.
    Ok(unsafe { from.read_unaligned() })
}

/// Copies `bytes` bytes of the program's memory.
pub(super) fn bytes(from: *const u8, bytes: usize) -> Result<Box<[u8]>, Code> {
    if from.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and valid for the length by the contract of the exported function.
    Ok(unsafe { std::slice::from_raw_parts(from, bytes) }.into())
}

/// Reads a zero-terminated text.
pub(super) fn text(from: *const c_char) -> Result<String, Code> {
    if from.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and zero-terminated by the contract of the exported function.
    let text = unsafe { CStr::from_ptr(from) };
    text.to_str().map(str::to_owned).map_err(|_| Code::INVALID_VALUE)
}

/// Writes a zero-terminated text, cut to `room` bytes.
pub(crate) fn put_text(to: *mut c_char, room: usize, text: &str) -> Result<(), Code> {
    if to.is_null() || room == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let length = text.len().min(room - 1);
    // SAFETY: not null, and valid for `room` bytes by the contract of the exported function.
    unsafe {
        text.as_ptr().copy_to_nonoverlapping(to.cast(), length);
        to.add(length).write(0);
    }
    Ok(())
}
