// Causal attention over the paged cache, for prefill and decode alike.
//
// q, out f32 [tokens, heads, dim]; the cache f16 as in rope.cu; dim a multiple of 8, at most DIM (a macro: 32, 64,
// 96, 128 or 256). After FlashAttention-2 (T. Dao, 2023) and FlashDecoding.
//
// An item is some tokens of one sequence. Its query rows are its tokens' heads that share a KV head, at most 64, 16
// a warp; a block takes an item and a KV head, and its warps share the keys and values that it brings to shared
// memory, while the next ones are under way. Scores and sums are products of 16 rows and 8 keys, or dimensions, on
// tensor cores; queries and probabilities are two f16 each, a rounded value and what was lost, so that nothing but
// the cache is of 16 bits.
//
// What must stay true: a token's result has the same bits whatever the items. Positions are summed in chunks of 256
// from absolute multiples of 256: within a chunk from the left with a running maximum, by itself; the chunks are
// merged from the left. A prefill does all chunks in one block. A decode gives each chunk a block of its own, and
// attention_merge, which states the same arithmetic, merges them. A tile without a visible position changes nothing.
#include "common.cuh"

#define CHUNK 256u
#define WARPS 4u
/// Keys brought at a time.
#define KEYS (DIM > 128 ? 16u : 32u)
/// A shared row: eight rows at the same dimensions lie in different banks.
#define PITCH (DIM + 8u)
#define DIRECT 0xFFFFFFFFu

struct Shape {
    u32 heads, kv_heads, dim, layers, layer, block_size, window;
    float scale, softcap;
};

struct Item {
    /// Index of its first token in the step, and how many there are.
    u32 first, tokens;
    /// Position of the first token.
    u32 position;
    /// Where its sequence's block table starts.
    u32 table;
    /// The chunks to do.
    u32 chunk, chunks_end;
    /// Where its partial result goes, or DIRECT.
    u32 partial;
    u32 unused;
};

/// A row's running maximum (in powers of 2) and sum.
struct Running {
    float max, sum;
};

DEVICE float softcapped(float x, float cap) {
    return cap > 0.0f ? cap * (1.0f - 2.0f / (exp_fast(2.0f * x / cap) + 1.0f)) : x;
}

/// x as a rounded f16 and the f16 of what was lost.
DEVICE void split(float x, float y, u32& high, u32& low) {
    const u16 a = to_f16(x), b = to_f16(y);
    high = (u32)a | (u32)b << 16;
    low = pack_f16(x - from_f16(a), y - from_f16(b));
}

/// Factors for what was merged and for what comes, and the new state. What comes isn't empty.
DEVICE float2 merge(Running& all, const Running& part) {
    const float max = fmaxf(all.max, part.max);
    const float a = exp2_fast(all.max - max), b = exp2_fast(part.max - max);
    all.sum = fmaf(part.sum, b, all.sum * a);
    all.max = max;
    return make_float2(a, b);
}

DEVICE float merged(float all, float part, float2 factors) { return fmaf(part, factors.y, all * factors.x); }

/// Starts bringing the keys, or values, of KEYS positions; zeros for those from `end` on.
DEVICE void bring(u16 (*to)[PITCH], const u16* cache, const u32* table, u32 first, u32 end, const Shape& s,
                  u32 part_and_head) {
    const u32 pieces = s.dim / 8;
    for (u32 i = threadIdx.x; i < KEYS * pieces; i += WARPS * 32) {
        const u32 key = i / pieces, piece = i % pieces, position = first + key;
        const bool valid = position < end;
        const u16* from = cache;
        if (valid) {
            const u64 block = table[position / s.block_size];
            const u64 row = (block * s.layers + s.layer) * 2 * s.kv_heads + part_and_head;
            from = cache + (row * s.block_size + position % s.block_size) * s.dim + piece * 8;
        }
        copy_async(&to[key][piece * 8], from, valid);
    }
}

