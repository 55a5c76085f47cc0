// Sums over a thread block.

#pragma once

__device__ double add_up(double value) {  // for all threads of the block
  __shared__ double of_warp[32];
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
#pragma unroll 4
  for (int w = 0; w < blockDim.x / 32; w++) total += of_warp[w];
  return total;
}
