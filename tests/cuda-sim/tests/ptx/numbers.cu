// One operation an array element: what the host computes too.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define EACH(name, in, out, body)                                              \
    extern "C" __global__ void name(const in *x, const in *y, out *z, int n) { \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                         \
        if (i >= n) return;                                                    \
        in a = x[i], b = y[i];                                                 \
        z[i] = body;                                                           \
    }

EACH(u32_mix, unsigned, unsigned, (a / (b | 1)) ^ (a % (b | 1)) + __umulhi(a, b) + min(a, b) - max(a, b))
EACH(s32_mix, int, int, (a / (b | 1)) ^ (a % (b | 1)) + __mulhi(a, b) + min(a, b) - max(a, b) + abs(a >> 3))
EACH(s64_mix, long long, long long, (a / (b | 1)) ^ (a % (b | 1)) + (a >> 7) * b + min(a, b) + max(a, b))
EACH(bits, unsigned, unsigned,
     __popc(a) + __clz(b) * 64 + __ffs(a) * 4096 + (__brev(a) ^ __byte_perm(a, b, 0x3715)) + __funnelshift_l(a, b, b))
EACH(bits64, unsigned long long, unsigned long long, __popcll(a) + __clzll(b) * 64 + (__brevll(a) >> 3) + (a << (b & 63)))
EACH(logic3, unsigned, unsigned, ((a & ~b) | (b ^ (a >> 7))) & ~(a * 5))
EACH(dots, unsigned, int, __dp4a((int)a, (int)b, 7) + (int)__dp4a(a, b, 9u))
EACH(quantise, float, int, (int)(signed char)__float2int_rn(a * 127.f) + ((unsigned char)(b * 100.f + 100.f) << 8))
EACH(rounding, float, float, rintf(a * 9.f) + floorf(b * 9.f) * 100.f + ceilf(a * 7.f) * 10000.f + truncf(b * 5.f))
EACH(limits, float, float, fminf(a, b) + fmaxf(a, b) * 3.f + fabsf(a) - sqrtf(fabsf(b)) + a / b)
EACH(logistic, float, float, 1.f / (1.f + __expf(-a)) + __logf(fabsf(b) + 1.f) + rsqrtf(fabsf(a) + 0.5f))
EACH(angles, float, float, __sinf(a) + __cosf(b) * 2.f)
EACH(precise, float, float, sinf(a * 1e5f) + expf(b) + powf(fabsf(a), b) + tanhf(b))
EACH(doubles, double, double, fma(a, b, a / (fabs(b) + 1.0)) - sqrt(fabs(a)) + floor(b))
EACH(compare, float, unsigned,
     (a < b) | (a <= b) << 1 | (a > b) << 2 | (a >= b) << 3 | (a == b) << 4 | (a != b) << 5 | (isnan(a) || isnan(b)) << 6)
EACH(to_half, float, unsigned short, __half_as_ushort(__float2half_rn(a)))
EACH(to_brain, float, unsigned short, __bfloat16_as_ushort(__float2bfloat16(a)))
EACH(from_half, unsigned short, float, __half2float(__ushort_as_half(a)) + __bfloat162float(__ushort_as_bfloat16(b)))
EACH(half_math, float, float,
     __half2float(__hfma(__float2half(a), __float2half(b), __float2half(0.25f))) + __half2float(__hadd(__float2half(a), __float2half(b))))
EACH(widths, int, long long, (long long)(signed char)a * 3 + (unsigned char)b + (short)a * 5ll + (unsigned short)b * 7ll + (unsigned)a)

// Pairs of halves: the packed instructions.
extern "C" __global__ void half_pairs(const unsigned *x, const unsigned *y, unsigned *sum, unsigned *product, unsigned *fused, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half2 a = *(__half2 *)&x[i], b = *(__half2 *)&y[i];
    *(__half2 *)&sum[i] = __hadd2(a, b);
    *(__half2 *)&product[i] = __hmul2(a, b);
    *(__half2 *)&fused[i] = __hfma2(a, b, a);
}
extern "C" __global__ void brain_pairs(const unsigned *x, const unsigned *y, unsigned *fused, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat162 a = *(__nv_bfloat162 *)&x[i], b = *(__nv_bfloat162 *)&y[i];
    *(__nv_bfloat162 *)&fused[i] = __hfma2(a, b, a);
}
