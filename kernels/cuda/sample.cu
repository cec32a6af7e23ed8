// Chooses a token from a row of logits, as met_kernels::sample does: penalties and bias, mask, temperature, top-k, top-p,
// min-p, and a draw by a counter-based random number (Philox4x32-10, Salmon et al., 2011).
//
// logits f32 [rows, vocab]; for each row a Request, and a Choice back; adjusted and candidates are room for a row of
// logits, and for a row of candidates. A block takes a row. Probabilities are relative to the largest, in fixed point of
// 40 bits, so that their sums don't depend on the order; candidates stay in the order of tokens. Where a filter is on,
// only tokens near the largest are looked at more than once, as on the CPU; the border of what a filter keeps is found
// by bisection of the logits' bits.
#include "common.cuh"

#define THREADS 1024u
#define MAX_TOP 20

struct Request {
    u32 seed[2], sequence[2];
    u32 position;
    /// The row's logits.
    u32 row;
    /// 1 / temperature; 0 is greedy.
    float scale;
    float top_p, min_p;
    u32 top_k;
    float repetition, presence, frequency;
    /// Its parts of `pairs`: (token, times generated), then (token, bias as bits).
    u32 pairs, counts, biases;
    /// Where its mask starts in `masks`, or NO_MASK.
    u32 mask;
    /// How many of the most probable tokens are listed.
    u32 top;
};
#define NO_MASK 0xFFFFFFFFu

struct Choice {
    u32 token;
    u32 not_finite;
    /// Of the row's own logits: the token's and the largest; the sum of e^(logit - largest) in fixed point.
    float logit, largest;
    u64 sum;
    u32 top_tokens[MAX_TOP];
    float top_logits[MAX_TOP];
};

struct Candidate {
    u32 token;
    float logit;
};

