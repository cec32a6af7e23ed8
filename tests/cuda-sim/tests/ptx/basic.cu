// Plain arithmetic, divergence, shared memory, shuffles and barriers.

extern "C" __global__ void scale_add(const float *x, float *y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

// Steps of Collatz's sequence until 1: every lane leaves its loop at another time.
extern "C" __global__ void collatz(const unsigned *start, unsigned *steps, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = start[i], count = 0;
    while (v != 1) {
        if (v % 2) v = 3 * v + 1;
        else v /= 2;
        count++;
    }
    steps[i] = count;
}

// Sum of a block's values: shuffles within the warp, shared memory between warps.
extern "C" __global__ void block_sum(const float *x, float *sums, int n) {
    __shared__ float part[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float v = i < n ? x[i] : 0.f;
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = lane < (blockDim.x >> 5) ? part[lane] : 0.f;
        for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
        if (lane == 0) sums[blockIdx.x] = v;
    }
}

// Reverses each block's values in dynamic shared memory.
extern "C" __global__ void reverse(int *x) {
    extern __shared__ int held[];
    held[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    x[blockIdx.x * blockDim.x + threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}
