// Kernels that do what they must not, on purpose.
extern "C" __global__ void fine(int *x) { x[threadIdx.x] = threadIdx.x; }
extern "C" __global__ void past_end(int *x, int at) { x[threadIdx.x + at] = 1; }
extern "C" __global__ void read_past_end(const int *x, int *y, int at) { y[threadIdx.x] = x[threadIdx.x + at]; }
extern "C" __global__ void misaligned(char *x, int at) { *(int *)(x + at) = 1; }
extern "C" __global__ void copy(const int *x, int *y) { y[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void shared_past_end(int *y, int at) {
    __shared__ int held[64];
    held[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = held[threadIdx.x + at];
}
extern "C" __global__ void shared_unwritten(int *y, int skip) {
    __shared__ int held[32];
    if (threadIdx.x != skip) held[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = held[threadIdx.x];
}
// The second warp reads what the first writes, without a barrier between.
extern "C" __global__ void missing_barrier(int *y) {
    __shared__ int held[64];
    held[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = held[threadIdx.x ^ 32];
}
extern "C" __global__ void diverged_barrier(int *x) {
    if (threadIdx.x < 16) {
        x[threadIdx.x] = 1;
        __syncthreads();
        x[threadIdx.x] += x[threadIdx.x + 1];
    }
    x[threadIdx.x + 32] = 2;
}
extern "C" __global__ void half_the_warps(int *x) {
    if (threadIdx.x < 32) __syncthreads();
    x[threadIdx.x] = 1;
}
extern "C" __global__ void early_exit(int *x) {
    if (threadIdx.x == 40) return;
    __syncthreads();
    x[threadIdx.x] = 1;
}
extern "C" __global__ void local_past_end(int *x, int at) {
    int held[8];
    for (int i = 0; i < 8; i++) held[i] = x[i];
    x[0] = held[at] + held[at + 1];
}
extern "C" __global__ void stop(int *x, int at) {
    if (threadIdx.x == at) __trap();
    x[threadIdx.x] = 1;
}
extern "C" __global__ void missing_lane(int *x) {
    if (threadIdx.x < 16) x[threadIdx.x] = __shfl_xor_sync(~0u, x[threadIdx.x], 1);
    else x[threadIdx.x] = 5;
}
extern "C" __global__ void __launch_bounds__(64) bounded(int *x) { x[threadIdx.x] = 1; }
