// TTMc as matrix products on tensor cores in double precision, over nonzeros sorted by output row: see
// backend/ops/ttmc.py.
//
// A row of the result is a matrix: the sum over its nonzeros of a column, the value times the Kronecker product of the
// factor rows of all input modes but the last (of three w and b, of two b), times a row, that of the last mode (c). A
// warp walks through a chunk of nonzeros, 4 * BATCH at a time, of which each thread has BATCH. It multiplies four of
// them at once: one of each of four neighbouring threads, in any order. Factors in single precision are converted,
// so that their products are exact.
//
// Thread g of eight has HB neighbouring columns of b and HC of c. HW numbers of w times HB form halves of tiles of 16
// rows.
//
// Compile-time parameters in addition to those of ttmc_rows.cuh: HB, HC, HW, PANELS_B, PANELS_C, PANELS_W (warps that
// share the columns), THREADS, BLOCKS.

#include "ttmc_rows.cuh"

constexpr int V = 16 / sizeof(real), HALVES = HW * HB, TILES = (HALVES + 1) / 2;
constexpr int WEIGHTS = W_MODES ? HW : 1;
constexpr unsigned ALL = 0xFFFFFFFF;
static_assert(INPUTS == 2 || INPUTS == 3);

template <int BYTES>
struct Word;
template <>
struct Word<4> { using type = int; };
template <>
struct Word<8> { using type = int2; };
template <>
struct Word<16> { using type = int4; };

// Adds the product of 16 x 4 and 4 x 8 numbers: `upper` and `lower` are the thread's results in the first and last
// eight rows.
__device__ __forceinline__ void multiply_add(double (&upper)[2], double (&lower)[2], double a, double b, double c) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+d"(upper[0]), "+d"(upper[1]), "+d"(lower[0]), "+d"(lower[1]) : "d"(a), "d"(b), "d"(c));
#else
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(upper[0]), "+d"(upper[1]) : "d"(a), "d"(c));
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(lower[0]), "+d"(lower[1]) : "d"(b), "d"(c));
#endif
}

__device__ __forceinline__ void multiply_add(double (&upper)[2], double a, double c) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(upper[0]), "+d"(upper[1]) : "d"(a), "d"(c));
}

// A thread's share of the columns, and of each four nonzeros.
struct Place {
  int b, c, w, k;
};

struct Row {
  double sum[HALVES][HC][2];
};

__device__ __forceinline__ void write(Row& row, const Place& place, double* __restrict__ to, bool add) {
#pragma unroll
  for (int p = 0; p < HW; p++)
#pragma unroll
    for (int j = 0; j < HB; j++)
#pragma unroll
      for (int e = 0; e < 2; e++)
#pragma unroll
        for (int t = 0; t < HC; t++) {
          const int w = place.w + p, b = place.b + j, c = (place.c + 2 * place.k + e) * HC + t;
          double& number = row.sum[p * HB + j][t][e];
          if (w < OF_W && b < OF_B && c < RANK[C]) {
            double* at = to + (w * OF_B + b) * RANK[C] + c;
            *at = add ? *at + number : number;
          }
          number = 0;
        }
}

// Loads consecutive numbers at once, from read-only memory.
template <int N, typename T>
__device__ __forceinline__ void load(const T* __restrict__ from, T* to) {
  using Some = typename Word<N * sizeof(T)>::type;
  const Some some = __ldg(reinterpret_cast<const Some*>(from));
  memcpy(to, &some, sizeof some);
}

// N columns of a row, of which `row` is column `first`. Columns beyond the end do not matter: they are zeros, or, if
// all are beyond it, some existing ones.
template <int N, int COLUMNS>
__device__ __forceinline__ void load_row(const real* __restrict__ row, int first, real (&to)[N]) {
  constexpr int AT_ONCE = N % V == 0 ? V : (N % 2 == 0 ? 2 : 1);
#pragma unroll
  for (int e = 0; e < N; e += AT_ONCE) {
    if constexpr (COLUMNS % N) {
#pragma unroll
      for (int f = 0; f < AT_ONCE; f++) to[e + f] = 0;
      if (first + e >= COLUMNS) continue;
    }
    load<AT_ONCE>(row + e, to + e);
  }
}

// The first of these columns.
template <int N, int COLUMNS>
__device__ __forceinline__ const real* begin_of(const real* matrix, int first) {
  return matrix + (COLUMNS % N || first < COLUMNS ? first : 0);
}

// The factor rows of a thread's nonzeros.
struct Gathered {
  real b[BATCH][HB], c[BATCH][HC], w[BATCH][WEIGHTS];
};

// The first of a thread's columns of each factor matrix.
struct Columns {
  const real *b, *c, *w;
};

__device__ __forceinline__ void gather(const int (&at)[INPUTS][BATCH], const Columns& from, const Place& place, int first_c,
                                       Gathered& found) {
#pragma unroll
  for (int u = 0; u < BATCH; u++) {
    load_row<HC, STRIDE[C]>(from.c + (long long)at[C][u] * STRIDE[C], first_c, found.c[u]);
    load_row<HB, STRIDE[B]>(from.b + (long long)at[B][u] * STRIDE[B], place.b, found.b[u]);
    if constexpr (W_MODES > 0) load_row<WEIGHTS, STRIDE[0]>(from.w + (long long)at[0][u] * STRIDE[0], place.w, found.w[u]);
  }
}

