// GGUF's weight formats, dequantised exactly: products and sums in the order of each format's definition.
//
// Each format has LEN elements a block of BYTES bytes, and
//   quad(block, group, t, v): elements 2t, 2t + 1, 2t + 8, 2t + 9 of the block's `group`-th 16 elements, as a lane
//     of a tensor-core product wants them. t is 0 to 3.
//   pairs(block, group, t, p): the same, rounded to f16, two and two. Where scales are f16 the arithmetic is, too,
//     two elements an instruction; a product's rounding is the same, since it is exact in f32.
// Blocks are 2-byte aligned. Integers become floats by being put into the low bits of a large one: that is a byte
// permutation and a subtraction, where a conversion takes a slow unit.
#pragma once
#include "common.cuh"

/// Two neighbouring bytes.
DEVICE u32 bytes2(const u8* p) { return *(const u16*)p; }
/// The bytes of a quad's elements, of 16 bytes one an element: 2t, 2t + 1, 2t + 8, 2t + 9, low byte first.
DEVICE u32 quad_bytes(const u8* sixteen, int t) { return bytes2(sixteen + 2 * t) | bytes2(sixteen + 2 * t + 8) << 16; }
/// The bits of a quad's elements, of 16 bits one an element, as the low bit of each byte.
DEVICE u32 quad_bits(u32 sixteen, int t) {
    const u32 b = sixteen >> (2 * t);
    return (b & 1) | (b & 2) << 7 | (b & 0x100) << 8 | (b & 0x200) << 15;
}
DEVICE float half_at(const u8* p) { return from_f16(*(const u16*)p); }
/// A code less `zero`, of four in a word.
DEVICE float code(u32 codes, int i, int zero) {
    return __int_as_float((int)__byte_perm(codes, 0x4B000000, 0x7540 | i)) - (8388608.0f + (float)zero);
}
/// The first two codes, or the last two, each less `zero`, as f16.
DEVICE u32 code_pair(u32 codes, int which, u32 zero) {
    const u32 pair = __byte_perm(codes, 0x64646464, which == 0 ? 0x4140 : 0x4342);
    return sub_pair(pair, (0x6400 + zero) * 0x10001);
}
/// A f16 twice.
DEVICE u32 twice(const u8* p) { return (u32) * (const u16*)p * 0x10001; }

/// v = scale · (code - zero)
DEVICE void centred(float v[4], float scale, u32 codes, int zero) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = scale * code(codes, i, zero);
}
DEVICE void centred(u32 p[2], u32 scale, u32 codes, u32 zero) {
#pragma unroll
    for (int i = 0; i < 2; i++) p[i] = mul_pair(scale, code_pair(codes, i, zero));
}
/// v = scale · code + add
DEVICE void affine(float v[4], float scale, u32 codes, float add) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = scale * code(codes, i, 0) + add;
}
DEVICE void affine(u32 p[2], u32 scale, u32 codes, u32 add) {
#pragma unroll
    for (int i = 0; i < 2; i++) p[i] = fma_pair(scale, code_pair(codes, i, 0), add);
}

/// `pairs` of a format whose scales are more than f16.
template <class F>
struct Rounded {
    static DEVICE void pairs(const u8* b, int group, int t, u32 p[2]) {
        float v[4];
        F::quad(b, group, t, v);
        p[0] = pack_f16(v[0], v[1]), p[1] = pack_f16(v[2], v[3]);
    }
};

struct F16 {
    enum { LEN = 16, BYTES = 32 };
    static DEVICE void quad(const u8* b, int, int t, float v[4]) {
        const u16* x = (const u16*)b + 2 * t;
        v[0] = from_f16(x[0]), v[1] = from_f16(x[1]), v[2] = from_f16(x[8]), v[3] = from_f16(x[9]);
    }
    /// Rows are 4-byte aligned.
    static DEVICE void pairs(const u8* b, int, int t, u32 p[2]) {
        p[0] = *(const u32*)(b + 4 * t), p[1] = *(const u32*)(b + 4 * t + 16);
    }
};

