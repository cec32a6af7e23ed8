// Causal convolution along a sequence, channel by channel, and SiLU.
//
// x, out f32 [tokens, channels], weight f32 [channels, taps], bias f32 [channels] or null; a slot of the state begins
// with the last taps - 1 inputs, f32 [taps - 1, channels], the oldest first; taps at most 8.
//
// A piece is at most 32 tokens of one sequence; a block takes a piece and 128 channels, a thread a channel, whose last
// inputs stay in registers. Inputs before the piece are those of x, and before the step's first token the state's.
// That state is read and replaced by the sequence's first piece alone, so that no block waits for another.
#include "common.cuh"

#define MAX_TAPS 8

struct Piece {
    /// Index of its first token in the step, and how many there are.
    u32 first, tokens;
    /// How many of the sequence's tokens are before it in the step, and how many the sequence has there.
    u32 before, total;
    /// The slot of its state.
    u32 slot;
    /// Whether the sequence begins here, whatever its slot holds.
    u32 is_fresh;
    u32 unused[2];
};

// grid (ceil(channels / 128), pieces), block 128; a slot's part of this operation is at state + slot · stride
KERNEL conv(const float* x, const float* weight, const float* bias, float* out, float* state, u32 stride,
            const Piece* pieces, u32 channels, u32 taps) {
    const Piece piece = pieces[blockIdx.y];
    const u32 c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= channels) return;
    state += (u64)piece.slot * stride + c;
    x += (u64)(piece.first - piece.before) * channels + c;
    out += (u64)piece.first * channels + c;
    const int kept = (int)taps - 1, before = (int)piece.before, total = (int)piece.total;

    // The last input is at the end; taps that there aren't are zero.
    float w[MAX_TAPS], inputs[MAX_TAPS];
#pragma unroll
    for (int i = 0; i < MAX_TAPS; i++) {
        const int tap = i - (MAX_TAPS - 1) + kept, at = before + tap - kept;
        w[i] = tap >= 0 ? weight[c * taps + tap] : 0.0f;
        float input = 0.0f;
        if (tap >= 0 && at < before) {
            if (at >= 0) input = x[(u64)at * channels];
            else if (!piece.is_fresh) input = state[(u64)(at + kept) * channels];
        }
        inputs[i] = input;
    }
    if (before == 0) {
        // Ascending: what is moved lies ahead of where it goes.
        for (int i = 0; i < kept; i++) {
            const int at = total - kept + i;
            float input = 0.0f;
            if (at >= 0) input = x[(u64)at * channels];
            else if (!piece.is_fresh) input = state[(u64)(at + kept) * channels];
            state[(u64)i * channels] = input;
        }
    }
    const float first = bias ? bias[c] : 0.0f;
    for (u32 t = 0; t < piece.tokens; t++) {
        inputs[MAX_TAPS - 1] = x[(u64)(before + t) * channels];
        float sum = first;
#pragma unroll
        for (int i = 0; i < MAX_TAPS; i++) sum = fmaf(w[i], inputs[i], sum);
        out[(u64)t * channels] = sum / (1.0f + exp_fast(-sum));
#pragma unroll
        for (int i = 0; i + 1 < MAX_TAPS; i++) inputs[i] = inputs[i + 1];
    }
}
