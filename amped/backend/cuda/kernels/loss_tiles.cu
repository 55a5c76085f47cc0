// A loss and its first derivatives at the elements of a tile; see amped/backend/ops/loss_tiles.py.
//
//   REAL       type of the elements
//   WEIGHTED   1: elements have weights; those of weight 0 are missing
//   THREADS    of a block
//
// Before this text stand `map_value` and `map_slope`, the loss's formulas.

constexpr int WARP = 32;

// `model` has the model's values, without gaps between rows; the derivatives take their place. Rows of elements and weights
// are `pitch` numbers apart. Each block adds its losses to its own number of `sums`: bitwise repeatable.
extern "C" __global__ void __launch_bounds__(THREADS)
evaluate(const REAL* __restrict__ elements, const double* __restrict__ weights, double* __restrict__ model,
         double* __restrict__ sums, unsigned rows, unsigned columns, long long pitch) {
  double sum = 0;
  const unsigned count = rows * columns, step = gridDim.x * THREADS;
  for (unsigned e = blockIdx.x * THREADS + threadIdx.x; e < count; e += step) {
    const unsigned row = e / columns;
    const long long at = row * pitch + (e - row * columns);
    const double x = elements[at], m = model[e];
    double value = map_value(x, m), slope = map_slope(x, m);
    if constexpr (WEIGHTED) {
      const double weight = weights[at];
      value = weight > 0 ? weight * value : 0, slope = weight > 0 ? weight * slope : 0;
    }
    sum += value;
    model[e] = slope;
  }
  __shared__ double of_warps[THREADS / WARP];
#pragma unroll
  for (int far = WARP / 2; far; far /= 2) sum += __shfl_xor_sync(~0u, sum, far);
  if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int k = 1; k < THREADS / WARP; k++) sum += of_warps[k];
  sums[blockIdx.x] += sum;
}
