// The inverse of a matrix in shared memory, by one thread block.
//
//   RANK  columns

#pragma once

// Replaces a symmetric matrix by its inverse. Returns whether all pivots were positive. Gauss-Jordan elimination: a positive
// definite matrix needs no pivoting.
__device__ bool invert(double* matrix) {
  __shared__ double row[RANK], column[RANK];
  const int t = threadIdx.x;
  bool positive = true;
  for (int k = 0; k < RANK; k++) {
    __syncthreads();
    if (t < RANK) row[t] = matrix[k * RANK + t], column[t] = matrix[t * RANK + k];
    __syncthreads();
    const double over = 1 / row[k];
    positive &= row[k] > 0;
    for (int e = t; e < RANK * RANK; e += blockDim.x) {
      const int i = e / RANK, j = e % RANK;
      if (i == k) matrix[e] = j == k ? over : row[j] * over;
      else if (j == k) matrix[e] = -column[i] * over;
      else matrix[e] -= column[i] * row[j] * over;
    }
  }
  __syncthreads();
  return positive;
}
