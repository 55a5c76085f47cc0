// Least-squares updates of a model, mode by mode, without the host; see amped/backend/ops/update_equations.py.
//
//   RANK  columns, at most 64
//   REAL  type of the factor matrices
//   SUM   type of the sums over elements
//
// Sums are always added in the same order.

#include "block_inverse.cuh"
#include "block_sums.cuh"

constexpr int ENTRIES = RANK * RANK, MANY = 1024;  // threads of `begin` and `prepare`
constexpr int THREADS = 256, PAIR = 2 * ENTRIES, OWN = (PAIR + THREADS - 1) / THREADS;  // of `solve_rows`
constexpr int TILE = 16;                                                                // rows in shared memory
constexpr double CONDITION = 1e11;                                                      // as in ops/equations.py

typedef long long count;

// The (R, R) matrices of an update in one piece of memory.
struct State {
  double* products;  // of each mode, U'U and H'U
  double* others;    // O, H'H of each mode's other rows
  double* moved;     // of each mode, T'O T and O T, where the change T multiplies the other rows
  double* changes;   // T of each mode
  double* factors;   // of the present mode: G^-1 and C G^-1
  double* refused;   // whether equations were too ill-conditioned

  __device__ State(double* memory, int order) {
    const count size = order * (count)ENTRIES;
    products = memory, others = products + 2 * size, moved = others + size, changes = moved + 2 * size;
    refused = changes + size, factors = refused + 1;
  }
};

// Begins an update, whose Gram matrices and other rows are in memory. A block per mode.
extern "C" __global__ void __launch_bounds__(MANY) begin(double* memory, int order) {
  const State s(memory, order);
  const int mode = blockIdx.x;
  for (int e = threadIdx.x; e < ENTRIES; e += MANY) {
    const double other = s.others[mode * (count)ENTRIES + e];
    double *product = s.products + mode * (count)PAIR, *moved = s.moved + mode * (count)PAIR;
    product[ENTRIES + e] = product[e], moved[e] = moved[ENTRIES + e] = other;
    s.changes[mode * (count)ENTRIES + e] = e % (RANK + 1) == 0;
  }
  if (!mode && !threadIdx.x) *s.refused = 0;
}

// Sets `to` and, unless it is null, `copy` to the product of two matrices, the first one transposed if `transposed`.
__device__ void multiply(const double* left, bool transposed, const double* right, double* to, double* copy) {
  for (int e = threadIdx.x; e < ENTRIES; e += MANY) {
    const int i = e / RANK, j = e % RANK, start = transposed ? i : i * RANK, step = transposed ? RANK : 1;
    double sum = 0;
    for (int k = 0; k < RANK; k++) sum += left[start + k * step] * right[k * RANK + j];
    to[e] = sum;
    if (copy) copy[e] = sum;
  }
}

// Inverts a mode's G, and computes the change of its other rows if it `keeps` none. One block.
extern "C" __global__ void __launch_bounds__(MANY) prepare(double* memory, int order, int mode, int keeps) {
  extern __shared__ double shared[];
  double *matrix = shared, *cross = shared + ENTRIES;
  const State s(memory, order);
  const int t = threadIdx.x;
  double size = 0, inverse_size = 0;
  bool good = true;
  for (int e = t; e < ENTRIES; e += MANY) {
    double gram = 1, both = 1;
    for (int m = 0; m < order; m++) {
      const double *product = s.products + m * (count)PAIR, *moved = s.moved + m * (count)PAIR;
      if (m != mode) gram *= product[e] + moved[e], both *= product[ENTRIES + e] + moved[ENTRIES + e];
    }
    matrix[e] = gram, cross[e] = both, size += gram * gram;
    good &= isfinite(gram) && isfinite(both);
  }
  good &= invert(matrix);
  for (int e = t; e < ENTRIES; e += MANY) s.factors[e] = matrix[e], inverse_size += matrix[e] * matrix[e];
  const double condition = sqrt(add_up(size)) * sqrt(add_up(inverse_size));
  if (!__syncthreads_and(good && condition <= CONDITION) && !t) *s.refused = 1;
  double* change = keeps ? nullptr : s.changes + mode * (count)ENTRIES;
  multiply(cross, false, matrix, s.factors + ENTRIES, change);
  if (keeps) return;
  __syncthreads();
  double* moved = s.moved + mode * (count)PAIR;
  multiply(s.others + mode * (count)ENTRIES, false, change, moved + ENTRIES, matrix);
  __syncthreads();
  multiply(change, true, matrix, moved, nullptr);
}

// Solves rows of a mode: sums @ G^-1 + before @ (C G^-1). Per block, `parts` gets sums over rows: U'U and H'U.
extern "C" __global__ void __launch_bounds__(THREADS)
solve_rows(const double* memory, int order, const SUM* __restrict__ source, count source_stride, const REAL* __restrict__ before,
           REAL* __restrict__ target, count stride, count rows, double* __restrict__ parts) {
  extern __shared__ double shared[];
  double *factors = shared, *given = factors + PAIR, *solved = given + TILE * 2 * RANK;
  const State s((double*)memory, order);
  const int t = threadIdx.x;
  for (int e = t; e < PAIR; e += THREADS) factors[e] = s.factors[e];
  double sums[OWN] = {};
  for (count first = blockIdx.x * (count)TILE; first < rows; first += gridDim.x * (count)TILE) {
    __syncthreads();
    for (int k = t; k < TILE * 2 * RANK; k += THREADS) {
      const int c = k % (2 * RANK);
      const count at = first + k / (2 * RANK);
      given[k] = at >= rows ? 0 : c < RANK ? (double)source[at * source_stride + c]
                                           : (double)before[at * stride + c - RANK];
    }
    __syncthreads();
    for (int k = t; k < TILE * RANK; k += THREADS) {
      const int c = k % RANK, at = k / RANK;
      double sum = 0;
#pragma unroll 8
      for (int i = 0; i < 2 * RANK; i++) sum += given[at * 2 * RANK + i] * factors[i * RANK + c];
      const REAL stored = (REAL)sum;
      if (first + at < rows) target[(first + at) * stride + c] = stored;
      solved[k] = stored;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < OWN; n++) {
      const int e = n * THREADS + t, i = e / RANK % RANK, j = e % RANK;
      if (e >= PAIR) continue;
      const double* left = e < ENTRIES ? solved + i : given + RANK + i;
      const int step = e < ENTRIES ? RANK : 2 * RANK;
#pragma unroll
      for (int at = 0; at < TILE; at++) sums[n] += left[at * step] * solved[at * RANK + j];
    }
  }
#pragma unroll
  for (int n = 0; n < OWN; n++)
    if (n * THREADS + t < PAIR) parts[blockIdx.x * (count)PAIR + n * THREADS + t] = sums[n];
}
