// Least-squares update of CP-ALS, one pass over MTTKRP rows: solve and store factor rows, and accumulate the Gram
// matrix, inner products and column maxima.
//
//   RANK  columns; for a batch of runs (batch_index.cuh), the largest number
//   REAL  type of the factor matrix
//
// A thread block loops over tiles of ROWS rows. Matrix products use tensor cores (fp64, from compute capability 8.0
// on), an 8 x 8 result per warp at a time; the rest is done column by column.

#include "batch_index.cuh"
#include "state.cuh"

constexpr int SIDE = 8, DEPTH = 4;  // tensor-core product: SIDE x DEPTH by DEPTH x SIDE
constexpr int THREADS = 256, WARPS = THREADS / 32, ROWS = 32;
constexpr int WIDE = (RANK + SIDE - 1) / SIDE, SPAN = WIDE * SIDE;
constexpr int PITCH = SPAN + (SPAN % 16 ? 12 : 4);  // row stride in shared memory, doubles: 16 lanes hit 16 banks
constexpr int BESIDE = WARPS / (ROWS / SIDE);       // warps that share rows of a tile and divide its columns
constexpr int SOLVED = (WIDE + BESIDE - 1) / BESIDE, SQUARES = (WIDE * WIDE + WARPS - 1) / WARPS;  // 8 x 8 results per warp
constexpr int TOGETHER = THREADS / RANK;            // rows processed together, one thread per column
constexpr int ENTRIES = (RANK + 2) * RANK;          // a block's partial result: Gram matrix, dots, largest

// Each lane holds element (lane / DEPTH, lane % DEPTH) of both operands and two adjacent elements of a result row.
__device__ void multiply_add(double (&result)[2], double left, double right) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(result[0]), "+d"(result[1]) : "d"(left), "d"(right));
}

// Writes source @ inverse, rounded, to `target`. Per thread block, `parts` gets the Gram matrix of the stored rows,
// their columns' inner products with those of `source`, and the column maxima (magnitudes before rounding).
extern "C" __global__ void __launch_bounds__(THREADS)
solve(Runs runs, int again, const double* __restrict__ source, long long source_stride, const double* __restrict__ inverse,
      REAL* __restrict__ target, long long target_stride, long long rows, double* __restrict__ parts) {
  const Run run = run_of(runs, blockIdx.y, again ? RANGE : 0);
  if (!run.rank) return;
  source += run.first, target += run.first, inverse += run.number * RANK * RANK;
  extern __shared__ double shared[];
  double *factor = shared, *before = factor + SPAN * PITCH, *after = before + ROWS * PITCH;
  const int warp = threadIdx.x / 32, far = threadIdx.x % 32 / DEPTH, near = threadIdx.x % DEPTH;
  const int column = threadIdx.x % RANK, first_row = threadIdx.x / RANK;
  for (int k = threadIdx.x; k < (SPAN + 2 * ROWS) * PITCH; k += THREADS) {
    const int row = k / PITCH, at = k % PITCH;
    shared[k] = row < RANK && at < RANK ? inverse[row * RANK + at] : 0;
  }
  double gram[SQUARES][2] = {}, dot = 0, most = 0;
  for (long long first = blockIdx.x * (long long)ROWS; first < rows; first += gridDim.x * (long long)ROWS) {
    __syncthreads();
    if (first_row < TOGETHER)
      for (int row = first_row; row < ROWS; row += TOGETHER)
        before[row * PITCH + column] = first + row < rows && column < run.rank ? source[(first + row) * source_stride + column] : 0;
    __syncthreads();
    double solved[SOLVED][2] = {};
    const int top = warp / BESIDE * SIDE;
    for (int k = 0; k < SPAN; k += DEPTH) {
      const double left = before[(top + far) * PITCH + k + near];
#pragma unroll
      for (int j = 0; j < SOLVED; j++)
        if (j * BESIDE + warp % BESIDE < WIDE)
          multiply_add(solved[j], left, factor[(k + near) * PITCH + (j * BESIDE + warp % BESIDE) * SIDE + far]);
    }
#pragma unroll
    for (int j = 0; j < SOLVED; j++)
      if (j * BESIDE + warp % BESIDE < WIDE)
#pragma unroll
        for (int e = 0; e < 2; e++)
          after[(top + far) * PITCH + (j * BESIDE + warp % BESIDE) * SIDE + 2 * near + e] = solved[j][e];
    __syncthreads();
    if (first_row < TOGETHER)
      for (int row = first_row; row < ROWS && first + row < rows; row += TOGETHER) {
        const double exact = after[row * PITCH + column];
        const REAL stored = exact;
        most = larger(fabs(exact), most);
        dot += before[row * PITCH + column] * (double)stored;
        after[row * PITCH + column] = stored;
        if (column < run.rank) target[(first + row) * target_stride + column] = stored;
      }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < SQUARES; q++) {
      const int square = q * WARPS + warp, across = square / WIDE * SIDE + far, down = square % WIDE * SIDE + far;
      if (square < WIDE * WIDE)
#pragma unroll
        for (int k = 0; k < ROWS; k += DEPTH)
          multiply_add(gram[q], after[(k + near) * PITCH + across], after[(k + near) * PITCH + down]);
    }
  }
  double* part = parts + (run.number * (long long)gridDim.x + blockIdx.x) * ENTRIES;
#pragma unroll
  for (int q = 0; q < SQUARES; q++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int square = q * WARPS + warp, row = square / WIDE * SIDE + far, at = square % WIDE * SIDE + 2 * near + e;
      if (row < RANK && at < RANK) part[row * RANK + at] = gram[q][e];
    }
  double *dots = before, *largest = after;  // TOGETHER rows
  __syncthreads();
  if (first_row < TOGETHER) dots[threadIdx.x] = dot, largest[threadIdx.x] = most;
  __syncthreads();
  if (threadIdx.x >= RANK) return;
  for (int k = 1; k < TOGETHER; k++) {
    dot += dots[k * RANK + column];
    most = larger(largest[k * RANK + column], most);
  }
  part[RANK * RANK + column] = dot;
  part[(RANK + 1) * RANK + column] = most;
}

// Adds the blocks' partial results to the totals, in block order: bitwise repeatable. The results of a run are `apart`
// numbers after those of the previous run.
extern "C" __global__ void __launch_bounds__(THREADS)
add_parts(Runs runs, int again, const double* __restrict__ parts, int blocks, double* __restrict__ gram, double* __restrict__ dots,
          double* __restrict__ largest, long long apart) {  // `dots` may be null
  const Run run = run_of(runs, blockIdx.y, again ? RANGE : 0);
  const int entry = blockIdx.x * THREADS + threadIdx.x;
  if (!run.rank || entry >= ENTRIES) return;
  parts += run.number * (long long)blocks * ENTRIES;
  gram += run.number * apart, largest += run.number * apart, dots += dots ? run.number * apart : 0;
  const int row = entry / RANK, column = entry % RANK;
  double total = row <= RANK ? 0 : largest[column];
#pragma unroll 8
  for (int k = 0; k < blocks; k++) {
    const double part = parts[k * (long long)ENTRIES + entry];
    total = row <= RANK ? total + part : larger(part, total);
  }
  if (row < RANK) gram[entry] += total;
  else if (row > RANK) largest[column] = total;
  else if (dots) dots[column] += total;
}
