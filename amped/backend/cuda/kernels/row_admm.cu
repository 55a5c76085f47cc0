// ADMM of rows whose constraints do not relate them, a warp per row; see amped/backend/ops/row_admm.py.
//
//   RANK  columns, at most 128
//   REAL  type of the factor matrix
//
// A lane holds columns lane, lane + 32, ... of a row. Each row ends on its own: when its residuals are small, and with an
// objective of at most that of its start. Sums are always added in the same order.

#include "block_inverse.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32, EACH = (RANK + 31) / 32, SPAN = EACH * 32;
constexpr int ENTRIES = RANK * RANK, TOTALS = ENTRIES + 2;  // a block's sums: Gram matrix, data and penalty
constexpr int TOGETHER = THREADS / RANK, SQUARES = (RANK + TOGETHER - 1) / TOGETHER;
constexpr int MANY = 1024;  // threads that invert a matrix
constexpr int INNER = 10, ROUNDS = 3, BETWEEN = 5;  // as in proximal/admm.py: iterations, and between tests of residuals
constexpr double RELATIVE = 1e-4, FREE = 1e-8;
constexpr unsigned ALL = 0xffffffff;
#define KEEPS (RANK <= 32)  // whether a lane holds its column of the inverse in registers

typedef long long count;

struct Terms {
  double low, high, l1, l2;
  int simplex, least_squares;
};

__device__ double add_lanes(double value) {
#pragma unroll
  for (int far = 16; far; far /= 2) value += __shfl_xor_sync(ALL, value, far);
  return value;
}

// Sets `gram` to the product of the other modes' Gram matrices, `inverse` to the inverse of its sum with l2 + rho on the
// diagonal, `rho`, and the mode's totals to zero. One block.
extern "C" __global__ void __launch_bounds__(MANY) prepare(double* totals, int order, int mode, Terms terms, double* gram,
                                                           double* inverse, double* rho) {
  extern __shared__ double matrix[];
  __shared__ double shift;
  const int t = threadIdx.x;
  for (int e = t; e < ENTRIES; e += MANY) {
    double product = 1;
    for (int m = 0; m < order; m++)
      if (m != mode) product *= totals[m * (count)TOTALS + e];
    gram[e] = matrix[e] = product;
  }
  __syncthreads();
  for (int e = t; e < TOTALS; e += MANY) totals[mode * (count)TOTALS + e] = 0;
  if (!t) {
    double trace = 0;
    for (int k = 0; k < RANK; k++) trace += matrix[k * (RANK + 1)] + terms.l2;
    trace /= RANK;
    if (terms.least_squares) trace *= FREE;
    *rho = shift = trace > 0 ? trace : 1;
  }
  __syncthreads();
  if (t < RANK) matrix[t * (RANK + 1)] += terms.l2 + shift;
  invert(matrix);
  for (int e = t; e < ENTRIES; e += MANY) inverse[e] = matrix[e];
}

// Returns the lane's columns of the product of a symmetric matrix with the vector in shared memory.
__device__ void multiply(const double* __restrict__ matrix, int stride, const double* vector, int lane, double (&product)[EACH]) {
#pragma unroll
  for (int k = 0; k < EACH; k++) product[k] = 0;
#pragma unroll 4
  for (int c = 0; c < RANK; c++) {
    const double number = vector[c];
#pragma unroll
    for (int k = 0; k < EACH; k++)
      if (k * 32 + lane < RANK) product[k] += matrix[c * stride + k * 32 + lane] * number;
  }
}

// Projects a row onto the numbers of at least 0 that add up to 1 (Michelot 1986): each step drops those below the level.
__device__ void simplex(double (&numbers)[EACH], int lane) {
  bool in[EACH];
  int size = RANK;
  double level = 0;
#pragma unroll
  for (int k = 0; k < EACH; k++) in[k] = k * 32 + lane < RANK;
  for (int step = 0; step < RANK; step++) {
    double sum = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) sum += in[k] ? numbers[k] : 0;
    level = (add_lanes(sum) - 1) / size;
    int left = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      in[k] = in[k] && numbers[k] > level;
      left += __popc(__ballot_sync(ALL, in[k]));
    }
    if (left == size || !left) break;
    size = left;
  }
