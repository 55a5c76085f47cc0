// Auxiliary kernels of interleaved.cu on the columns of models. blockIdx.y is the number of a model: `models` has its
// first column and its number of columns, a power of two. A model whose `done`, by first column, is nonzero is
// skipped.
//
//   REAL  type of the factor matrices

#include "combine.cuh"

typedef REAL real;
typedef long long count;

struct __align__(8) Model {
  int first, columns;

  // Row and column of entry `e` of this model, and the number of entries of a number of rows.
  __device__ __forceinline__ count row(count e) const { return e >> (__ffs(columns) - 1); }
  __device__ __forceinline__ int column(count e) const { return first + (int)(e & (columns - 1)); }
  __device__ __forceinline__ count entries(count rows) const { return rows * columns; }
};

__device__ __forceinline__ count first() { return blockIdx.x * (count)blockDim.x + threadIdx.x; }
__device__ __forceinline__ count step() { return gridDim.x * (count)blockDim.x; }

struct Live {
  const Model* models;
  const int* done;

  __device__ __forceinline__ Model of(int number) const { return models[number]; }
  __device__ __forceinline__ bool skips(int number) const { return done && done[models[number].first]; }
};

// Sets rows to 0.
extern "C" __global__ void clear(double* __restrict__ out, count columns, count rows, const Live live) {
  if (live.skips(blockIdx.y)) return;
  const Model model = live.of(blockIdx.y);
  for (count e = first(); e < model.entries(rows); e += step()) out[model.row(e) * columns + model.column(e)] = 0;
}

extern "C" __global__ void copy(const double* __restrict__ from, double* __restrict__ to, const Live live) {
  if (live.skips(blockIdx.y)) return;
  const Model model = live.of(blockIdx.y);
  for (int k = threadIdx.x; k < model.columns; k += blockDim.x) to[model.first + k] = from[model.first + k];
}

// All levels of the sum of carries, one thread block per model; see `combine_rest`.
extern "C" __global__ void __launch_bounds__(512, 1)
combine_models(const int* __restrict__ starts, const int* __restrict__ runs, const double* carry, double* up, double* out,
               count items, int columns, const Live live) {
  if (live.skips(blockIdx.y)) return;
  const Model model = live.of(blockIdx.y);
  for (count step = 1, back = 0;; step *= FAN_IN) {
    const count groups = (items + FAN_IN - 1) / FAN_IN;
    for (count at = threadIdx.x; at < model.entries(groups); at += blockDim.x)
      level(starts, runs, carry, up, out, items, step, back, columns, model.row(at) * columns + model.column(at));
    if (items <= FAN_IN) return;
    __syncthreads();
    carry = up, up += groups * columns, back = step, items = groups;
  }
}

// Non-negative numbers compare like their bits; NaN is the largest. See mu_update.cu.
extern "C" __global__ void measure(const double* __restrict__ phi, count phi_stride, const real* __restrict__ matrix, count stride,
                                   count rows, unsigned long long* violations, const Live live) {
  if (live.skips(blockIdx.y)) return;
  const Model model = live.of(blockIdx.y);
  double most = 0;
  for (count e = first(); e < model.entries(rows); e += step()) {
    const count row = model.row(e);
    const int column = model.column(e);
    const double left = 1 - phi[row * phi_stride + column], entry = matrix[row * stride + column];
    const double found = fabs(entry < left ? entry : left);
    if (found > most || found != found) most = found;
  }
  unsigned long long bits = __double_as_longlong(most);
  for (int k = 16; k; k /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, k));
  if (threadIdx.x % 32 == 0 && bits) atomicMax(violations + model.first, bits);
}

// A block may see that another one of this launch has set `done`: then it would set it, too.
extern "C" __global__ void apply(const double* __restrict__ phi, count phi_stride, real* matrix, count stride, count rows,
                                 const double* __restrict__ violations, double* facts, double tol, const Model* __restrict__ models,
                                 int* done) {
  const Model model = models[blockIdx.y];
  if (*(volatile int*)(done + model.first)) return;
  const double violation = violations[model.first];
  const bool stops = violation < tol;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    facts[2 * model.first] = violation;
    if (stops) done[model.first] = 1;
    else facts[2 * model.first + 1] += 1;
  }
  if (stops) return;
  for (count e = first(); e < model.entries(rows); e += step()) {
    const count row = model.row(e);
    const int column = model.column(e);
    real& entry = matrix[row * stride + column];
    entry = entry * phi[row * phi_stride + column];
  }
}

// Sums the `items` partial sums of a model, always in the same order, and adds the result to `totals`.
extern "C" __global__ void __launch_bounds__(512)
sum_logs(const double* __restrict__ parts, count items, const Model* __restrict__ models, double* totals) {
  __shared__ double sums[512];
  double x = 0;
  for (count i = threadIdx.x; i < items; i += 512) x += parts[blockIdx.y * items + i];
  sums[threadIdx.x] = x;
  for (int step = 256; step; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
  }
  if (threadIdx.x == 0) totals[models[blockIdx.y].first] += sums[0];
}