/// A larger logit has a larger key; a negative 0 has that of 0.
DEVICE u32 key_of(float x) {
    const u32 bits = (u32)__float_as_int(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// e^x for x of 0 or less, to the bit what the CPU computes; 0 where that is no normal number.
DEVICE float exp_exact(float x) {
    const float lowest = -87.33f;
    const float clamped = fmaxf(lowest, x);
    const float n = rintf(clamped * LOG2_E);
    float r = fmaf(n, -355.0f / 512.0f, clamped);
    r = fmaf(n, -(float)(0.693147180559945309417 - 355.0 / 512.0), r);
    float p = 0.0013814598f;
    p = fmaf(p, r, 0.008368717f);
    p = fmaf(p, r, 0.04166839f);
    p = fmaf(p, r, 0.16666521f);
    p = fmaf(p, r, 0.49999994f);
    const float power = fmaf(r * r, p, r + 1.0f);
    // 2^n by its exponent; `power` is near 1.
    return x < lowest ? 0.0f : __int_as_float(__float_as_int(power) + ((int)n << 23));
}

/// A probability relative to the largest, in fixed point.
DEVICE u64 mass_of(float logit, float largest, float scale) {
    return (u64)(exp_exact((logit - largest) * scale) * 1099511627776.0f);
}

/// The sum over the block, to each thread; of larger(a, b) where it is a maximum.
template <class T, class F>
DEVICE T reduce(T x, F join) {
    __shared__ T parts[THREADS / 32];
#pragma unroll
    for (u32 lanes = 16; lanes > 0; lanes /= 2) x = join(x, (T)__shfl_xor_sync(ALL, x, lanes));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[threadIdx.x % 32];
#pragma unroll
    for (u32 lanes = 16; lanes > 0; lanes /= 2) x = join(x, (T)__shfl_xor_sync(ALL, x, lanes));
    return x;
}

DEVICE u64 block_sum(u64 x) {
    return reduce(x, [](u64 a, u64 b) { return a + b; });
}
DEVICE u64 block_max(u64 x) {
    return reduce(x, [](u64 a, u64 b) { return a > b ? a : b; });
}

/// The sum of the threads before this one; `total` is that of all.
DEVICE u64 scan(u64 x, u64& total) {
    __shared__ u64 parts[THREADS / 32];
    const u32 lane = threadIdx.x % 32;
    u64 sum = x;
#pragma unroll
    for (u32 lanes = 1; lanes < 32; lanes *= 2) {
        const u64 before = __shfl_up_sync(ALL, sum, lanes);
        if (lane >= lanes) sum += before;
    }
    __syncthreads();
    if (lane == 31) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    u64 before = 0;
    total = 0;
    for (u32 i = 0; i < THREADS / 32; i++) {
        if (i == threadIdx.x / 32) before = total;
        total += parts[i];
    }
    return before + sum - x;
}

/// The largest value, then the lowest token: as one number.
DEVICE u64 ranked(float logit, u32 token) { return (u64)key_of(logit) << 32 | (u32)~token; }
DEVICE u32 token_of(u64 rank) { return ~(u32)rank; }

DEVICE float clamp_finite(float x) { return fminf(fmaxf(x, -3.402823466e38f), 3.402823466e38f); }

/// Writes the row's logits after penalties, bias and mask to `out`.
DEVICE void adjust(const float* logits, const uint2* pairs, const u32* masks, const Request& r, float* out, u32 vocab) {
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) out[i] = logits[i];
    __syncthreads();
    for (u32 i = threadIdx.x; i < r.counts; i += THREADS) {
        const uint2 count = pairs[r.pairs + i];
        if (count.x >= vocab) continue;
        const float x = out[count.x], generated = (float)count.y;
        const float repeated = x > 0.0f ? x / r.repetition : x * r.repetition;
        const float presence = count.y > 0 ? r.presence : 0.0f;
        out[count.x] = clamp_finite(repeated - presence - r.frequency * generated);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < r.biases; i += THREADS) {
        const uint2 bias = pairs[r.pairs + r.counts + i];
        if (bias.x < vocab) out[bias.x] = clamp_finite(out[bias.x] + __int_as_float((int)bias.y));
    }
    __syncthreads();
    if (r.mask == NO_MASK) return;
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
        if ((masks[r.mask + i / 32] >> i % 32 & 1) == 0) out[i] = negative_infinity();
    }
    __syncthreads();
}

/// The candidates, in the order of tokens.
struct List {
    Candidate* candidates;
    u32 count;
    float largest, scale;

    DEVICE u64 mass(u32 i) const { return mass_of(candidates[i].logit, largest, scale); }

    /// The number, or the mass, of those whose key is at least `key`.
    DEVICE u64 weight(u32 key, bool by_mass) const {
        u64 sum = 0;
        for (u32 i = threadIdx.x; i < count; i += THREADS) {
            if (key_of(candidates[i].logit) >= key) sum += by_mass ? mass(i) : 1;
        }
        return block_sum(sum);
    }

    /// Keeps those for which `keep` is true.
    template <class F>
    DEVICE void retain(F keep) {
        u32 kept = 0;
        for (u32 first = 0; first < count; first += THREADS) {
            const u32 i = first + threadIdx.x;
            Candidate candidate = {};
            if (i < count) candidate = candidates[i];
            const bool is_kept = keep(candidate, i < count);
            u64 total;
            const u64 before = scan(is_kept, total);
            if (is_kept) candidates[kept + before] = candidate;
            kept += (u32)total;
        }
        count = kept;
        __syncthreads();
    }

