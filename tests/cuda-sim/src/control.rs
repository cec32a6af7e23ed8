//! What tests steer and ask the simulator with. The functions are exported, so that a test in another process
//! image reaches them by `dlsym`; none counts as a driver call.

use std::ffi::{CStr, c_char, c_int};

use crate::code::Code;
use crate::driver::{Failure, locked};

/// Makes the `n`-th call from now (from 1) of driver function `name` fail with `code`; `*` is any function,
/// and a `_v2` makes no difference. A code that ends a context does so. Returns 0, or 1 for bad arguments.
///
/// # Safety
/// `name` points to a zero-terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn met_sim_fail(name: *const c_char, n: u64, code: c_int) -> c_int {
    if name.is_null() || n == 0 || code == 0 {
        return 1;
    }
    // SAFETY: the caller's promise.
    let Ok(name) = unsafe { CStr::from_ptr(name) }.to_str() else {
        return 1;
    };
    let mut driver = locked();
    driver.failures.push(Failure {
        name: name.to_owned(),
        after: n,
        code: Code(code),
    });
    0
}

/// Forgets failures to come, call counts, what contexts left and the last error. Contexts and memory stay.
#[unsafe(no_mangle)]
pub extern "C" fn met_sim_reset() {
    let mut driver = locked();
    driver.failures.clear();
    driver.calls.clear();
    driver.left.clear();
    driver.last_error.clear();
    driver.issued = 0;
}

/// How many failures asked for have not yet struck.
#[unsafe(no_mangle)]
pub extern "C" fn met_sim_pending_failures() -> u64 {
    locked().failures.len() as u64
}

/// Live device memory that the program allocated: bytes and allocations. Without a context both are 0.
///
/// # Safety
/// Each pointer is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn met_sim_live(bytes: *mut u64, count: *mut u64) {
    let driver = locked();
    for (to, kind) in [(bytes, "bytes"), (count, "allocations")] {
        if !to.is_null() {
            // SAFETY: the caller's promise.
            unsafe { to.write(driver.objects(kind).unwrap_or_default()) };
        }
    }
}

/// How many objects of a kind are alive: `contexts`, `allocations` and `bytes` (of the program's device memory),
/// `streams`, `events`, `modules`, `graphs`, `executables`, `pinned` (allocations), `pinned_bytes`, `pools` (made by
/// the program), `module_bytes`, `reserved_bytes` (held by pools). -1 for an unknown kind.
///
/// # Safety
/// `kind` points to a zero-terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn met_sim_objects(kind: *const c_char) -> i64 {
    if kind.is_null() {
        return -1;
    }
    // SAFETY: the caller's promise.
    let kind = unsafe { CStr::from_ptr(kind) }.to_str().unwrap_or_default();
    locked().objects(kind).map_or(-1, |count| count as i64)
}

/// How many objects of a kind were alive when a context ended, all together since the start or the last reset: what the
/// program had not given back. -1 for a kind that programs don't make.
///
/// # Safety
/// `kind` points to a zero-terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn met_sim_left(kind: *const c_char) -> i64 {
    if kind.is_null() {
        return -1;
    }
    // SAFETY: the caller's promise.
    let kind = unsafe { CStr::from_ptr(kind) }.to_str().unwrap_or_default();
    locked().left(kind).map_or(-1, |count| count as i64)
}

/// Calls of driver function `name` since the start or the last reset; `*` is all.
///
/// # Safety
/// `name` points to a zero-terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn met_sim_count(name: *const c_char) -> u64 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    let driver = locked();
    if name == "*" {
        driver.calls.values().sum()
    } else {
        driver.calls.get(name).copied().unwrap_or(0)
    }
}

/// All counts, one `name count` a line. Returns the text's length; what does not fit in `room` bytes is cut.
///
/// # Safety
/// `text` is null or valid for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn met_sim_calls(text: *mut c_char, room: usize) -> usize {
    let lines: Vec<String> = locked()
        .calls
        .iter()
        .map(|(name, count)| format!("{name} {count}\n"))
        .collect();
    copy_out(&lines.concat(), text, room)
}

/// The last error that a kernel or a module's text made. Returns the text's length; what does not fit is cut.
///
/// # Safety
/// `text` is null or valid for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn met_sim_last_error(text: *mut c_char, room: usize) -> usize {
    let error = locked().last_error.clone();
    copy_out(&error, text, room)
}

/// Warp instructions that kernels have issued since the start or the last reset.
#[unsafe(no_mangle)]
pub extern "C" fn met_sim_issued() -> u64 {
    locked().issued
}

/// Sets a property of the device: `memory` (bytes), `threads`, `lazy`, `reversed`, `pools`, `trace`. Returns 0, or 1 for
/// an unknown name. Memory that is in use stays in use.
///
/// # Safety
/// `name` points to a zero-terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn met_sim_set(name: *const c_char, value: u64) -> c_int {
    if name.is_null() {
        return 1;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    let settings = &mut locked().settings;
    match name {
        "memory" => settings.memory = value,
        "threads" => settings.threads = value.clamp(1, 64) as usize,
        "lazy" => settings.lazy = value != 0,
        "reversed" => settings.reversed = value != 0,
        "pools" => settings.pools = value != 0,
        "trace" => settings.trace = value != 0,
        _ => return 1,
    }
    0
}

fn copy_out(text: &str, to: *mut c_char, room: usize) -> usize {
    if !to.is_null() && room > 0 {
        let length = text.len().min(room - 1);
        // SAFETY: the caller of the exported function promises that `to` is valid for `room` bytes.
        unsafe {
            text.as_ptr().copy_to_nonoverlapping(to.cast(), length);
            to.add(length).write(0);
        }
    }
    text.len()
}
