// TTMc as matrix products on tensor cores in double precision, of nonzeros sorted by output row: see backend/ttmc.py.
//
// A row of the result is a matrix: the sum over its nonzeros of a column, the value times the Kronecker product of the
// factor rows of all input modes but the last (of three w and b, of two b), times a row, the last mode's (c). A warp walks a
// chunk of nonzeros, 4 * BATCH at a time, of which each thread has BATCH. It multiplies four of them at once: one of each
// four neighbouring threads, in any order. Factors in single precision are converted, so that their products are exact.
//
// Thread g of eight has HB neighbouring columns of b and HC of c. HW numbers of w times HB make halves of tiles of 16 rows.
//
// Compile-time parameters, beside those of ttmc_rows.cu: HB, HC, HW, PANELS_B, PANELS_C, PANELS_W (warps that share the
// columns), THREADS, BLOCKS.

constexpr int V = 16 / sizeof(real), HALVES = HW * HB, TILES = (HALVES + 1) / 2;
constexpr int WEIGHTS = W_MODES ? HW : 1;
constexpr unsigned ALL = 0xFFFFFFFF;
static_assert(INPUTS == 2 || INPUTS == 3);

template <int N>
struct __align__(N * sizeof(real)) Some {
  real at[N];
};

// N columns of a row from `first` on; zeros where it has no more.
template <int N, int COLUMNS>
__device__ __forceinline__ void load(const real* __restrict__ row, int first, real (&to)[N]) {
  constexpr int AT_ONCE = N % V == 0 ? V : N % 2 == 0 ? 2 : 1;
#pragma unroll
  for (int e = 0; e < N; e += AT_ONCE) {
    const Some<AT_ONCE> some = first + e < COLUMNS ? *reinterpret_cast<const Some<AT_ONCE>*>(row + first + e) : Some<AT_ONCE>{};
#pragma unroll
    for (int f = 0; f < AT_ONCE; f++) to[e + f] = some.at[f];
  }
}

// Add the product of 16 x 4 and 4 x 8 numbers: `upper` and `lower` are the thread's of the first and the last eight rows.
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

// The nonzeros of a thread.
struct Mine {
  int at[INPUTS + 1][BATCH];
  real value[BATCH];
};

__device__ __forceinline__ void load(const Nonzeros& in, long long begin, int first, Mine& mine) {
#pragma unroll
  for (int m = 0; m <= INPUTS; m++) {  // columns end with unused memory: a whole batch can be read
    const Batch<int> some = *reinterpret_cast<const Batch<int>*>(in.column[m] + begin + first);
#pragma unroll
    for (int u = 0; u < BATCH; u++) mine.at[m][u] = some.at[u];
  }
  const Batch<real> some = *reinterpret_cast<const Batch<real>*>(in.values + begin + first);
#pragma unroll
  for (int u = 0; u < BATCH; u++) mine.value[u] = some.at[u];
}

// Leave out what is not of the chunk; its indices may be none.
__device__ __forceinline__ void cut(Mine& mine, int first, int size) {
#pragma unroll
  for (int u = 0; u < BATCH; u++)
    if (first + u >= size) {
      mine.value[u] = 0;
#pragma unroll
      for (int m = 0; m <= INPUTS; m++) mine.at[m][u] = m ? 0 : -1;
    }
}

// The factor rows of a thread's nonzeros.
struct Gathered {
  real b[BATCH][HB], c[BATCH][HC], w[BATCH][WEIGHTS];
};

__device__ __forceinline__ void gather(const Nonzeros& in, const Mine& mine, const Place& place, int first_c, Gathered& found) {
#pragma unroll
  for (int u = 0; u < BATCH; u++) {
    load<HC, STRIDE[C]>(in.factor[C] + (long long)mine.at[C + 1][u] * STRIDE[C], first_c, found.c[u]);
    load<HB, STRIDE[B]>(in.factor[B] + (long long)mine.at[B + 1][u] * STRIDE[B], place.b, found.b[u]);
    if constexpr (W_MODES > 0) load<WEIGHTS, STRIDE[0]>(in.factor[0] + (long long)mine.at[1][u] * STRIDE[0], place.w, found.w[u]);
  }
}

// Add the nonzeros of one row, or all, which are of one.
template <bool SOME>
__device__ __forceinline__ void add(const Mine& mine, const Gathered& found, int of, Row& row) {
#pragma unroll
  for (int u = 0; u < BATCH; u++) {
    const double value = SOME && mine.at[0][u] != of ? 0.0 : (double)mine.value[u];
    double left[2 * TILES];
    left[2 * TILES - 1] = 0;
#pragma unroll
    for (int p = 0; p < HW; p++) {
      const double part = W_MODES ? value * found.w[u][W_MODES ? p : 0] : value;
#pragma unroll
      for (int j = 0; j < HB; j++) left[p * HB + j] = part * found.b[u][j];
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
  int of = in.column[0][begin];
  bool carried = begin && in.column[0][begin - 1] == of;
  const auto flush = [&] {
    const long long at = of - in.first_row;
    if (carried) write(row, place, carry + chunk * WIDTH, false);
    else write(row, place, out + at * WIDTH, at < in.new_begin || at >= in.new_end);
    carried = false;
  };

  // Factor rows are loaded one turn before they are used, and indices two.
  constexpr int TURN = 4 * BATCH;
  const int size = end - begin, last = (size - 1) / TURN * TURN, first_c = (panel_c * 8 + g) * HC;
  const auto turn = [&](int x, Mine& now, const Gathered& found, Mine& next, Gathered& then, Mine& later) {
    const int at = min(x + TURN, last);
    if (at == last) cut(next, at + k * BATCH, size);
    gather(in, next, place, first_c, then);
    load(in, begin, min(x + 2 * TURN, last) + k * BATCH, later);
    bool other = false;
#pragma unroll
    for (int u = 0; u < BATCH; u++) other |= now.at[0][u] != of && now.at[0][u] >= 0;
    if (!__any_sync(ALL, other)) {
      add<false>(now, found, of, row);
      return;
    }
    for (;;) {
      unsigned least = ALL;  // of the rows that are left
#pragma unroll
      for (int u = 0; u < BATCH; u++)
        if (now.at[0][u] > of) least = min(least, (unsigned)now.at[0][u]);
      add<true>(now, found, of, row);
      least = __reduce_min_sync(ALL, least);
      if (least == ALL) break;
      flush();
      of = least;
    }
  };
  Mine a, b, c;
  Gathered found, then;
  load(in, begin, k * BATCH, a);
  load(in, begin, min(TURN, last) + k * BATCH, b);
  if (!last) cut(a, k * BATCH, size);
  gather(in, a, place, first_c, found);
  for (int x = 0; x < size; x += TURN) {
    turn(x, a, found, b, then, c);
    a = b, found = then, b = c;
  }
  flush();
}
