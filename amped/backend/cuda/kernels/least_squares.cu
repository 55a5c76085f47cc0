// Solves the least-squares problems of rows from sums in double precision; see row_equations.cuh.
//
//   RANK, TEAM  see row_equations.cuh
//   REAL        type of the rows
//
// The sums of a row: the sum of (x - m) v, R numbers; G, (R, R), of which the lower triangle is used; and the sum of
// (x - m)^2, as `add_sums` of rowproblems.cu computes them.

#define PACKED 0
#include "row_equations.cuh"

constexpr int SUMS = RANK + RANK * RANK + 1;

// Solves row blockIdx.x of `own`, or the row names[blockIdx.x] if there are names. Its sums are at `pitch` times its
// position; or, if there is `first`, they are the sum of tasks first[k] to first[k + 1], the first of which becomes it.
extern "C" __global__ void __launch_bounds__(TEAM)
solve_rows(double* sums, long long pitch, const int* __restrict__ first, int first_task, const int* __restrict__ names,
           REAL* __restrict__ own, long long stride, const Terms terms, double noise, Solved* __restrict__ solved) {
  extern __shared__ double room[];
  const int k = blockIdx.x;
  double* mine = sums + (first ? first[k] - first_task : k) * pitch;
  if (first)
    for (int e = threadIdx.x; e < SUMS; e += TEAM) {
      double sum = 0;
      for (int t = 0; t < first[k + 1] - first[k]; t++) sum += mine[t * pitch + e];
      mine[e] = sum;
    }
  const Row row(mine + RANK, room, noise);
  REAL* to = own + (names ? names[k] : k) * stride;
  EACH (r) row.old[r] = (double)to[r];
  wait_for_team();
  EACH (r) row.slope[r] = mine[r];
  const Solved done = solve_row<REAL>(row, terms, mine[SUMS - 1], false);
  EACH (r) to[r] = (REAL)row.b[r];
  if (threadIdx.x == 0) solved[k] = done;
}

// Adds the results of rows, in order, to `seen`: the sum of squared residuals, if `measured`, the rows without a unique
// solution, and the sum of squares of the rows.
constexpr int ADDING = 256, RESULTS = sizeof(Solved) / sizeof(double);
extern "C" __global__ void __launch_bounds__(ADDING) add_solved(const Solved* __restrict__ solved, int count, int measured, double* seen) {
  __shared__ double sums[RESULTS][ADDING];
  double mine[RESULTS] = {};
  for (int k = threadIdx.x; k < count; k += ADDING)
    for (int e = 0; e < RESULTS; e++) mine[e] += ((const double*)(solved + k))[e];
  for (int e = 0; e < RESULTS; e++) sums[e][threadIdx.x] = mine[e];
  for (int far = ADDING / 2; far; far /= 2) {
    __syncthreads();
    if (threadIdx.x < far)
      for (int e = 0; e < RESULTS; e++) sums[e][threadIdx.x] += sums[e][threadIdx.x + far];
  }
  __syncthreads();
  if (threadIdx.x < RESULTS && (threadIdx.x || measured)) seen[threadIdx.x] += sums[threadIdx.x][0];
}

// Sets rows `names` of `own` to zero.
extern "C" __global__ void clear_rows(const int* __restrict__ names, int count, REAL* __restrict__ own, long long stride) {
  const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (at / RANK < count) own[names[at / RANK] * stride + at % RANK] = 0;
}
