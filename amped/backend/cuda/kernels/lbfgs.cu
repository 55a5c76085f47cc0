// Passes of L-BFGS-B over vectors in double precision; see amped/backend/ops/lbfgs.py. Each thread block writes its sums, and
// the host adds them, always in the same order.
//
//   MOST  vectors of recent changes

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int COLUMNS = 4;  // the two vectors of a change, and two steps
constexpr unsigned ALL = 0xffffffffu;

struct Point {
  const double *x, *gradient, *lower;
  long long lower_stride, length;  // `lower_stride`: 0 if one bound serves all entries, or 1
};
struct Change {  // `new_x` is null if there is none
  const double *x, *gradient, *new_x, *new_gradient;
  long long row;
};
struct Weights {
  double of[MOST];
};

// NaN propagates.
__device__ double larger(double a, double b) { return b > a || b != b ? b : a; }
__device__ double smaller(double a, double b) { return b < a || b != b ? b : a; }

__device__ double projected(double gradient, double x, double lower) {
  return x > lower || gradient < 0 ? gradient : 0;
}

__device__ double path_step(double gradient, double x, double lower, double size) {
  const double moved = fma(gradient, -size, x);
  return (moved < lower ? lower : moved) - x;
}

// Writes the block's sums to `result`, (N).
template <int N>
__device__ void add_up(double (&own)[N], double* __restrict__ result) {
  __shared__ double sums[WARPS][N];
#pragma unroll
  for (int k = 0; k < N; k++) {
    for (int step = 16; step; step /= 2) own[k] += __shfl_xor_sync(ALL, own[k], step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][k] = own[k];
  }
  __syncthreads();
  for (int k = threadIdx.x; k < N; k += THREADS) {
    double sum = 0;
    for (int warp = 0; warp < WARPS; warp++) sum += sums[warp][k];
    result[k] = sum;
  }
}

// Writes the block's largest or smallest number to `result`.
template <bool LARGEST>
__device__ void extreme(double own, double* __restrict__ result) {
  __shared__ double of_warps[WARPS];
  for (int step = 16; step; step /= 2) {
    const double other = __shfl_xor_sync(ALL, own, step);
    own = LARGEST ? larger(own, other) : smaller(own, other);
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x) return;
  for (int warp = 1; warp < WARPS; warp++) own = LARGEST ? larger(own, of_warps[warp]) : smaller(own, of_warps[warp]);
  *result = own;
}

// A thread's first entry, and the distance to its next one.
__device__ long long begin() { return blockIdx.x * (long long)THREADS + threadIdx.x; }
__device__ long long stride() { return gridDim.x * (long long)THREADS; }

// Parts are (blocks, 1).
extern "C" __global__ void __launch_bounds__(THREADS)
dot(const double* __restrict__ one, const double* __restrict__ other, long long length, double* __restrict__ parts) {
  double sum[1] = {};
  for (long long i = begin(); i < length; i += stride()) sum[0] += one[i] * other[i];
  add_up(sum, parts + blockIdx.x);
}

// Parts are (blocks, 2): the largest magnitude of the projected gradient, and the sum of its squares.
extern "C" __global__ void __launch_bounds__(THREADS) gradient_norms(Point point, double* __restrict__ parts) {
  double largest = 0, square[1] = {};
  for (long long i = begin(); i < point.length; i += stride()) {
    const double free = projected(point.gradient[i], point.x[i], point.lower[i * point.lower_stride]);
    largest = larger(largest, fabs(free));
    square[0] += free * free;
  }
  extreme<true>(largest, parts + 2 * blockIdx.x);
  add_up(square, parts + 2 * blockIdx.x + 1);
}

