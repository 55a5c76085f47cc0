// Equations of a row of up to SPAN columns, (G + D) x = right, solved by a warp in single precision. Lane i has row i.
//
// There are no branches: such rows are many, and instructions limit their solution.

#pragma once

__device__ __forceinline__ float inverse(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Replaces the right-hand side of each lane by the solution, and G by the factor L of L D L^T, below the diagonal. `ridge` is
// added to the lane's number on the diagonal. Returns whether all pivots exceed the fraction `least` of their diagonal.
__device__ __forceinline__ bool solve_in_registers(float* gram, float ridge, float least, float& x) {
  const int lane = threadIdx.x % 32, i = min(lane, SPAN - 1);
  float row[SPAN];  // G, then L D
#pragma unroll
  for (int k = 0; k < RANK; k += 4) {
    const float4 four = *(const float4*)(gram + i * PITCH + k);
    row[k] = four.x, row[k + 1] = four.y, row[k + 2] = four.z, row[k + 3] = four.w;
  }
  const float square = gram[i * PITCH + i] + ridge;
  float left = square, y = x;  // the pivot, and the right-hand side, without the columns that are done
#pragma unroll
  for (int c = 0; c < RANK; c++) {
    __syncwarp();
    float sum[4] = {row[c], 0, 0, 0};
#pragma unroll
    for (int k = 0; k < c; k += 4) {
      const float4 other = *(const float4*)(gram + c * PITCH + k);
      sum[0] -= row[k] * other.x;
      if (k + 1 < c) sum[1] -= row[k + 1] * other.y;
      if (k + 2 < c) sum[2] -= row[k + 2] * other.z;
      if (k + 3 < c) sum[3] -= row[k + 3] * other.w;
    }
    row[c] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    const float entry = row[c] * inverse(__shfl_sync(~0u, left, c)), solved = __shfl_sync(~0u, y, c);
    if (lane > c) gram[i * PITCH + c] = entry, left -= row[c] * entry, y -= entry * solved;
  }
  __syncwarp();
  y *= inverse(left);
#pragma unroll
  for (int c = RANK - 1; c > 0; c--) {
    const float solved = __shfl_sync(~0u, y, c), entry = gram[c * PITCH + min(lane, SPAN - 1)];
    if (lane < c) y -= entry * solved;
  }
  x = y;
  return __all_sync(~0u, lane >= RANK || left > least * square);
}