// grid (items, kv_heads), block 128
KERNEL __launch_bounds__(128)
    attention(const float* q, const u16* cache, float* out, const Item* items, const u32* tables, float* partials,
              Running* states, Shape s) {
    __shared__ __align__(16) u16 keys[2][KEYS][PITCH], values[2][KEYS][PITCH];
    const Item item = items[blockIdx.x];
    // A step's decode may be filled up with items of nothing.
    if (item.tokens == 0) return;
    const u32 kv_head = blockIdx.y, group = s.heads / s.kv_heads;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const u32* table = tables + item.table;

    // Dimensions past the last are zero.
    for (u32 i = threadIdx.x; i < 2 * KEYS * (DIM - s.dim); i += WARPS * 32) {
        const u32 row = i / (DIM - s.dim), d = s.dim + i % (DIM - s.dim);
        keys[row / KEYS][row % KEYS][d] = 0;
        values[row / KEYS][row % KEYS][d] = 0;
    }

    // This thread's two rows: a token's position, and where its head is in q and out.
    u32 position[2];
    u64 at[2];
    bool valid[2];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        const u32 row = warp * 16 + g + r * 8, token = row / group;
        valid[r] = token < item.tokens;
        position[r] = item.position + (valid[r] ? token : 0);
        at[r] = ((u64)(item.first + (valid[r] ? token : 0)) * s.heads + kv_head * group + row % group) * s.dim;
    }
    u32 high[DIM / 16][4], low[DIM / 16][4];
#pragma unroll
    for (u32 k = 0; k < DIM / 16; k++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 d = k * 16 + 2 * t + i / 2 * 8;
            float2 x = make_float2(0.0f, 0.0f);
            if (valid[i % 2] && d < s.dim) x = *(const float2*)(q + at[i % 2] + d);
            split(x.x, x.y, high[k][i], low[k][i]);
        }
    }

    const u32 end = item.position + item.tokens;
    const u32 earliest = s.window == 0 || item.position + 1 < s.window ? 0 : item.position + 1 - s.window;
    Running all[2] = {{negative_infinity(), 0.0f}, {negative_infinity(), 0.0f}};
    for (u32 chunk = item.chunk; chunk < item.chunks_end; chunk++) {
        const u32 first = max(chunk * CHUNK, earliest / KEYS * KEYS), last = min((chunk + 1) * CHUNK, end);
        Running part[2] = {{negative_infinity(), 0.0f}, {negative_infinity(), 0.0f}};
        float sums[DIM / 8][4] = {};
        __syncthreads();
        if (first < last) {
            bring(keys[0], cache, table, first, last, s, kv_head);
            bring(values[0], cache, table, first, last, s, s.kv_heads + kv_head);
            commit_copies();
        }
        for (u32 tile = first, stage = 0; tile < last; tile += KEYS, stage ^= 1) {
            if (tile + KEYS < last) {
                bring(keys[stage ^ 1], cache, table, tile + KEYS, last, s, kv_head);
                bring(values[stage ^ 1], cache, table, tile + KEYS, last, s, s.kv_heads + kv_head);
                commit_copies();
                wait_copies<1>();
            } else {
                wait_copies<0>();
            }
            __syncthreads();

            float scores[KEYS / 8][4] = {};
#pragma unroll
            for (u32 k = 0; k < DIM / 16; k++) {
#pragma unroll
                for (u32 j = 0; j < KEYS / 8; j += 2) {
                    u32 b[4];
                    load_matrices(b, &keys[stage][j * 8 + lane / 16 * 8 + lane % 8][k * 16 + lane / 8 % 2 * 8]);
                    mma_f16(scores[j], high[k], b[0], b[1]);
                    mma_f16(scores[j], low[k], b[0], b[1]);
                    mma_f16(scores[j + 1], high[k], b[2], b[3]);
                    mma_f16(scores[j + 1], low[k], b[2], b[3]);
                }
            }
            float max[2] = {part[0].max, part[1].max};
#pragma unroll
            for (u32 j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const u32 key = tile + j * 8 + 2 * t + i % 2, p = position[i / 2];
                    const bool visible = key <= p && (s.window == 0 || key + s.window > p);
                    const float score = softcapped(scores[j][i] * s.scale, s.softcap) * LOG2_E;
                    scores[j][i] = visible ? score : negative_infinity();
                    max[i / 2] = fmaxf(max[i / 2], scores[j][i]);
                }
            }
#pragma unroll
            for (u32 r = 0; r < 2; r++) {
                max[r] = fmaxf(max[r], __shfl_xor_sync(ALL, max[r], 1));
                max[r] = fmaxf(max[r], __shfl_xor_sync(ALL, max[r], 2));
                // While nothing is visible, any finite number serves.
                const float base = max[r] == negative_infinity() ? 0.0f : max[r];
                const float factor = exp2_fast(part[r].max - base);
                part[r].max = max[r];
                part[r].sum *= factor;
#pragma unroll
                for (u32 j = 0; j < DIM / 8; j++) sums[j][2 * r] *= factor, sums[j][2 * r + 1] *= factor;
#pragma unroll
                for (u32 j = 0; j < KEYS / 8; j++) {
#pragma unroll
                    for (u32 i = 2 * r; i < 2 * r + 2; i++) {
                        scores[j][i] = exp2_fast(scores[j][i] - base);
                        part[r].sum += scores[j][i];
                    }
                }
            }
#pragma unroll
            for (u32 k = 0; k < KEYS / 16; k++) {
                // What holds the scores is laid out as the left side of a product is.
                u32 p_high[4], p_low[4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const float* p = &scores[2 * k + i / 2][i % 2 * 2];
                    split(p[0], p[1], p_high[i], p_low[i]);
                }
#pragma unroll
                for (u32 j = 0; j < DIM / 8; j += 2) {
                    u32 b[4];
                    load_transposed(b, &values[stage][k * 16 + lane % 16][j * 8 + lane / 16 * 8]);
                    mma_f16(sums[j], p_high, b[0], b[1]);
                    mma_f16(sums[j], p_low, b[0], b[1]);
                    mma_f16(sums[j + 1], p_high, b[2], b[3]);
                    mma_f16(sums[j + 1], p_low, b[2], b[3]);
                }
            }
            __syncthreads();
        }

        const bool is_last = chunk + 1 == item.chunks_end;
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            part[r].sum += __shfl_xor_sync(ALL, part[r].sum, 1);
            part[r].sum += __shfl_xor_sync(ALL, part[r].sum, 2);
            if (!valid[r]) continue;
            if (item.partial != DIRECT) {
                // Of one chunk and one token; `at` less the token's place is the head's.
                const u64 to = (u64)item.partial * s.heads * s.dim + at[r] - (u64)item.first * s.heads * s.dim;
#pragma unroll
                for (u32 j = 0; j < DIM / 8; j++) {
                    const u32 d = j * 8 + 2 * t;
                    if (d < s.dim) *(float2*)(partials + to + d) = make_float2(sums[j][2 * r], sums[j][2 * r + 1]);
                }
                if (t == 0) states[to / s.dim] = part[r];
                continue;
            }
            // Between chunks, `out` holds what was merged.
            const bool is_first = all[r].max == negative_infinity(), is_empty = part[r].max == negative_infinity();
            if (is_empty && !(is_last && !is_first)) continue;
            float2 factors = make_float2(1.0f, 1.0f);
            if (is_first) all[r] = part[r];
            else if (!is_empty) factors = merge(all[r], part[r]);
