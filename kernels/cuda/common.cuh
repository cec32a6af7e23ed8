// What every kernel uses: short names, f16 as bits, warp reductions, e^x, and the tensor-core product.
//
// Compiled with --fmad=false: an fma is where the source says so and nowhere else, so that two kernels that
// state the same arithmetic give the same bits.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define DEVICE __device__ __forceinline__

// Not `constexpr`, here and below: NVRTC puts such variables into the module as memory.
#define ALL 0xFFFFFFFFu
#define LOG2_E 1.4426950408889634f

DEVICE float negative_infinity() { return __int_as_float(0xFF800000); }

DEVICE float from_f16(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

DEVICE u16 to_f16(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

DEVICE float from_bf16(u16 bits) { return __int_as_float((int)((u32)bits << 16)); }

/// Two f16, the first in the low half.
DEVICE u32 pack_f16(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/// Arithmetic of two pairs of f16.
DEVICE u32 sub_pair(u32 a, u32 b) {
    u32 c;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}
DEVICE u32 mul_pair(u32 a, u32 b) {
    u32 c;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}
DEVICE u32 fma_pair(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(ALL, x, lanes);
    return x;
}

/// 2^x with a relative error of about 2^-22; 2^-infinity is 0.
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float exp_fast(float x) { return exp2_fast(x * LOG2_E); }

/// c += a · b for a of 16 × 16 and b of 16 × 8 f16, c of f32. Of lane 4g + t: a holds (row g, columns 2t, 2t + 1),
/// (row g + 8, the same), then columns 8 higher; b holds (rows 2t, 2t + 1, column g), then rows 8 higher; c holds
/// (row g, columns 2t, 2t + 1), then row g + 8.
DEVICE void mma_f16(float c[4], const u32 a[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

/// Loads four 8 × 8 matrices of f16; lane l gives the address of row l % 8 of matrix l / 8.
DEVICE void load_matrices(u32 r[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/// The same, each matrix transposed.
DEVICE void load_transposed(u32 r[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/// Starts copying 16 bytes to shared memory; zeros where `valid` is false.
DEVICE void copy_async(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `PENDING` groups of copies are under way.
template <int PENDING>
DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