#pragma unroll
  for (int k = 0; k < EACH; k++) numbers[k] = k * 32 + lane < RANK && numbers[k] > level ? numbers[k] - level : 0;
}

__device__ void constrain(double (&numbers)[EACH], const Terms& terms, double step, int lane) {
  if (terms.simplex) return simplex(numbers, lane);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    double number = numbers[k];
    if (terms.l1 > 0) {
      const double part = step * terms.l1;
      number = terms.low >= 0 ? number - part : copysign(fmax(fabs(number) - part, 0.0), number);
    }
    number = number < terms.low ? terms.low : number;  // NaN propagates
    numbers[k] = number > terms.high ? terms.high : number;
  }
}

// Solves rows of `target` in place, starting from them and from `dual`, which may be null. Entries where `fixed` is not 0
// keep their values; it may be null. `parts` gets the sums of each block.
extern "C" __global__ void __launch_bounds__(THREADS, KEEPS ? 2 : 1)
solve_rows(const double* __restrict__ source, count source_stride, const double* __restrict__ gram,
           const double* __restrict__ inverse, const double* __restrict__ rho_of, Terms terms, REAL* __restrict__ target,
           count target_stride, double* __restrict__ dual, const unsigned char* __restrict__ fixed, count rows,
           double* __restrict__ parts) {
  extern __shared__ double shared[];
  double* lines = shared;  // of the warps
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int across = threadIdx.x % RANK, down = threadIdx.x / RANK;  // position in the Gram matrix
  double *line = lines + warp * SPAN, square[SQUARES] = {}, data = 0, penalty = 0;
  const double rho = *rho_of;
#if KEEPS
  double kept[RANK];
#pragma unroll
  for (int c = 0; c < RANK; c++) kept[c] = lane < RANK ? inverse[c * RANK + lane] : 0;
#else
  double* copied = shared + WARPS * SPAN;
  for (int e = threadIdx.x; e < ENTRIES; e += THREADS) copied[e] = inverse[e];
  __syncthreads();
#endif
  for (count base = blockIdx.x * (count)WARPS; base < rows; base += gridDim.x * (count)WARPS) {
    const count row = base + warp;
    const bool there = row < rows;
    double right[EACH], start[EACH], numbers[EACH], scaled[EACH], product[EACH];
    bool free[EACH], done = !there;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const int column = k * 32 + lane;
      const bool inside = there && column < RANK;
      right[k] = inside ? source[row * source_stride + column] : 0;
      start[k] = numbers[k] = inside ? (double)target[row * target_stride + column] : 0;
      scaled[k] = inside && dual ? dual[row * RANK + column] / rho : 0;
      free[k] = !(inside && fixed && fixed[row * RANK + column]);
    }
    for (int round = 0; round < ROUNDS && !done; round++) {
      for (int number = 1; number <= INNER; number++) {
        double sums[4] = {};
#pragma unroll
        for (int k = 0; k < EACH; k++) line[k * 32 + lane] = right[k] + rho * (numbers[k] + scaled[k]);
        __syncwarp();
#if KEEPS
        double part[4] = {};  // independent sums hide the latency of additions
#pragma unroll
        for (int c = 0; c < RANK; c++) part[c % 4] += kept[c] * line[c];
        product[0] = (part[0] + part[1]) + (part[2] + part[3]);
#else
        multiply(copied, RANK, line, lane, product);
#endif
        __syncwarp();
        double next[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++) next[k] = product[k] - scaled[k];
        if (!terms.least_squares) constrain(next, terms, 1 / rho, lane);
#pragma unroll
        for (int k = 0; k < EACH; k++) {
          if (!free[k]) next[k] = start[k];
          if (k * 32 + lane >= RANK) next[k] = 0;
          const double difference = next[k] - product[k], change = next[k] - numbers[k];
          numbers[k] = next[k];
          if (!terms.least_squares) scaled[k] += difference;
          sums[0] += difference * difference, sums[1] += next[k] * next[k];
          sums[2] += change * change, sums[3] += scaled[k] * scaled[k];
        }
        if (number % BETWEEN) continue;
#pragma unroll
        for (int s = 0; s < 4; s++) sums[s] = add_lanes(sums[s]);
        const double size = terms.least_squares ? sums[1] : sums[3];
        if (sums[0] <= RELATIVE * RELATIVE * sums[1] && sums[2] <= RELATIVE * RELATIVE * size) break;
      }
      // The change of the objective, with the numbers as they are stored.
      double gain = 0;
#pragma unroll
      for (int k = 0; k < EACH; k++) line[k * 32 + lane] = (double)(REAL)numbers[k] + start[k];
      __syncwarp();
      multiply(gram, RANK, line, lane, product);
      __syncwarp();
#pragma unroll
      for (int k = 0; k < EACH; k++) {
        const double stored = (REAL)numbers[k], change = stored - start[k];
        gain += (product[k] / 2 - right[k]) * change + terms.l1 * (fabs(stored) - fabs(start[k])) +
                terms.l2 / 2 * change * (stored + start[k]);
      }
      gain = add_lanes(gain);
      done = gain <= 0 || gain != gain;
    }
    if (there && !done)
#pragma unroll
      for (int k = 0; k < EACH; k++) numbers[k] = start[k];
#pragma unroll
    for (int k = 0; k < EACH; k++) line[k * 32 + lane] = (double)(REAL)numbers[k];
    __syncwarp();
    multiply(gram, RANK, line, lane, product);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const int column = k * 32 + lane;
      const double stored = line[column];
      data += (product[k] / 2 - right[k]) * stored;
      penalty += terms.l1 * fabs(stored) + terms.l2 / 2 * stored * stored;
      if (!there || column >= RANK) continue;
      target[row * target_stride + column] = stored;
      if (dual) dual[row * RANK + column] = rho * scaled[k];
    }
    __syncthreads();
    if (down < TOGETHER)
