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
#define BY_LANES 0
#include "observed_sums.cuh"
#include "row_equations.cuh"
#include "row_in_registers.cuh"

constexpr int WARPS = THREAD_COUNT / 32;
constexpr int PART = SPAN * SPAN + SPAN + 4;  // numbers of a part: G, the sum of (x - m) v, and that of (x - m)^2
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
__device__ __noinline__ double sum_exactly(const Inputs& in, const Nonzeros& of, int begin, int end, double* room) {
  const Row row(room, room + TRIANGLE, 0);
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

// Computes the sums in `room` again, with raised scales; returns that of (x - m)^2. Not inlined, because the first sums need
// the registers.
__device__ __noinline__ float sum_again(const Inputs& in, const Nonzeros& of, int begin, int end, Own own, float ridge, float* room) {
  float squares = 0;
  for (int turn = 1; turn < MOST_SCALES && lose_digits(room, ridge); turn++) {
    raise_scales(own, end - begin, ridge, room);
    Sums sums;
    add(in, of, begin, end, own, sums, (uint4*)room);
    put_sums(sums, own, room);
    squares = sums.squares;
  }
  return squares;
}

// Writes the sums of a part, the lower triangle of G by vectors.
__device__ __forceinline__ void write_part(const float* room, float squares, float* to) {
  constexpr int ACROSS = SPAN / 4;  // vectors of a row of G
  const int lane = threadIdx.x % 32, column = lane % ACROSS * 4;
  const float4 scale = *(const float4*)(room + SCALE + column);
#pragma unroll
  for (int r = lane / ACROSS; r < SPAN; r += 32 / ACROSS) {
    const float4 x = *(const float4*)(room + r * PITCH + column);
    const float factor = over(room[SCALE + r]);
    if (column <= r)
      *(float4*)(to + r * SPAN + column) = {x.x * factor * over(scale.x), x.y * factor * over(scale.y),
                                            x.z * factor * over(scale.z), x.w * factor * over(scale.w)};
  }
  if (lane < SPAN) to[SPAN * SPAN + lane] = room[SLOPE + lane] * over(room[SCALE + lane]);
  if (lane == 0) to[PART - 4] = squares;
}

// Solves a row in single precision; returns whether that was possible. See solve_row.
__device__ __forceinline__ bool solve_single(float* room, double squares, float* to, const Terms& terms, double noise,
                                             Solved& solved) {
  const int lane = threadIdx.x % 32;
  const bool has = lane < RANK;
  const float old = has ? to[lane] : 0, slope = has ? room[SLOPE + lane] : 0, scale = has ? room[SCALE + lane] : 1;
  const float ridge = (float)terms.ridge * scale;
  float step = slope - ridge * old;  // divided by the scale
  if (!solve_in_registers(room, ridge * scale, (float)fmax(DOUBTED, DOUBTED_NOISES * noise), step)) return false;
  const float row = has ? old + step * scale : 0;
  // The change of the squared residuals, because the step solves the equations.
  const double change = ((double)old - row) * ((double)slope * over(scale) + terms.ridge * row);
  if (has) to[lane] = row;
  solved = {fmax(squares + sum_of_team(change), 0.0), 0, sum_of_team((double)row * row)};
  return true;
}

// Solves a row with bounds, or from common equations, in double precision; `room` has more memory.
__device__ __noinline__ Solved solve_double(float* room, double squares, float* own, long long name, const Terms& terms,
                                            double noise, const Common& common) {
  const int lane = threadIdx.x % 32;
  const bool has = lane < RANK;
  const float slope = has ? room[SLOPE + lane] : 0, over_scale = has ? over(room[SCALE + lane]) : 0;
  float column[RANK];
#pragma unroll
  for (int r = 0; r < RANK; r++) column[r] = has ? room[r * PITCH + lane] * over(room[SCALE + r]) * over_scale : 0;
  __syncwarp();
  const Row row((double*)room, (double*)room + TRIANGLE, noise);
#pragma unroll
  for (int r = 0; r < RANK; r++)
    if (lane <= r) row.g(r, lane) = column[r];
  float* to = own + name * COLUMNS;
  if (has) row.slope[lane] = slope * over_scale, row.old[lane] = to[lane];
  __syncwarp();
  if (common.gram) squares = subtract(row, common, name);
  const Solved done = solve_row<float>(row, terms, squares, !common.gram);
  if (has) to[lane] = (float)row.b[lane];
  return done;
}

// Sets the numbers of find_largest to zero. In a captured iteration, cudaMemset takes microseconds.
extern "C" __global__ void clear_largest(unsigned* __restrict__ largest) {
  for (int k = threadIdx.x; k < INPUTS * COLUMNS; k += blockDim.x) largest[k] = 0;
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

// Sums the nonzeros of tasks and solves the rows that a task has whole; `size` is that of a warp's shared memory, in 16 bytes.
extern "C" __global__ void __launch_bounds__(THREAD_COUNT, BLOCKS)
solve_tasks(const __grid_constant__ Inputs in, const Nonzeros of, const Tasks tasks, float* __restrict__ own, const Terms terms, double noise,
            const Common common, Solved* __restrict__ solved, float* __restrict__ parts, const float* __restrict__ largest, int size) {
  extern __shared__ uint4 rooms[];
  const int warp = threadIdx.x / 32, task = blockIdx.x * WARPS + warp;
  if (task >= tasks.count) return;
  float* room = (float*)(rooms + warp * size);
  const int begin = tasks.begin[task], end = tasks.end[task], part = tasks.part[task];
  const long long name = tasks.row[task];
  float* to = own + name * COLUMNS;
  const Own before = own_of(to, largest);
  Sums sums;
  add(in, of, begin, end, before, sums, (uint4*)room);
  put_sums(sums, before, room);
  const float ridge = part < 0 ? (float)terms.ridge : 0;  // that of a row with parts is small for each of them
  const bool again = lose_digits(room, ridge);
  const float squares = again ? sum_again(in, of, begin, end, before, ridge, room) : sums.squares;
  Solved done = {};
  if (part >= 0) write_part(room, squares, parts + (long long)part * PART);
  else if (terms.sweeps || common.gram) done = solve_double(room, squares, own, name, terms, noise, common);
  else if (!solve_single(room, squares, to, terms, noise, done)) done.deficient = DOUBTFUL;
  if (threadIdx.x % 32 == 0) solved[task] = done;
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
    const double squares = sum_exactly(in, of, tasks.begin[task], tasks.end[task], mine);
    const Solved done = solve_row<float>(row, terms, squares);
    if (lane < RANK) to[lane] = (float)row.b[lane];
    if (lane == 0) solved[task] = done;
    __syncwarp();
  }
}

// Adds the parts of rows; the parts of row k are first[k] to first[k + 1]. See least_squares.cu for the sums.
extern "C" __global__ void add_parts(const float* __restrict__ parts, const int* __restrict__ first, int rows,
                                     double* __restrict__ sums) {
  constexpr int SUMS = RANK + RANK * RANK + 1;
  const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const int row = at / SUMS, e = at % SUMS, r = e / RANK - 1, c = e % RANK;  // r = -1: the slope
  if (row >= rows || (r < RANK && c > r && r >= 0)) return;
  const float* mine = parts + (e == SUMS - 1 ? PART - 4 : r < 0 ? SPAN * SPAN + c
                                                                : r * SPAN + c);
  double sum = 0;
#pragma unroll 8
  for (int k = first[row]; k < first[row + 1]; k++) sum += mine[(long long)k * PART];
  sums[at] = sum;
}
