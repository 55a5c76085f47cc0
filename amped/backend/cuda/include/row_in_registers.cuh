// Equations of a row of up to 32 columns, (G + ridge I) x = right, solved by a warp in single precision. Lane i has row i.

#pragma once

constexpr int PITCH = (RANK + 3) / 4 * 4 + 4;  // of G in shared memory: reads of four numbers by eight lanes hit all banks
constexpr int LOWER = RANK * PITCH;  // its numbers

// Replaces the right-hand side of each lane by the solution; G, on and below the diagonal, by its Cholesky factor. Returns
// whether no pivot was below `least`, for the matrix scaled to a unit diagonal.
__device__ __forceinline__ bool solve_in_registers(float* gram, float ridge, float least, float& x) {
  const int lane = threadIdx.x % 32, i = min(lane, RANK - 1);
  float4 row[(RANK + 3) / 4];
#pragma unroll
  for (int k = 0; k < (RANK + 3) / 4; k++) row[k] = ((const float4*)(gram + i * PITCH))[k];
  const float square = gram[i * PITCH + i] + ridge, scale = square > 0 ? rsqrtf(square) : 0;
  float left = square > 0 ? 1 : 0, over = 0, y = x * scale;
  __syncwarp();
#pragma unroll
  for (int c = 0; c < RANK; c++) {
    float sum[4] = {};
#pragma unroll
    for (int k = 0; k < (c + 3) / 4; k++) {
      const float4 other = ((const float4*)(gram + c * PITCH))[k];
      sum[0] += row[k].x * other.x;
      if (4 * k + 1 < c) sum[1] += row[k].y * other.y;
      if (4 * k + 2 < c) sum[2] += row[k].z * other.z;
      if (4 * k + 3 < c) sum[3] += row[k].w * other.w;
    }
    const float pivot = __shfl_sync(~0u, left, c);
    if (!(pivot > least)) return false;
    const float over_pivot = rsqrtf(pivot), scaled = scale * __shfl_sync(~0u, scale, c);
    float& entry = ((float*)row)[c];
    entry = (entry * scaled - ((sum[0] + sum[1]) + (sum[2] + sum[3]))) * over_pivot;
    const float solved = __shfl_sync(~0u, y, c) * over_pivot;
    if (lane == c) over = over_pivot, y = solved;
    else if (lane > c) {
      left -= entry * entry, y -= entry * solved;
      if (lane < RANK) gram[lane * PITCH + c] = entry;
    }
    __syncwarp();
  }
#pragma unroll
  for (int c = RANK - 1; c >= 0; c--) {
    const float solved = __shfl_sync(~0u, y * over, c);
    if (lane == c) y = solved;
    else if (lane < c) y -= gram[c * PITCH + lane] * solved;
  }
  x = y * scale;
  return true;
}
