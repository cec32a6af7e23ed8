// What works element by element, and the choice of rows. All f32; n elements in all.
//
// grid (ceil(n / 256)), block 256, where nothing else is said
#include "common.cuh"

DEVICE u32 index() { return blockIdx.x * blockDim.x + threadIdx.x; }

/// x · sigmoid(y)
DEVICE float gate_by(float x, float y) { return x / (1.0f + exp_fast(-y)); }

// out = silu(gate) · up
KERNEL gated_silu(const float* gate, const float* up, float* out, u32 n) {
    const u32 i = index();
    if (i < n) out[i] = gate_by(gate[i], gate[i]) * up[i];
}

// out = gelu(gate) · up, by the tanh approximation: (1 + tanh u) / 2 is sigmoid(2u)
KERNEL gated_gelu(const float* gate, const float* up, float* out, u32 n) {
    const u32 i = index();
    if (i >= n) return;
    const float x = gate[i];
    const float linear = 1.5957691216057308f, cubic = linear * 0.044715f;
    out[i] = gate_by(x, x * fmaf(x * x, cubic, linear)) * up[i];
}

// out = sigmoid(gate) · up
KERNEL gated_sigmoid(const float* gate, const float* up, float* out, u32 n) {
    const u32 i = index();
    if (i < n) out[i] = gate_by(up[i], gate[i]);
}

// x[row] *= sigmoid(gate[row]), rows of `cols` elements
KERNEL gate_rows(float* x, const float* gate, u32 cols, u32 n) {
    const u32 i = index();
    if (i < n) x[i] = gate_by(x[i], gate[i / cols]);
}

// x *= factor
KERNEL scale(float* x, float factor, u32 n) {
    const u32 i = index();
    if (i < n) x[i] *= factor;
}

// x = cap · tanh(x / cap)
KERNEL softcap(float* x, float cap, u32 n) {
    const u32 i = index();
    if (i < n) x[i] = cap * (1.0f - 2.0f / (exp_fast(2.0f * x[i] / cap) + 1.0f));
}

// residual += x
KERNEL add(float* residual, const float* x, u32 n) {
    const u32 i = index();
    if (i < n) residual[i] += x[i];
}

// out[row] = x[rows[row]], rows of `cols` elements
// grid (rows), block 256
KERNEL gather(const float* x, const u32* rows, float* out, u32 cols) {
    x += (u64)rows[blockIdx.x] * cols, out += (u64)blockIdx.x * cols;
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x) out[i] = x[i];
}