#pragma unroll 1
      for (int k = 0; k < WARPS; k++) {
        const double factor = lines[k * SPAN + across];
#pragma unroll
        for (int q = 0; q < SQUARES; q++)
          if (q * TOGETHER + down < RANK) square[q] += factor * lines[k * SPAN + q * TOGETHER + down];
      }
    __syncthreads();
  }
  double* part = parts + blockIdx.x * (count)TOTALS;
#pragma unroll
  for (int q = 0; q < SQUARES; q++)
    if (down < TOGETHER && q * TOGETHER + down < RANK) part[(q * TOGETHER + down) * RANK + across] = square[q];
  data = add_lanes(data), penalty = add_lanes(penalty);
  if (!lane) lines[2 * warp] = data, lines[2 * warp + 1] = penalty;
  __syncthreads();
  if (threadIdx.x < 2) {
    double sum = 0;
    for (int k = 0; k < WARPS; k++) sum += lines[2 * k + threadIdx.x];
    part[ENTRIES + threadIdx.x] = sum;
  }
}

// Adds the sums of all blocks to the totals of a mode.
extern "C" __global__ void add_parts(const double* __restrict__ parts, int blocks, double* __restrict__ totals) {
  const int entry = blockIdx.x * blockDim.x + threadIdx.x;
  if (entry >= TOTALS) return;
  double sum = 0;
#pragma unroll 8
  for (int k = 0; k < blocks; k++) sum += parts[k * (count)TOTALS + entry];
  totals[entry] += sum;
}
