//! AVX2: two registers hold the sixteen lanes.

use super::Simd;
use std::arch::{asm, x86_64::*};

/// Needs avx2, fma and f16c.
pub(in super::super) struct Avx2;

type Ints = [__m256i; 2];
type Floats = [__m256; 2];

#[rustfmt::skip]
macro_rules! simd {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty $body:block)*) => {
        $(#[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn $name($($arg: $ty),*) -> $ret $body)*
    };
}

impl Simd for Avx2 {
    type I = Ints;
    type F = Floats;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn dot_splat<const INDEX: usize>(mut sum: Ints, a: Ints, from: *const u32) -> Ints {
        // Written out because the compiler regroups the sums of an intrinsic, row by row, and then has more
        // codes to keep than registers.
        // SAFETY: the caller's promise: `from[INDEX]` is readable.
        unsafe {
            asm!(
                "vpbroadcastd {b}, dword ptr [{from} + {offset}]",
                "vpmaddwd {t}, {b}, {a0}",
                "vpmaddwd {b}, {b}, {a1}",
                "vpaddd {sum0}, {sum0}, {t}",
                "vpaddd {sum1}, {sum1}, {b}",
                sum0 = inout(ymm_reg) sum[0],
                sum1 = inout(ymm_reg) sum[1],
                a0 = in(ymm_reg) a[0],
                a1 = in(ymm_reg) a[1],
                b = out(ymm_reg) _,
                t = out(ymm_reg) _,
                from = in(reg) from,
                offset = const INDEX * 4,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        sum
    }

    simd! {
        fn prefetch(from: *const u8) -> () { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
        fn splat(x: i32) -> Ints { [_mm256_set1_epi32(x); 2] }
        fn load(from: *const u8) -> Ints {
            // SAFETY: the caller's promise: 64 bytes.
            unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
        }
        fn and(a: Ints, b: Ints) -> Ints { [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])] }
        fn or(a: Ints, b: Ints) -> Ints { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
        fn add(a: Ints, b: Ints) -> Ints { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
        fn shl(a: Ints, bits: u32) -> Ints {
            let bits = _mm256_set1_epi32(bits.cast_signed());
            [_mm256_sllv_epi32(a[0], bits), _mm256_sllv_epi32(a[1], bits)]
        }
        fn shr(a: Ints, bits: u32) -> Ints {
            let bits = _mm256_set1_epi32(bits.cast_signed());
            [_mm256_srlv_epi32(a[0], bits), _mm256_srlv_epi32(a[1], bits)]
        }
        fn sar(a: Ints, bits: u32) -> Ints {
            let bits = _mm256_set1_epi32(bits.cast_signed());
            [_mm256_srav_epi32(a[0], bits), _mm256_srav_epi32(a[1], bits)]
        }
        fn low_bytes(a: Ints) -> Ints {
            let shifted = [_mm256_slli_epi16::<8>(a[0]), _mm256_slli_epi16::<8>(a[1])];
            [_mm256_srai_epi16::<8>(shifted[0]), _mm256_srai_epi16::<8>(shifted[1])]
        }
        fn high_bytes(a: Ints) -> Ints { [_mm256_srai_epi16::<8>(a[0]), _mm256_srai_epi16::<8>(a[1])] }
        fn high_nibbles(a: Ints) -> Ints { [_mm256_srli_epi16::<12>(a[0]), _mm256_srli_epi16::<12>(a[1])] }
        fn to_float(a: Ints) -> Floats { [_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])] }

        fn splat_float(x: f32) -> Floats { [_mm256_set1_ps(x); 2] }
        fn load_f16(from: *const u8) -> Floats {
            // SAFETY: the caller's promise: 32 bytes.
            let halves = unsafe { [_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast())] };
            [_mm256_cvtph_ps(halves[0]), _mm256_cvtph_ps(halves[1])]
        }
        fn load_u8(from: *const u8) -> Ints {
            // SAFETY: the caller's promise: 16 bytes.
            let bytes = unsafe { _mm_loadu_si128(from.cast()) };
            [_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes))]
        }
        fn load_i8(from: *const u8) -> Ints {
            // SAFETY: the caller's promise: 16 bytes.
            let bytes = unsafe { _mm_loadu_si128(from.cast()) };
            [_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))]
        }
        fn mul(a: Floats, b: Floats) -> Floats { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        fn mul_add(a: Floats, b: Floats, c: Floats) -> Floats {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        fn store(a: Floats, to: *mut f32) -> () {
            // SAFETY: the caller's promise: room for sixteen.
            unsafe {
                _mm256_storeu_ps(to, a[0]);
                _mm256_storeu_ps(to.add(8), a[1]);
            }
        }
    }
}
