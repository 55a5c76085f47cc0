// Least-squares update of CP-ALS, one pass over MTTKRP rows: solve and store factor rows, and accumulate the Gram
// matrix, inner products and column maxima.
//
//   RANK  columns; for a batch of runs (batch_index.cuh), the largest number
//   REAL  type of the factor matrix
//
// Each warp solves SIDE rows at a time, without waiting for others, and reads the next rows meanwhile. Tensor cores
// compute the transpose of the solved rows (fp64, from compute capability 8.0 on); see solved_rows.cuh. The order of
// columns in a sum is arbitrary, so that a lane reads adjacent pairs.

#include "solved_rows.cuh"

constexpr int SHARED = SPAN * SPAN > ENTRIES ? SPAN * SPAN : ENTRIES;

// Writes source @ inverse to `target`. Per thread block, `parts` gets the sums of the rows.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
solve(Runs runs, int again, const double* __restrict__ source, long long source_stride, const double* __restrict__ inverse,
      int with_dots, REAL* __restrict__ target, long long target_stride, long long rows, double* __restrict__ parts) {
  const Run run = run_of(runs, blockIdx.y, again ? RANGE : 0);
  if (!run.rank) return;
  const Rows all = {source + run.first, source_stride, target + run.first, target_stride, rows, run.rank, with_dots};
  inverse += run.number * RANK * RANK;
  __shared__ __align__(16) double shared[SHARED];
  double2* factor = (double2*)shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, far = lane / 4, near = lane % 4;
  read_factor(factor, inverse);
  __syncthreads();
  RowSums sums;
  Numbers given;
  const long long step = gridDim.x * (long long)(WARPS * SIDE);
  long long first = (blockIdx.x * (long long)WARPS + warp) * SIDE;
  load(given, all, first, far, near);
  for (; first < rows; first += step) {
    Numbers solved = {};
    multiply(solved, factor, given, lane);
    load(given, all, first + step, far, near);
    sums.store(solved, all, first, far, near);
  }
  __syncthreads();
  sums.write(shared, parts + (run.number * (long long)gridDim.x + blockIdx.x) * ENTRIES, far, near);
}