struct BF16 : Rounded<BF16> {
    enum { LEN = 16, BYTES = 32 };
    static DEVICE void quad(const u8* b, int, int t, float v[4]) {
        const u16* x = (const u16*)b + 2 * t;
        v[0] = from_bf16(x[0]), v[1] = from_bf16(x[1]), v[2] = from_bf16(x[8]), v[3] = from_bf16(x[9]);
    }
};

/// Scale; nibbles around 8: low ones are the first 16 elements.
struct Q4_0 {
    enum { LEN = 32, BYTES = 18 };
    static DEVICE u32 codes(const u8* b, int group, int t) {
        return quad_bytes(b + 2, t) >> (4 * group) & 0x0F0F0F0F;
    }
    static DEVICE void quad(const u8* b, int group, int t, float v[4]) {
        centred(v, half_at(b), codes(b, group, t), 8);
    }
    static DEVICE void pairs(const u8* b, int group, int t, u32 p[2]) {
        centred(p, twice(b), codes(b, group, t), 8);
    }
};

/// Scale, minimum; nibbles.
struct Q4_1 {
    enum { LEN = 32, BYTES = 20 };
    static DEVICE u32 codes(const u8* b, int group, int t) {
        return quad_bytes(b + 4, t) >> (4 * group) & 0x0F0F0F0F;
    }
    static DEVICE void quad(const u8* b, int group, int t, float v[4]) {
        affine(v, half_at(b), codes(b, group, t), half_at(b + 2));
    }
    static DEVICE void pairs(const u8* b, int group, int t, u32 p[2]) {
        affine(p, twice(b), codes(b, group, t), twice(b + 2));
    }
};

/// Scale; fifth bits, one an element; nibbles; around 16.
struct Q5_0 {
    enum { LEN = 32, BYTES = 22 };
    static DEVICE u32 codes(const u8* b, int group, int t) {
        const u32 high = quad_bits(bytes2(b + 2 + 2 * group), t) << 4;
        return (quad_bytes(b + 6, t) >> (4 * group) & 0x0F0F0F0F) | high;
    }
    static DEVICE void quad(const u8* b, int group, int t, float v[4]) {
        centred(v, half_at(b), codes(b, group, t), 16);
    }
    static DEVICE void pairs(const u8* b, int group, int t, u32 p[2]) {
        centred(p, twice(b), codes(b, group, t), 16);
    }
};

/// Scale, minimum; fifth bits; nibbles.
struct Q5_1 {
    enum { LEN = 32, BYTES = 24 };
    static DEVICE u32 codes(const u8* b, int group, int t) {
        const u32 high = quad_bits(bytes2(b + 4 + 2 * group), t) << 4;
        return (quad_bytes(b + 8, t) >> (4 * group) & 0x0F0F0F0F) | high;
    }
    static DEVICE void quad(const u8* b, int group, int t, float v[4]) {
        affine(v, half_at(b), codes(b, group, t), half_at(b + 2));
    }
    static DEVICE void pairs(const u8* b, int group, int t, u32 p[2]) {
        affine(p, twice(b), codes(b, group, t), twice(b + 2));
    }
};

/// Scale; signed bytes.
struct Q8_0 {
    enum { LEN = 32, BYTES = 34 };
    /// Signed bytes around 0 are, with the top bit turned, unsigned ones around 128.
    static DEVICE u32 codes(const u8* b, int group, int t) {
        return quad_bytes(b + 2 + 16 * group, t) ^ 0x80808080;
    }
    static DEVICE void quad(const u8* b, int group, int t, float v[4]) {
        centred(v, half_at(b), codes(b, group, t), 128);
    }
    static DEVICE void pairs(const u8* b, int group, int t, u32 p[2]) {
        centred(p, twice(b), codes(b, group, t), 128);
    }
};

