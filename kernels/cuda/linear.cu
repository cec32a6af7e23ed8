// out = x · weightᵀ + bias, from the checkpoint's own blocks, on tensor cores.
//
// weight [rows, cols] in FORMAT (a macro), x f32 [tokens, cols], bias f32 [rows] or null, out f32 [tokens, rows];
// cols is a multiple of 32 and of the format's block.
//
// Weights, dequantised in registers, and activations are rounded to f16 and multiplied as the 16 × 16 and 16 × 8
// sides of mma.m16n8k16, in f32. The columns are cut into at most 8 segments of `segment` columns (a function of
// cols alone); each is summed by itself from the left, and the sums are added from the left. Both kernels do just
// that, so an output has the same bits whatever the number of tokens.
//
// linear_few: 16 rows a block, a warp a segment. For decode: each weight is read once from memory, and a warp's
//   loads are 16 rows side by side, whose lines the next steps find in L1. Variants for 8, 16 and 32 tokens.
// linear_many: 64 rows × 128 tokens a block of 8 warps, 32 columns at a time through shared memory; the next
//   columns are fetched and dequantised while these are multiplied. For prefill.
#include "formats.cuh"

template <class F>
DEVICE const u8* block_of(const u8* row, int col) { return row + (u64)(col / F::LEN) * F::BYTES; }

#define SEGMENTS 8

/// Tokens one after another, in x and in out.
struct Straight {
    DEVICE u64 in(int token) const { return token; }
    DEVICE u64 out(int token) const { return token; }
};

/// Pairs of a token and an expert: each has a row of out, and one of x that is its own or its token's.
struct Pairs {
    const u32* list;
    u32 tokens_divisor;
    DEVICE u64 in(int i) const { return list[i] / tokens_divisor; }
    DEVICE u64 out(int i) const { return list[i]; }
};

template <class F, int TILES, class Tokens>
DEVICE void few(const u8* weight, const float* x, const float* bias, float* out, int rows, int cols, int tokens,
                int segment, int first, Tokens of) {
    __shared__ float sums[SEGMENTS][16][8 * TILES];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const u64 stride = (u64)(cols / F::LEN) * F::BYTES;
    // Rows past the end repeat the last one, and are not stored.
    const u8* upper = weight + stride * min(first + g, rows - 1);
    const u8* lower = weight + stride * min(first + g + 8, rows - 1);
    const int end = min((warp + 1) * segment, cols);
    float c[TILES][4] = {};
#pragma unroll 2
    for (int col = warp * segment; col < end; col += 16) {
        u32 p[2], q[2];
        const int group = col % F::LEN / 16;
        F::pairs(block_of<F>(upper, col), group, t, p);
        F::pairs(block_of<F>(lower, col), group, t, q);
        const u32 a[4] = {p[0], q[0], p[1], q[1]};
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const int token = tile * 8 + g;
            u32 b0 = 0, b1 = 0;
            if (token < tokens) {
                const float2* from = (const float2*)(x + of.in(token) * cols + col + 2 * t);
                const float2 low = from[0], high = from[4];
                b0 = pack_f16(low.x, low.y), b1 = pack_f16(high.x, high.y);
            }
            mma_f16(c[tile], a, b0, b1);
        }
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) sums[warp][g + i / 2 * 8][tile * 8 + 2 * t + i % 2] = c[tile][i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * 8 * TILES; i += blockDim.x) {
        const int row = first + i % 16, token = i / 16;
        if (row < rows && token < tokens) {
            float sum = 0.0f;
#pragma unroll
            for (int s = 0; s < SEGMENTS; s++) sum += sums[s][i % 16][token];
            out[of.out(token) * rows + row] = bias ? sum + bias[row] : sum;
        }
    }
}

#define ROWS 64
#define TOKENS 128
#define COLS 32
/// A shared row of 40 f16: eight rows at the same columns lie in different banks.
#define PITCH (COLS + 8)

/// A thread's part of a tile of 32 columns: of one weight row 8 elements, of one token 16.
struct Part {
    u32 weights[4];
    u32 x[8];
};

template <class F>
DEVICE Part fetch(const u8* row, const float* token, int col) {
    const int half = threadIdx.x % 4;
    Part part;
    const u8* block = block_of<F>(row, col + half / 2 * 16);
    const int group = (col + half / 2 * 16) % F::LEN / 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 p[2];
        F::pairs(block, group, half % 2 * 2 + i, p);
        part.weights[i] = p[0], part.weights[2 + i] = p[1];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 v = make_float4(0, 0, 0, 0);
        if (token) v = ((const float4*)(token + col + threadIdx.x % 2 * 16))[i];
        part.x[2 * i] = pack_f16(v.x, v.y), part.x[2 * i + 1] = pack_f16(v.z, v.w);
    }
    return part;
}

