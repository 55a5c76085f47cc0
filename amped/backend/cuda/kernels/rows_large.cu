// Rows of factor matrices of large rank, after a matrix product has solved them: rounded and stored, and their sums.
//
//   REAL  type of the factor matrix

#include "state.cuh"

constexpr int THREADS = 256, COLUMNS = 32, TOGETHER = THREADS / COLUMNS;  // rows at once

// Stores `solved`, leaves the stored numbers in it, and sets its last rows, up to `all`, to zero. Per thread block,
// `lines` gets the inner products of columns with those of `source`, if needed, and the column maxima before
// rounding.
extern "C" __global__ void __launch_bounds__(THREADS)
store(const double* __restrict__ source, long long source_stride, double* __restrict__ solved, REAL* __restrict__ target,
      long long target_stride, long long rows, long long all, int rank, int with_dots, double* __restrict__ lines) {
  __shared__ double dots[THREADS], largest[THREADS];
  const int t = threadIdx.x, column = blockIdx.y * COLUMNS + t % COLUMNS, first = t / COLUMNS;
  double dot = 0, most = 0;
  if (column < rank)
#pragma unroll 4
    for (long long row = blockIdx.x * (long long)TOGETHER + first; row < all; row += gridDim.x * (long long)TOGETHER) {
      double stored = 0;
      if (row < rows) {
        const double exact = solved[row * rank + column];
        const REAL rounded = exact;
        stored = rounded;
        most = larger(fabs(exact), most);
        if (with_dots) dot += source[row * source_stride + column] * stored;
        target[row * target_stride + column] = rounded;
      }
      if (row >= rows || sizeof(REAL) < sizeof(double)) solved[row * rank + column] = stored;
    }
  dots[t] = dot, largest[t] = most;
  __syncthreads();
  if (first || column >= rank) return;
  for (int k = 1; k < TOGETHER; k++) {
    dot += dots[k * COLUMNS + t];
    most = larger(largest[k * COLUMNS + t], most);
  }
  double* line = lines + 2LL * blockIdx.x * rank;
  line[column] = dot, line[rank + column] = most;
}

// Adds `count` Gram matrices and the blocks' lines to the totals, in order: bitwise repeatable. `dots` may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
add(const double* __restrict__ grams, int count, const double* __restrict__ lines, int blocks, int rank, double* __restrict__ gram,
    double* __restrict__ dots, double* __restrict__ largest) {
  const long long entries = (long long)rank * rank, first = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (first < 2 * rank) {
    const int column = first % rank;
    const bool most = first >= rank;
    double total = most ? largest[column] : 0;
#pragma unroll 8
    for (int b = 0; b < blocks; b++) {
      const double part = lines[2LL * b * rank + first];
      total = most ? larger(part, total) : total + part;
    }
    if (most) largest[column] = total;
    else if (dots) dots[column] += total;
  }
  if (first >= 2 * rank && first < 2 * rank + entries && count) {
    const long long entry = first - 2 * rank;
    double total = 0;
#pragma unroll 8
    for (int k = 0; k < count; k++) total += grams[k * entries + entry];
    gram[entry] += total;
  }
}
