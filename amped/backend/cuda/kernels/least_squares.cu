// Solves the least-squares problems of rows from sums in double precision; see row_equations.cuh.
//
//   RANK, TEAM  see row_equations.cuh
//   REAL        type of the rows
//
// The sums of a row: the sum of (x - m) v, R numbers; G, (R, R), of which the lower triangle is used; and the sum of
// (x - m)^2, as `add_sums` of rowproblems.cu computes them.

#define PACKED (TEAM == 32)  // in shared memory
#define BY_LANES (RANK <= 32)
#include "row_equations.cuh"

constexpr int SUMS = RANK + RANK * RANK + 1;

// Solves row blockIdx.x of `own`, or the row names[blockIdx.x] if there are names. Its sums are at `pitch` times its
// position; or, if there is `first`, they are the sum of tasks first[k] to first[k + 1], the first of which becomes it.
// If there are common equations, the sums are those of elements that the row lacks; see `subtract`.
extern "C" __global__ void __launch_bounds__(TEAM)
solve_rows(double* sums, long long pitch, const int* __restrict__ first, int first_task, const int* __restrict__ names,
           REAL* __restrict__ own, long long stride, const Terms terms, double noise, Solved* __restrict__ solved,
           const Common common) {
  extern __shared__ double room[];
  const int k = blockIdx.x;
  double* mine = sums + (first ? first[k] - first_task : k) * pitch;
  if (first)
    for (int e = threadIdx.x; e < SUMS; e += TEAM) {
      double sum = 0;
      for (int t = 0; t < first[k + 1] - first[k]; t++) sum += mine[t * pitch + e];
      mine[e] = sum;
    }
  wait_for_team();
  const Row row(PACKED ? room : mine + RANK, PACKED ? room + TRIANGLE : room, noise);
  if constexpr (PACKED)
#pragma unroll 16
    for (int e = threadIdx.x; e < RANK * RANK; e += TEAM)
      if (e % RANK <= e / RANK) row.g(e / RANK, e % RANK) = mine[RANK + e];
  const long long name = names ? names[k] : k;
  REAL* to = own + name * stride;
  EACH (r) row.old[r] = (double)to[r];
  EACH (r) row.slope[r] = mine[r];
  wait_for_team();
  double squares = mine[SUMS - 1];
  if (common.gram) squares = subtract(row, common, name);
  const Solved done = solve_row<REAL>(row, terms, squares, !common.gram);
  EACH (r) to[r] = (REAL)row.b[r];
  if (threadIdx.x == 0) solved[k] = done;
}

// Adds the results of rows, in a fixed order: each thread block stores its sums in `parts`. A single block adds them to
// `seen`: the sum of squared residuals, if `measured`, the rows without a unique solution, and the sum of squares of the
// rows.
constexpr int ADDING = 256, RESULTS = sizeof(Solved) / sizeof(double);
extern "C" __global__ void __launch_bounds__(ADDING) add_solved(const Solved* __restrict__ solved, int count, int measured, double* seen,
                                                                double* __restrict__ parts) {
  __shared__ double sums[RESULTS][ADDING];
  double mine[RESULTS] = {};
  for (int k = blockIdx.x * ADDING + threadIdx.x; k < count; k += gridDim.x * ADDING)
    for (int e = 0; e < RESULTS; e++) mine[e] += ((const double*)(solved + k))[e];
  for (int e = 0; e < RESULTS; e++) sums[e][threadIdx.x] = mine[e];
  for (int far = ADDING / 2; far; far /= 2) {
    __syncthreads();
    if (threadIdx.x < far)
      for (int e = 0; e < RESULTS; e++) sums[e][threadIdx.x] += sums[e][threadIdx.x + far];
  }
  __syncthreads();
  if (threadIdx.x >= RESULTS) return;
  if (gridDim.x > 1) parts[blockIdx.x * RESULTS + threadIdx.x] = sums[threadIdx.x][0];
  else if (threadIdx.x || measured) seen[threadIdx.x] += sums[threadIdx.x][0];
}

// Sets rows `names` of `own` to zero.
extern "C" __global__ void clear_rows(const int* __restrict__ names, int count, REAL* __restrict__ own, long long stride) {
  const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (at / RANK < count) own[names[at / RANK] * stride + at % RANK] = 0;
}
