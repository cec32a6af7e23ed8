//! Which kernel serves an instruction set, a quantised type and a tile's height.

#[cfg(target_arch = "x86_64")]
use super::{
    format::{Format, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0},
    kernel,
    simd::{Avx2, Avx512},
};
use super::{
    format::{LANES, Shape},
    portable,
};
use crate::{
    TensorType,
    cpu::{Isa, isa::Level},
};

/// What a kernel reads and writes.
pub(super) struct Call<'a> {
    /// A panel.
    pub(super) panel: &'a [u8],
    /// A tile of as many rows as the kernel is for.
    pub(super) tile: &'a [u32],
    /// Groups in a row.
    pub(super) groups: usize,
    /// Results: a row of activations each, a lane a weight row.
    pub(super) out: &'a mut [[f32; LANES]],
}

/// Rows of the highest tile that there are kernels for.
pub(super) const fn highest(isa: Isa) -> usize {
    match isa.level() {
        Level::Portable | Level::Avx2 => 4,
        Level::Avx512 => 8,
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn avx512<F: Format, const M: usize>(call: Call<'_>) {
    // SAFETY: the features are enabled here.
    unsafe { kernel::multiply::<Avx512, F, M>(call) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2<F: Format, const M: usize>(call: Call<'_>) {
    // SAFETY: the features are enabled here.
    unsafe { kernel::multiply::<Avx2, F, M>(call) }
}

/// Calls `$run` for a type and a height.
#[cfg(target_arch = "x86_64")]
macro_rules! by_type {
    ($run:ident, $ty:expr, $call:expr, $heights:tt) => {
        by_type!($run, $ty, $call, $heights, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K)
    };
    ($run:ident, $ty:expr, $call:expr, $heights:tt, $($T:ident)*) => {
        match $ty {
            $(TensorType::$T => by_height!($run, $T, $call, $heights),)*
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => unreachable!("float types have no panels"),
        }
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! by_height {
    ($run:ident, $T:ident, $call:expr, [$($m:literal)*]) => {
        match $call.out.len() {
            // SAFETY: an `Isa` of this level exists only where the processor has it.
            $($m => unsafe { $run::<$T, $m>($call) },)*
            height => unreachable!("there are no tiles of {height} rows"),
        }
    };
}

/// Multiplies a panel of `ty` with a tile of as many rows as there are results.
pub(super) fn multiply(isa: Isa, ty: TensorType, call: Call<'_>) {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => by_type!(avx512, ty, call, [1 2 4 8]),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => by_type!(avx2, ty, call, [1 2 4]),
        _ => {
            if let Some(shape) = Shape::of(ty) {
                portable::multiply(shape, call);
            }
        }
    }
}
