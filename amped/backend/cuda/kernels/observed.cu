// Least squares of rows over their nonzeros in single precision, for up to 32 columns: sums and solution in one pass.
// The nonzeros are packed (packed.cuh), in a single tile, sorted by row.
//
//   RANK  columns
//
// A warp sums up to a task's nonzeros of one row. The matrix G, the sum of v v^T with the product v of the other modes'
// rows, is computed by tensor cores (TF32): lane (g, t) = (lane / 4, lane % 4) loads the columns C * g to C * g + C - 1 of
// nonzeros t and t + 4 of each eight, and these registers are operands of m16n8k8 on both sides. With v = h + l, where h
// has the precision of TF32, G = H H^T + L H^T + H L^T up to single precision; only the tiles on and above the diagonal are
// computed. Tensor cores truncate their sums, so those of 64 nonzeros are added to shared
// memory.
//
// If a pivot is so small that rounding errors matter, the row's sums are computed again, in double precision.

#define TEAM 32
#define PACKED 1
#include "record_at.cuh"
#include "row_equations.cuh"

constexpr int C = RANK <= 16 ? 2 : 4, PAIRS = C / 2, SPAN = 8 * C;  // columns of a lane, and of all
constexpr int UPPER = C == 2 ? 2 : 6;  // tiles (i, j), j >= 2 i
// Doubles of shared memory of a warp: G, and before that its parts by lane.
constexpr int ROOM = TRIANGLE > UPPER * 64 ? TRIANGLE : UPPER * 64;
constexpr int WARPS = THREAD_COUNT / 32, GROUP = 8;
constexpr int SUMS = TRIANGLE + RANK + 1;  // numbers of a part: G, the sum of (x - m) v, and that of (x - m)^2
constexpr unsigned ALL = ~0u;

struct Tasks {  // in descending order of their numbers of nonzeros
  const int* row;
  const int* begin;
  const int* end;
  const int* part;  // number of its part; -1: the task has the whole row
  int count;
};

__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned* a0, const unsigned* a1, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0[0]), "r"(a0[1]), "r"(a1[0]), "r"(a1[1]), "r"(b0), "r"(b1));
}

struct Columns {
  float at[C];
};

__device__ __forceinline__ Columns load(const float* from) {
  Columns v;
  if constexpr (C == 4) {
    const float4 x = __ldg((const float4*)from);
    v.at[0] = x.x, v.at[1] = x.y, v.at[2] = x.z, v.at[3] = x.w;
  } else {
    const float2 x = __ldg((const float2*)from);
    v.at[0] = x.x, v.at[1] = x.y;
  }
  return v;
}

template <int M>
__device__ __forceinline__ double product_at(const Inputs& in, const Record& r, int column) {
  if constexpr (M == INPUTS) return 1;
  else {
    const unsigned long long row = bits<field_at(M), FIELD_BITS[M]>(r);
    return (double)((const float*)in.factor[M])[row * COLUMNS + column] * product_at<M + 1>(in, r, column);
  }
}

struct Sums {
  float slope[C];  // the sum of (x - m) v
  float squares;
};

// A lane's position in the records: a lane reads each 32nd.
struct Reader {
  const char* records;
  unsigned size, chunk, at;  // nonzeros of a chunk, number of the chunk, and position in it

  __device__ Reader(const Nonzeros& of, unsigned q) : records(of.records), size(of.jobs->chunk), chunk(q / size), at(q % size) {}
  __device__ __forceinline__ void advance() {
    at += 32;
    if (at >= size) at -= size, chunk++;
  }
  __device__ __forceinline__ Record read() const {
    const unsigned unit = chunk / STRIP * (size / AT_ONCE) + at / AT_ONCE;
    return record_in(records + (unsigned long long)unit * UNIT, chunk % STRIP * AT_ONCE + at % AT_ONCE);
  }
};

// The factor matrices, from a lane's first column on.
struct Bases {
  const float* at[INPUTS];
};

// A lane's columns of the factor rows of two nonzeros, t and t + 4 of eight, and their values.
constexpr bool LATER = INPUTS * C <= 8;  // registers suffice to multiply when the rows are used, not when they are loaded
constexpr int HELD = LATER ? INPUTS : 1;
struct Pair {
  Columns rows[2][HELD];
  float value[2];
};

