// Rotary embedding, and the write of keys and values to the paged cache.
//
// Positions u32 [tokens]; q f32 [tokens, heads, dim], k and v f32 [tokens, kv_heads, dim]; the cache is f16
// [block][layer][key, value][kv head][position in block][dim], so that a block of all layers is one piece.
#include "common.cuh"

/// Sine and cosine of x, to f32's precision, for |x| below 2^31: reduced by quarter turns and expanded in f64.
DEVICE float2 cos_sin(double x) {
    const double quarters = rint(x * 0.63661977236758134308);
    // π/2 in two parts: quarters · the first is exact enough for 2^-40 of error at 2^20 radians.
    double r = fma(quarters, -1.57079632679489661923, x);
    r = fma(quarters, -6.12323399573676603587e-17, r);
    const double s = r * r;
    double sine = fma(s, fma(s, fma(s, fma(s, fma(s, -2.5052108385441718775e-8, 2.7557319223985890653e-6),
                                           -1.9841269841269841270e-4),
                                    8.3333333333333333333e-3),
                             -1.6666666666666666667e-1),
                      1.0) * r;
    double cosine = fma(s, fma(s, fma(s, fma(s, fma(s, -2.7557319223985890653e-7, 2.4801587301587301587e-5),
                                             -1.3888888888888888889e-3),
                                      4.1666666666666666667e-2),
                               -0.5),
                        1.0);
    const int quadrant = (int)quarters & 3;
    if (quadrant % 2 == 1) {
        const double swap = sine;
        sine = cosine, cosine = -swap;
    }
    if (quadrant >= 2) sine = -sine, cosine = -cosine;
    return make_float2((float)cosine, (float)sine);
}

// angles[token][pair] = magnitude · (cos, sin)(position · frequency[pair]); once a step, for all layers.
// grid (tokens), block 128
KERNEL rope_angles(const u32* positions, const float* frequencies, float2* angles, u32 pairs, float magnitude) {
    angles += (u64)blockIdx.x * pairs;
    for (u32 pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
        const float2 a = cos_sin((double)positions[blockIdx.x] * (double)frequencies[pair]);
        angles[pair] = make_float2(a.x * magnitude, a.y * magnitude);
    }
}

/// Turns `heads` heads of a token in place.
DEVICE void turn(float* x, const float2* angles, u32 heads, u32 dim, u32 pairs, bool half_split) {
    for (u32 i = threadIdx.x; i < heads * pairs; i += blockDim.x) {
        const u32 pair = i % pairs;
        float* head = x + i / pairs * dim;
        const u32 first = half_split ? pair : 2 * pair, second = half_split ? pair + pairs : 2 * pair + 1;
        const float2 a = angles[pair];
        const float p = head[first], q = head[second];
        head[first] = fmaf(p, a.x, -(q * a.y));
        head[second] = fmaf(p, a.y, q * a.x);
    }
}

/// Where a position's key of KV head 0 is, of one layer; values are `kv_heads · block_size · dim` further.
DEVICE u64 cache_at(u32 block, u32 layers, u32 layer, u32 kv_heads, u32 block_size, u32 within, u32 dim) {
    return ((((u64)block * layers + layer) * 2 * kv_heads) * block_size + within) * dim;
}

// Turns q and k in place and writes k and v to the cache. `slots` has each token's block and place in it.
// grid (tokens), block 256
KERNEL rope_kv_write(float* q, float* k, const float* v, u16* cache, const float2* angles, const uint2* slots,
                     u32 heads, u32 kv_heads, u32 dim, u32 pairs, u32 half_split, u32 layers, u32 layer,
                     u32 block_size) {
    const u64 token = blockIdx.x;
    q += token * heads * dim, k += token * kv_heads * dim, v += token * kv_heads * dim;
    angles += token * pairs;
    turn(q, angles, heads, dim, pairs, half_split);
    turn(k, angles, kv_heads, dim, pairs, half_split);
    __syncthreads();
    const uint2 slot = slots[token];
    u16* key = cache + cache_at(slot.x, layers, layer, kv_heads, block_size, slot.y, dim);
    u16* value = key + (u64)kv_heads * block_size * dim;
    for (u32 i = threadIdx.x; i < kv_heads * dim; i += blockDim.x) {
        const u64 at = (u64)(i / dim) * block_size * dim + i % dim;
        key[at] = to_f16(k[i]);
        value[at] = to_f16(v[i]);
    }
}
