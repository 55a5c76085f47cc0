// Least-squares update of CP-ALS, one pass over MTTKRP rows: solve and store factor rows, and accumulate the Gram
// matrix, inner products and column maxima.
//
//   RANK  columns; for a batch of runs (batch_index.cuh), the largest number
//   REAL  type of the factor matrix
//
// Each warp solves SIDE rows at a time, without waiting for others, and reads the next rows meanwhile. Products of
// 8 x 4 by 4 x 8 numbers use tensor cores (fp64, from compute capability 8.0 on). The transpose of the solved rows is
// computed: a lane's part of this result is what the lane needs of both operands of the Gram matrix. The order of
// columns in a sum is arbitrary, so that a lane reads adjacent pairs.

constexpr int THREADS = 256, WARPS = THREADS / 32;

#include "add_parts.cuh"

constexpr int SIDE = 8;  // of a result of the tensor cores
constexpr int WIDE = (RANK + SIDE - 1) / SIDE, SPAN = WIDE * SIDE, TRIANGLE = WIDE * (WIDE + 1) / 2;
constexpr int SHARED = WIDE * WIDE * 64 > ENTRIES ? WIDE * WIDE * 64 : ENTRIES;
constexpr int RESIDENT = WIDE <= 4 ? 2 : 1;  // thread blocks of a multiprocessor, whose registers they share

// Each lane holds element (lane / 4, lane % 4) of the left operand, element (lane % 4, lane / 4) of the right one, and
// elements (lane / 4, 2 * (lane % 4) + {0, 1}) of the result.
__device__ __forceinline__ void multiply_add(double (&result)[2], double left, double right) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(result[0]), "+d"(result[1]) : "d"(left), "d"(right));
}

// Reads row `far` of those from `first` on: the columns 8 t + 2 near + {0, 1}, or zero.
__device__ __forceinline__ void load(double (&numbers)[WIDE][2], const double* __restrict__ source, long long stride,
                                     long long first, long long rows, int columns, bool pairs, int far, int near) {
  const double* from = source + (first + far) * stride + 2 * near;
#pragma unroll
  for (int t = 0; t < WIDE; t++) {
    const int column = t * SIDE + 2 * near;
    numbers[t][0] = numbers[t][1] = 0;
    if (first + far >= rows) continue;
    if (pairs && column + 1 < columns) {
      const double2 both = *(const double2*)(from + t * SIDE);
      numbers[t][0] = both.x, numbers[t][1] = both.y;
    } else {
      if (column < columns) numbers[t][0] = from[t * SIDE];
      if (column + 1 < columns) numbers[t][1] = from[t * SIDE + 1];
    }
  }
}

// Writes source @ inverse, rounded, to `target`. Per thread block, `parts` gets the Gram matrix of the stored rows,
// their columns' inner products with those of `source`, if needed, and the column maxima (magnitudes before rounding).
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
solve(Runs runs, int again, const double* __restrict__ source, long long source_stride, const double* __restrict__ inverse,
      int with_dots, REAL* __restrict__ target, long long target_stride, long long rows, double* __restrict__ parts) {
  const Run run = run_of(runs, blockIdx.y, again ? RANGE : 0);
  if (!run.rank) return;
  source += run.first, target += run.first, inverse += run.number * RANK * RANK;
  __shared__ __align__(16) double sums[SHARED];
  double2* factor = (double2*)sums;  // the inverse, as lanes need it: by columns of the result, rows, and lanes
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, far = lane / 4, near = lane % 4;
  for (int k = threadIdx.x; k < WIDE * WIDE * 32; k += THREADS) {
    const int column = k / 32 / WIDE * SIDE + k % 32 / 4, row = k / 32 % WIDE * SIDE + 2 * (k % 4);
    const bool there = column < RANK;
    factor[k] = {there && row < RANK ? inverse[row * RANK + column] : 0,
                 there && row + 1 < RANK ? inverse[(row + 1) * RANK + column] : 0};
  }
  __syncthreads();
  const bool pairs = ((unsigned long long)source | source_stride * sizeof(double)) % sizeof(double2) == 0;
  double gram[TRIANGLE][2] = {}, dots[WIDE] = {}, most[WIDE] = {}, numbers[WIDE][2];
  const long long step = gridDim.x * (long long)(WARPS * SIDE);
  long long first = (blockIdx.x * (long long)WARPS + warp) * SIDE;
  load(numbers, source, source_stride, first, rows, run.rank, pairs, far, near);
  for (; first < rows; first += step) {
    double solved[WIDE][2] = {};
#pragma unroll
    for (int t = 0; t < WIDE; t++)
#pragma unroll
      for (int a = 0; a < WIDE; a++) {
        const double2 left = factor[(a * WIDE + t) * 32 + lane];
        multiply_add(solved[a], left.x, numbers[t][0]);
        multiply_add(solved[a], left.y, numbers[t][1]);
      }
    load(numbers, source, source_stride, first + step, rows, run.rank, pairs, far, near);
#pragma unroll
    for (int a = 0; a < WIDE; a++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const double exact = solved[a][e];
        const REAL stored = exact;
        const long long row = first + 2 * near + e;
        const int column = a * SIDE + far;
        most[a] = larger(fabs(exact), most[a]);
        solved[a][e] = stored;
        if (row >= rows || column >= run.rank) continue;
        if (with_dots) dots[a] += source[row * source_stride + column] * (double)stored;
        target[row * target_stride + column] = stored;
      }
#pragma unroll
    for (int a = 0; a < WIDE; a++)
#pragma unroll
      for (int b = 0; b <= a; b++)
#pragma unroll
        for (int e = 0; e < 2; e++) multiply_add(gram[a * (a + 1) / 2 + b], solved[a][e], solved[b][e]);
  }
#pragma unroll
  for (int a = 0; a < WIDE; a++)
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
      dots[a] += __shfl_xor_sync(~0u, dots[a], apart);
      most[a] = larger(__shfl_xor_sync(~0u, most[a], apart), most[a]);
    }
  __syncthreads();
  for (int k = threadIdx.x; k < ENTRIES; k += THREADS) sums[k] = 0;
  for (int w = 0; w < WARPS; w++) {  // in the order of the warps: bitwise repeatable
    __syncthreads();
    if (w != warp) continue;
#pragma unroll
    for (int a = 0; a < WIDE; a++) {
      const int row = a * SIDE + far;
      if (row >= RANK) continue;
      if (!near) sums[RANK * RANK + row] += dots[a], sums[(RANK + 1) * RANK + row] = larger(most[a], sums[(RANK + 1) * RANK + row]);
#pragma unroll
      for (int b = 0; b <= a; b++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int column = b * SIDE + 2 * near + e;
          if (column >= RANK) continue;
          sums[row * RANK + column] += gram[a * (a + 1) / 2 + b][e];
          if (a != b) sums[column * RANK + row] += gram[a * (a + 1) / 2 + b][e];
        }
    }
  }
  __syncthreads();
  double* part = parts + (run.number * (long long)gridDim.x + blockIdx.x) * ENTRIES;
  for (int k = threadIdx.x; k < ENTRIES; k += THREADS) part[k] = sums[k];
}
