// The normal equations of CP-ALS for large ranks, by many thread blocks; see amped/backend/ops/equations.py, and
// equations.cu for small ranks. The host never waits.
//
//   REAL  type of the factor matrices
//   SIDE  see block_cholesky.cuh
//
// Matrices are inverted by squares (block_cholesky.cuh). Sums are always added in the same order.

#include "state.cuh"
#include "block_cholesky.cuh"

constexpr int COLUMNS = 32;  // columns of a thread block that computes inner products

__device__ void clear_totals(const State& s, int rank, long long first, long long step) {
  for (long long k = first; k < (rank + 2LL + s.parts) * rank; k += step) s.totals[k] = 0;
}

__device__ double product_of(const State& s, long long entry, int rank, int without) {
  double product = 1;
  for (int m = 0; m < s.order; m++)
    if (m != without) product *= s.grams[m * (long long)rank * rank + entry];
  return product;
}

// Computes the elementwise product of the other modes' Gram matrices, with the identity in the padding, and replaces
// its first square by X; clears the totals.
extern "C" __global__ void __launch_bounds__(THREADS) prepare(State s, Wide w, int mode, double ridge) {
  const Place at = place_of(w.squares, 0);
  const int t = threadIdx.x, rank = w.rank, block = blockIdx.y * w.squares + blockIdx.x;
  clear_totals(s, rank, block * (long long)THREADS + t, (long long)w.squares * w.squares * THREADS);
  if (!at.there) return;
  __shared__ double square[SIDE * PITCH];
  const bool inverts = !at.i;
  double size = 0, *to = square_of(w, 0, at.i, at.j);
  bool finite = true;
#pragma unroll 4
  for (int e = t; e < SIDE * SIDE; e += THREADS) {
    const int row = e / SIDE, column = e % SIDE, i = at.i * SIDE + row, j = at.j * SIDE + column;
    double number = i == j;
    if (i < rank && j < rank) {
      number = product_of(s, i * (long long)rank + j, rank, mode) + (i == j ? ridge : 0);
      finite &= isfinite(number);
      size += number * number;
    }
    if (inverts) square[row * PITCH + column] = number;
    else to[row * pitch_of(w) + column] = number;
  }
  size = add_up(size);
  finite = __syncthreads_and(finite);
  const Parts parts = parts_of(w);
  const int number = at.i * (at.i + 1) / 2 + at.j;
  if (!t) parts.sizes[number] = at.i == at.j ? size : 2 * size, parts.finite[number] = finite;
  if (at.i == at.j && t < SIDE && at.i * SIDE + t < rank) {
    const int column = at.i * SIDE + t;
    s.divisor[column] = s.norms[mode * rank + column] * s.scales[mode * rank + column];
  }
  if (!inverts) return;
  const bool positive = invert(square, to, pitch_of(w));
  if (!t) parts.positive[0] = positive;
}

// Sweeps square `k` of the diagonal, which is replaced by its X, out of the others, from one matrix to the other.
extern "C" __global__ void __launch_bounds__(THREADS) sweep(Wide w, int k) {
  const Place at = place_of(w.squares, k + 1);
  if (!at.there) return;
  extern __shared__ double shared[];
  double *left = shared, *right = left + SIDE * PITCH, *half = right + SIDE * PITCH;
  const int i = at.i, j = at.j, which = k % 2;
  const long long pitch = pitch_of(w);
  const double *from = square_of(w, which, i, j), *x = square_of(w, which, k, k);
  double* to = square_of(w, 1 - which, i, j);
  const Lane lane;
  double sums[EACH][2] = {}, others[EACH][2] = {};
  if (i == k && j == k) {
    copy(right, x, pitch, true);
    __syncthreads();
    multiply(others, right, right, lane);  // inverse of the square, X^T X
#pragma unroll
    for (int n = 0; n < EACH; n++) sums[n][0] = -others[n][0], sums[n][1] = -others[n][1];
  } else if (i == k || j == k) {
    copy(half, x, pitch, false), copy(right, x, pitch, true);
    load(left, w, which, i == k ? j : i, k);
    __syncthreads();
    multiply(others, left, half, lane);
    __syncthreads();
    put(left, others, 1, lane);
    __syncthreads();
    multiply(sums, i == k ? right : left, i == k ? left : right, lane);
  } else {
#pragma unroll
    for (int n = 0; n < EACH; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) sums[n][e] = from[lane.row() * pitch + lane.column(n) + e];
    copy(half, x, pitch, false);
    load(left, w, which, i, k);
    if (i != j) load(right, w, which, j, k);
    __syncthreads();
    double own[EACH][2] = {};
    multiply(own, left, half, lane);
    if (i != j) multiply(others, right, half, lane);
    __syncthreads();
    put(left, own, -1, lane);
    if (i != j) put(right, others, 1, lane);
    else put(right, own, 1, lane);
    __syncthreads();
    multiply(sums, left, right, lane);
  }
  if (i != j || i != k + 1) {
#pragma unroll
    for (int n = 0; n < EACH; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) to[lane.row() * pitch + lane.column(n) + e] = sums[n][e];
    return;
  }
  __syncthreads();
  put(half, sums, 1, lane);
  __syncthreads();
  const bool positive = invert(half, to, pitch);
  if (!threadIdx.x) parts_of(w).positive[i] = positive;
}