template <class F>
DEVICE void many(const u8* weight, const float* x, const float* bias, float* out, int rows, int cols, int tokens,
                 int segment) {
    __shared__ __align__(16) u16 weights[ROWS][PITCH], inputs[TOKENS][PITCH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int first_row = blockIdx.x * ROWS, first_token = blockIdx.y * TOKENS;
    const int warp_row = warp % 2 * 32, warp_token = warp / 2 * 32;

    const int my_row = threadIdx.x / 4, my_token = threadIdx.x / 2;
    const u8* row = weight + (u64)(cols / F::LEN) * F::BYTES * min(first_row + my_row, rows - 1);
    const float* token = first_token + my_token < tokens ? x + (u64)(first_token + my_token) * cols : nullptr;

    float sum[2][4][4] = {}, c[2][4][4] = {};
    int left = segment;
    Part part = fetch<F>(row, token, 0);
    for (int col = 0; col < cols; col += COLS) {
        const int half = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(u32*)&weights[my_row][half / 2 * 16 + half % 2 * 4 + i % 2 * 2 + i / 2 * 8] = part.weights[i];
#pragma unroll
        for (int i = 0; i < 8; i++) *(u32*)&inputs[my_token][threadIdx.x % 2 * 16 + 2 * i] = part.x[i];
        __syncthreads();
        if (col + COLS < cols) part = fetch<F>(row, token, col + COLS);
#pragma unroll
        for (int k = 0; k < COLS; k += 16) {
            u32 a[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) load_matrices(a[i], &weights[warp_row + i * 16 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                u32 b[4];
                load_matrices(b, &inputs[warp_token + j * 8 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    mma_f16(c[i][j], a[i], b[0], b[1]);
                    mma_f16(c[i][j + 1], a[i], b[2], b[3]);
                }
            }
        }
        left -= COLS;
        if (left == 0 || col + COLS >= cols) {
            left = segment;
#pragma unroll
            for (int i = 0; i < 32; i++) {
                float* from = &c[i / 16][i / 4 % 4][i % 4];
                sum[i / 16][i / 4 % 4][i % 4] += *from;
                *from = 0.0f;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int r = first_row + warp_row + i * 16 + g + e / 2 * 8;
                const int to = first_token + warp_token + j * 8 + 2 * t + e % 2;
                const float value = sum[i][j][e];
                if (r < rows && to < tokens) out[(u64)to * rows + r] = bias ? value + bias[r] : value;
            }
        }
    }
}

// grid (ceil(rows / 16)), block 256; tokens at most 8, 16, 32
#define FEW(NAME, TILES)                                                                                          \
    KERNEL __launch_bounds__(256) NAME(const u8* weight, const float* x, const float* bias, float* out, int rows, \
                                       int cols, int tokens, int segment) {                                       \
        few<FORMAT, TILES>(weight, x, bias, out, rows, cols, tokens, segment, blockIdx.x * 16, Straight{});       \
    }
FEW(linear_8, 1)
FEW(linear_16, 2)
FEW(linear_32, 4)

// out[pair] = weight[expert of the pair] · x[its token], or · x[pair] where `is_spread`: `linear_8` of one token, for
// each pair of a token and one of its `chosen` experts; weight is [experts · rows, cols], routing as in experts.cu
// grid (pairs, ceil(rows / 16)), block 256
KERNEL __launch_bounds__(256)
    expert_linear(const u8* weight, const float* x, const float* routing, float* out, int rows, int cols, u32 chosen,
                  u32 is_spread, int segment) {
    const u64 pair = blockIdx.x, token = blockIdx.x / chosen;
    const u64 expert = (u64)routing[token * 2 * chosen + blockIdx.x % chosen];
    weight += expert * rows * (cols / FORMAT::LEN) * FORMAT::BYTES;
    x += (is_spread ? pair : token) * cols;
    few<FORMAT, 1>(weight, x, nullptr, out + pair * rows, rows, cols, 1, segment, blockIdx.y * 16, Straight{});
}

// The same for many pairs: an expert's, as `expert_lists` of experts.cu names them, 32 at a time.
// grid (experts, ceil(rows / 16)), block 256
KERNEL __launch_bounds__(256)
    expert_linear_many(const u8* weight, const float* x, const u32* lists, float* out, int rows, int cols, u32 experts,
                       u32 pairs, u32 chosen, u32 is_spread, int segment) {
    const u32 expert = blockIdx.x, end = expert + 1 < experts ? lists[expert + 1] : pairs;
    weight += (u64)expert * rows * (cols / FORMAT::LEN) * FORMAT::BYTES;
    for (u32 first = lists[expert]; first < end; first += 32) {
        const Pairs of = {lists + experts + first, is_spread ? 1 : chosen};
        few<FORMAT, 4>(weight, x, nullptr, out, rows, cols, min(end - first, 32u), segment, blockIdx.y * 16, of);
        __syncthreads();
    }
}

// grid (ceil(rows / 64), ceil(tokens / 128)), block 256
KERNEL __launch_bounds__(256)
    linear_many(const u8* weight, const float* x, const float* bias, float* out, int rows, int cols, int tokens,
                int segment) {
    many<FORMAT>(weight, x, bias, out, rows, cols, tokens, segment);
}

// out[token] = table[ids[token]], exactly; out-of-range ids are refused on the host.
// grid (tokens), block 128
KERNEL embed(const u8* table, const u32* ids, float* out, int cols) {
    const u8* row = table + (u64)(cols / FORMAT::LEN) * FORMAT::BYTES * ids[blockIdx.x];
    out += (u64)blockIdx.x * cols;
    for (int i = threadIdx.x; i < cols / 4; i += blockDim.x) {
        const int col = i / 4 * 16, t = i % 4;
        float v[4];
        FORMAT::quad(block_of<FORMAT>(row, col), col % FORMAT::LEN / 16, t, v);
        float* to = out + col + 2 * t;
        to[0] = v[0], to[1] = v[1], to[8] = v[2], to[9] = v[3];
    }
}