    /// Keeps the best whose weight together reaches `target`, the lower token first among equals.
    DEVICE void keep_best(u64 target, bool by_mass) {
        if (weight(0, by_mass) <= target) return;
        // The largest key from which on they reach it.
        u32 border = 0;
        for (u32 bit = 1u << 31; bit > 0; bit >>= 1) {
            if (weight(border | bit, by_mass) >= target) border |= bit;
        }
        const u64 above = border == ~0u ? 0 : weight(border + 1, by_mass);
        u64 equals = 0;
        retain([&](const Candidate& c, bool valid) {
            const u32 key = key_of(c.logit);
            const bool is_equal = valid && key == border;
            u64 total;
            const u64 place = equals + scan(is_equal, total);
            equals += total;
            // Equals have equal weights: it is kept where those before it don't reach the target.
            const u64 one = by_mass ? mass_of(c.logit, largest, scale) : 1;
            return valid && (key > border || (is_equal && above + place * one < target));
        });
    }
};

/// Philox4x32-10: 53 random bits as the top of 64.
DEVICE u64 random_bits(const Request& r) {
    u32 c[4] = {r.sequence[0], r.sequence[1], r.position, 0}, key[2] = {r.seed[0], r.seed[1]};
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 x = (u64)0xD2511F53u * c[0], y = (u64)0xCD9E8D57u * c[2];
        const u32 next[4] = {(u32)(y >> 32) ^ c[1] ^ key[0], (u32)y, (u32)(x >> 32) ^ c[3] ^ key[1], (u32)x};
#pragma unroll
        for (int i = 0; i < 4; i++) c[i] = next[i];
        key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u;
    }
    return ((u64)c[0] << 32 | c[1]) >> 11 << 11;
}

/// The index, of `count`, at which the sum of mass(index) passes `share` / 2^64 of all.
template <class F>
DEVICE u32 draw(u32 count, u64 share, F mass) {
    __shared__ u32 drawn;
    u64 sum = 0;
    for (u32 i = threadIdx.x; i < count; i += THREADS) sum += mass(i);
    const u64 target = __umul64hi(block_sum(sum), share);
    u64 before = 0;
    if (threadIdx.x == 0) drawn = 0;
    for (u32 first = 0; first < count; first += THREADS) {
        const u32 i = first + threadIdx.x;
        const u64 mine = i < count ? mass(i) : 0;
        u64 total;
        const u64 start = before + scan(mine, total);
        if (start <= target && target < start + mine) drawn = i;
        before += total;
        if (target < before) break;
    }
    __syncthreads();
    return drawn;
}

/// Collects the tokens that the filters may keep.
DEVICE List collect(const float* logits, u32 vocab, float largest, const Request& r, Candidate* candidates) {
    const float enough = r.min_p > 0.0f ? 0.01f - logf(r.min_p) : -negative_infinity();
    const bool by_mass = r.top_k == 0 && r.top_p < 1.0f;
    u64 all = 0;
    if (by_mass) {
        for (u32 i = threadIdx.x; i < vocab; i += THREADS) all += mass_of(logits[i], largest, r.scale);
        all = block_sum(all);
    }
    float least = negative_infinity();
    for (float depth = 6.0f; depth <= 24.0f; depth *= 2.0f) {
        const float from = largest - fminf(depth, enough) / r.scale;
        u64 found = 0;
        for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
            if (logits[i] >= from) found += by_mass ? mass_of(logits[i], largest, r.scale) : 1;
        }
        found = block_sum(found);
        const bool is_filled = r.top_k > 0 ? found >= r.top_k : by_mass && (double)found >= r.top_p * (double)all;
        if (depth >= enough || is_filled) {
            least = from;
            break;
        }
    }
    if (least == negative_infinity()) least = largest - enough / r.scale;
    List list = {candidates, 0, largest, r.scale};
    for (u32 first = 0; first < vocab; first += THREADS) {
        const u32 i = first + threadIdx.x;
        const bool near = i < vocab && logits[i] >= least && logits[i] > negative_infinity();
        u64 total;
        const u64 before = scan(near, total);
        if (near) candidates[list.count + before] = {i, logits[i]};
        list.count += (u32)total;
    }
    __syncthreads();
    return list;
}

