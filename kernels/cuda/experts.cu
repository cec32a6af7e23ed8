// The choice of experts, and the sum of what they give. Products with their weights are in linear.cu and plain.cu.
//
// logits f32 [tokens, experts]; routing f32 [tokens, 2 · chosen]: the experts' numbers, the most probable first, then
// their weights.
#include "common.cuh"

/// Whether logit x of expert i comes before logit y of expert j: a larger one, the lower number among equals.
DEVICE bool precedes(float x, u32 i, float y, u32 j) { return x > y || (x == y && i < j); }

// A warp takes a token and finds the experts one after another: the first of those that come after the last one found.
// grid (ceil(tokens / 4)), block 128
KERNEL route(const float* logits, float* routing, u32 tokens, u32 experts, u32 chosen, u32 is_normalised) {
    const u32 token = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (token >= tokens) return;
    logits += (u64)token * experts, routing += (u64)token * 2 * chosen;
    float last = 0.0f, max = 0.0f, sum = 0.0f;
    u32 last_at = 0;
    for (u32 j = 0; j < chosen; j++) {
        float best = negative_infinity();
        // Past the last, so that any other comes before it.
        u32 best_at = ALL;
        for (u32 i = lane; i < experts; i += 32) {
            const float x = logits[i];
            if (precedes(x, i, best, best_at) && (j == 0 || precedes(last, last_at, x, i))) best = x, best_at = i;
        }
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) {
            const float other = __shfl_xor_sync(ALL, best, lanes);
            const u32 other_at = __shfl_xor_sync(ALL, best_at, lanes);
            if (precedes(other, other_at, best, best_at)) best = other, best_at = other_at;
        }
        // Logits that are no numbers come before and after none; any expert will do, for their weight is none either.
        last = best, last_at = best_at == ALL ? 0 : best_at;
        if (j == 0) max = best;
        const float weight = expf(best - max);
        if (is_normalised) sum += weight;
        if (lane == 0) routing[j] = (float)last_at, routing[chosen + j] = weight;
    }
    if (!is_normalised) {
        for (u32 i = lane; i < experts; i += 32) sum += expf(logits[i] - max);
        sum = warp_sum(sum);
    }
    __syncwarp();
    for (u32 j = lane; j < chosen; j += 32) routing[chosen + j] /= sum;
}

// Sorts pairs of a token and one of its experts by expert: lists u32 [experts + pairs] has where each expert's pairs
// begin, then the pairs. A warp takes an expert and looks at all of them: first how many come before its own.
// grid (experts), block 32
KERNEL expert_lists(const float* routing, u32* lists, u32 experts, u32 pairs, u32 chosen) {
    const u32 expert = blockIdx.x, lane = threadIdx.x;
    u32 before = 0;
    for (u32 first = 0; first < pairs; first += 32) {
        const u32 pair = first + lane;
        const bool is_before = pair < pairs && (u32)routing[pair / chosen * 2 * chosen + pair % chosen] < expert;
        before += __popc(__ballot_sync(ALL, is_before));
    }
    if (lane == 0) lists[expert] = before;
    lists += experts + before;
    for (u32 first = 0; first < pairs; first += 32) {
        const u32 pair = first + lane;
        const bool is_mine = pair < pairs && (u32)routing[pair / chosen * 2 * chosen + pair % chosen] == expert;
        const u32 mine = __ballot_sync(ALL, is_mine);
        if (is_mine) lists[__popc(mine & ((1u << lane) - 1))] = pair;
        lists += __popc(mine);
    }
}

// out[token] = Σ weight j of the token · x[token · chosen + j], rows of `cols` elements
// grid (tokens, ceil(cols / 256)), block 256
KERNEL combine(const float* x, const float* routing, float* out, u32 cols, u32 chosen) {
    const u64 token = blockIdx.x;
    const u32 col = blockIdx.y * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    const float* weights = routing + token * 2 * chosen + chosen;
    x += token * chosen * cols + col;
    float sum = 0.0f;
    for (u32 j = 0; j < chosen; j++) sum = fmaf(weights[j], x[(u64)j * cols], sum);
    out[token * cols + col] = sum;
}
