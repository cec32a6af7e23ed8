// Calls, tables of branches, local arrays, generic pointers, module variables.
__device__ int counter = 5;
__constant__ float weights[4] = {1.f, 2.f, 4.f, 8.f};

__device__ __noinline__ int collapse(int a, int b) {
    if (a > b) return a * 3 - b;
    int s = 0;
    for (int i = a; i <= b; i++) s += i * i;
    return s;
}

extern "C" __global__ void calls(const int *x, int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = collapse(x[i], 9) + collapse(2, x[i] & 3);
}

extern "C" __global__ void table(const int *x, int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i], r;
    switch (v) {
    case 0: r = v + 11; break;
    case 1: r = v * v + 3; y[i] = 1; break;
    case 2: r = 17 - v; y[i] = 2; break;
    case 3: r = v << 4; y[i] = 4; break;
    case 4: r = ~v; y[i] = 5; break;
    case 5: r = v * 1000; y[i] = 9; break;
    case 6: r = v ^ 0x55; y[i] = 8; break;
    case 7: r = v - 77; y[i] = 3; break;
    default: r = -1;
    }
    y[i] = r;
}

extern "C" __global__ void local_array(const int *x, int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int held[16];
    for (int k = 0; k < 16; k++) held[(k * 5 + x[i]) & 15] = k * x[i];
    int s = 0;
    for (int k = 0; k < 16; k++) s += held[(k + i) & 15] << (k & 3);
    y[i] = s;
}

extern "C" __global__ void generic(int *x, int which) {
    __shared__ int here[32];
    here[threadIdx.x] = threadIdx.x * 2;
    __syncthreads();
    int *p = (threadIdx.x + which) & 1 ? here : x;
    p[threadIdx.x] += 100;
    __syncthreads();
    x[threadIdx.x] += here[threadIdx.x];
}

extern "C" __global__ void module_variables(float *y) {
    y[threadIdx.x] = weights[threadIdx.x & 3] * (float)counter;
    __syncthreads();
    if (threadIdx.x == 0) counter += 1;
}

// Indices of the values above a limit, in order: votes, and one atomic addition a warp.
extern "C" __global__ void compact(const float *x, int n, float limit, int *out, int *count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    bool take = i < n && x[i] > limit;
    unsigned lanes = __ballot_sync(~0u, take);
    int lane = threadIdx.x & 31, base = 0;
    if (lane == 0) base = atomicAdd(count, __popc(lanes));
    base = __shfl_sync(~0u, base, 0);
    if (take) out[base + __popc(lanes & ((1u << lane) - 1))] = i;
}

extern "C" __global__ void atomics(int *ints, float *sum, unsigned long long *most, unsigned *ring) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&ints[i & 3], i);
    atomicMax(&ints[4], i);
    atomicMin(&ints[5], -i);
    atomicXor(&ints[6], i);
    atomicAdd(sum, 0.5f);
    atomicMax(most, (unsigned long long)i << 33);
    atomicInc(ring, 6);
    int old = ints[7];
    while (true) {
        int seen = atomicCAS(&ints[7], old, old + 2);
        if (seen == old) break;
        old = seen;
    }
}

extern "C" __global__ void shuffles(const int *x, int *y) {
    int lane = threadIdx.x, v = x[lane];
    y[lane] = __shfl_up_sync(~0u, v, 3);
    y[32 + lane] = __shfl_down_sync(~0u, v, 5, 8);
    y[64 + lane] = __shfl_sync(~0u, v, lane * 7, 16);
    y[96 + lane] = __shfl_xor_sync(~0u, v, 9);
    y[128 + lane] = __any_sync(~0u, v > 900) + 2 * __all_sync(~0u, v > -1);
    y[160 + lane] = __match_any_sync(~0u, v % 5);
    y[192 + lane] = __reduce_add_sync(~0u, v);
    if (lane & 1) y[224 + lane] = __shfl_xor_sync(0xaaaaaaaau, v, 2);
    else y[224 + lane] = __shfl_xor_sync(0x55555555u, v, 4) + (int)__activemask();
}