DEVICE u32 choose(const float* logits, u32 vocab, const Request& r, Candidate* candidates) {
    u64 best = 0;
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
        const u64 rank = ranked(logits[i], i);
        best = rank > best ? rank : best;
    }
    const u32 most_probable = token_of(block_max(best));
    if (r.scale == 0.0f) return most_probable;
    const float largest = logits[most_probable];
    const u64 share = random_bits(r);
    if (r.top_k == 0 && r.top_p >= 1.0f && r.min_p <= 0.0f) {
        return draw(vocab, share, [&](u32 i) { return mass_of(logits[i], largest, r.scale); });
    }
    List list = collect(logits, vocab, largest, r, candidates);
    if (r.top_k > 0) list.keep_best(r.top_k, false);
    if (r.top_p < 1.0f) {
        u64 whole = 0;
        if (r.top_k > 0) {
            whole = list.weight(0, true);
        } else {
            for (u32 i = threadIdx.x; i < vocab; i += THREADS) whole += mass_of(logits[i], largest, r.scale);
            whole = block_sum(whole);
        }
        const u64 target = (u64)ceil((double)r.top_p * (double)whole);
        list.keep_best(target > 1 ? target : 1, true);
    }
    if (r.min_p > 0.0f) {
        list.retain([&](const Candidate& c, bool valid) {
            return valid && exp_exact((c.logit - largest) * r.scale) >= r.min_p;
        });
    }
    const u32 drawn = draw(list.count, share, [&](u32 i) { return list.mass(i); });
    return list.candidates[drawn].token;
}

// grid (requests), block 1024
KERNEL __launch_bounds__(1024)
    sample(const float* logits, const Request* requests, const uint2* pairs, const u32* masks, float* adjusted,
           Candidate* candidates, Choice* choices, u32 vocab) {
    const Request r = requests[blockIdx.x];
    Choice& choice = choices[blockIdx.x];
    logits += (u64)r.row * vocab;
    adjusted += (u64)blockIdx.x * vocab, candidates += (u64)blockIdx.x * vocab;

    u64 best = 0;
    u64 spoiled = 0;
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
        const float x = logits[i];
        // A number less itself is 0 where it is finite.
        spoiled |= x - x != 0.0f;
        const u64 rank = ranked(x, i);
        best = rank > best ? rank : best;
    }
    if (block_max(spoiled) != 0) {
        if (threadIdx.x == 0) choice.not_finite = 1;
        return;
    }
    best = block_max(best);
    const float largest = logits[token_of(best)];
    u64 sum = 0;
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) sum += mass_of(logits[i], largest, 1.0f);
    sum = block_sum(sum);

    for (u32 n = 0; n < r.top; n++) {
        if (n > 0) {
            // The best of those behind the last one.
            u64 next = 0;
            for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
                const u64 rank = ranked(logits[i], i);
                if (rank < best && rank > next) next = rank;
            }
            best = block_max(next);
        }
        if (threadIdx.x == 0) choice.top_tokens[n] = token_of(best), choice.top_logits[n] = logits[token_of(best)];
    }

    const bool is_plain = r.counts == 0 && r.biases == 0 && r.mask == NO_MASK;
    if (!is_plain) adjust(logits, pairs, masks, r, adjusted, vocab);
    const u32 token = choose(is_plain ? logits : adjusted, vocab, r, candidates);
    if (threadIdx.x == 0) {
        choice.token = token;
        choice.not_finite = 0;
        choice.logit = logits[token];
        choice.largest = largest;
        choice.sum = sum;
    }
}

struct Source {
    const Choice* choice;
    /// Which of the step's tokens it is.
    u32 token;
    u32 unused;
};

// Takes tokens of a step from choices of the step before.
// grid (ceil(n / 128)), block 128
KERNEL take(u32* tokens, const Source* sources, u32 n) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) tokens[sources[i].token] = sources[i].choice->token;
}