template <int M>
__device__ __forceinline__ void load_rows(const Bases& in, const Record& r, Columns (&to)[HELD]) {
  if constexpr (M < INPUTS) {
    constexpr bool narrow = (unsigned long long)COLUMNS << FIELD_BITS[M] <= 1ull << 32;  // 32 bits suffice
    const word row = bits<field_at(M), FIELD_BITS[M]>(r);
    const Columns f = load(narrow ? in.at[M] + row * COLUMNS : in.at[M] + (unsigned long long)row * COLUMNS);
    if constexpr (M == 0 || LATER) to[LATER ? M : 0] = f;
    else
#pragma unroll
      for (int k = 0; k < C; k++) to[0].at[k] *= f.at[k];
    load_rows<M + 1>(in, r, to);
  }
}

__device__ __forceinline__ Pair fetch(const Bases& in, const Record& records, int first) {
  Pair pair;
#pragma unroll
  for (int u = 0; u < 2; u++) {
    Record r;
#pragma unroll
    for (int w = 0; w < WORDS; w++) r.at[w] = __shfl_sync(ALL, records.at[w], first + threadIdx.x % 4 + 4 * u);
    load_rows<0>(in, r, pair.rows[u]);
    pair.value[u] = value_of(r);
  }
  return pair;
}

struct Product {
  Columns v[2];
  float value[2];
};

__device__ __forceinline__ Product product(const Pair& pair) {
  Product result;
#pragma unroll
  for (int u = 0; u < 2; u++) {
    result.v[u] = pair.rows[u][0], result.value[u] = pair.value[u];
#pragma unroll
    for (int m = 1; m < HELD; m++)
#pragma unroll
      for (int k = 0; k < C; k++) result.v[u].at[k] *= pair.rows[u][m].at[k];
  }
  return result;
}

// Adds the tiles of left^T right on and above the diagonal.
__device__ __forceinline__ void add_products(float (&hot)[UPPER][4], const unsigned (&left)[2][C], const unsigned (&right)[2][C]) {
#pragma unroll
  for (int i = 0, tile = 0; i < PAIRS; i++)
#pragma unroll
    for (int j = 2 * i; j < C; j++, tile++)
      multiply_add(hot[tile], left[0] + 2 * i, left[1] + 2 * i, right[0][j], right[1][j]);
}

// Adds eight nonzeros, or the first `left` of them.
template <bool ALL_COUNT>
__device__ __forceinline__ void add_eight(Product pair, int left, const Columns& own, float (&hot)[UPPER][4], Sums& sums) {
  const int columns = RANK - C * (threadIdx.x % 32 / 4);  // that the lane has
  float error[2];
#pragma unroll
  for (int u = 0; u < 2; u++) {
    const bool counts = ALL_COUNT || (int)threadIdx.x % 4 + 4 * u < left;
    float model = 0;
#pragma unroll
    for (int k = 0; k < C; k++) {
      if ((RANK < SPAN && k >= columns) || !counts) pair.v[u].at[k] = 0;
      model += own.at[k] * pair.v[u].at[k];
    }
#pragma unroll
    for (int far = 4; far < 32; far *= 2) model += __shfl_xor_sync(ALL, model, far);
    error[u] = counts ? pair.value[u] - model : 0;
    sums.squares += error[u] * error[u];
  }
  unsigned high[2][C], low[2][C];
#pragma unroll
  for (int u = 0; u < 2; u++)
#pragma unroll
    for (int k = 0; k < C; k++) {
      sums.slope[k] += error[u] * pair.v[u].at[k];
      high[u][k] = __float_as_uint(pair.v[u].at[k]) & ~0x1fffu;
      low[u][k] = __float_as_uint(pair.v[u].at[k] - __uint_as_float(high[u][k]));
    }
  add_products(hot, high, high);  // each in turn, so that none waits for the one before it
  add_products(hot, high, low);
  add_products(hot, low, high);
}

