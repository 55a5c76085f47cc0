// Steps of rows that PDNR and PQNR solve together, from the sums of rowproblems.cu. See newton.py and quasi_newton.py
// of the CPU for the algorithms; here a thread block computes a row.
//
//   RANK    columns
//   REAL    type of factor matrices
//   NEWTON  1: PDNR; 0: PQNR
//   TEAM    threads of a block, in whole warps: few for short rows, because they often wait for each other
//
// Pass 0 raises rows whose model is below the floor; each later pass is an inner iteration.

constexpr int WARPS = TEAM / 32;
constexpr int LACK = RANK + NEWTON * RANK * RANK, SUMS = LACK + 2, LENGTHS = 11;  // as in rowproblems.cu
constexpr int DAMPING = 0, DOWNHILL = 1, PREDICTED = 2, COUNT = 3, FACTS = 4;  // numbers of a row
// Vectors of PQNR: steps, differences of gradients, the previous point.
constexpr int PAIRS = 3, OLD = 2 * PAIRS, LAST = OLD + 1;
constexpr int VECTORS = NEWTON ? 0 : LAST + 1;
constexpr int ACTIVE = 0, FRESH = 1, DONE = 2;  // status; FRESH: the sums belong to the current point
constexpr int KKT = 0, ITERATIONS = 1, FAILED = 2;
constexpr int OUT = 0, FREE = 1, FIXED = 2;  // component: set to zero, solved for, or with a known step
constexpr double FIRST_DAMPING = 1e-5, MORE = 3.5, LESS = 2.0 / 7, POOR = 0.25, GOOD = 0.75;
constexpr double NEAR = 1e-3, ARMIJO = 1e-4, RAISED = 0.01, LEAST_PIVOT = 1e-14, LEAST_CURVED = 1e-12;
constexpr unsigned ALL = ~0u;

struct State {  // rows of a batch
  int* status;
  double *b, *step, *facts, *vectors;  // RANK, RANK, FACTS, VECTORS * RANK numbers per row
};

__device__ double sum_of_warp(double x) {
#pragma unroll
  for (int far = 16; far; far /= 2) x += __shfl_xor_sync(ALL, x, far);
  return x;
}

__device__ double sum_of_block(double x) {  // for each thread
  __shared__ double sums[WARPS];
  x = sum_of_warp(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int w = 0; w < WARPS; w++) x += sums[w];
  return x;
}

__device__ double larger(double a, double b) { return a > b || isnan(a) ? a : b; }  // NaN propagates

