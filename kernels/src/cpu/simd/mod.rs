//! Vectors of 16 f32, whatever the processor's registers are, so that a kernel is written once.
//!
//! A kernel is a [`Kernel`] whose `run` is generic over [`Simd`]; [`Isa::run`] compiles it for each instruction
//! set and calls the one that was chosen at run time. Everything it calls must be `#[inline(always)]`: what isn't
//! inlined is compiled without the instruction set. Plain loops inside are vectorised by the compiler as well.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod math;
mod portable;

pub(crate) use math::{activate, exp, softcap};

use super::isa::{Isa, Level};
use half::f16;

/// Lanes of a vector.
pub const LANES: usize = 16;

/// What is compiled once for each instruction set.
pub trait Kernel {
    /// Its result.
    type Out;
    /// Does the work; must be `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Out;
}

/// An instruction set. A value of the type is proof that the processor has it.
pub trait Simd: Copy + Send + Sync {
    /// 16 lanes of f32.
    type V: Copy;
    /// How many vectors fit in registers as accumulators, beside the operands of a multiply-add.
    const ACCUMULATORS: usize;

    /// The same value in all lanes.
    fn splat(self, x: f32) -> Self::V;
    /// Lanes from memory.
    fn load(self, x: &[f32; LANES]) -> Self::V;
    /// Lanes to memory.
    fn store(self, v: Self::V, x: &mut [f32; LANES]);
    /// Lanes from memory, widened.
    fn load_f16(self, x: &[f16; LANES]) -> Self::V;
    /// Lanes from the bytes of little-endian f32.
    fn load_f32_bytes(self, x: &[u8; 4 * LANES]) -> Self::V;
    /// Lanes from the bytes of little-endian f16, widened.
    fn load_f16_bytes(self, x: &[u8; 2 * LANES]) -> Self::V;
    /// Lanes from the bytes of little-endian bf16, widened.
    fn load_bf16_bytes(self, x: &[u8; 2 * LANES]) -> Self::V;
    /// Lanes to memory, rounded to nearest, ties to even.
    fn store_f16(self, v: Self::V, x: &mut [f16; LANES]);
    /// a + b.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// a − b.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// a · b.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// a / b.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// a · b + c, with one rounding where the processor can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger; `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller; `b` where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The nearest whole number.
    fn round(self, x: Self::V) -> Self::V;
    /// x · 2^n for whole n from −126 to 127.
    fn scale_by_power(self, x: Self::V, n: Self::V) -> Self::V;
    /// The low 16 bits of each lane's bits, two lanes a word, the earlier one in its low half.
    fn low_halves(self, x: Self::V) -> [u32; LANES / 2];
    /// `x` but 0 where `key` is below `bound`.
    fn zero_below(self, x: Self::V, key: Self::V, bound: Self::V) -> Self::V;
    /// Up to 16 lanes from memory, the others 0.
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> Self::V {
        let mut lanes = [0.0; LANES];
        lanes[..x.len()].copy_from_slice(x);
        self.load(&lanes)
    }
    /// As many lanes to memory as there is room for, up to 16.
    #[inline(always)]
    fn store_part(self, v: Self::V, x: &mut [f32]) {
        x.copy_from_slice(&self.to_array(v)[..x.len()]);
    }
    /// The lanes as an array.
    #[inline(always)]
    fn to_array(self, v: Self::V) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        lanes
    }
    /// The sum of the lanes, by halves: the same order on every instruction set.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        fold(self.to_array(v), |a, b| a + b)
    }
    /// The largest lane.
    #[inline(always)]
    fn max_lane(self, v: Self::V) -> f32 {
        fold(self.to_array(v), |a, b| if a > b { a } else { b })
    }
}

impl Isa {
    /// Runs a kernel compiled for it.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self.level() {
            // SAFETY: an `Isa` of this level exists only where the processor has it.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => unsafe { run_avx512(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { run_avx2(kernel) },
            _ => kernel.run(portable::Portable),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(avx2::Avx2::new())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Out {
    kernel.run(avx512::Avx512::new())
}

#[inline(always)]
fn fold(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests;
