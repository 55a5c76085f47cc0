// Non-negative update of CP-ALS, one pass over MTTKRP rows: sweeps over the columns of each factor row (HALS), and the
// Gram matrix, inner products and column maxima of the stored rows. For more than 64 columns, see nonnegative_wide.cu.
//
//   RANK  columns; for a batch of runs (batch_index.cuh), the largest number
//   REAL  type of the factor matrix
//
// A warp solves SIDE rows at a time, by rows; see solved_rows.cuh. Four lanes share a row, whose steps depend on each
// other. The steps of SIDE columns change the gradient of these columns at once; then tensor cores (fp64, from compute
// capability 8.0 on) change that of the other columns.

#include "solved_rows.cuh"

constexpr int PITCH = SPAN + 2;  // of the rows that a warp transposes
constexpr int PATIENT = 8;  // with more sweeps than this, test whether a row has converged
constexpr double SETTLED = 1e-13;  // as in normal_equations/hals.py
constexpr unsigned ALL = 0xffffffff;

// What the rows have in common, in shared memory.
struct Problem {
  double2 gram[WIDE][WIDE][32];  // as lanes need it: by rows, columns, and lanes
  double2 square[WIDE][SIDE][4];  // the squares on the diagonal of the Gram matrix, by rows
  double2 right[WIDE][4], begin[WIDE][4], over[WIDE][4];  // `over`: 1 / diagonal, or 0
  double tile[WARPS][SIDE * PITCH];
};

// Subtracts the product of steps of SIDE columns and the Gram matrix from the gradient of columns other than `but`.
__device__ __forceinline__ void follow(Numbers& gradient, const Problem& problem, const double (&steps)[2], int t, int but, int lane) {
#pragma unroll
  for (int b = 0; b < WIDE; b++) {
    if (b == but) continue;
    const double2 right = problem.gram[t][b][lane];
    multiply_add(gradient[b], -steps[0], right.x);
    multiply_add(gradient[b], -steps[1], right.y);
  }
}

__device__ double over_row(double value) {  // maximum over the lanes of a row
#pragma unroll
  for (int apart = 1; apart < 4; apart *= 2) value = larger(__shfl_xor_sync(ALL, value, apart), value);
  return value;
}

// Updates `target` in place, `sweeps` times, starting at target * begin. Per thread block, `parts` gets the sums of the
// rows.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
hals(Runs runs, int again, const double* __restrict__ source, long long source_stride, const double* __restrict__ matrix,
     const double* __restrict__ right, const double* __restrict__ begin, int sweeps, int with_dots, REAL* __restrict__ target,
     long long target_stride, long long rows, double* __restrict__ parts) {
  const Run run = run_of(runs, blockIdx.y, again ? RANGE : 0);
  if (!run.rank) return;
  const Rows all = {source + run.first, source_stride, target + run.first, target_stride, rows, run.rank, with_dots};
  matrix += run.number * RANK * RANK, right += run.number * RANK, begin += run.number * RANK;
  extern __shared__ __align__(16) char memory[];
  Problem& problem = *(Problem*)memory;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, far = lane / 4, near = lane % 4;
  const auto entry = [&](int row, int column) { return row < RANK && column < RANK ? matrix[row * RANK + column] : 0; };
  for (int k = threadIdx.x; k < SPAN * SPAN / 2; k += THREADS) {
    const int row = k / 32 / WIDE * SIDE + 2 * (k % 4), column = k / 32 % WIDE * SIDE + k % 32 / 4;
    problem.gram[0][0][k] = {entry(row, column), entry(row + 1, column)};
  }
  for (int k = threadIdx.x; k < SPAN * 4; k += THREADS) {
    const int row = k / 4, column = row / SIDE * SIDE + 2 * (k % 4);
    problem.square[0][0][k] = {entry(row, column), entry(row, column + 1)};
  }
  for (int k = threadIdx.x; k < SPAN; k += THREADS) {
    const double pivot = entry(k, k);
    ((double*)problem.right)[k] = k < RANK ? right[k] : 0;
    ((double*)problem.begin)[k] = k < RANK ? begin[k] : 0;
    ((double*)problem.over)[k] = pivot > 0 ? 1 / pivot : 0;
  }
  __syncthreads();
  RowSums sums;
  for (long long first = (blockIdx.x * (long long)WARPS + warp) * SIDE; first < rows; first += gridDim.x * (long long)(WARPS * SIDE)) {
    Numbers gradient, numbers;
    load(gradient, all, first, far, near);
    bool some = false;
#pragma unroll
    for (int t = 0; t < WIDE; t++) some |= gradient[t][0] != 0 || gradient[t][1] != 0;
    bool active = __ballot_sync(ALL, some) & 15u << far * 4;
#pragma unroll
    for (int t = 0; t < WIDE; t++) {
      const double2 rights = problem.right[t][near], begins = problem.begin[t][near], overs = problem.over[t][near];
      gradient[t][0] *= rights.x, gradient[t][1] *= rights.y;
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int column = t * SIDE + 2 * near + e;
        const bool there = first + far < rows && column < run.rank && (active || (e ? overs.y : overs.x) <= 0);
        numbers[t][e] = there ? (double)all.target[(first + far) * target_stride + column] * (e ? begins.y : begins.x) : 0;
      }
    }
#pragma unroll
    for (int t = 0; t < WIDE; t++) follow(gradient, problem, numbers[t], t, -1, lane);
    for (int sweep = 0; sweep < sweeps && __any_sync(ALL, active); sweep++) {
      double change = 0, size = 0;
#pragma unroll
      for (int t = 0; t < WIDE; t++) {
        const double2 overs = problem.over[t][near];
        double steps[2] = {};
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
          double &number = numbers[t][j % 2], moved = number + gradient[t][j % 2] * (j % 2 ? overs.y : overs.x);
          if (moved < 0) moved = 0;  // NaN propagates
          const double own = active ? moved - number : 0, step = __shfl_sync(ALL, own, j / 2, 4);
          if (near == j / 2) {
            if (active) number = moved;
            steps[j % 2] = own;
          }
          const double2 factors = problem.square[t][j][near];
          gradient[t][0] -= step * factors.x, gradient[t][1] -= step * factors.y;
        }
        follow(gradient, problem, steps, t, t, lane);
        if (sweeps <= PATIENT) continue;
#pragma unroll
        for (int e = 0; e < 2; e++) change = larger(fabs(steps[e]), change), size = larger(numbers[t][e], size);
      }
      if (sweeps > PATIENT) active &= over_row(change) > SETTLED * over_row(size);
    }
    double* tile = problem.tile[warp];
#pragma unroll
    for (int t = 0; t < WIDE; t++) *(double2*)(tile + far * PITCH + t * SIDE + 2 * near) = {numbers[t][0], numbers[t][1]};
    __syncwarp();
#pragma unroll
    for (int a = 0; a < WIDE; a++)
#pragma unroll
      for (int e = 0; e < 2; e++) numbers[a][e] = tile[(2 * near + e) * PITCH + a * SIDE + far];
    __syncwarp();
    sums.store(numbers, all, first, far, near);
  }
  __syncthreads();
  sums.write((double*)memory, parts + (run.number * (long long)gridDim.x + blockIdx.x) * ENTRIES, far, near);
}
