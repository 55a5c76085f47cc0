// Kernels for MTTKRPs of a dense block other than matrix products: Khatri-Rao products, contractions, and matrix-free
// MTTKRPs.
//
//   ORDER  modes of the block, in memory order: mode 0 varies slowest
//   REAL   type of elements and of factor matrices
//   LANES  threads that share a row of a partial result, one column each
//
// Factor matrices, Khatri-Rao products and partial results have `columns` columns in memory; the last ones may be
// padding.

typedef REAL real;
constexpr int WARP = 32, THREADS = 256, WARPS = THREADS / WARP, SIDES = THREADS / LANES;

struct Modes {
  const real* factor[ORDER];
  int length[ORDER];
};

// Computes rows `begin` to `begin + rows` of the Khatri-Rao product of modes `first` to `end`; the last mode varies
// fastest.
extern "C" __global__ void __launch_bounds__(THREADS)
khatri_rao(const Modes modes, int first, int end, long long begin, long long rows, int columns, real* __restrict__ out) {
  for (long long e = blockIdx.x * (long long)THREADS + threadIdx.x; e < rows * columns; e += gridDim.x * (long long)THREADS) {
    const int column = e % columns;
    long long row = begin + e / columns;
    real product = 1;
#pragma unroll
    for (int m = ORDER - 1; m >= 0; m--)
      if (m >= first && m < end) {
        product *= modes.factor[m][row % modes.length[m] * columns + column];
        row /= modes.length[m];
      }
    out[e] = product;
  }
}

// Contracts a partial result of modes `first` to `end`, (I_first, ..., columns), to the MTTKRP of `mode`: for each of
// its rows, the sum over a chunk of the other indices. Row i of chunk c is stored at
// parts[(c * I_mode + i) * columns], or added to what is there if `adds` is set.
extern "C" __global__ void __launch_bounds__(THREADS)
contract(const Modes modes, int first, int end, int mode, const real* __restrict__ partial, int columns, unsigned chunk, int adds,
         double* __restrict__ parts) {
  __shared__ double sums[SIDES][LANES];
  const int lane = threadIdx.x % LANES, column = blockIdx.z * LANES + lane, side = threadIdx.x / LANES;
  const int fast = mode == end - 1 ? end - 2 : end - 1;  // fastest of the other modes
  long long step[ORDER], whole = 1;  // distance to the next index, in rows of the partial result
#pragma unroll
  for (int m = ORDER - 1; m >= 0; m--) {
    step[m] = whole;
    if (m >= first && m < end) whole *= modes.length[m];
  }
  const unsigned row = blockIdx.x, begin = blockIdx.y * chunk, stop = min((unsigned)(whole / modes.length[mode]), begin + chunk);
  const unsigned each = (stop - begin + SIDES - 1) / SIDES, from = begin + side * each, to = min(from + each, stop);
  const unsigned length = modes.length[fast];
  double total = 0;
  if (column < columns) {
    for (unsigned at = from; at < to;) {  // consecutive indices of the fastest mode
      const unsigned index = at % length, count = min(length - index, to - at);
      unsigned left = at / length;
      long long place = row * step[mode] + index * step[fast];
      real lead = 1;
#pragma unroll
      for (int m = ORDER - 1; m >= 0; m--)
        if (m >= first && m < end && m != mode && m != fast) {
          const unsigned rest = left / modes.length[m], other = left - rest * modes.length[m];
          lead *= modes.factor[m][(long long)other * columns + column];
          place += other * step[m];
          left = rest;
        }
      const real *factor = modes.factor[fast] + (long long)index * columns + column, *found = partial + place * columns + column;
      const long long next = step[fast] * columns;
#pragma unroll 8
      for (unsigned k = 0; k < count; k++) total += (double)(lead * factor[(long long)k * columns] * found[k * next]);
      at += count;
    }
  }
  sums[side][lane] = total;
  __syncthreads();
  if (side == 0 && column < columns) {
    for (int w = 1; w < SIDES; w++) total += sums[w][lane];
    double* sum = parts + (blockIdx.y * (long long)modes.length[mode] + row) * columns + column;
    *sum = adds ? *sum + total : total;
  }
}

// Sums `chunks` parts of `count` numbers each; adds to `out` if `adds`.
extern "C" __global__ void __launch_bounds__(THREADS)
add_up(const double* __restrict__ parts, long long count, int chunks, int adds, double* __restrict__ out) {
  const long long at = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (at >= count) return;
  double sum = adds ? out[at] : 0;
  for (int c = 0; c < chunks; c++) sum += parts[c * count + at];
  out[at] = sum;
}

// Sums `parts` matrices of `count` numbers in double precision; adds to `out` if `adds`.
extern "C" __global__ void __launch_bounds__(THREADS)
add_parts(const real* __restrict__ from, long long count, int parts, int adds, real* __restrict__ out) {
  const long long at = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (at >= count) return;
  double sum = adds ? (double)out[at] : 0;
  for (int p = 0; p < parts; p++) sum += (double)from[p * count + at];
  out[at] = (real)sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
widen(const real* __restrict__ from, long long count, int adds, double* __restrict__ out) {
  const long long at = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (at < count) out[at] = (adds ? out[at] : 0) + (double)from[at];
}

// The matrix-free MTTKRP of `mode` (Algorithms 2 and 3 of the GenTen paper): a warp processes a tile, `tile` elements
// of one slice, and 32 columns at a time. With `alone` a slice is one tile, whose sum is stored; otherwise sums are
// added atomically.
extern "C" __global__ void __launch_bounds__(THREADS)
matrix_free(const Modes modes, const real* __restrict__ block, int mode, int columns, long long tile, long long tiles, int alone,
            int adds, double* __restrict__ out) {
  const int fast = mode == ORDER - 1 ? ORDER - 2 : ORDER - 1, lane = threadIdx.x % WARP;
  long long step[ORDER], whole = 1, slice = 1;
#pragma unroll
  for (int m = ORDER - 1; m >= 0; m--) {
    step[m] = whole;
    whole *= modes.length[m];
    if (m != mode) slice *= modes.length[m];
  }
  const int blocks = (columns + WARP - 1) / WARP;
  const long long jobs = modes.length[mode] * tiles * blocks, warps = gridDim.x * (long long)WARPS;
  for (long long job = blockIdx.x * (long long)WARPS + threadIdx.x / WARP; job < jobs; job += warps) {
    const int column = job % blocks * WARP + lane;
    const long long row = job / blocks / tiles, begin = job / blocks % tiles * tile, end = min(begin + tile, slice);
    if (column >= columns) continue;
    double total = 0;
    for (long long at = begin; at < end;) {  // one fibre of the fastest mode, or the part of it in the tile
      long long left = at / modes.length[fast], place = row * step[mode];
      const int from = at % modes.length[fast], to = min((long long)modes.length[fast], from + end - at);
      real lead = 1;
#pragma unroll
      for (int m = ORDER - 1; m >= 0; m--)
        if (m != mode && m != fast) {
          const long long index = left % modes.length[m];
          left /= modes.length[m];
          lead *= modes.factor[m][index * columns + column];
          place += index * step[m];
        }
      for (int k = from; k < to; k++)
        total += (double)(block[place + k * step[fast]] * lead * modes.factor[fast][(long long)k * columns + column]);
      at += to - from;
    }
    double* result = out + row * columns + column;
    if (alone) *result = (adds ? *result : 0) + total;
    else atomicAdd(result, total);
  }
}