// Parts are (blocks, 2): the slope along `step`, and the squared change of the gradient.
extern "C" __global__ void __launch_bounds__(THREADS)
changes(Point point, const double* __restrict__ gradient, const double* __restrict__ step, double* __restrict__ parts) {
  double sums[2] = {};
  for (long long i = begin(); i < point.length; i += stride()) {
    const double change = gradient[i] - point.gradient[i];
    sums[0] += gradient[i] * step[i];
    sums[1] += change * change;
  }
  add_up(sums, parts + 2 * blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(THREADS)
move(Point point, const double* __restrict__ step, double size, double* __restrict__ result) {
  for (long long i = begin(); i < point.length; i += stride()) {
    const double moved = fma(step[i], size, point.x[i]), lower = point.lower[i * point.lower_stride];
    result[i] = moved < lower ? lower : moved;
  }
}

// Parts are (blocks, MOST + 2, COLUMNS). If `sizes` is 1, there is one step.
extern "C" __global__ void __launch_bounds__(THREADS)
path_products(Point point, double* vectors, int rows, Change change, int sizes, double first, double second,
              double* __restrict__ parts) {
  double sums[(MOST + 2) * COLUMNS] = {};
  for (long long i = begin(); i < point.length; i += stride()) {
    const double x = point.x[i], gradient = point.gradient[i], lower = point.lower[i * point.lower_stride];
    double right[COLUMNS] = {0, 0, path_step(gradient, x, lower, first), 0};
    if (sizes > 1) right[3] = path_step(gradient, x, lower, second);
    if (change.new_x) {
      right[0] = change.new_gradient[i] - change.gradient[i], right[1] = change.new_x[i] - change.x[i];
      vectors[change.row * point.length + i] = right[0], vectors[(change.row + 1) * point.length + i] = right[1];
    }
#pragma unroll
    for (int row = 0; row < MOST; row++)
      if (row < rows) {
        const double entry = vectors[row * point.length + i];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sums[row * COLUMNS + c] += entry * right[c];
      }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      sums[MOST * COLUMNS + c] += right[c] * right[c];
      sums[(MOST + 1) * COLUMNS + c] += right[c] * gradient;
    }
  }
  add_up(sums, parts + blockIdx.x * (MOST + 2) * COLUMNS);
}

// Parts are (blocks, MOST * (MOST + 1) / 2 + MOST): products of pairs of vectors, the second one up to the first, and with
// the gradient.
extern "C" __global__ void __launch_bounds__(THREADS)
free_products(Point point, const double* __restrict__ vectors, int rows, double size, double theta,
              double* __restrict__ parts) {
  constexpr int PAIRS = MOST * (MOST + 1) / 2;
  double sums[PAIRS + MOST] = {};
  for (long long i = begin(); i < point.length; i += stride()) {
    const double x = point.x[i], gradient = point.gradient[i], lower = point.lower[i * point.lower_stride];
    const double step = path_step(gradient, x, lower, size), right = fma(step, theta, gradient);
    if (!(step + x > lower)) continue;
    double entries[MOST];
#pragma unroll
    for (int row = 0; row < MOST; row++) entries[row] = row < rows ? vectors[row * point.length + i] : 0;
#pragma unroll
    for (int row = 0; row < MOST; row++) {
#pragma unroll
      for (int other = 0; other <= row; other++) sums[row * (row + 1) / 2 + other] += entries[row] * entries[other];
      sums[PAIRS + row] += entries[row] * right;
    }
  }
  add_up(sums, parts + blockIdx.x * (PAIRS + MOST));
}

// Sets `step`: a Newton step from the step of `size` along the path, or if there are no rows `-size` times the projected
// gradient. Parts are (blocks, 2): the smallest multiple that reaches a bound, and the slope.
extern "C" __global__ void __launch_bounds__(THREADS)
towards(Point point, const double* __restrict__ vectors, int rows, double size, double theta, Weights weights,
        double* __restrict__ step, double* __restrict__ parts) {
  double longest = __longlong_as_double(0x7ff0000000000000), slope[1] = {};  // infinity
  for (long long i = begin(); i < point.length; i += stride()) {
    const double x = point.x[i], gradient = point.gradient[i], lower = point.lower[i * point.lower_stride];
    double target;
    if (rows) {
      target = path_step(gradient, x, lower, size) + x;
      if (target > lower) {
        double change = gradient / theta;
#pragma unroll
        for (int row = 0; row < MOST; row++)
          if (row < rows) change += weights.of[row] * vectors[row * point.length + i];
        target = x - change;
      }
    } else {
      target = x - size * projected(gradient, x, lower);
    }
    const double own = (target < lower ? lower : target) - x;
    step[i] = own;
    slope[0] += gradient * own;
    if (own < 0) longest = smaller(longest, (lower - x) / own);
  }
  extreme<false>(longest, parts + 2 * blockIdx.x);
  add_up(slope, parts + 2 * blockIdx.x + 1);
}
