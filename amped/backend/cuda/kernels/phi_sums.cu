// Auxiliary kernels of Phi, compiled together with combine.cuh with SKIPS.

#include "combine.cuh"

// Sets pairs of doubles to 0.
extern "C" __global__ void clear(double2* __restrict__ out, long long vectors, const int* skip) {
  SKIP;
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < vectors) out[i] = make_double2(0, 0);
}

extern "C" __global__ void copy(const double* __restrict__ from, double* __restrict__ to, long long count, const int* skip) {
  SKIP;
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i];
}

// Adds the blocks' sums, always in the same order, in one thread block, to `sum`.
extern "C" __global__ void __launch_bounds__(512) sum_logs(const double* __restrict__ parts, long long items, double* sum) {
  __shared__ double sums[512];
  double x = 0;
  for (long long i = threadIdx.x; i < items; i += 512) x += parts[i];
  sums[threadIdx.x] = x;
  for (int step = 256; step; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
  }
  if (threadIdx.x == 0) *sum += sums[0];
}
