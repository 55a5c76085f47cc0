// Least squares of rows over their nonzeros in single precision, for up to 32 columns: sums and solution in one pass.
// The nonzeros are packed (packed.cuh), in a single tile, sorted by row.
//
//   RANK  columns
//
// A warp sums up to a task's nonzeros of one row (observed_sums.cuh), and solves the row in single precision if the task has
// all of them. If a pivot is so small that rounding errors matter, another kernel computes the row's sums again, in double
// precision.

#define TEAM 32
#define PACKED 1
#include "observed_sums.cuh"
#include "row_equations.cuh"
#include "row_in_registers.cuh"

constexpr int WARPS = THREAD_COUNT / 32;
constexpr int SUMS = TRIANGLE + RANK + 1;  // numbers of a part: G, the sum of (x - m) v, and that of (x - m)^2
constexpr int MOST_SCALES = 3;  // times that the sums of a row are computed
constexpr double DOUBTFUL = -1;  // in place of `Solved::deficient`

struct Tasks {  // in descending order of their numbers of nonzeros
  const int* row;
  const int* begin;
  const int* end;
  const int* part;  // number of its part; -1: the task has the whole row
  int count;
};

template <int M>
__device__ __forceinline__ double product_at(const Inputs& in, const Record& r, int column) {
  if constexpr (M == INPUTS) return 1;
  else {
    const unsigned long long row = bits<field_at(M), FIELD_BITS[M]>(r);
    return (double)((const float*)in.factor[M])[row * COLUMNS + column] * product_at<M + 1>(in, r, column);
  }
}

// Computes the sums of a row again, in double precision; returns that of (x - m)^2.
__device__ __noinline__ double sum_exactly(const Inputs& in, const Nonzeros& of, int begin, int end, const Row& row) {
  const int lane = threadIdx.x % 32;
  for (int e = lane; e < TRIANGLE; e += 32) row.gram[e] = 0;
  double squares = 0, slope = 0;
  for (int p = begin; p < end; p++) {
    const Record r = record_at(of, p);
    const double v = lane < RANK ? product_at<0>(in, r, lane) : 0;
    double model = lane < RANK ? v * row.old[lane] : 0;
#pragma unroll
    for (int far = 16; far; far /= 2) model += __shfl_xor_sync(ALL, model, far);
    const double error = (double)value_of(r) - model;
    squares += error * error;
    slope += error * v;
    if (lane < RANK) row.z[lane] = v;
    __syncwarp();
    for (int i = 0; i < RANK; i++)
      if (lane <= i) row.g(i, lane) += row.z[i] * v;
    __syncwarp();
  }
  if (lane < RANK) row.slope[lane] = slope;
  __syncwarp();
  return squares;
}

// Solves a row in single precision; returns whether that was possible. See solve_row.
__device__ __forceinline__ bool solve_single(const Sums& sums, float* room, float* to, const Terms& terms, double noise,
                                             Solved& solved) {
  const int lane = threadIdx.x % 32;
  const float old = lane < RANK ? to[lane] : 0;
  each_of_slope(sums, [&](int c, float x) { room[c] = x; });
  __syncwarp();
  const double slope = lane < RANK ? room[lane] : 0;
  __syncwarp();
  each_of_gram(sums, [&](int r, int c, float x) { room[r * PITCH + c] = x; });
  __syncwarp();
  float step = slope - terms.ridge * old;
  if (!solve_in_registers(room, (float)terms.ridge, (float)fmax(DOUBTED, DOUBTED_NOISES * noise), step)) return false;
  const float row = old + step;
  // The change of the squared residuals, because the step solves the equations.
  const double change = lane < RANK ? ((double)old - row) * (slope + terms.ridge * row) : 0;
  if (lane < RANK) to[lane] = row;
  solved = {fmax(sums.squares + sum_of_team(change), 0.0), 0, sum_of_team(lane < RANK ? (double)row * row : 0)};
  return true;
}

// Finds the largest magnitude of each column of input blockIdx.y; `largest` is zero at first.
extern "C" __global__ void __launch_bounds__(256) find_largest(const __grid_constant__ Inputs in, unsigned* __restrict__ largest) {
  __shared__ unsigned found[COLUMNS];
  const int m = blockIdx.y, across = 256 / WIDTH, part = threadIdx.x % WIDTH, down = threadIdx.x / WIDTH;
  if (threadIdx.x < COLUMNS) found[threadIdx.x] = 0;
  __syncthreads();
  unsigned most[4] = {};  // magnitudes are ordered like their bits
  if (down < across)
#pragma unroll 4
    for (long long r = (long long)blockIdx.x * across + down; r < in.length[m]; r += gridDim.x * across) {
      const uint4 x = ((const uint4*)in.factor[m])[r * WIDTH + part];
      most[0] = max(most[0], x.x & 0x7fffffff), most[1] = max(most[1], x.y & 0x7fffffff);
      most[2] = max(most[2], x.z & 0x7fffffff), most[3] = max(most[3], x.w & 0x7fffffff);
    }
#pragma unroll
  for (int k = 0; k < 4; k++) atomicMax(found + 4 * part + k, most[k]);
  __syncthreads();
  if (threadIdx.x < COLUMNS) atomicMax(largest + m * COLUMNS + threadIdx.x, found[threadIdx.x]);
}