__device__ double largest_of_block(double x) {
  __shared__ double found[WARPS];
#pragma unroll
  for (int far = 16; far; far /= 2) x = larger(__shfl_xor_sync(ALL, x, far), x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = x;
  __syncthreads();
  x = found[0];
  for (int w = 1; w < WARPS; w++) x = larger(found[w], x);
  return x;
}

// Non-negative numbers compare like their bits; NaN is the largest.
__device__ void note_largest(double* seen, double x) {
  atomicMax((unsigned long long*)(seen + KKT), (unsigned long long)__double_as_longlong(x) & ~(1ull << 63));
}

#define EACH(r) for (int r = threadIdx.x; r < RANK; r += TEAM)

// Initialises the rows `names` of `own`, (rows, stride), of a batch; without `own` the rows are in the state.
extern "C" __global__ void __launch_bounds__(TEAM)
begin_rows(const State state, const int* __restrict__ rows, const REAL* __restrict__ own, long long stride) {
  const long long row = blockIdx.x;
  if (own)
    EACH (r) state.b[row * RANK + r] = (double)own[rows[row] * stride + r];
  if (threadIdx.x == 0) {
    state.status[row] = ACTIVE;
    state.facts[row * FACTS + DAMPING] = FIRST_DAMPING;
    state.facts[row * FACTS + COUNT] = 0;
  }
}

extern "C" __global__ void __launch_bounds__(TEAM)
end_rows(const State state, const int* __restrict__ rows, REAL* __restrict__ own, long long stride) {
  EACH (r) own[rows[blockIdx.x] * stride + r] = (REAL)state.b[(long long)blockIdx.x * RANK + r];
}

// Sets rows without nonzeros to zero.
extern "C" __global__ void __launch_bounds__(TEAM)
clear_rows(const int* __restrict__ rows, REAL* __restrict__ own, long long stride, double* seen) {
  double violation = 0;
  EACH (r) {
    REAL& b = own[rows[blockIdx.x] * stride + r];
    violation = larger(b < 1 ? (double)b : 1.0, violation);
    b = 0;
  }
  violation = largest_of_block(violation);
  if (threadIdx.x == 0) note_largest(seen, violation);
}

struct Row {  // shared memory of a block, for its row
  double *b, *phi, *step, *right, *lower;
  int *kind, *live;
  __device__ Row() {
    extern __shared__ double room[];
    b = room;
    phi = b + RANK;
    step = phi + RANK;
    right = step + RANK;
    lower = right + RANK;
    live = (int*)(lower + (NEWTON ? RANK * (RANK + 1) / 2 : 0));
    kind = live + RANK;
  }
};

#if NEWTON
__device__ double entry(const double* hessian, int i, int k) { return i < k ? hessian[k * RANK + i] : hessian[i * RANK + k]; }

// Lists the components to be solved for; returns their number.
__device__ int list_free(const Row& row) {
  __syncthreads();
  int count = 0;
  EACH (r) {
    int before = 0;
    for (int k = 0; k < r; k++) before += row.kind[k] == FREE;
    if (row.kind[r] == FREE) row.live[before] = r;
    count += row.kind[r] == FREE;
  }
  return (int)sum_of_block(count);
}

// Solves with the damped Hessian of the first `n` live components: Cholesky factor in `lower`, solution in `right`.
__device__ void solve(const Row& row, const double* hessian, int n, double damping) {
  double* lower = row.lower;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto at = [=](int i, int k) -> double& { return lower[i * (i + 1) / 2 + k]; };
  for (int i = warp; i < n; i += WARPS)
    for (int k = lane; k <= i; k += 32) at(i, k) = hessian[row.live[i] * RANK + row.live[k]] * (i == k ? 1 + damping : 1);
  for (int i = threadIdx.x; i < n; i += TEAM) {
    double right = row.phi[row.live[i]] - 1;
    for (int k = 0; k < RANK; k++)
      if (row.kind[k] == FIXED) right -= entry(hessian, row.live[i], k) * row.step[k];
    row.right[i] = right;
  }
  for (int j = 0; j < n; j++) {
    __syncthreads();
    if (threadIdx.x == 0) {
      const double least = LEAST_PIVOT * entry(hessian, row.live[j], row.live[j]), pivot = at(j, j);
      at(j, j) = least > 0 ? sqrt(pivot > least ? pivot : least) : 1e-150;
    }
    __syncthreads();
    for (int i = j + 1 + threadIdx.x; i < n; i += TEAM) at(i, j) /= at(j, j);
    __syncthreads();
    for (int i = j + 1 + warp; i < n; i += WARPS) {
      const double left = at(i, j);
      for (int k = j + 1 + lane; k <= i; k += 32) at(i, k) -= left * at(k, j);
    }
  }
  for (int j = 0; j < n; j++) {
    __syncthreads();
    if (threadIdx.x == 0) row.right[j] /= at(j, j);
    __syncthreads();
    for (int i = j + 1 + threadIdx.x; i < n; i += TEAM) row.right[i] -= at(i, j) * row.right[j];
  }
  for (int j = n - 1; j >= 0; j--) {
    __syncthreads();
    if (threadIdx.x == 0) row.right[j] /= at(j, j);
    __syncthreads();
    for (int i = threadIdx.x; i < j; i += TEAM) row.right[i] -= at(j, i) * row.right[j];
  }
  __syncthreads();
}

// Sets the step to the damped Newton step within the bounds; returns the change predicted by the quadratic model.
__device__ double direct(const Row& row, const double* hessian, double damping) {
  for (int n = list_free(row); n; n = list_free(row)) {
    solve(row, hessian, n, damping);
    bool out = false;
    for (int i = threadIdx.x; i < n; i += TEAM) {
      const int r = row.live[i];
      const bool leaves = row.b[r] + row.right[i] < 0 || !isfinite(row.right[i]);
      row.step[r] = leaves ? -row.b[r] : row.right[i];
      if (leaves) row.kind[r] = FIXED;
      out |= leaves;
    }
    if (!__syncthreads_or(out)) break;
  }
  __syncthreads();
  double predicted = 0;
  EACH (r) predicted += row.step[r] * (1 - row.phi[r]);
  for (int i = threadIdx.x / 32; i < RANK; i += WARPS)
    for (int k = threadIdx.x % 32; k <= i; k += 32)
      predicted += row.step[i] * hessian[i * RANK + k] * row.step[k] * (i == k ? 0.5 : 1);
  return sum_of_block(predicted);
}
#else
__device__ double dot_free(const Row& row, const double* a, const double* b) {
  double sum = 0;
  EACH (r)
    if (row.kind[r] == FREE) sum += a[r] * b[r];
  return sum_of_block(sum);
}

// Multiplies the step's free components by the L-BFGS approximation of the inverse Hessian (two-loop recursion).
__device__ void multiply(const Row& row, const double* vectors, int count) {
  const int used = min(count, PAIRS);
  double scale = 0, curved[PAIRS], share[PAIRS] = {};
#pragma unroll
  for (int n = 0; n < PAIRS; n++) {
    curved[n] = 0;
    if (n >= used) continue;
    const int k = (count - 1 - n) % PAIRS;
    const double *step = vectors + k * RANK, *turn = vectors + (PAIRS + k) * RANK;
    const double both = dot_free(row, step, turn), length = dot_free(row, turn, turn);
    if (!(both > LEAST_CURVED * sqrt(length * dot_free(row, step, step)))) continue;
    if (scale == 0) scale = both / length;
    curved[n] = both;
    share[n] = dot_free(row, step, row.step) / both;
    EACH (r) row.step[r] -= share[n] * turn[r];
  }
  EACH (r) row.step[r] *= scale > 0 ? scale : 1;
#pragma unroll
  for (int n = PAIRS - 1; n >= 0; n--) {
    if (curved[n] == 0) continue;
    const int k = (count - 1 - n) % PAIRS;
    const double *step = vectors + k * RANK, *turn = vectors + (PAIRS + k) * RANK;
    const double part = share[n] - dot_free(row, turn, row.step) / curved[n];
    EACH (r) row.step[r] += part * step[r];
  }
}

// Sets the step to the quasi-Newton step within the bounds, and stores the point; the first step is multiplicative.
__device__ void direct(const Row& row, double* vectors, double* facts, int iteration) {
  int count = (int)facts[COUNT];
  EACH (r) {
    if (iteration > 0) {
      vectors[count % PAIRS * RANK + r] = row.b[r] - vectors[OLD * RANK + r];
      vectors[(PAIRS + count % PAIRS) * RANK + r] = vectors[LAST * RANK + r] - row.phi[r];
    }
    vectors[OLD * RANK + r] = row.b[r];
    vectors[LAST * RANK + r] = row.phi[r];
    if (iteration == 0) row.step[r] = row.b[r] * (row.phi[r] - 1);
  }
  __syncthreads();
  if (iteration == 0) return;
  count++;
  if (threadIdx.x == 0) facts[COUNT] = count;
  for (bool again = true; again;) {
    EACH (r) row.step[r] = row.phi[r] - 1;
    multiply(row, vectors, count);
    bool out = false;
    EACH (r) {
      if (row.kind[r] == FREE && !(row.b[r] + row.step[r] >= 0)) {
        row.kind[r] = FIXED;
        out = true;
      }
      if (row.kind[r] != FREE) row.step[r] = -row.b[r];
    }
    again = __syncthreads_or(out);
  }
}
#endif

// Computes the step of each row in pass `number`. The sums of row k are number (slots ? slots[k] - first_slot : k).
// `reuses`: sums remain valid while a row stays in place.
extern "C" __global__ void __launch_bounds__(TEAM)
step(const State state, const double* __restrict__ all_sums, const int* __restrict__ slots, int first_slot, int number,
     int reuses, double tolerance, double* seen) {
  const long long k = blockIdx.x;
  if (state.status[k] == DONE) return;
  const double* sums = all_sums + (slots ? slots[k] - first_slot : k) * (long long)SUMS;
  double *b = state.b + k * RANK, *facts = state.facts + k * FACTS, violation = 0, length = 0;
  const Row row;
  EACH (r) {
    row.b[r] = b[r];
    row.phi[r] = sums[r];
    const double move = fmin(b[r], 1 - sums[r]);
    violation = larger(fabs(isnan(sums[r]) ? sums[r] : move), violation);
    length += move * move;
  }
  violation = largest_of_block(violation);
  const double near = fmin(NEAR, sqrt(sum_of_block(length)));
  if (number == 0) {  // a Newton step from below the floor at most doubles the model
    const bool raises = sums[LACK] < 0;
    EACH (r) state.step[k * RANK + r] = raises ? RAISED * sums[LACK + 1] / RANK : 0;
    if (threadIdx.x == 0) {
      note_largest(seen, violation);
      facts[DOWNHILL] = raises ? -1 : 1;
      if (!raises && reuses) state.status[k] = FRESH;
    }
    return;
  }
  if (violation < tolerance) {
    if (threadIdx.x == 0) state.status[k] = DONE;
    return;
  }
  EACH (r) {
    row.step[r] = -row.b[r];
    row.kind[r] = row.b[r] > near || row.phi[r] > 1 ? FREE : row.b[r] > 0 || !NEWTON ? FIXED
                                                                                     : OUT;
  }
  __syncthreads();
#if NEWTON
  const double predicted = direct(row, sums + RANK, facts[DAMPING]);
#else
  const double predicted = 0;
  direct(row, state.vectors + k * VECTORS * RANK, facts, number - 1);
#endif
  double downhill = 0;
  EACH (r) {
    downhill += (1 - row.phi[r]) * row.step[r];
    state.step[k * RANK + r] = row.step[r];
  }
  downhill = sum_of_block(downhill);
  if (threadIdx.x == 0) {
    facts[DOWNHILL] = downhill;
    facts[PREDICTED] = predicted;
    state.status[k] = ACTIVE;
    atomicAdd(seen + ITERATIONS, 1.0);
  }
}

// Takes the step of pass `number`, of the first length with sufficient decrease; if there is none, a multiplicative
// step, which never ascends. One warp per row.
extern "C" __global__ void __launch_bounds__(TEAM)
advance(const State state, const double* __restrict__ all_sums, const double* __restrict__ all_changes,
        const int* __restrict__ slots, int first_slot, int count, int number, int reuses, double* seen) {
  const long long k = (blockIdx.x * (long long)TEAM + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (k >= count || state.status[k] != ACTIVE) return;
  const long long slot = slots ? slots[k] - first_slot : k;
  const double *phi = all_sums + slot * SUMS, *changes = all_changes + slot * LENGTHS, *step = state.step + k * RANK;
  double *b = state.b + k * RANK, *facts = state.facts + k * FACTS, moved = 0;
  for (int r = lane; r < RANK; r += 32) moved += step[r];
  moved = sum_of_warp(moved);
  const double downhill = facts[DOWNHILL], first = downhill < 0 ? moved + changes[0] : __longlong_as_double(0x7ff0000000000000ll);
  if (number == 0) {
    const bool raised = first < 0;
    if (raised)
      for (int r = lane; r < RANK; r += 32) b[r] += step[r];
    __syncwarp();
    if (lane == 0 && !raised && reuses) state.status[k] = FRESH;
    return;
  }
  double length = 0;
  for (int n = 0; n < LENGTHS && length == 0 && downhill < 0; n++) {
    const double part = ldexp(1.0, -n);
    if (part * moved + changes[n] <= ARMIJO * part * downhill) length = part;
  }
  for (int r = lane; r < RANK; r += 32) b[r] = length > 0 ? fmax(b[r] + length * step[r], 0.0) : b[r] * phi[r];
  __syncwarp();
  if (lane) return;
  if (length == 0) atomicAdd(seen + FAILED, 1.0);
  const double predicted = facts[PREDICTED], ratio = predicted < 0 ? first / predicted : 0;
  if (ratio < POOR) facts[DAMPING] *= MORE;
  else if (ratio > GOOD) facts[DAMPING] *= LESS;
}