// Extracts the inverse, which is minus the swept matrix, and includes the scales of the stored columns.
extern "C" __global__ void __launch_bounds__(THREADS) unpack(State s, Wide w, int mode) {
  __shared__ double square[SIDE * PITCH], scale[SIDE], over_divisor[SIDE];
  const int t = threadIdx.x, i = blockIdx.y, j = blockIdx.x, rank = w.rank;
  load(square, w, w.squares % 2, i, j);
  if (t < SIDE && i * SIDE + t < rank) {
    scale[t] = -1;
    for (int m = 0; m < s.order; m++)
      if (m != mode) scale[t] *= s.scales[m * rank + i * SIDE + t];
  }
  if (t < SIDE && j * SIDE + t < rank) over_divisor[t] = 1 / s.divisor[j * SIDE + t];
  __syncthreads();
  double size = 0;
  for (int e = t; e < SIDE * SIDE; e += THREADS) {
    const int row = e / SIDE, column = e % SIDE;
    if (i * SIDE + row >= rank || j * SIDE + column >= rank) continue;
    const double number = square[row * PITCH + column];
    size += number * number;
    s.inverse[(i * SIDE + row) * (long long)rank + j * SIDE + column] = number * scale[row] * over_divisor[column];
  }
  size = add_up(size);
  if (!t && i >= j) parts_of(w).inverse_sizes[i * (i + 1) / 2 + j] = i == j ? size : 2 * size;
}

// Raises a flag if the matrix could not be inverted; one thread block.
extern "C" __global__ void __launch_bounds__(THREADS) settle(State s, Limits limits, Wide w, int mode, int exactly) {
  const Parts parts = parts_of(w);
  double size = 0, inverse_size = 0;
  bool finite = true, positive = true;
  for (int k = threadIdx.x; k < w.squares * (w.squares + 1) / 2; k += THREADS) {
    size += parts.sizes[k], inverse_size += parts.inverse_sizes[k];
    finite &= parts.finite[k] != 0;
  }
  for (int k = threadIdx.x; k < w.squares; k += THREADS) positive &= parts.positive[k] != 0;
  size = add_up(size), inverse_size = add_up(inverse_size);
  finite = __syncthreads_and(finite), positive = __syncthreads_and(positive);
  if (!threadIdx.x) judge(s, limits, mode, exactly, finite, positive, sqrt(size) * sqrt(inverse_size));
}

// Computes the quadratic problem of non-negative rows, and clears the totals; `again`: `divisor` and `begin` are set
// already.
extern "C" __global__ void __launch_bounds__(THREADS) constrain(State s, System system, int rank, int mode, int again, double ridge) {
  const long long first = blockIdx.x * (long long)THREADS + threadIdx.x, step = gridDim.x * (long long)THREADS;
  const double *norms = s.norms + mode * rank, *scales = s.scales + mode * rank;
  clear_totals(s, rank, first, step);
  bool finite = true;
  for (long long e = first; e < (long long)rank * rank; e += step) {
    const int i = e / rank, j = e % rank;
    const double divisor = again ? s.divisor[i] : norms[i] * scales[i], other = again ? s.divisor[j] : norms[j] * scales[j];
    const double product = (i == j ? ridge : 0) + product_of(s, e, rank, mode);
    finite &= isfinite(product);
    const bool lost = product_of(s, i * (rank + 1LL), rank, mode) == 0;  // the column is zero in another mode
    system.gram[e] = lost ? 0 : product * (divisor * other);
    if (i != j) continue;
    double scale = 1;
    for (int m = 0; m < s.order; m++)
      if (m != mode) scale *= s.scales[m * rank + i];
    system.right[i] = scale * divisor;
    if (!again) s.divisor[i] = divisor, system.begin[i] = scales[i] * s.weights[i] / divisor;
  }
  if (!__syncthreads_and(finite) && !threadIdx.x) raise(s, NOT_FINITE, mode);  // any thread block may raise it
}

