//! Copies into host memory.
//!
//! A text or a list that a library has made is freed by the library's code, which is not there any more
//! once it is closed. So whatever a call returns is made anew here, and the library's own is dropped while
//! its code is still mapped.

use met_backend_api::{
    DeviceInfo, Error, LedgerEntry, MemoryInfo, ModelInfo, ProbeReport, ReleaseReport, ReleaseStep,
    ResourceReport, SweepReport, SweptEntry,
    abi_stable::std_types::{ROption, RString, RVec},
};

/// What can be copied into host memory.
pub(super) trait Copied {
    /// The copy; what was copied is dropped.
    fn copied(self) -> Self;
}

macro_rules! plain {
    ($($type:ty),*) => {
        $(impl Copied for $type {
            fn copied(self) -> Self {
                self
            }
        })*
    };
}

macro_rules! record {
    ($type:ident { $($copied:ident),* } and $($plain:ident),*) => {
        impl Copied for $type {
            // Every field is named, so that a new one cannot be forgotten.
            fn copied(self) -> Self {
                let $type { $($copied,)* $($plain,)* } = self;
                $type { $($copied: $copied.copied(),)* $($plain,)* }
            }
        }
    };
}

plain!((), u64, MemoryInfo);
record!(DeviceInfo { kind, name, features } and index, total_memory, compute_units);
record!(ProbeReport { devices, problem } and);
record!(LedgerEntry { owner } and serial, kind, bytes);
record!(SweptEntry { entry, error } and);
record!(SweepReport { entries } and count, bytes, failures);
record!(ResourceReport { label } and bytes, allocations);
record!(ReleaseStep { label, error } and bytes);
record!(ReleaseReport { steps } and);
record!(Error { message } and kind);
record!(ModelInfo { architecture, name, quantization, weights_identity } and
    parameters, vocab_size, context_length, block_size, block_count, block_bytes, state_slots, state_bytes, snapshot_slots,
    max_rows, max_batch_tokens, max_in_flight);

impl Copied for RString {
    fn copied(self) -> Self {
        self.as_str().into()
    }
}

impl<T: Copied> Copied for RVec<T> {
    fn copied(self) -> Self {
        self.into_iter().map(Copied::copied).collect()
    }
}

impl<T: Copied> Copied for ROption<T> {
    fn copied(self) -> Self {
        self.map(Copied::copied)
    }
}