// Adds nonzeros with these values.
__device__ __forceinline__ void add(const real (&values)[BATCH], const Gathered& found, Row& row) {
#pragma unroll
  for (int u = 0; u < BATCH; u++) {
    double left[2 * TILES];
    left[2 * TILES - 1] = 0;
#pragma unroll
    for (int j = 0; j < HB; j++) {
      const double part = (double)values[u] * found.b[u][j];
#pragma unroll
      for (int p = 0; p < HW; p++) left[p * HB + j] = W_MODES ? part * found.w[u][W_MODES ? p : 0] : part;
    }
#pragma unroll
    for (int t = 0; t < HC; t++) {
      const double c = found.c[u][t];
#pragma unroll
      for (int h = 0; h + 1 < HALVES; h += 2) multiply_add(row.sum[h][t], row.sum[h + 1][t], left[h], left[h + 1], c);
      if constexpr (HALVES % 2) multiply_add(row.sum[HALVES - 1][t], left[HALVES - 1], c);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
ttmc(const __grid_constant__ Nonzeros in, double* __restrict__ out, double* __restrict__ carry) {
  const long long chunk = blockIdx.x * (long long)(THREADS / 32) + threadIdx.x / 32;
  const int g = threadIdx.x % 32 / 4, k = threadIdx.x % 4;
  const int panel_c = blockIdx.y % PANELS_C, panel_b = blockIdx.y / PANELS_C % PANELS_B, panel_w = blockIdx.y / (PANELS_C * PANELS_B);
  const Place place = {(panel_b * 8 + g) * HB, panel_c * 8, panel_w * HW, k};
  const long long begin = chunk * in.chunk, end = min(begin + in.chunk, in.count);
  if (begin >= end) return;

  Row row = {};
  const int* rows = in.column[0] + begin;
  int of = rows[0];
  bool carried = begin && rows[-1] == of;
  const auto flush = [&] {
    const long long at = of - in.first_row;
    if (carried) write(row, place, carry + chunk * WIDTH, false);
    else write(row, place, out + at * WIDTH, at < in.new_begin || at >= in.new_end);
    carried = false;
  };

  // Factor rows are loaded one turn before their use, and input indices two. Each turn has separate variables for what
  // it loads, because copying them would wait for the load. Columns end with unused memory: a whole batch can be
  // read.
  constexpr int TURN = 4 * BATCH;
  const int size = end - begin, last = (size - 1) / TURN * TURN, first_c = (panel_c * 8 + g) * HC;
  Columns from = {begin_of<HB, STRIDE[B]>(in.factor[B], place.b), begin_of<HC, STRIDE[C]>(in.factor[C], first_c),
                  begin_of<WEIGHTS, STRIDE[0]>(in.factor[0], place.w)};
  // Otherwise each address is computed from the matrix's in four steps.
  asm("" : "+l"(from.b), "+l"(from.c), "+l"(from.w));
  int inputs[INPUTS][BATCH];
  const auto look = [&](int x) {
#pragma unroll
    for (int m = 0; m < INPUTS; m++) load<BATCH>(in.column[m + 1] + begin + (min(x, last) + k * BATCH), inputs[m]);
  };
  struct Mine {
    real values[BATCH];
    int last_row;  // last row of the turn
  };
  const auto take = [&](int x, Mine& mine, Gathered& found) {
    if (x >= last) {  // indices beyond the chunk may be invalid
#pragma unroll
      for (int u = 0; u < BATCH; u++)
#pragma unroll
        for (int m = 0; m < INPUTS; m++) inputs[m][u] = last + k * BATCH + u < size ? inputs[m][u] : 0;
    }
    gather(inputs, from, place, first_c, found);
    load<BATCH>(in.values + begin + (min(x, last) + k * BATCH), mine.values);
    mine.last_row = rows[min(x + TURN, size) - 1];
  };
  const auto turn = [&](int x, Mine& now, const Gathered& found, Mine& next, Gathered& then) {
    take(x + TURN, next, then);
    look(x + 2 * TURN);
    if (x == last) {
#pragma unroll
      for (int u = 0; u < BATCH; u++)
        if (x + k * BATCH + u >= size) now.values[u] = 0;
    }
    if (now.last_row == of) {
      add(now.values, found, row);
      return;
    }
    int row_of[BATCH];
    load<BATCH>(rows + x + k * BATCH, row_of);
#pragma unroll
    for (int u = 0; u < BATCH; u++)
      if (x + k * BATCH + u >= size) row_of[u] = now.last_row;
    for (;;) {  // one row after the other
      real values[BATCH];
      int least = now.last_row;  // smallest of the remaining rows
#pragma unroll
      for (int u = 0; u < BATCH; u++) {
        values[u] = row_of[u] == of ? now.values[u] : (real)0;
        if (row_of[u] > of) least = min(least, row_of[u]);
      }
      add(values, found, row);
      if (of == now.last_row) break;
      flush();
      of = __reduce_min_sync(ALL, least);
    }
  };
  Mine a, b;
  Gathered found, then;
  look(0);
  take(0, a, found);
  look(TURN);
  for (int x = 0;; x += 2 * TURN) {
    turn(x, a, found, b, then);
    if (x + TURN >= size) break;
    turn(x + TURN, b, then, a, found);
    if (x + 2 * TURN >= size) break;
  }
  flush();
}
