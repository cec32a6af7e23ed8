//! Which kernel serves an instruction set, a type and a tile's height.

#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::{float, format::*, kernel, quantize::quantize_tile, simd::Portable};
use crate::{
    TensorType,
    cpu::{Isa, isa::Level},
};

/// Multiplies a panel with a tile.
pub(super) type Quantized = unsafe fn(&kernel::Call);
/// Multiplies some weight rows with a tile's rows.
pub(super) type Float = unsafe fn(&float::Call);

/// Rows of the highest tile that there are kernels for.
pub(super) const fn highest(isa: Isa) -> usize {
    match isa.level() {
        Level::Portable => 4,
        Level::Avx2 => 4,
        Level::Avx512 => 8,
    }
}

/// Rows of the highest tile of unquantised weights.
pub(super) const HIGHEST_FLOAT: usize = 4;

macro_rules! set {
    ($set:ident, $features:literal, $quantized:ident, $floats:ident, $quantize:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $quantized<F: Format, const M: usize>(call: &kernel::Call) {
            // SAFETY: the caller's promise.
            unsafe { kernel::multiply::<$set, F, M>(call) }
        }
        #[target_feature(enable = $features)]
        unsafe fn $floats<E: float::Element, const M: usize, const N: usize>(call: &float::Call) {
            // SAFETY: the caller's promise.
            unsafe { float::multiply::<$set, E, M, N>(call) }
        }
        #[target_feature(enable = $features)]
        unsafe fn $quantize(x: &[f32], height: usize, cols: usize, words: &mut [u32]) {
            quantize_any(x, height, cols, words);
        }
    };
}

#[cfg(target_arch = "x86_64")]
set!(
    Avx512,
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c",
    avx512,
    avx512_float,
    avx512_quantize
);
#[cfg(target_arch = "x86_64")]
set!(Avx2, "avx2,fma,f16c", avx2, avx2_float, avx2_quantize);

unsafe fn portable<F: Format, const M: usize>(call: &kernel::Call) {
    // SAFETY: the caller's promise.
    unsafe { kernel::multiply::<Portable, F, M>(call) }
}

unsafe fn portable_float<E: float::Element, const M: usize, const N: usize>(call: &float::Call) {
    // SAFETY: the caller's promise.
    unsafe { float::multiply::<Portable, E, M, N>(call) }
}

macro_rules! by_height {
    ($height:expr, $run:ident, $T:ident, [$($m:literal)*]) => {
        match $height {
            $($m => Some($run::<$T, $m> as Quantized),)*
            _ => None,
        }
    };
}

macro_rules! by_type {
    ($ty:expr, $height:expr, $run:ident, $heights:tt, $($T:ident)*) => {
        match $ty {
            $(TensorType::$T => by_height!($height, $run, $T, $heights),)*
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => None,
        }
    };
    ($ty:expr, $height:expr, $run:ident, $heights:tt) => {
        by_type!($ty, $height, $run, $heights, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K)
    };
}

/// The kernel for a quantised type; `None` for other types and heights.
pub(super) fn quantized(isa: Isa, ty: TensorType, height: usize) -> Option<Quantized> {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => by_type!(ty, height, avx512, [1 2 4 8]),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => by_type!(ty, height, avx2, [1 2 4]),
        _ => by_type!(ty, height, portable, [1 2 4]),
    }
}

macro_rules! by_float {
    ($ty:expr, $height:expr, $run:ident, $($m:literal x $n:literal)*) => {
        match ($ty, $height) {
            $((TensorType::F32, $m) => Some($run::<float::F32, $m, $n> as Float),
            (TensorType::F16, $m) => Some($run::<float::F16, $m, $n> as Float),
            (TensorType::BF16, $m) => Some($run::<float::BF16, $m, $n> as Float),)*
            _ => None,
        }
    };
}

/// The kernel for an unquantised type; `None` for other types and heights.
pub(super) fn float(isa: Isa, ty: TensorType, height: usize) -> Option<Float> {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => by_float!(ty, height, avx512_float, 1 x 4 2 x 4 4 x 4),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => by_float!(ty, height, avx2_float, 1 x 4 2 x 2 4 x 1),
        _ => by_float!(ty, height, portable_float, 1 x 2 2 x 1 4 x 1),
    }
}

/// Quantises `height` rows `x` of `cols` columns to a tile's `words`.
pub(super) fn quantize(isa: Isa, x: &[f32], height: usize, cols: usize, words: &mut [u32]) {
    match isa.level() {
        // SAFETY: an `Isa` of this level exists only where the processor has it.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { avx512_quantize(x, height, cols, words) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2_quantize(x, height, cols, words) },
        _ => quantize_any(x, height, cols, words),
    }
}

#[inline(always)]
fn quantize_any(x: &[f32], height: usize, cols: usize, words: &mut [u32]) {
    match height {
        1 => quantize_tile::<1>(x, cols, words),
        2 => quantize_tile::<2>(x, cols, words),
        4 => quantize_tile::<4>(x, cols, words),
        _ => quantize_tile::<8>(x, cols, words),
    }
}
