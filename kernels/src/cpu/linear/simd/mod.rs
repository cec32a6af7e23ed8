//! Sixteen lanes of integer arithmetic: what an instruction set must offer for the kernels of quantised types.
//!
//! Lane `i` belongs to row `i` of a weight panel, whatever the width of the registers, so each set computes
//! the same operations in the same order.

mod avx2;
mod avx512;

pub(super) use avx2::Avx2;
pub(super) use avx512::Avx512;

/// Sixteen lanes of 32 bits.
///
/// # Safety
/// Every function may be called only where the instruction set that the implementation is named after is
/// present, and inlined into a function that enables it, else it is slow. Pointers may be unaligned, and
/// must be good for what the function says it reads or writes.
pub(super) trait Simd {
    /// Sixteen i32, or sixteen pairs of i16.
    type I: Copy;
    /// Sixteen f32.
    type F: Copy;

    /// Asks for the cache line at `from`, which need not be memory at all.
    unsafe fn prefetch(from: *const u8);
    /// `x` in every lane.
    unsafe fn splat(x: i32) -> Self::I;
    /// Reads 64 bytes.
    unsafe fn load(from: *const u8) -> Self::I;
    /// Lanewise and.
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    /// Lanewise or.
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    /// Lanewise sum.
    unsafe fn add(a: Self::I, b: Self::I) -> Self::I;
    /// Shifts left, zeros come in.
    unsafe fn shl(a: Self::I, bits: u32) -> Self::I;
    /// Shifts right, zeros come in.
    unsafe fn shr(a: Self::I, bits: u32) -> Self::I;
    /// Shifts right, the sign comes in.
    unsafe fn sar(a: Self::I, bits: u32) -> Self::I;
    /// The low byte of each i16, sign extended.
    unsafe fn low_bytes(a: Self::I) -> Self::I;
    /// The high byte of each i16, sign extended.
    unsafe fn high_bytes(a: Self::I) -> Self::I;
    /// The high nibble of each i16.
    unsafe fn high_nibbles(a: Self::I) -> Self::I;
    /// `sum + a.low * b.low + a.high * b.high`, of pairs of i16, where `b` is `from[INDEX]` in every lane.
    unsafe fn dot_splat<const INDEX: usize>(sum: Self::I, a: Self::I, from: *const u32) -> Self::I;
    /// To float, exact below 2^24.
    unsafe fn to_float(a: Self::I) -> Self::F;

    /// `x` in every lane.
    unsafe fn splat_float(x: f32) -> Self::F;
    /// Reads sixteen f16.
    unsafe fn load_f16(from: *const u8) -> Self::F;
    /// Reads sixteen bytes.
    unsafe fn load_u8(from: *const u8) -> Self::I;
    /// Reads sixteen signed bytes.
    unsafe fn load_i8(from: *const u8) -> Self::I;
    /// Lanewise product.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Writes sixteen f32.
    unsafe fn store(a: Self::F, to: *mut f32);
}