// Normalises the columns of a factor matrix whose rows are solved, and stores its Gram matrix, from the totals. If a
// Gram matrix has a NaN, it has one on its diagonal. Every thread block examines all columns.
extern "C" __global__ void __launch_bounds__(THREADS) finish(State s, Limits limits, int rank, int mode, int again) {
  extern __shared__ double scale[];
  __shared__ int found;  // flags
  const double* gram = s.totals;
  const long long entries = (long long)rank * rank;
  const bool unit = s.constrained || !s.facts[ITERATIONS];
  const auto largest_of = [&](int t) {
    double largest = 0;
    for (int p = 0; p < s.parts; p++) largest = larger(gram[entries + (2LL + p) * rank + t], largest);
    return largest;
  };
  const auto norm_of = [&](int t, double largest) {
    const double length = (unit ? sqrt(gram[t * (rank + 1LL)]) : largest) * s.divisor[t], norm = unit ? length : larger(length, 1);
    return norm > 0 ? norm : 1;
  };
  if (!threadIdx.x) found = 0;
  __syncthreads();
  for (int t = threadIdx.x; t < rank; t += THREADS) {
    const double largest = largest_of(t);
    if (gram[entries + rank + t] != 0) atomicOr(&found, NOISY);
    if (!again && largest != 0 && !(largest > 1 / limits.most && largest < limits.most)) atomicOr(&found, RANGE);
    if (!isfinite(gram[t * (rank + 1LL)])) atomicOr(&found, NOT_FINITE);
    scale[t] = s.divisor[t] / norm_of(t, largest);
  }
  __syncthreads();
  if (found) {  // only the first problem is handled
    if (!blockIdx.x && !threadIdx.x) raise(s, found & NOISY ? NOISY : found & RANGE ? RANGE
                                                                                    : NOT_FINITE,
                                           mode);
    return;
  }
  for (int t = threadIdx.x; !blockIdx.x && t < rank; t += THREADS) {
    const double norm = norm_of(t, largest_of(t));
    s.norms[mode * rank + t] = norm;
    if (s.constrained) s.weights[t] = norm;
    s.scales[mode * rank + t] = scale[t];
  }
  for (long long e = blockIdx.x * (long long)THREADS + threadIdx.x; e < entries; e += gridDim.x * (long long)THREADS)
    s.grams[mode * entries + e] = gram[e] * (scale[e / rank] * scale[e % rank]);
}

// Computes, per thread block, parts of the squared norm of the model and of the squared norms of its components.
extern "C" __global__ void __launch_bounds__(THREADS) add_squares(State s, Wide w, int exact) {
  if (exact && !((int)s.facts[FLAGS] & NEAR)) return;
  const int rank = w.rank;
  const long long entries = (long long)rank * rank;
  double squared = 0, length = 0;
  for (long long e = blockIdx.x * (long long)THREADS + threadIdx.x; e < entries; e += gridDim.x * (long long)THREADS) {
    const int i = e / rank, j = e % rank;
    const double product = s.weights[i] * s.weights[j] * product_of(s, e, rank, -1);
    squared += product;
    if (i == j) length += product;
  }
  squared = add_up(squared), length = add_up(length);
  double* parts = parts_of(w).fit + 2 * blockIdx.x;
  if (!threadIdx.x) parts[0] = squared, parts[1] = length;
}

// Computes the fit from these parts and from inner products, like `fit` of equations.cu; one thread block.
extern "C" __global__ void __launch_bounds__(THREADS)
fit(State s, Limits limits, Wide w, int count, const double* dots, int blocks, int exact) {
  if (exact && !((int)s.facts[FLAGS] & NEAR)) return;
  const int rank = w.rank;
  const double* parts = parts_of(w).fit;
  if (!exact) dots = s.totals + (long long)rank * rank, blocks = 1;
  double squared = 0, length = 0, inner = 0, size = 0;
  for (int k = threadIdx.x; k < count; k += THREADS) squared += parts[2 * k], length += parts[2 * k + 1];
  for (int t = threadIdx.x; t < rank; t += THREADS) {
    double part = 0;
    for (int b = 0; b < blocks; b++) part += dots[b * (long long)rank + t];
    part *= s.weights[t];
    for (int m = 0; m < s.order; m++) part *= s.scales[m * rank + t];
    inner += part, size += fabs(part);
  }
  squared = add_up(squared), length = add_up(length), inner = add_up(inner), size = add_up(size);
  if (!threadIdx.x) take_fit(s, limits, squared, inner, size / limits.norm / limits.norm, s.constrained ? length : 0, exact);
}

// Computes, per thread block, the inner products of two matrices' columns.
extern "C" __global__ void __launch_bounds__(THREADS)
add_dots(const double* __restrict__ source, long long source_stride, const REAL* __restrict__ target, long long target_stride,
         long long rows, int rank, double* __restrict__ parts) {
  __shared__ double dots[THREADS];
  const int t = threadIdx.x, column = blockIdx.y * COLUMNS + t % COLUMNS, first = t / COLUMNS, together = THREADS / COLUMNS;
  double dot = 0;
  if (column < rank)
    for (long long row = blockIdx.x * (long long)together + first; row < rows; row += gridDim.x * (long long)together)
      dot += source[row * source_stride + column] * (double)target[row * target_stride + column];
  dots[t] = dot;
  __syncthreads();
  if (first || column >= rank) return;
  for (int k = 1; k < together; k++) dot += dots[k * COLUMNS + t];
  parts[blockIdx.x * (long long)rank + column] = dot;
}

// Included last, so that the compiled code of the kernels above does not change.
#include "snapshot.cuh"
