// The selective scan of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs"), token by token.
//
// A row of xbc f32 is x [heads, head_dim], then B and C [groups, state_dim]; dt f32 [tokens, heads]; a, d, dt_bias f32
// [heads]; out f32 [tokens, heads, head_dim]. A slot of the state begins with h, f32 [heads, head_dim, state_dim].
//   Δ = softplus(dt + dt_bias), h = exp(Δ · a) · h + Δ · x ⊗ B, out = h · C + d · x
//
// Eight lanes take one value of a head and hold its state in registers from a sequence's first token to its last: it
// is read and written once a step. Values don't depend on each other, so that a head is shared by several blocks; the
// sum over the state is three shuffles a token. What must stay true: a token's bits don't depend on how a sequence is
// cut into steps, since the state between them is f32 as it is in registers.
#include "recurrent.cuh"

#define LANES 8
#define VALUES_A_BLOCK 16

struct Shape {
    u32 heads, head_dim, groups, state_dim, channels;
};

template <int STATES>
DEVICE void scan(const float* xbc, const float* dt, const float* a, const float* d, const float* dt_bias, float* out,
                 float* state, u32 stride, const Row* rows, const Shape& s) {
    const Row row = rows[blockIdx.y];
    const u32 tiles = (s.head_dim + VALUES_A_BLOCK - 1) / VALUES_A_BLOCK;
    const u32 head = blockIdx.x / tiles, lane = threadIdx.x % LANES;
    const u32 value = blockIdx.x % tiles * VALUES_A_BLOCK + threadIdx.x / LANES;
    // Lanes past the last value go along for the shuffles.
    const bool is_valid = value < s.head_dim;
    state += (u64)row.slot * stride + ((u64)head * s.head_dim + value) * s.state_dim;

    float h[STATES];
#pragma unroll
    for (int i = 0; i < STATES; i++) {
        const u32 n = i * LANES + lane;
        h[i] = is_valid && n < s.state_dim && !row.is_fresh ? state[n] : 0.0f;
    }
    const float decay = a[head], straight = d[head], bias = dt_bias[head];
    const u32 b_at = s.heads * s.head_dim + head / (s.heads / s.groups) * s.state_dim;
    const u32 c_at = b_at + s.groups * s.state_dim, x_at = head * s.head_dim + value;
    for (u32 t = row.first; t < row.first + row.tokens; t++) {
        const float* from = xbc + (u64)t * s.channels;
        const float delta = softplus(dt[(u64)t * s.heads + head] + bias);
        const float kept = expf(delta * decay), x = is_valid ? from[x_at] : 0.0f, added = delta * x;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < STATES; i++) {
            const u32 n = i * LANES + lane;
            if (n < s.state_dim) {
                h[i] = fmaf(added, from[b_at + n], kept * h[i]);
                sum = fmaf(h[i], from[c_at + n], sum);
            }
        }
        sum = group_sum<LANES>(sum);
        if (is_valid && lane == 0) out[(u64)t * s.heads * s.head_dim + x_at] = fmaf(straight, x, sum);
    }
#pragma unroll
    for (int i = 0; i < STATES; i++) {
        const u32 n = i * LANES + lane;
        if (is_valid && n < s.state_dim) state[n] = h[i];
    }
}

// grid (heads · ceil(head_dim / 16), rows), block 128; state_dim at most 32, 128, 256; a slot's part of this operation
// is at state + slot · stride
#define SCAN(NAME, STATES)                                                                                        \
    KERNEL __launch_bounds__(128)                                                                                 \
        NAME(const float* xbc, const float* dt, const float* a, const float* d, const float* dt_bias, float* out, \
             float* state, u32 stride, const Row* rows, Shape s) {                                                \
        scan<STATES>(xbc, dt, a, d, dt_bias, out, state, stride, rows, s);                                        \
    }
SCAN(scan_32, 4)
SCAN(scan_128, 16)
SCAN(scan_256, 32)
