// The normal equations of CP-ALS between the modes of an iteration; see amped/backend/ops/equations.py. The host never
// waits. All kernels but `add_dots` and `keep` run as one thread block per run: a matrix has at most 48 columns.
//
//   RANK  columns; for a batch of runs (batch_index.cuh), the largest number
//   REAL  type of the factor matrices
//
// Sums are always added in the same order.

#include "batch_index.cuh"
#include "state.cuh"

constexpr int ENTRIES = RANK * RANK;
constexpr int MOST = 1024;  // threads, each with a part of a matrix in registers
constexpr int THREADS = ENTRIES < MOST ? (ENTRIES + 31) / 32 * 32 : MOST, EACH = (ENTRIES + THREADS - 1) / THREADS;
constexpr int DOT_THREADS = 256, TOGETHER = DOT_THREADS / RANK;
constexpr double VANISHED = 1e-30;  // as in normal_equations/inverse.py

__device__ State state_of(State s, const Runs& runs, int number) {
#if SEVERAL  // `totals` and `inverse` are stored separately
  const long long skip = number * runs.apart;
  s.facts += skip, s.norms += skip, s.scales += skip, s.divisor += skip, s.grams += skip, s.weights += skip;
  s.totals += number * (RANK + 2 + s.parts) * RANK, s.inverse += number * ENTRIES;
#endif
  return s;
}

__device__ System system_of(System system, int number) {
  return {system.gram + number * ENTRIES, system.right + number * RANK, system.begin + number * RANK};
}

// Inverts the elementwise product of the other modes' Gram matrices, includes the scales of the stored columns, and
// clears the totals. Gauss-Jordan elimination: a positive definite matrix needs no pivoting.
extern "C" __global__ void __launch_bounds__(THREADS)
prepare(State all, Limits limits, Runs runs, int mode, int exactly, double ridge) {
  const Run run = run_of(runs, blockIdx.x, 0);
  if (!run.rank) return;
  const State s = state_of(all, runs, run.number);
  __shared__ double line[2][RANK], scale[RANK], over_divisor[RANK];
  const int t = threadIdx.x;
  double a[EACH], size = 0;
  bool finite = true;
#pragma unroll
  for (int n = 0; n < EACH; n++) {
    const int e = n * THREADS + t;
    a[n] = 1;
    if (e >= ENTRIES) continue;
    for (int m = 0; m < s.order; m++)
      if (m != mode) a[n] *= s.grams[m * ENTRIES + e];
    if (e % (RANK + 1) == 0 && e < run.rank * (RANK + 1)) a[n] += ridge;
    finite &= isfinite(a[n]);
    size += a[n] * a[n];
    if (e < RANK) line[0][e] = a[n];
  }
  for (int k = t; k < (RANK + 2 + s.parts) * RANK; k += THREADS) s.totals[k] = 0;
  if (t < RANK) {
    scale[t] = 1;
    for (int m = 0; m < s.order; m++)
      if (m != mode) scale[t] *= s.scales[m * RANK + t];
    s.divisor[t] = s.norms[mode * RANK + t] * s.scales[mode * RANK + t];
    over_divisor[t] = t < run.rank ? 1 / s.divisor[t] : 0;
  }
  bool positive = true;
  for (int k = 0; k < run.rank; k++) {
    __syncthreads();
    const double *row = line[k % 2], pivot = row[k], over = 1 / pivot;
    int thread = t;
    asm volatile("" : "+r"(thread));  // otherwise rows and columns are kept in registers, which do not suffice
    positive &= pivot > 0;
#pragma unroll
    for (int n = 0; n < EACH; n++) {
      const int e = n * THREADS + thread, i = e / RANK, j = e % RANK;
      if (e >= ENTRIES) continue;
      if (i == k) a[n] = j == k ? -over : row[j] * over;
      else if (j == k) a[n] = row[i] * over;
      else a[n] -= row[i] * row[j] * over;
      if (i == k + 1) line[(k + 1) % 2][j] = a[n];
    }
  }
  double inverse_size = 0;
#pragma unroll
  for (int n = 0; n < EACH; n++) {
    const int e = n * THREADS + t;
    if (e >= ENTRIES) continue;
    inverse_size += a[n] * a[n];
    s.inverse[e] = -a[n] * scale[e / RANK] * over_divisor[e % RANK];
  }
  size = add_up(size), inverse_size = add_up(inverse_size);
  finite = __syncthreads_and(finite);
  if (t) return;
  judge(s, limits, mode, exactly, finite, positive, sqrt(size) * sqrt(inverse_size));
}

