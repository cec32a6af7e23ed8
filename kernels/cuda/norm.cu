// Root mean square norm, alone and behind the residual sum.
//
// x, residual, out f32 [rows, cols], weight f32 [cols]. A block takes a row: one pass sums the squares, the next,
// whose input is still in L1, scales. Lanes take every 256th column, then add up in a tree.
#include "common.cuh"

#define THREADS 256

/// The sum of all threads' values, to each of them.
DEVICE float block_sum(float x) {
    __shared__ float sums[THREADS / 32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) sum += sums[i];
    return sum;
}

DEVICE void scale_row(const float* x, const float* weight, float* out, int cols, float squares, float eps) {
    const float factor = 1.0f / sqrtf(block_sum(squares) / (float)cols + eps);
    for (int i = threadIdx.x; i < cols; i += THREADS) out[i] = x[i] * factor * weight[i];
}

// out = x / rms(x) · weight
// grid (rows), block 256
KERNEL rms_norm(const float* x, const float* weight, float* out, int cols, float eps) {
    x += (u64)blockIdx.x * cols, out += (u64)blockIdx.x * cols;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < cols; i += THREADS) squares = fmaf(x[i], x[i], squares);
    scale_row(x, weight, out, cols, squares, eps);
}

// residual += x; out = residual / rms(residual) · weight
// grid (rows), block 256
KERNEL add_rms_norm(float* residual, const float* x, const float* weight, float* out, int cols, float eps) {
    residual += (u64)blockIdx.x * cols, x += (u64)blockIdx.x * cols, out += (u64)blockIdx.x * cols;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < cols; i += THREADS) {
        const float sum = residual[i] + x[i];
        residual[i] = sum;
        squares = fmaf(sum, sum, squares);
    }
    scale_row(residual, weight, out, cols, squares, eps);
}
