//! What the driver's error codes mean for who called.

use cudarc::driver::{
    result::{self, DriverError},
    sys::CUresult,
};
use met_kernels::{Error, ErrorKind, Result};

/// The oldest driver that takes our PTX.
pub(crate) const NEEDED_DRIVER: &str = "an NVIDIA driver for CUDA 12.0 or newer (release 525 or later)";

/// A driver call's result, with what was being done for the message.
pub(crate) trait Checked<T> {
    /// Turns a driver's error into one of ours.
    fn while_doing(self, what: &str) -> Result<T>;
}

impl<T> Checked<T> for Result<T, DriverError> {
    fn while_doing(self, what: &str) -> Result<T> {
        self.map_err(|error| failed(what, error))
    }
}

/// A driver's error as one of ours, with what was being done.
pub(crate) fn failed(what: &str, DriverError(code): DriverError) -> Error {
    Error::new(kind(code), format!("{what}: {}", advice(code)))
}

/// Whether memory is what lacks.
pub(crate) fn is_out_of_memory(error: &DriverError) -> bool {
    error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

fn kind(code: CUresult) -> ErrorKind {
    use CUresult::*;
    match code {
        CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::Exhausted,
        CUDA_ERROR_NO_DEVICE
        | CUDA_ERROR_INVALID_DEVICE
        | CUDA_ERROR_STUB_LIBRARY
        | CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUDA_ERROR_JIT_COMPILER_NOT_FOUND
        | CUDA_ERROR_JIT_COMPILATION_DISABLED
        | CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        | CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => ErrorKind::Invalid,
        // These stay: every later call on the context gives them again.
        CUDA_ERROR_DEINITIALIZED
        | CUDA_ERROR_DEVICE_UNAVAILABLE
        | CUDA_ERROR_ECC_UNCORRECTABLE
        | CUDA_ERROR_NVLINK_UNCORRECTABLE
        | CUDA_ERROR_ILLEGAL_ADDRESS
        | CUDA_ERROR_LAUNCH_TIMEOUT
        | CUDA_ERROR_CONTEXT_IS_DESTROYED
        | CUDA_ERROR_ASSERT
        | CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUDA_ERROR_MISALIGNED_ADDRESS
        | CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUDA_ERROR_INVALID_PC
        | CUDA_ERROR_LAUNCH_FAILED
        | CUDA_ERROR_SYSTEM_NOT_READY
        | CUDA_ERROR_EXTERNAL_DEVICE
        | CUDA_ERROR_UNKNOWN => ErrorKind::Fault,
        _ => ErrorKind::Bug,
    }
}

/// What the card has, where there is a context to ask it in.
fn free() -> String {
    let memory = result::mem_get_info();
    memory.map_or_else(
        |_| String::new(),
        |(free, total)| format!(": {free} bytes are free of {total}"),
    )
}

fn advice(code: CUresult) -> String {
    use CUresult::*;
    let advice = match code {
        CUDA_ERROR_NO_DEVICE => "the driver finds no NVIDIA card",
        CUDA_ERROR_STUB_LIBRARY => "libcuda.so is the toolkit's stub, not the driver; install the driver",
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION | CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => "the driver is too old",
        CUDA_ERROR_NO_BINARY_FOR_GPU => "the card is older than compute 8.0 (Ampere)",
        _ => match kind(code) {
            ErrorKind::Exhausted => return format!("the card is out of memory{} ({code:?})", free()),
            ErrorKind::Fault => "the device is lost to this process; replace the generation",
            _ => "the driver refused the call",
        },
    };
    format!("{advice} ({code:?})")
}
