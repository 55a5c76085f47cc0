// Copies memory unless a flag is set, so that the state that led to a flag is preserved.

#pragma once

#include "state.cuh"

extern "C" __global__ void keep(const double* facts, const uint4* __restrict__ source, uint4* __restrict__ target, long long count) {
  if (facts[FLAGS]) return;
  for (long long k = blockIdx.x * (long long)blockDim.x + threadIdx.x; k < count; k += gridDim.x * (long long)blockDim.x)
    target[k] = source[k];
}