// Adds the nonzeros of a task. Lanes have parts of `slope` and `squares`; `gram` gets G, UPPER * 4 numbers per lane.
__device__ __forceinline__ void add(const Inputs& in, const Nonzeros& of, int begin, int end, const Columns& own, Sums& sums,
                                    float* gram) {
  const int lane = threadIdx.x % 32, column = C * (lane / 4);
  Bases bases;
#pragma unroll
  for (int m = 0; m < INPUTS; m++) bases.at[m] = (const float*)in.factor[m] + (column < COLUMNS ? column : 0);
  Reader reader(of, min(begin + lane, end - 1));
#pragma unroll
  for (int k = 0; k < UPPER * 4; k++) gram[k * 32 + lane] = 0;
  float hot[UPPER][4] = {};
  Record mine = reader.read();
  Pair coming = fetch(bases, mine, 0);
  for (int p = begin; p < end; p += 32) {
    if (p + 32 + lane < end) reader.advance();
    const Record ahead = reader.read();
#pragma unroll
    for (int q = 0; q < 32; q += GROUP) {
      const int left = end - p - q;
      if (left <= 0) break;
      const Product now = product(coming);
      coming = fetch(bases, q + GROUP < 32 ? mine : ahead, (q + GROUP) % 32);
      if (left >= GROUP) add_eight<true>(now, left, own, hot, sums);
      else add_eight<false>(now, left, own, hot, sums);
    }
    mine = ahead;
    if ((p - begin) / 32 % 2 || p + 32 >= end)  // tensor cores truncate sums
#pragma unroll
      for (int k = 0; k < UPPER; k++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          gram[(k * 4 + e) * 32 + lane] += hot[k][e];
          hot[k][e] = 0;
        }
  }
}

// Orders G, which is in `gram` by lane.
__device__ __forceinline__ void order_gram(double* gram) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float upper[UPPER][4];
#pragma unroll
  for (int k = 0; k < UPPER * 4; k++) upper[k / 4][k % 4] = ((const float*)gram)[k * 32 + lane];
  __syncwarp();
#pragma unroll
  for (int i = 0, tile = 0; i < PAIRS; i++)
#pragma unroll
    for (int j = 2 * i; j < C; j++, tile++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int r = C * g + 2 * i + (e >> 1), c = C * (2 * t + (e & 1)) + j, high = max(r, c);
        const bool twice = j / 2 == i;  // both of an entry and its mirror image are computed
        if ((!twice || r >= c) && high < RANK) gram[high * (high + 1) / 2 + min(r, c)] = upper[tile][e];
      }
  __syncwarp();
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

extern "C" __global__ void __launch_bounds__(THREAD_COUNT, BLOCKS)
solve_tasks(const __grid_constant__ Inputs in, const Nonzeros of, const Tasks tasks, float* __restrict__ own, const Terms terms, double noise,
            Solved* __restrict__ solved, float* __restrict__ parts) {
  extern __shared__ double room[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, task = blockIdx.x * WARPS + warp;
  if (task >= tasks.count) return;
  double* gram = room + warp * (ROOM + Row::BYTES / 8);
  Row row(gram, gram + ROOM, noise);
  const int begin = tasks.begin[task], end = tasks.end[task], part = tasks.part[task], column = C * (lane / 4);
  float* to = own + (long long)tasks.row[task] * COLUMNS;
  Columns before = {};
  if (column < COLUMNS)
#pragma unroll
    for (int k = 0; k < C; k++) before.at[k] = column + k < RANK ? to[column + k] : 0;
  Sums sums = {};
  add(in, of, begin, end, before, sums, (float*)gram);
#pragma unroll
  for (int far = 1; far < 4; far *= 2) {
#pragma unroll
    for (int k = 0; k < C; k++) sums.slope[k] += __shfl_xor_sync(ALL, sums.slope[k], far);
    sums.squares += __shfl_xor_sync(ALL, sums.squares, far);
  }
  order_gram(gram);
  if (part >= 0) {
    float* at = parts + (long long)part * SUMS;
    for (int e = lane; e < TRIANGLE; e += 32) at[e] = (float)gram[e];
#pragma unroll
    for (int k = 0; k < C; k++)
      if (lane % 4 == 0 && column + k < RANK) at[TRIANGLE + column + k] = sums.slope[k];
    if (lane == 0) at[SUMS - 1] = sums.squares;
    return;
  }
#pragma unroll
  for (int k = 0; k < C; k++)
    if (lane % 4 == 0 && column + k < RANK) row.slope[column + k] = sums.slope[k], row.old[column + k] = before.at[k];
  double squares = sums.squares;
  const bool factorised = !terms.sweeps && factorise(row, terms.ridge, false) == RANK;
  if (!terms.sweeps && !factorised) {
    squares = sum_exactly(in, of, begin, end, row);
    row.noise = 0;
  }
  const Solved done = solve_row<float>(row, terms, squares, factorised);
  if (lane < RANK) to[lane] = (float)row.b[lane];
  if (lane == 0) solved[task] = done;
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
