// Non-negative update of CP-ALS, one pass over MTTKRP rows: sweeps over the columns of each factor row (HALS), and the
// Gram matrix, inner products and column maxima of the stored rows. For up to 64 columns, nonnegative.cu is faster.
//
//   RANK  columns; for a batch of runs (batch_index.cuh), the largest number
//   REAL  type of the factor matrix
//
// A warp solves a row. A lane holds columns lane, lane + LANES, ... of a row and of its gradient. The owner of a column broadcasts its step.

constexpr int THREADS = 256, LANES = 32;  // of a row

#include "add_parts.cuh"

constexpr int GROUPS = THREADS / LANES, EACH = (RANK + LANES - 1) / LANES, SPAN = EACH * LANES;
constexpr int TOGETHER = THREADS / RANK;  // rows of the Gram matrix summed at once, one thread per column
constexpr int SQUARES = (RANK + TOGETHER - 1) / TOGETHER;
constexpr int PATIENT = 8;  // with more sweeps than this, test whether a row has converged
constexpr double SETTLED = 1e-13;  // as in normal_equations/hals.py
constexpr unsigned ALL = 0xffffffff;

__device__ double over_group(double value) {  // maximum over a row's lanes
#pragma unroll
  for (int far = LANES / 2; far; far /= 2) value = larger(__shfl_xor_sync(ALL, value, far), value);
  return value;
}

// Subtracts gram[column] * step from the gradient.
__device__ void follow(double (&gradient)[EACH], const double* gram, int column, int lane, double step) {
#pragma unroll
  for (int k = 0; k < EACH; k++) gradient[k] -= step * gram[column * SPAN + k * LANES + lane];
}

// Updates `target` in place, `sweeps` times, starting at target * begin. Per thread block, `parts` gets the sums of the
// rows, as in solved_rows.cuh.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
hals(Runs runs, int again, const double* __restrict__ source, long long source_stride, const double* __restrict__ matrix,
     const double* __restrict__ right, const double* __restrict__ begin, int sweeps, int with_dots, REAL* __restrict__ target,
     long long target_stride, long long rows, double* __restrict__ parts) {
  const Run run = run_of(runs, blockIdx.y, again ? RANGE : 0);
  if (!run.rank) return;
  source += run.first, target += run.first;
  matrix += run.number * RANK * RANK, right += run.number * RANK, begin += run.number * RANK;
  extern __shared__ double shared[];
  double *gram = shared, *tile = gram + RANK * SPAN;  // GROUPS stored rows
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  const int across = threadIdx.x % RANK, down = threadIdx.x / RANK;  // position in the Gram matrix
  for (int k = threadIdx.x; k < RANK * SPAN; k += THREADS) {
    const int row = k / SPAN, column = k % SPAN;
    gram[k] = column < RANK ? matrix[row * RANK + column] : 0;
  }
  __syncthreads();
  double over[EACH], dot[EACH] = {}, most[EACH] = {}, square[SQUARES] = {};
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int column = k * LANES + lane;
    const double pivot = column < RANK ? gram[column * SPAN + column] : 0;
    over[k] = pivot > 0 ? 1 / pivot : 0;
  }
  for (long long base = blockIdx.x * (long long)GROUPS; base < rows; base += gridDim.x * (long long)GROUPS) {
    const long long row = base + group;
    double given[EACH], numbers[EACH], gradient[EACH];
    bool some = false;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const int column = k * LANES + lane;
      const bool there = row < rows && column < run.rank;
      given[k] = there ? source[row * source_stride + column] : 0;
      numbers[k] = there ? (double)target[row * target_stride + column] * begin[column] : 0;
      gradient[k] = there ? given[k] * right[column] : 0;
      some |= given[k] != 0;
    }
    bool active = __any_sync(ALL, some);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      if (!active && over[k] > 0) numbers[k] = 0;
      for (int owner = 0; owner < LANES && k * LANES + owner < run.rank; owner++)
        follow(gradient, gram, k * LANES + owner, lane, __shfl_sync(ALL, numbers[k], owner));
    }
    for (int sweep = 0; sweep < sweeps && active; sweep++) {
      double change = 0;
#pragma unroll
      for (int k = 0; k < EACH; k++)
#pragma unroll 2  // more would exceed the registers
        for (int owner = 0; owner < LANES && k * LANES + owner < run.rank; owner++) {
          double moved = numbers[k] + gradient[k] * over[k];
          if (moved < 0) moved = 0;  // NaN propagates
          const double step = moved - numbers[k];
          if (lane == owner) {
            numbers[k] = moved;
            if (sweeps > PATIENT) change = larger(fabs(step), change);
          }
          follow(gradient, gram, k * LANES + owner, lane, __shfl_sync(ALL, step, owner));
        }
      if (sweeps > PATIENT) {
        double size = 0;
#pragma unroll
        for (int k = 0; k < EACH; k++) size = larger(numbers[k], size);
        active = over_group(change) > SETTLED * over_group(size);
      }
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const int column = k * LANES + lane;
      const REAL stored = numbers[k];
      most[k] = larger(numbers[k], most[k]);
      if (with_dots) dot[k] += given[k] * (double)stored;
      tile[group * SPAN + column] = stored;
      if (row < rows && column < run.rank) target[row * target_stride + column] = stored;
    }
    __syncthreads();
    if (down < TOGETHER)
#pragma unroll 1
      for (int k = 0; k < GROUPS; k++) {
        const double factor = tile[k * SPAN + across];
#pragma unroll
        for (int q = 0; q < SQUARES; q++)
          if (q * TOGETHER + down < RANK) square[q] += factor * tile[k * SPAN + q * TOGETHER + down];
      }
    __syncthreads();
  }
  double* part = parts + (run.number * (long long)gridDim.x + blockIdx.x) * ENTRIES;
#pragma unroll
  for (int q = 0; q < SQUARES; q++)
    if (down < TOGETHER && q * TOGETHER + down < RANK) part[(q * TOGETHER + down) * RANK + across] = square[q];
  for (int turn = 0; turn < 2; turn++) {  // inner products, then maxima
#pragma unroll
    for (int k = 0; k < EACH; k++) tile[group * SPAN + k * LANES + lane] = turn ? most[k] : dot[k];
    __syncthreads();
    if (threadIdx.x < RANK) {
      double total = tile[threadIdx.x];
      for (int k = 1; k < GROUPS; k++) {
        const double other = tile[k * SPAN + threadIdx.x];
        total = turn ? larger(other, total) : total + other;
      }
      part[(RANK + turn) * RANK + threadIdx.x] = total;
    }
    __syncthreads();
  }
}
