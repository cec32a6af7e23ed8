//! The driver's result codes: numbers, names and texts.

use std::ffi::{CStr, c_int};

/// A `CUresult` other than success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code(pub c_int);

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Code {
            $(#[doc = $text] pub const $name: Code = Code($number);)*

            /// The constant's name and its text as the driver gives them; `None` for an unknown number.
            pub fn describe(number: c_int) -> Option<(&'static CStr, &'static CStr)> {
                match number {
                    0 => Some((c"CUDA_SUCCESS", c"no error")),
                    $($number => Some((
                        const { text(concat!("CUDA_ERROR_", stringify!($name), "\0")) },
                        const { text(concat!($text, "\0")) },
                    )),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "initialization error";
    NO_DEVICE = 100, "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "invalid device ordinal";
    INVALID_IMAGE = 200, "device kernel image is invalid";
    INVALID_CONTEXT = 201, "invalid device context";
    NO_BINARY_FOR_GPU = 209, "no kernel image is available for execution on the device";
    INVALID_PTX = 218, "a PTX JIT compilation failed";
    UNSUPPORTED_PTX_VERSION = 222, "the provided PTX was compiled with an unsupported toolchain";
    FILE_NOT_FOUND = 301, "file not found";
    INVALID_HANDLE = 400, "invalid resource handle";
    ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "device not ready";
    ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, "the launch timed out and was terminated";
    CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    ASSERT = 710, "device-side assert triggered";
    HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    ILLEGAL_INSTRUCTION = 715, "an illegal instruction was encountered";
    MISALIGNED_ADDRESS = 716, "misaligned address";
    LAUNCH_FAILED = 719, "unspecified launch failure";
    NOT_PERMITTED = 800, "operation not permitted";
    NOT_SUPPORTED = 801, "operation not supported";
    SYSTEM_NOT_READY = 802, "system not yet initialized";
    STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, "attempt to terminate a thread-local capture sequence from another thread";
    UNKNOWN = 999, "unknown error";
}

impl Code {
    /// Whether the error ends its context: every later call on the context gives it again.
    pub(crate) fn is_sticky(self) -> bool {
        matches!(
            self,
            Code::ILLEGAL_ADDRESS | Code::LAUNCH_TIMEOUT | Code::ASSERT | Code::ILLEGAL_INSTRUCTION
        ) || matches!(self, Code::MISALIGNED_ADDRESS | Code::LAUNCH_FAILED)
    }
}

const fn text(terminated: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(terminated.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a text of the table holds a zero byte"),
    }
}
