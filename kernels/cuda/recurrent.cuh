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

/// log(1 + e^x)
DEVICE float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/// 1 / √squares, for a vector that is divided by its norm; one of zeros stays so.
DEVICE float inverse_norm(float squares) { return 1.0f / sqrtf(squares + 1e-6f); }

/// The sum over LANES neighbouring lanes, to each of them.
template <int LANES>
DEVICE float group_sum(float x) {
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(ALL, x, lanes);
    return x;
}