#pragma unroll
            for (u32 j = 0; j < DIM / 8; j++) {
                const u32 d = j * 8 + 2 * t;
                if (d >= s.dim) continue;
                float2* to = (float2*)(out + at[r] + d);
                float2 x = make_float2(sums[j][2 * r], sums[j][2 * r + 1]);
                if (!is_first) {
                    const float2 before = *to;
                    if (is_empty) x = before;
                    else x = make_float2(merged(before.x, x.x, factors), merged(before.y, x.y, factors));
                }
                if (is_last) x = make_float2(x.x / all[r].sum, x.y / all[r].sum);
                *to = x;
            }
        }
    }
}

struct Merge {
    /// Index of the token in the step; its partial results, one a chunk.
    u32 token, partial, chunks;
    u32 unused;
};

// Merges the chunks of tokens that had a block for each.
// grid (merges, heads), block DIM
KERNEL attention_merge(const float* partials, const Running* states, const Merge* merges, float* out, u32 heads,
                       u32 dim) {
    const Merge m = merges[blockIdx.x];
    const u32 head = blockIdx.y, d = threadIdx.x;
    // As with items of nothing.
    if (d >= dim || m.chunks == 0) return;
    Running all = {negative_infinity(), 0.0f};
    float x = 0.0f;
    for (u32 chunk = 0; chunk < m.chunks; chunk++) {
        const u64 from = (u64)(m.partial + chunk) * heads + head;
        const Running part = states[from];
        if (part.max == negative_infinity()) continue;
        const float sum = partials[from * dim + d];
        if (all.max == negative_infinity()) {
            all = part, x = sum;
        } else {
            const float2 factors = merge(all, part);
            x = merged(x, sum, factors);
        }
    }
    out[((u64)m.token * heads + head) * dim + d] = x / all.sum;
}
