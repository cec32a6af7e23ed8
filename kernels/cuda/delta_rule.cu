// The gated delta rule (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks"), token by token.
//
// A row of qkv f32 is q and k [key_heads, key_dim], then v [value_heads, value_dim]; alpha, beta f32 [tokens,
// value_heads]; a, dt_bias f32 [value_heads]; out f32 [tokens, value_heads, value_dim]. A slot of the state begins
// with S, f32 [value_heads, key_dim, value_dim]. With q and k divided by their norm, and q by √key_dim:
//   S = exp(a · softplus(alpha + dt_bias)) · S, S += k ⊗ sigmoid(beta) · (v - k · S), out = q · S
//
// Columns of S don't depend on each other: four lanes take one and hold it in registers from a sequence's first token
// to its last, so that S is read and written once a step, and a head is shared by several blocks. Norms are sums along
// the way, since each lane reads q and k anyway: the four sums of a token are two shuffles each. What must stay true:
// a token's bits don't depend on how a sequence is cut into steps, since the state between them is f32 as it is in
// registers.
#include "recurrent.cuh"

#define LANES 4
#define COLUMNS_A_BLOCK 32

struct Shape {
    u32 key_heads, value_heads, key_dim, value_dim, channels;
};

template <int KEYS>
DEVICE void delta_rule(const float* qkv, const float* alpha, const float* beta, const float* a, const float* dt_bias,
                       float* out, float* state, u32 stride, const Row* rows, const Shape& s) {
    const Row row = rows[blockIdx.y];
    const u32 tiles = (s.value_dim + COLUMNS_A_BLOCK - 1) / COLUMNS_A_BLOCK;
    const u32 head = blockIdx.x / tiles, lane = threadIdx.x % LANES;
    const u32 column = blockIdx.x % tiles * COLUMNS_A_BLOCK + threadIdx.x / LANES;
    // Lanes past the last column go along for the shuffles.
    const bool is_valid = column < s.value_dim;
    state += (u64)row.slot * stride + (u64)head * s.key_dim * s.value_dim + column;

    float part[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        const u32 key = i * LANES + lane;
        part[i] = is_valid && key < s.key_dim && !row.is_fresh ? state[(u64)key * s.value_dim] : 0.0f;
    }
    const float rate = a[head], bias = dt_bias[head], root = sqrtf((float)s.key_dim);
    const u32 q_at = head / (s.value_heads / s.key_heads) * s.key_dim, k_at = q_at + s.key_heads * s.key_dim;
    const u32 v_at = 2 * s.key_heads * s.key_dim + head * s.value_dim + column;
    for (u32 t = row.first; t < row.first + row.tokens; t++) {
        const float* from = qkv + (u64)t * s.channels;
        const u64 gate = (u64)t * s.value_heads + head;
        const float kept = expf(rate * softplus(alpha[gate] + bias)), strength = sigmoid(beta[gate]);
        float k[KEYS], kk = 0.0f, qq = 0.0f, known = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const u32 key = i * LANES + lane;
            k[i] = 0.0f;
            if (key < s.key_dim) {
                k[i] = from[k_at + key];
                const float q = from[q_at + key];
                part[i] *= kept;
                kk = fmaf(k[i], k[i], kk);
                qq = fmaf(q, q, qq);
                known = fmaf(k[i], part[i], known);
            }
        }
        const float k_factor = inverse_norm(group_sum<LANES>(kk)), q_factor = inverse_norm(group_sum<LANES>(qq));
        known = group_sum<LANES>(known) * k_factor;
        const float change = strength * ((is_valid ? from[v_at] : 0.0f) - known) * k_factor;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const u32 key = i * LANES + lane;
            if (key < s.key_dim) {
                part[i] = fmaf(k[i], change, part[i]);
                sum = fmaf(from[q_at + key], part[i], sum);
            }
        }
        sum = group_sum<LANES>(sum) * (q_factor / root);
        if (is_valid && lane == 0) out[(u64)t * s.value_heads * s.value_dim + head * s.value_dim + column] = sum;
    }
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        const u32 key = i * LANES + lane;
        if (is_valid && key < s.key_dim) state[(u64)key * s.value_dim] = part[i];
    }
}

// grid (value_heads · ceil(value_dim / 32), rows), block 128; key_dim at most 32, 128, 256; a slot's part of this
// operation is at state + slot · stride
#define DELTA_RULE(NAME, KEYS)                                                                          \
    KERNEL __launch_bounds__(128)                                                                       \
        NAME(const float* qkv, const float* alpha, const float* beta, const float* a, const float* dt_bias, \
             float* out, float* state, u32 stride, const Row* rows, Shape s) {                          \
        delta_rule<KEYS>(qkv, alpha, beta, a, dt_bias, out, state, stride, rows, s);                    \
    }
DELTA_RULE(delta_rule_32, 8)
DELTA_RULE(delta_rule_128, 32)
DELTA_RULE(delta_rule_256, 64)