// Sums the nonzeros of tasks and solves the rows that a task has whole; `room` is the shared memory of a warp, in 16 bytes.
extern "C" __global__ void __launch_bounds__(THREAD_COUNT, BLOCKS)
solve_tasks(const __grid_constant__ Inputs in, const Nonzeros of, const Tasks tasks, float* __restrict__ own, const Terms terms, double noise,
            Solved* __restrict__ solved, float* __restrict__ parts, const unsigned* __restrict__ largest, int room) {
  extern __shared__ uint4 rooms[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, task = blockIdx.x * WARPS + warp;
  if (task >= tasks.count) return;
  uint4* mine = rooms + warp * room;
  const int begin = tasks.begin[task], end = tasks.end[task], part = tasks.part[task];
  float* to = own + (long long)tasks.row[task] * COLUMNS;
  Own before = own_of(to, largest);
  Sums sums;
  for (int turn = 0; turn < MOST_SCALES; turn++) {
    sums = {};
    add(in, of, begin, end, before, sums, mine);
    if (!raise_scales(before, sums, end - begin, (float*)mine)) break;
  }
  unscale(sums, before.scale, (float*)mine);
  if (part >= 0) {
    float* at = parts + (long long)part * SUMS;
    each_of_gram(sums, [&](int r, int c, float x) { at[r * (r + 1) / 2 + c] = x; });
    each_of_slope(sums, [&](int c, float x) { at[TRIANGLE + c] = x; });
    if (lane == 0) at[SUMS - 1] = sums.squares;
    return;
  }
  Solved done = {0, DOUBTFUL, 0};
  if (terms.sweeps) {
    const Row row((double*)mine, (double*)mine + TRIANGLE, noise);
    each_of_gram(sums, [&](int r, int c, float x) { row.g(r, c) = x; });
    each_of_slope(sums, [&](int c, float x) { row.slope[c] = x; });
    if (lane < RANK) row.old[lane] = to[lane];
    done = solve_row<float>(row, terms, sums.squares);
    if (lane < RANK) to[lane] = (float)row.b[lane];
  } else solve_single(sums, (float*)mine, to, terms, noise, done);
  if (lane == 0) solved[task] = done;
}

// Solves the rows that solve_tasks left out, from exact sums.
extern "C" __global__ void __launch_bounds__(32)
solve_doubtful(const __grid_constant__ Inputs in, const Nonzeros of, const Tasks tasks, float* __restrict__ own, const Terms terms,
               Solved* __restrict__ solved) {
  extern __shared__ double mine[];
  const int lane = threadIdx.x, first = blockIdx.x * 32;
  const Row row(mine, mine + TRIANGLE, 0);
  const bool doubtful = first + lane < tasks.count && solved[first + lane].deficient == DOUBTFUL;
  for (unsigned left = __ballot_sync(ALL, doubtful); left; left &= left - 1) {
    const int task = first + __ffs(left) - 1;
    float* to = own + (long long)tasks.row[task] * COLUMNS;
    if (lane < RANK) row.old[lane] = to[lane];
    __syncwarp();
    const double squares = sum_exactly(in, of, tasks.begin[task], tasks.end[task], row);
    const Solved done = solve_row<float>(row, terms, squares);
    if (lane < RANK) to[lane] = (float)row.b[lane];
    if (lane == 0) solved[task] = done;
    __syncwarp();
  }
}

// Adds the parts of rows; the parts of row k are first[k] to first[k + 1]. See least_squares.cu for the sums.
extern "C" __global__ void add_parts(const float* __restrict__ parts, const int* __restrict__ first, int rows,
                                     double* __restrict__ sums) {
  const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const int row = at / SUMS, e = at % SUMS;
  if (row >= rows) return;
  double sum = 0;
#pragma unroll 8
  for (int k = first[row]; k < first[row + 1]; k++) sum += parts[(long long)k * SUMS + e];
  double* to = sums + (long long)row * (RANK + RANK * RANK + 1);
  if (e == SUMS - 1) to[RANK + RANK * RANK] = sum;
  else if (e >= TRIANGLE) to[e - TRIANGLE] = sum;
  else {
    int r = (int)((sqrtf(8.0f * e + 1) - 1) / 2);
    r += ((r + 1) * (r + 2) / 2 <= e) - (r * (r + 1) / 2 > e);
    to[RANK + r * RANK + e - r * (r + 1) / 2] = sum;
  }
}
