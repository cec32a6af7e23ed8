//! Plain arrays, which the compiler turns into whatever vectors the target has.

use super::{LANES, Simd};
use half::{bf16, f16};

/// Any machine.
pub(in super::super) struct Portable;

type Ints = [i32; LANES];
type Floats = [f32; LANES];

/// The bytes of lane `i`.
///
/// # Safety
/// `from` is good for `LANES * N` bytes.
#[inline(always)]
unsafe fn lane<const N: usize>(from: *const u8, i: usize) -> [u8; N] {
    // SAFETY: the caller's promise; an array of bytes has no alignment.
    unsafe { from.cast::<[u8; N]>().add(i).read() }
}

#[inline(always)]
fn map<A: Copy, B>(a: [A; LANES], f: impl Fn(A) -> B) -> [B; LANES] {
    std::array::from_fn(|i| f(a[i]))
}

#[inline(always)]
fn zip<A: Copy, B>(a: [A; LANES], b: [A; LANES], f: impl Fn(A, A) -> B) -> [B; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// A pair of i16, low one first.
#[inline(always)]
fn halves(x: i32) -> (i32, i32) {
    (i32::from(x as i16), x >> 16)
}

#[inline(always)]
fn join(low: i32, high: i32) -> i32 {
    low & 0xFFFF | high << 16
}

impl Simd for Portable {
    type I = Ints;
    type F = Floats;

    #[inline(always)]
    unsafe fn dot_splat<const INDEX: usize>(sum: Ints, a: Ints, from: *const u32) -> Ints {
        // SAFETY: the caller's promise: `from[INDEX]` is readable.
        let b = halves(unsafe { from.add(INDEX).read() }.cast_signed());
        zip(sum, a, |sum, a| {
            let a = halves(a);
            sum.wrapping_add(a.0 * b.0 + a.1 * b.1)
        })
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
    #[inline(always)]
    unsafe fn splat(x: i32) -> Ints {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Ints {
        // SAFETY: the caller's promise: 64 bytes.
        std::array::from_fn(|i| i32::from_le_bytes(unsafe { lane(from, i) }))
    }
    #[inline(always)]
    unsafe fn and(a: Ints, b: Ints) -> Ints {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn or(a: Ints, b: Ints) -> Ints {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn add(a: Ints, b: Ints) -> Ints {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn shl(a: Ints, bits: u32) -> Ints {
        map(a, |a| a << bits)
    }
    #[inline(always)]
    unsafe fn shr(a: Ints, bits: u32) -> Ints {
        map(a, |a| (a.cast_unsigned() >> bits).cast_signed())
    }
    #[inline(always)]
    unsafe fn sar(a: Ints, bits: u32) -> Ints {
        map(a, |a| a >> bits)
    }
    #[inline(always)]
    unsafe fn low_bytes(a: Ints) -> Ints {
        map(a, |a| join(i32::from(a as i8), i32::from((a >> 16) as i8)))
    }
    #[inline(always)]
    unsafe fn high_bytes(a: Ints) -> Ints {
        map(a, |a| join(i32::from((a >> 8) as i8), a >> 24))
    }
    #[inline(always)]
    unsafe fn high_nibbles(a: Ints) -> Ints {
        map(a, |a| a >> 12 & 0x000F_000F)
    }
    #[inline(always)]
    unsafe fn to_float(a: Ints) -> Floats {
        map(a, |a| a as f32)
    }

    #[inline(always)]
    unsafe fn splat_float(x: f32) -> Floats {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const u8) -> Floats {
        // SAFETY: the caller's promise: 64 bytes.
        std::array::from_fn(|i| f32::from_le_bytes(unsafe { lane(from, i) }))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Floats {
        // SAFETY: the caller's promise: 32 bytes.
        std::array::from_fn(|i| f16::from_le_bytes(unsafe { lane(from, i) }).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Floats {
        // SAFETY: the caller's promise: 32 bytes.
        std::array::from_fn(|i| bf16::from_le_bytes(unsafe { lane(from, i) }).to_f32())
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Ints {
        // SAFETY: the caller's promise: 16 bytes.
        std::array::from_fn(|i| i32::from(u8::from_le_bytes(unsafe { lane(from, i) })))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Ints {
        // SAFETY: the caller's promise: 16 bytes.
        std::array::from_fn(|i| i32::from(i8::from_le_bytes(unsafe { lane(from, i) })))
    }
    #[inline(always)]
    unsafe fn mul(a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn mul_add(a: Floats, b: Floats, c: Floats) -> Floats {
        // Without the instruction, `f32::mul_add` is a call into the C library for every lane.
        let fused = cfg!(any(target_feature = "fma", target_arch = "aarch64"));
        std::array::from_fn(|i| {
            if fused {
                a[i].mul_add(b[i], c[i])
            } else {
                a[i] * b[i] + c[i]
            }
        })
    }
    #[inline(always)]
    unsafe fn store(a: Floats, to: *mut f32) {
        // SAFETY: the caller's promise: room for sixteen.
        unsafe { to.cast::<Floats>().write_unaligned(a) }
    }
}
