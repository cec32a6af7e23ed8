// Weights of plain floats whose shape or precision doesn't suit linear.cu: f32, and rows that are no multiple of 32.
//
// weight ELEMENT [rows, cols] (a macro: f32, f16, bf16), x f32 [tokens, cols], bias f32 [rows] or null, out f32
// [tokens, rows]. A warp computes one output: lanes take every 32nd column, then add up in a tree. Reads are
// coalesced; the tokens of a block's warps share the weight row through L1.
#include "common.cuh"

struct F32 {
    typedef float Stored;
    static DEVICE float value(float x) { return x; }
};
struct F16 {
    typedef u16 Stored;
    static DEVICE float value(u16 x) { return from_f16(x); }
};
struct BF16 {
    typedef u16 Stored;
    static DEVICE float value(u16 x) { return from_bf16(x); }
};

/// The product of a weight row and a token, by a warp.
DEVICE float dot(const ELEMENT::Stored* weight, const float* x, int cols) {
    float sum = 0.0f;
    for (int col = threadIdx.x % 32; col < cols; col += 32) sum = fmaf(ELEMENT::value(weight[col]), x[col], sum);
    return warp_sum(sum);
}

// grid (rows, ceil(tokens / 8)), block 256
KERNEL plain_linear(const ELEMENT::Stored* weight, const float* x, const float* bias, float* out, int rows, int cols,
                    int tokens) {
    const int row = blockIdx.x, token = blockIdx.y * 8 + threadIdx.x / 32;
    if (token >= tokens) return;
    const float sum = dot(weight + (u64)row * cols, x + (u64)token * cols, cols);
    if (threadIdx.x % 32 == 0) out[(u64)token * rows + row] = bias ? sum + bias[row] : sum;
}

// As expert_linear of linear.cu.
// grid (pairs, ceil(rows / 8)), block 256
KERNEL plain_expert_linear(const ELEMENT::Stored* weight, const float* x, const float* routing, float* out, int rows,
                           int cols, u32 chosen, u32 is_spread) {
    const u64 pair = blockIdx.x, token = blockIdx.x / chosen;
    const u64 expert = (u64)routing[token * 2 * chosen + blockIdx.x % chosen];
    const int row = blockIdx.y * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    const float sum = dot(weight + (expert * rows + row) * cols, x + (is_spread ? pair : token) * cols, cols);
    if (threadIdx.x % 32 == 0) out[pair * rows + row] = sum;
}

// out[token] = table[ids[token]]
// grid (tokens), block 128
KERNEL plain_embed(const ELEMENT::Stored* table, const u32* ids, float* out, int cols) {
    table += (u64)ids[blockIdx.x] * cols;
    out += (u64)blockIdx.x * cols;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) out[col] = ELEMENT::value(table[col]);
}
