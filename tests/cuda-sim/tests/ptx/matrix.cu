// Matrix instructions, as a GEMM uses them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// C[16 x 8] = A[16 x 16] B[8 x 16]^T, one warp; the fragments come over ldmatrix from padded rows.
template <bool BRAIN> __device__ void product(const unsigned short *A, const unsigned short *B, float *C) {
    __shared__ __align__(16) unsigned short a[16][24], b[8][24];
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) a[i / 16][i % 16] = A[i];
    for (int i = lane; i < 128; i += 32) b[i / 16][i % 16] = B[i];
    __syncthreads();
    unsigned fa[4], fb[2];
    unsigned at = shared_address(&a[lane & 15][(lane >> 4) * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3]) : "r"(at));
    unsigned bt = shared_address(&b[lane & 7][((lane >> 3) & 1) * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(fb[0]), "=r"(fb[1]) : "r"(bt));
    float c[4] = {1.f, 2.f, 3.f, 4.f};
    if (BRAIN)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    for (int k = 0; k < 4; k++) C[(lane / 4 + (k >> 1) * 8) * 8 + (lane % 4) * 2 + (k & 1)] = c[k];
}
extern "C" __global__ void product_half(const unsigned short *A, const unsigned short *B, float *C) { product<false>(A, B, C); }
extern "C" __global__ void product_brain(const unsigned short *A, const unsigned short *B, float *C) { product<true>(A, B, C); }

// C[16 x 8] += A[16 x 32] B[8 x 32]^T in bytes, fragments from global memory.
extern "C" __global__ void product_bytes(const int *A, const int *B, int *C) {
    int lane = threadIdx.x, g = lane / 4, t = lane % 4, c[4] = {5, 6, 7, 8};
    int a[4] = {A[g * 8 + t], A[(g + 8) * 8 + t], A[g * 8 + t + 4], A[(g + 8) * 8 + t + 4]};
    int b[2] = {B[g * 8 + t], B[g * 8 + t + 4]};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    for (int k = 0; k < 4; k++) C[(g + (k >> 1) * 8) * 8 + t * 2 + (k & 1)] = c[k];
}

// An 8 x 8 matrix through ldmatrix with and without .trans: y gets what each lane holds.
extern "C" __global__ void matrix_loads(const unsigned short *x, unsigned *y) {
    __shared__ __align__(16) unsigned short a[8][8];
    int lane = threadIdx.x;
    for (int i = lane; i < 64; i += 32) a[i / 8][i % 8] = x[i];
    __syncthreads();
    unsigned plain, trans, at = shared_address(a[lane & 7]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(plain) : "r"(at));
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(trans) : "r"(at));
    y[lane] = plain;
    y[32 + lane] = trans;
}

// Copies n values over shared memory by cp.async in two stages, zeros beyond n.
extern "C" __global__ void staged(const float *x, float *y, int n, int wait) {
    __shared__ __align__(16) float held[2][128];
    int lane = threadIdx.x;
    for (int stage = 0; stage < 2; stage++) {
        int at = stage * 128 + lane * 4, left = n - at, bytes = left >= 4 ? 16 : left > 0 ? left * 4 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(&held[stage][lane * 4])),
                     "l"(x + (bytes ? at : 0)), "r"(bytes));
        asm volatile("cp.async.commit_group;");
    }
    if (wait) asm volatile("cp.async.wait_group 1;");
    for (int k = 0; k < 4; k++) y[lane * 4 + k] = held[0][lane * 4 + k];
    asm volatile("cp.async.wait_all;");
    for (int k = 0; k < 4; k++) y[128 + lane * 4 + k] = held[1][lane * 4 + k];
}

// Many products, for measuring.
extern "C" __global__ void many_products(const unsigned *x, float *y, int rounds) {
    int lane = threadIdx.x;
    unsigned a[4] = {x[lane], x[lane + 32], x[lane + 64], x[lane + 96]}, b[2] = {x[lane + 128], x[lane + 160]};
    float c[4] = {};
    for (int i = 0; i < rounds; i++)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    y[lane] = c[0] + c[1] + c[2] + c[3];
}
