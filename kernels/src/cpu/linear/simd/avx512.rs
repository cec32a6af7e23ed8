//! AVX-512 with VNNI: one register holds the sixteen lanes.

use super::Simd;
use std::arch::{asm, x86_64::*};

/// Needs avx512f, bw, vl, dq and vnni.
pub(in super::super) struct Avx512;

#[rustfmt::skip]
macro_rules! simd {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty $body:block)*) => {
        $(#[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        unsafe fn $name($($arg: $ty),*) -> $ret $body)*
    };
}

impl Simd for Avx512 {
    type I = __m512i;
    type F = __m512;

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn dot_splat<const INDEX: usize>(mut sum: __m512i, a: __m512i, from: *const u32) -> __m512i {
        // Written out because the compiler makes a multiplication and an addition of the intrinsic, which then
        // compete for what the machine can do in a cycle.
        // SAFETY: the caller's promise: `from[INDEX]` is readable.
        unsafe {
            asm!(
                "vpdpwssd {sum}, {a}, dword ptr [{from} + {offset}]{{1to16}}",
                sum = inout(zmm_reg) sum,
                a = in(zmm_reg) a,
                from = in(reg) from,
                offset = const INDEX * 4,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        sum
    }

    simd! {
        fn prefetch(from: *const u8) -> () { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
        fn splat(x: i32) -> __m512i { _mm512_set1_epi32(x) }
        fn load(from: *const u8) -> __m512i {
            // SAFETY: the caller's promise: 64 bytes.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }
        fn and(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn or(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn add(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn shl(a: __m512i, bits: u32) -> __m512i { _mm512_sllv_epi32(a, _mm512_set1_epi32(bits.cast_signed())) }
        fn shr(a: __m512i, bits: u32) -> __m512i { _mm512_srlv_epi32(a, _mm512_set1_epi32(bits.cast_signed())) }
        fn sar(a: __m512i, bits: u32) -> __m512i { _mm512_srav_epi32(a, _mm512_set1_epi32(bits.cast_signed())) }
        fn low_bytes(a: __m512i) -> __m512i { _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(a)) }
        fn high_bytes(a: __m512i) -> __m512i { _mm512_srai_epi16::<8>(a) }
        fn high_nibbles(a: __m512i) -> __m512i { _mm512_srli_epi16::<12>(a) }
        fn to_float(a: __m512i) -> __m512 { _mm512_cvtepi32_ps(a) }

        fn splat_float(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load_f16(from: *const u8) -> __m512 {
            // SAFETY: the caller's promise: 32 bytes.
            _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(from.cast()) })
        }
        fn load_u8(from: *const u8) -> __m512i {
            // SAFETY: the caller's promise: 16 bytes.
            _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(from.cast()) })
        }
        fn load_i8(from: *const u8) -> __m512i {
            // SAFETY: the caller's promise: 16 bytes.
            _mm512_cvtepi8_epi32(unsafe { _mm_loadu_si128(from.cast()) })
        }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn store(a: __m512, to: *mut f32) -> () {
            // SAFETY: the caller's promise: room for sixteen.
            unsafe { _mm512_storeu_ps(to, a) }
        }
    }
}
