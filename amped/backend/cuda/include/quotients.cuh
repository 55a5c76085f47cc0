// Shared code of phi.cu and interleaved.cu: the model's values, and quotients.

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

// Sums N numbers over W lanes. While a lane has several numbers, it exchanges half of them with another lane. Sum u of
// N ends up in the lanes from u * W / N on; if N exceeds W, at position u % (N / W).
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

__device__ __forceinline__ float inverse(float x) { return __fdividef(1.0f, x); }  // error of 1 unit in the last place
__device__ __forceinline__ double inverse(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
#pragma unroll
  // 20, 40, 53 bits; no branch, because x is a normal number.
  for (int k = 0; k < 2; k++) y = fma(y, fma(-x, y, 1.0), y);
  return y;
}

// Returns the sum over the block's threads to the first thread, always added in the same order.
__device__ __forceinline__ double sum_of_block(double x) {
  __shared__ double sums[THREADS / 32];
#pragma unroll
  for (int step = 16; step; step /= 2) x += __shfl_xor_sync(ALL, x, step);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  for (int w = 1; w < THREADS / 32; w++) x += sums[w];
  return x;
}
