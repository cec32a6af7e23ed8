//! AVX-512: a vector is one register.

use super::{LANES, Simd};
use half::f16;
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512 F, BW, VL, DQ and VNNI.
#[derive(Clone, Copy)]
pub struct Avx512(());

impl Avx512 {
    /// Callable only where the features are enabled, so the value is the proof.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    #[inline]
    pub(super) fn new() -> Self {
        Self(())
    }
}

/// Calls an instruction.
macro_rules! op {
    ($op:ident, $($v:expr),+) => {
        // SAFETY: `Avx512` proves that the processor has the instruction.
        unsafe { $op($($v),+) }
    };
}

impl Simd for Avx512 {
    type V = __m512;
    const ACCUMULATORS: usize = 24;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        op!(_mm512_set1_ps, x)
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        op!(_mm512_loadu_ps, x.as_ptr())
    }
    #[inline(always)]
    fn store(self, v: __m512, x: &mut [f32; LANES]) {
        op!(_mm512_storeu_ps, x.as_mut_ptr(), v)
    }
    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> __m512 {
        // SAFETY: `Avx512` proves that the processor has the instruction; 16 f16 are 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_f32_bytes(self, x: &[u8; 4 * LANES]) -> __m512 {
        op!(_mm512_loadu_ps, x.as_ptr().cast())
    }
    #[inline(always)]
    fn load_f16_bytes(self, x: &[u8; 2 * LANES]) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16_bytes(self, x: &[u8; 2 * LANES]) -> __m512 {
        // SAFETY: as above. A bf16 is the upper half of an f32.
        unsafe {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        }
    }
    #[inline(always)]
    fn store_f16(self, v: __m512, x: &mut [f16; LANES]) {
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_si256(
                x.as_mut_ptr().cast(),
                _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v),
            );
        }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_div_ps, a, b)
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_max_ps, a, b)
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_min_ps, a, b)
    }
    #[inline(always)]
    fn round(self, x: __m512) -> __m512 {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: `Avx512` proves that the processor has the instruction.
        unsafe { _mm512_roundscale_ps::<NEAREST>(x) }
    }
    #[inline(always)]
    fn scale_by_power(self, x: __m512, n: __m512) -> __m512 {
        op!(_mm512_scalef_ps, x, n)
    }
    #[inline(always)]
    fn low_halves(self, x: __m512) -> [u32; LANES / 2] {
        let mut words = [0; LANES / 2];
        // SAFETY: `Avx512` proves that the processor has the instructions; 16 u16 are 8 words.
        unsafe {
            _mm256_storeu_si256(
                words.as_mut_ptr().cast(),
                _mm512_cvtepi32_epi16(_mm512_castps_si512(x)),
            );
        }
        words
    }
    #[inline(always)]
    fn zero_below(self, x: __m512, key: __m512, bound: __m512) -> __m512 {
        // SAFETY: `Avx512` proves that the processor has the instructions.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(key, bound), x) }
    }
}
