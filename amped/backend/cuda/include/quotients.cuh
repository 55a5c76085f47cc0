// What the kernels of phi.cu and interleaved.cu share: models' values, and quotients.

#pragma once

#include "packed.cuh"

__device__ constexpr int power_from(int n) { return n > 1 ? 2 * power_from((n + 1) / 2) : 1; }
constexpr unsigned ALL = ~0u;
static_assert(THREADS % 32 == 0, "whole warps take part in shuffles");

__device__ __forceinline__ real dot(const Vector& a, const Vector& b) {
  real sum = a.at[0] * b.at[0];
#pragma unroll
  for (int k = 1; k < PER_VECTOR; k++) sum += a.at[k] * b.at[k];
  return sum;
}

// Add up N numbers over W lanes. While there are several numbers, each half of the lanes gives the other half of them away.
// So number u of N ends at lane u * W / N and those after it; where N is more than W, at place u % (N / W).
template <int N, int W>
__device__ __forceinline__ void fold(real* sums, int lane) {
  if constexpr (W > 1 && N > 1) {
    const bool upper = lane & W / 2;
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
      const real sent = upper ? sums[k] : sums[k + N / 2], kept = upper ? sums[k + N / 2] : sums[k];
      sums[k] = kept + __shfl_xor_sync(ALL, sent, W / 2);
    }
    fold<N / 2, W / 2>(sums, lane);
  } else if constexpr (W > 1) {
    sums[0] += __shfl_xor_sync(ALL, sums[0], W / 2);
    fold<1, W / 2>(sums, lane);
  }
}

__device__ __forceinline__ float inverse(float x) { return __fdividef(1.0f, x); }  // to 1 unit in the last place
__device__ __forceinline__ double inverse(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
#pragma unroll
  for (int k = 0; k < 2; k++) y = fma(y, fma(-x, y, 1.0), y);  // 20, 40, 53 bits; no branch, as x is a normal number
  return y;
}

// Return the sum over the block's threads to the first of them, added up in the same order every time.
__device__ __forceinline__ double sum_of_block(double x) {
  __shared__ double sums[THREADS / 32];
#pragma unroll
  for (int step = 16; step; step /= 2) x += __shfl_xor_sync(ALL, x, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  for (int w = 1; w < THREADS / 32; w++) x += sums[w];
  return x;
}