/// Two bits an element, the K formats' way: of each half of 128 elements 32 bytes, bits 0 and 1 the first 32 elements.
DEVICE u32 quad_two_bits(const u8* bytes, int group, int t) {
    const u32 q = quad_bytes(bytes + group / 8 * 32 + group % 2 * 16, t);
    return q >> (group % 8 / 2 * 2) & 0x03030303;
}

/// 16 bytes of scales and minimums, a nibble each; codes; scale, minimum.
struct Q2_K : Rounded<Q2_K> {
    enum { LEN = 256, BYTES = 84 };
    static DEVICE void quad(const u8* b, int group, int t, float v[4]) {
        const u32 both = b[group];
        const float scale = half_at(b + 80) * (float)(both & 15), minimum = half_at(b + 82) * (float)(both >> 4);
        affine(v, scale, quad_two_bits(b + 16, group, t), -minimum);
    }
};

/// 32 bytes of third bits; codes; 12 bytes of 6-bit scales around 32; scale. Codes around 4.
struct Q3_K : Rounded<Q3_K> {
    enum { LEN = 256, BYTES = 110 };
    static DEVICE void quad(const u8* b, int group, int t, float v[4]) {
        const u8* scales = b + 96;
        const u32 low = scales[group % 8] >> (group / 8 * 4) & 15, top = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        const float scale = half_at(b + 108) * (float)((int)(low | top << 4) - 32);
        const u32 high = quad_bytes(b + group % 2 * 16, t) >> (group / 2) & 0x01010101;
        centred(v, scale, quad_two_bits(b + 32, group, t) | high << 2, 4);
    }
};

/// The 6-bit scale and minimum of the `g`-th 32 elements, of 12 bytes.
DEVICE void scale_and_minimum(const u8* p, int g, u32& scale, u32& minimum) {
    if (g < 4) {
        scale = p[g] & 63, minimum = p[g + 4] & 63;
    } else {
        const u32 low = p[g + 4];
        scale = (low & 15) | (u32)(p[g - 4] >> 6) << 4, minimum = low >> 4 | (u32)(p[g] >> 6) << 4;
    }
}

/// Scale, minimum; 12 bytes of scales and minimums; nibbles: 32 bytes hold 64 elements.
struct Q4_K : Rounded<Q4_K> {
    enum { LEN = 256, BYTES = 144 };
    static DEVICE void quad(const u8* b, int group, int t, float v[4]) {
        u32 s, m;
        scale_and_minimum(b + 4, group / 2, s, m);
        const u32 codes = quad_bytes(b + 16 + group / 4 * 32 + group % 2 * 16, t) >> (group / 2 % 2 * 4);
        affine(v, half_at(b) * (float)s, codes & 0x0F0F0F0F, -(half_at(b + 2) * (float)m));
    }
};

/// As Q4_K, with 32 bytes of fifth bits before the codes.
struct Q5_K : Rounded<Q5_K> {
    enum { LEN = 256, BYTES = 176 };
    static DEVICE void quad(const u8* b, int group, int t, float v[4]) {
        u32 s, m;
        scale_and_minimum(b + 4, group / 2, s, m);
        const u32 codes = quad_bytes(b + 48 + group / 4 * 32 + group % 2 * 16, t) >> (group / 2 % 2 * 4);
        const u32 high = quad_bytes(b + 16 + group % 2 * 16, t) >> (group / 2) & 0x01010101;
        affine(v, half_at(b) * (float)s, (codes & 0x0F0F0F0F) | high << 4, -(half_at(b + 2) * (float)m));
    }
};

/// 128 bytes of nibbles; 64 of top bits; 16 signed scales; scale. Codes around 32.
struct Q6_K : Rounded<Q6_K> {
    enum { LEN = 256, BYTES = 210 };
    static DEVICE void quad(const u8* b, int group, int t, float v[4]) {
        const u32 low = quad_bytes(b + group / 8 * 64 + group % 4 * 16, t) >> (group % 8 / 4 * 4) & 0x0F0F0F0F;
        const float scale = half_at(b + 208) * (float)(signed char)b[192 + group];
        centred(v, scale, low | quad_two_bits(b + 128, group, t) << 4, 32);
    }
};
