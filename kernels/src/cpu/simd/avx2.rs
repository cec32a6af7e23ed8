//! AVX2, FMA and F16C: a vector is two registers.

use super::{LANES, Simd};
use half::f16;
use std::arch::x86_64::*;

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    /// Callable only where the features are enabled, so the value is the proof.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn new() -> Self {
        Self(())
    }
}

/// Two registers.
#[derive(Clone, Copy)]
pub struct Pair(__m256, __m256);

/// Applies a register's operation to both halves.
macro_rules! halves {
    ($op:ident, $($v:expr),+) => {
        // SAFETY: `Avx2` proves that the processor has the instruction.
        unsafe { Pair($op($($v.0),+), $op($($v.1),+)) }
    };
}

impl Simd for Avx2 {
    type V = Pair;
    const ACCUMULATORS: usize = 6;

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        // SAFETY: `Avx2` proves that the processor has the instruction.
        let v = unsafe { _mm256_set1_ps(x) };
        Pair(v, v)
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Pair {
        // SAFETY: as above, and both halves lie within the array.
        unsafe { Pair(_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))) }
    }
    #[inline(always)]
    fn store(self, v: Pair, x: &mut [f32; LANES]) {
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_ps(x.as_mut_ptr(), v.0);
            _mm256_storeu_ps(x.as_mut_ptr().add(8), v.1);
        }
    }
    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> Pair {
        let x = x.as_ptr().cast::<__m128i>();
        // SAFETY: as above; an `f16` is two bytes.
        unsafe {
            Pair(
                _mm256_cvtph_ps(_mm_loadu_si128(x)),
                _mm256_cvtph_ps(_mm_loadu_si128(x.add(1))),
            )
        }
    }
    #[inline(always)]
    fn load_f32_bytes(self, x: &[u8; 4 * LANES]) -> Pair {
        let x = x.as_ptr().cast::<f32>();
        // SAFETY: as above; nothing need be aligned.
        unsafe { Pair(_mm256_loadu_ps(x), _mm256_loadu_ps(x.add(8))) }
    }
    #[inline(always)]
    fn load_f16_bytes(self, x: &[u8; 2 * LANES]) -> Pair {
        let x = x.as_ptr().cast::<__m128i>();
        // SAFETY: as above.
        unsafe {
            Pair(
                _mm256_cvtph_ps(_mm_loadu_si128(x)),
                _mm256_cvtph_ps(_mm_loadu_si128(x.add(1))),
            )
        }
    }
    #[inline(always)]
    fn load_bf16_bytes(self, x: &[u8; 2 * LANES]) -> Pair {
        let x = x.as_ptr().cast::<__m128i>();
        // SAFETY: as above. A bf16 is the upper half of an f32.
        unsafe {
            let [low, high] = [_mm_loadu_si128(x), _mm_loadu_si128(x.add(1))];
            Pair(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(low))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(high))),
            )
        }
    }
    #[inline(always)]
    fn store_f16(self, v: Pair, x: &mut [f16; LANES]) {
        let x = x.as_mut_ptr().cast::<__m128i>();
        // SAFETY: as above; an `f16` is two bytes.
        unsafe {
            _mm_storeu_si128(x, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
            _mm_storeu_si128(x.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1));
        }
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        halves!(_mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn min(self, a: Pair, b: Pair) -> Pair {
        halves!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    fn round(self, x: Pair) -> Pair {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: `Avx2` proves that the processor has the instruction.
        unsafe { Pair(_mm256_round_ps::<NEAREST>(x.0), _mm256_round_ps::<NEAREST>(x.1)) }
    }
    #[inline(always)]
    fn scale_by_power(self, x: Pair, n: Pair) -> Pair {
        #[inline(always)]
        fn power(n: __m256) -> __m256 {
            // SAFETY: called with an `Avx2` in hand only.
            unsafe {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
            }
        }
        self.mul(x, Pair(power(n.0), power(n.1)))
    }
    #[inline(always)]
    fn low_halves(self, x: Pair) -> [u32; LANES / 2] {
        let mut words = [0; LANES / 2];
        // SAFETY: `Avx2` proves that the processor has the instructions; 16 u16 are 8 words.
        unsafe {
            let mask = _mm256_set1_epi32(0xFFFF);
            let low = _mm256_and_si256(_mm256_castps_si256(x.0), mask);
            let high = _mm256_and_si256(_mm256_castps_si256(x.1), mask);
            // Packing works within 128-bit halves, so the quarters come out of order.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            _mm256_storeu_si256(words.as_mut_ptr().cast(), packed);
        }
        words
    }
    #[inline(always)]
    fn zero_below(self, x: Pair, key: Pair, bound: Pair) -> Pair {
        #[inline(always)]
        fn one(x: __m256, key: __m256, bound: __m256) -> __m256 {
            // SAFETY: called with an `Avx2` in hand only.
            unsafe { _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(key, bound), x) }
        }
        Pair(one(x.0, key.0, bound.0), one(x.1, key.1, bound.1))
    }
}
