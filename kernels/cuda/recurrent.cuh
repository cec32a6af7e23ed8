// What the operations share that carry a state along a sequence: its part of a step, and the gates' functions.
#pragma once
#include "common.cuh"

struct Row {
    /// Index of its first token in the step, and how many there are.
    u32 first, tokens;
    /// The slot of its state.
    u32 slot;
    /// Whether the sequence begins here, whatever its slot holds.
    u32 is_fresh;
};

/// log(1 + e^x): of what is added to 1, the part that rounding keeps is in the logarithm, and the factor restores it.
DEVICE float softplus(float x) {
    const float e = expf(-fabsf(x)), y = 1.0f + e, kept = y - 1.0f;
    return fmaxf(x, 0.0f) + (kept > 0.0f ? logf(y) * (e / kept) : e);
}

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/// 1 over a vector's norm, of the sum of its squares; what is added keeps the norm from 0.
DEVICE float inverse_norm(float squares) { return 1.0f / sqrtf(squares + 1e-6f); }

/// The sum over LANES neighbouring lanes, to each of them.
template <int LANES>
DEVICE float group_sum(float x) {
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(ALL, x, lanes);
    return x;
}