// Computes the quadratic problem of non-negative rows, and clears the totals; `again`: `divisor` and `begin` are set
// already.
extern "C" __global__ void __launch_bounds__(THREADS)
constrain(State all, Limits limits, Runs runs, System systems, int mode, int again, double ridge) {
  const Run run = run_of(runs, blockIdx.x, again ? RANGE : 0);
  if (!run.rank) return;
  const State s = state_of(all, runs, run.number);
  const System system = system_of(systems, run.number);
  __shared__ double divisor[RANK], diagonal[RANK];
  const int t = threadIdx.x;
  if (t < run.rank) {
    double scale = 1, size = 1;
    for (int m = 0; m < s.order; m++)
      if (m != mode) scale *= s.scales[m * RANK + t], size *= s.grams[m * ENTRIES + t * (RANK + 1)];
    if (!again) {
      const double own = s.scales[mode * RANK + t];
      s.divisor[t] = s.norms[mode * RANK + t] * own;
      system.begin[t] = own * s.weights[t] / s.divisor[t];
    }
    divisor[t] = s.divisor[t], diagonal[t] = size;
    system.right[t] = scale * divisor[t];
  }
  for (int k = t; k < (RANK + 2 + s.parts) * RANK; k += THREADS) s.totals[k] = 0;
  __syncthreads();
  bool finite = true;
#pragma unroll 1
  for (int e = t; e < ENTRIES; e += THREADS) {
    const int i = e / RANK, j = e % RANK;
    if (i >= run.rank || j >= run.rank) {
      system.gram[e] = 0;
      continue;
    }
    double product = i == j ? ridge : 0, other = 1;
    for (int m = 0; m < s.order; m++)
      if (m != mode) other *= s.grams[m * ENTRIES + e];
    product += other;
    finite &= isfinite(product);
    // 0: the column is zero in another mode.
    system.gram[e] = diagonal[i] == 0 ? 0 : product * (divisor[i] * divisor[j]);
  }
  if (!__syncthreads_and(finite) && !t) raise(s, NOT_FINITE, mode);
}

// Changes the divisors of columns that are out of range, and clears the totals, so that the mode is solved again. For a
// `nonnegative` mode it sets the factors of the start, too. See `widened` in normal_equations/inverse.py.
extern "C" __global__ void __launch_bounds__(THREADS) widen(State all, Limits limits, Runs runs, System systems, int nonnegative) {
  const Run run = run_of(runs, blockIdx.x, SEVERAL ? RANGE : 0);
  const State s = state_of(all, runs, blockIdx.x);
  __shared__ double changed[RANK], length[RANK];
  const int t = threadIdx.x;
  if (SEVERAL && !run.rank) {  // runs that others wait for take part in the sums over the ranks once more
    for (int k = t; s.part && k < (RANK + 2 + s.parts) * RANK; k += THREADS) s.totals[k] = 0;
    return;
  }
  double largest = 0, longest = 0, divisor = 1;
  if (t < run.rank) {
    for (int p = 0; p < s.parts; p++) largest = larger(s.totals[(RANK + 2 + p) * RANK + t], largest);
    divisor = s.divisor[t];
    length[t] = largest * divisor;
  }
  __syncthreads();
  if (t < run.rank) {
    for (int k = 0; k < run.rank; k++) longest = larger(length[k], longest);
    const double grown = divisor * exp2(rint(log2(largest > 0 ? largest : 1)));
    const double wider = length[t] > VANISHED * longest ? grown : 1;
    changed[t] = divisor / wider;
    s.divisor[t] = wider;
    if (nonnegative) systems.begin[run.number * RANK + t] = changed[t];
  }
  __syncthreads();
  for (int e = t; e < ENTRIES; e += THREADS)
    if (e % RANK < run.rank) s.inverse[e] *= changed[e % RANK];
  for (int k = t; k < (RANK + 2 + s.parts) * RANK; k += THREADS) s.totals[k] = 0;
}

