//! Products with unquantised weights, read where the checkpoint has them.
//!
//! Lane `i` sums the columns `i`, `i + 16`, ... in ascending order; the lanes are then added in a fixed
//! tree. The order is the same for every number of rows and every instruction set.

use super::simd::{LANES, Simd};

/// How a weight's elements are stored.
pub(super) trait Element {
    /// Bytes of one.
    const BYTES: usize;
    /// Reads sixteen.
    ///
    /// # Safety
    /// As for [`Simd`]; `from` is good for sixteen elements.
    unsafe fn load<S: Simd>(from: *const u8) -> S::F;
}

macro_rules! elements {
    ($($name:ident: $bytes:literal, $load:ident;)*) => {$(
        #[doc = concat!("[`crate::TensorType::", stringify!($name), "`].")]
        pub(super) struct $name;
        impl Element for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<S: Simd>(from: *const u8) -> S::F {
                // SAFETY: the caller's promise.
                unsafe { S::$load(from) }
            }
        }
    )*};
}

elements! {
    F32: 4, load_f32;
    F16: 2, load_f16;
    BF16: 2, load_bf16;
}

/// Where a kernel reads and writes.
#[derive(Clone, Copy)]
pub(super) struct Call {
    /// The first of the weight's rows.
    pub(super) weight: *const u8,
    /// How many of them, at most [`LANES`].
    pub(super) outputs: usize,
    /// The first activation row.
    pub(super) x: *const f32,
    /// Columns of both.
    pub(super) cols: usize,
    /// The result of the first rows: `outputs` f32 are written a row.
    pub(super) out: *mut f32,
    /// Elements from one row's results to the next one's.
    pub(super) stride: usize,
}

/// Multiplies `outputs` weight rows, `N` at a time, with `M` rows of activations.
///
/// # Safety
/// As for [`Simd`]; the pointers of `call` are good for what their fields say.
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd, E: Element, const M: usize, const N: usize>(call: &Call) {
    let row_bytes = call.cols * E::BYTES;
    let mut done = 0;
    // SAFETY: the caller's promise; `done` stays below `outputs`.
    unsafe {
        while call.outputs - done >= N {
            block::<S, E, M, N>(call, call.weight.add(done * row_bytes), call.out.add(done));
            done += N;
        }
        while done < call.outputs {
            block::<S, E, M, 1>(call, call.weight.add(done * row_bytes), call.out.add(done));
            done += 1;
        }
    }
}

#[inline(always)]
unsafe fn block<S: Simd, E: Element, const M: usize, const N: usize>(
    call: &Call,
    weight: *const u8,
    out: *mut f32,
) {
    let cols = call.cols;
    let whole = cols / LANES * LANES;
    // SAFETY: the caller's promise; `add_products` reads sixteen columns from `col`, all of them below `cols`
    // or inside the padded copies.
    unsafe {
        let mut sums = [[S::splat_float(0.0); N]; M];
        for col in (0..whole).step_by(LANES) {
            add_products::<S, E, M, N>(
                &mut sums,
                |n| weight.add((n * cols + col) * E::BYTES),
                |m| call.x.add(m * cols + col),
            );
        }
        if whole < cols {
            let rest = cols - whole;
            let mut weights = [[0u8; LANES * 4]; N];
            let mut inputs = [[0f32; LANES]; M];
            for (n, copy) in weights.iter_mut().enumerate() {
                let from = weight.add((n * cols + whole) * E::BYTES);
                std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), rest * E::BYTES);
            }
            for (m, copy) in inputs.iter_mut().enumerate() {
                std::ptr::copy_nonoverlapping(call.x.add(m * cols + whole), copy.as_mut_ptr(), rest);
            }
            add_products::<S, E, M, N>(&mut sums, |n| weights[n].as_ptr(), |m| inputs[m].as_ptr());
        }
        for (m, sums) in sums.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                out.add(m * call.stride + n).write(sum_lanes::<S>(sum));
            }
        }
    }
}

#[inline(always)]
unsafe fn add_products<S: Simd, E: Element, const M: usize, const N: usize>(
    sums: &mut [[S::F; N]; M],
    weight: impl Fn(usize) -> *const u8,
    x: impl Fn(usize) -> *const f32,
) {
    // SAFETY: both give pointers to sixteen elements.
    unsafe {
        let weights: [S::F; N] = std::array::from_fn(|n| E::load::<S>(weight(n)));
        for (m, sums) in sums.iter_mut().enumerate() {
            let x = S::load_f32(x(m).cast());
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = S::mul_add(weight, x, *sum);
            }
        }
    }
}

#[inline(always)]
unsafe fn sum_lanes<S: Simd>(sum: S::F) -> f32 {
    let mut lanes = [0f32; LANES];
    // SAFETY: room for sixteen.
    unsafe { S::store(sum, lanes.as_mut_ptr()) };
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}
