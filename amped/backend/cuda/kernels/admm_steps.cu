// What ADMM computes beside the proximal operators of a mode; see amped/backend/ops/admm_steps.py. Everything is float64,
// and matrices are contiguous.
//
//   RANK  columns
//   REAL  double
//
// Sums are always added in the same order.

#include "solved_rows.cuh"

constexpr int MOST = 2, TESTS = 4;  // operators; sums of each

struct Terms {  // of the first operator; `fused`: whether it is one of entries
  double low, high, l1;
  int fused, ball;
};
struct Operators {
  const double* results[MOST];  // ignored for the first one if it is fused
  int count;
};

__device__ __noinline__ double constrained(double number, const Terms& terms) {
  if (terms.l1 > 0) number = terms.low >= 0 ? number - terms.l1 : copysign(fmax(fabs(number) - terms.l1, 0.0), number);
  number = number < terms.low ? terms.low : number;  // NaN propagates
  return number > terms.high ? terms.high : number;
}

// Computes the operators' arguments, `moved`. `squares` gets, per thread block, the columns' sums of squares of the first
// operator's result before columns are shortened.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
advance(const double* __restrict__ copies, const double* __restrict__ scaled, const double* __restrict__ unmoved,
        const double* __restrict__ inverse, long long rows, int operators, Terms terms, double* __restrict__ moved,
        double* __restrict__ squares) {
  __shared__ __align__(16) double shared[SPAN * SPAN > WARPS * SPAN ? SPAN * SPAN : WARPS * SPAN];
  double2* factor = (double2*)shared;  // as in solve.cu
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, far = lane / 4, near = lane % 4;
  const long long size = rows * RANK;
  read_factor(factor, inverse);
  __syncthreads();
  double square[WIDE] = {};
  for (long long first = (blockIdx.x * (long long)WARPS + warp) * SIDE; first < rows; first += gridDim.x * (long long)(WARPS * SIDE)) {
    Numbers given = {}, solved = {};
#pragma unroll 1
    for (int k = 0; k < operators; k++)
#pragma unroll
      for (int t = 0; t < WIDE; t++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int column = t * SIDE + 2 * near + e;
          const long long at = k * size + (first + far) * RANK + column;
          if (first + far < rows && column < RANK) given[t][e] += copies[at] + scaled[at];
        }
    multiply(solved, factor, given, lane);
#pragma unroll 1
    for (int k = 0; k < operators; k++)
#pragma unroll
      for (int a = 0; a < WIDE; a++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const long long row = first + 2 * near + e, at = row * RANK + a * SIDE + far;
          if (row >= rows || a * SIDE + far >= RANK) continue;
          const double number = solved[a][e] + unmoved[at] - scaled[k * size + at];
          moved[k * size + at] = number;
          if (k || !terms.ball) continue;
          const double result = constrained(number, terms);
          square[a] += result * result;
        }
  }
  if (!terms.ball) return;
  __syncthreads();
#pragma unroll
  for (int a = 0; a < WIDE; a++) {
    for (int apart = 1; apart < 4; apart *= 2) square[a] += __shfl_xor_sync(~0u, square[a], apart);
    if (!near) shared[warp * SPAN + a * SIDE + far] = square[a];
  }
  __syncthreads();
  if (threadIdx.x >= RANK) return;
  double total = 0;
  for (int w = 0; w < WARPS; w++) total += shared[w * SPAN + threadIdx.x];
  squares[blockIdx.x * RANK + threadIdx.x] = total;
}

// Takes the operators' results; computes the fused one, whose columns are shortened with the help of `count` blocks of
// `squares`. If `tests` is not null, it gets the sums of each thread block, (MOST, TESTS).
extern "C" __global__ void __launch_bounds__(THREADS)
settle(const double* __restrict__ moved, Operators operators, double* __restrict__ copies, double* __restrict__ scaled,
       long long size, Terms terms, const double* __restrict__ squares, int count, double* __restrict__ tests) {
  __shared__ double over[RANK];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int column = warp; column < RANK; column += WARPS) {
    double total = 0;
    if (terms.ball)
      for (int k = lane; k < count; k += 32) total += squares[k * RANK + column];
#pragma unroll
    for (int apart = 16; apart; apart /= 2) total += __shfl_xor_sync(~0u, total, apart);
    if (!lane) over[column] = larger(1, sqrt(total));
  }
  __syncthreads();
  for (int k = 0; k < operators.count; k++) {
    const double* results = operators.results[k];
    double sums[TESTS] = {};
    for (long long e = blockIdx.x * (long long)THREADS + threadIdx.x; e < size; e += gridDim.x * (long long)THREADS) {
      const long long at = k * size + e;
      const double argument = moved[at], before = copies[at], dual = scaled[at];
      const double result = !k && terms.fused ? constrained(argument, terms) / over[e % RANK] : results[e];
      const double after = result - argument, difference = after - dual, change = result - before;
      copies[at] = result, scaled[at] = after;
      sums[0] += difference * difference, sums[1] += result * result;
      sums[2] += change * change, sums[3] += after * after;
    }
    if (!tests) continue;
    for (int s = 0; s < TESTS; s++) {
      const double total = add_up(sums[s]);
      if (!threadIdx.x) tests[(blockIdx.x * MOST + k) * TESTS + s] = total;
    }
  }
}