// Normalises the columns of a factor matrix whose rows are solved, and stores its Gram matrix, from the totals.
extern "C" __global__ void __launch_bounds__(THREADS) finish(State all, Limits limits, Runs runs, int mode, int again) {
  const Run run = run_of(runs, blockIdx.x, again ? RANGE : 0);
  if (!run.rank) return;
  const State s = state_of(all, runs, run.number);
  __shared__ double scale[RANK];
  __shared__ int found;  // flags
  const int t = threadIdx.x;
  const double* gram = s.totals;
  double largest = 0;
  if (!t) found = 0;
  __syncthreads();
  if (SEVERAL && again && !t) s.facts[FLAGS] = 0;
  for (int e = t; e < ENTRIES; e += THREADS)
    if (!isfinite(gram[e])) atomicOr(&found, NOT_FINITE);
  if (t < run.rank) {
    for (int p = 0; p < s.parts; p++) largest = larger(gram[(RANK + 2 + p) * RANK + t], largest);
    if (gram[(RANK + 1) * RANK + t] != 0) atomicOr(&found, NOISY);
    if (!again && largest != 0 && !(largest > 1 / limits.most && largest < limits.most)) atomicOr(&found, RANGE);
  }
  __syncthreads();
  if (found) {  // only the first problem is handled
    if (!t) raise(s, found & NOISY ? NOISY : found & RANGE ? RANGE
                                                           : NOT_FINITE,
                  mode);
    return;
  }
  if (t < RANK) scale[t] = 0;
  if (t < run.rank) {
    const double divisor = s.divisor[t], grown = larger(largest * divisor, 1);
    const bool unit = s.constrained || !s.facts[ITERATIONS];
    const double length = unit ? sqrt(gram[t * RANK + t]) * divisor : grown, norm = length > 0 ? length : 1;
    s.norms[mode * RANK + t] = norm;
    if (s.constrained) s.weights[t] = norm;
    s.scales[mode * RANK + t] = scale[t] = divisor / norm;
  }
  __syncthreads();
  for (int e = t; e < ENTRIES; e += THREADS) s.grams[mode * ENTRIES + e] = gram[e] * (scale[e / RANK] * scale[e % RANK]);
}

// Computes the fit from the inner products of the stored columns with those of an MTTKRP, which are in the totals.
// `exact` ones, in `blocks` parts, are in double precision, and count only if the others were not accurate enough.
extern "C" __global__ void __launch_bounds__(THREADS)
fit(State all, Limits limits, Runs runs, const double* dots, int blocks, int exact) {
  const Run run = run_of(runs, blockIdx.x, exact ? NEAR : 0);
  if (!run.rank) return;
  const State s = state_of(all, runs, run.number);
  const int t = threadIdx.x, flags = s.facts[FLAGS];
  if (exact && !(flags & NEAR)) return;
  if (exact) dots += run.number * blocks * RANK;
  else dots = s.totals + ENTRIES, blocks = 1;
  double squared = 0, part = 0, length = 0;
#pragma unroll 1
  for (int e = t; e < ENTRIES; e += THREADS) {
    double product = s.weights[e / RANK] * s.weights[e % RANK];
    for (int m = 0; m < s.order; m++) product *= s.grams[m * ENTRIES + e];
    squared += product;
    if (e % (RANK + 1) == 0) length += product;
  }
  if (t < run.rank) {
    for (int b = 0; b < blocks; b++) part += dots[b * RANK + t];
    part *= s.weights[t];
    for (int m = 0; m < s.order; m++) part *= s.scales[m * RANK + t];
  }
  squared = add_up(squared);
  if (s.constrained) length = add_up(length);
  const double inner = add_up(part), size = add_up(fabs(part)) / limits.norm / limits.norm;
  if (t) return;
  take_fit(s, limits, squared, inner, size, length, exact);
}

// Computes, per thread block, the inner products of two matrices' columns.
extern "C" __global__ void __launch_bounds__(DOT_THREADS)
add_dots(Runs runs, const double* __restrict__ source, long long source_stride, const REAL* __restrict__ target,
         long long target_stride, long long rows, double* __restrict__ parts) {
  const Run run = run_of(runs, blockIdx.y, NEAR);
  if (!run.rank) return;
  source += run.first, target += run.first, parts += run.number * (int)gridDim.x * RANK;
  __shared__ double dots[DOT_THREADS];
  const int column = threadIdx.x % RANK, first = threadIdx.x / RANK;
  double dot = 0;
  if (first < TOGETHER && column < run.rank)
    for (long long row = blockIdx.x * (long long)TOGETHER + first; row < rows; row += gridDim.x * (long long)TOGETHER)
      dot += source[row * source_stride + column] * (double)target[row * target_stride + column];
  dots[threadIdx.x] = dot;
  __syncthreads();
  if (threadIdx.x >= RANK) return;
  for (int k = 1; k < TOGETHER; k++) dot += dots[k * RANK + column];
  parts[blockIdx.x * RANK + column] = dot;
}

// Included last, so that the compiled code of the kernels above does not change.
#include "snapshot.cuh"
