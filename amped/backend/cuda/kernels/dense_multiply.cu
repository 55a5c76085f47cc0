// The product of a dense block, as a matrix X, with a Khatri-Rao product that is never stored: C = X K, or X^T K. Uses
// tensor cores; in single precision by three products of split numbers (TF32), with the accuracy of single
// precision. Needs a Hopper GPU or newer.
//
//   REAL        type of the computation, and of all matrices but X; REAL_IS_DOUBLE
//   ITEM        type of X
//   PARTS       factor matrices of the Khatri-Rao product; the last varies fastest
//   TRANSPOSED  1: the rows of C are the columns of X
//   WIDE        columns of C per thread block: 32, 64 or 128; in single precision also 8 or 16
//   BLOCKS      target of thread blocks per multiprocessor
//   STAGES      steps of the depth that are in shared memory at once
//   VECTOR      bytes of X that are copied at once: 16 if all rows of X are aligned to 16 bytes, else the size of a
// number
//
// A thread block computes a tile of TALL x WIDE numbers of C, or a part of it: see dense_tiles.cuh. X is loaded into
// shared memory by asynchronous copies, STAGES - 1 steps of DEEP ahead. K is computed equally far ahead from rows
// that are loaded one step before.

#include "dense_tiles.cuh"

typedef REAL real;
typedef ITEM item;
constexpr bool DOUBLE = sizeof(real) == 8;
constexpr int TALL = 128, DEEP = 128 / sizeof(real), EIGHT = 8;
constexpr int TILES = WIDE <= 32 ? 2 : 4, FEW = WIDE < 32 ? WIDE / 8 : 4;  // tiles of 16 x 8 per warp
constexpr int ACROSS = WIDE < 32 ? 1 : WIDE / 32;  // warps across the columns
constexpr int THREADS = TALL / (16 * TILES) * ACROSS * 32;
__device__ constexpr int pad(int bytes) { return bytes == 8 ? 4 : 8; }  // puts rows of fragments into different banks
// Row stride of X in shared memory: DEEP or TALL rows.
constexpr int PITCH = TRANSPOSED ? TALL + pad(sizeof(item)) : DEEP + 4;
// Size of X in a stage, in numbers of K.
constexpr int HELD = (TRANSPOSED ? DEEP : TALL) * PITCH * sizeof(item) / sizeof(real);
constexpr int SPAN = WIDE + (WIDE == 8 ? 0 : pad(sizeof(real))), MADE = DEEP * SPAN;
constexpr int HALVES = DOUBLE ? 1 : 2, STAGE = HELD + HALVES * MADE;  // K: high parts, then low parts
// Numbers of K that a thread computes per step.
constexpr int PAIRS = WIDE / 2, LINES = THREADS / PAIRS, EACH = DEEP / LINES;
// Numbers of X that are copied at once; length of a row.
constexpr int NUMBERS = VECTOR / sizeof(item), LENGTH = TRANSPOSED ? TALL : DEEP;
constexpr int ROWS = THREADS / (LENGTH / NUMBERS), COPIES = TALL * DEEP / NUMBERS / THREADS;

struct Product {
  const real* factor[PARTS];
  unsigned length[PARTS];
  unsigned begin;  // first row
};

struct __align__(2 * sizeof(real)) Pair {
  real a, b;
};

#if REAL_IS_DOUBLE
typedef double Fragment;
__device__ __forceinline__ Fragment part(const item* from) { return *from; }
__device__ __forceinline__ Fragment made(const real* from) { return *from; }
__device__ __forceinline__ void multiply(double (&sum)[4], const Fragment (&a)[4], const Fragment (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}
#else
struct Fragment {  // x = high + low; tensor cores truncate each to 11 bits
  unsigned high, low;
};
__device__ __forceinline__ float rounded(float x) { return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u); }
__device__ __forceinline__ Fragment part(const item* from) {
  const float x = *from, high = rounded(x);
  return {__float_as_uint(high), __float_as_uint(x - high)};
}
__device__ __forceinline__ Fragment made(const real* from) { return {__float_as_uint(from[0]), __float_as_uint(from[MADE])}; }
__device__ __forceinline__ void product(float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                        unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply(float (&sum)[4], const Fragment (&a)[4], const Fragment (&b)[2]) {
  product(sum, a[0].low, a[1].low, a[2].low, a[3].low, b[0].high, b[1].high);
  product(sum, a[0].high, a[1].high, a[2].high, a[3].high, b[0].low, b[1].low);
  product(sum, a[0].high, a[1].high, a[2].high, a[3].high, b[0].high, b[1].high);
}
#endif

// Copies `count` of VECTOR bytes to shared memory; the remaining bytes become zero.
__device__ __forceinline__ void copy(item* to, const item* from, int count) {
  const unsigned place = (unsigned)__cvta_generic_to_shared(to);
#if VECTOR == 16
#if TRANSPOSED
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(count) : "memory");
#else  // the next step reads the following bytes
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(count) : "memory");
#endif
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(place), "l"(from), "r"(count), "n"(VECTOR) : "memory");
#endif
}

// A thread's part of the copies of X: COPIES vectors per step, ROWS rows of shared memory apart.
struct Copies {
  const item* from;  // first vector of the next step
  long long apart, ahead;  // distance to the next vector, and to the next step
  int to, rows, across;  // position in a stage; remaining rows and numbers of X

  __device__ Copies(const item* x, long long pitch, int row, int rows_of_c, unsigned begin) {
    const int down = threadIdx.x / (LENGTH / NUMBERS), side = threadIdx.x % (LENGTH / NUMBERS) * NUMBERS;
    to = down * PITCH + side;
    apart = ROWS * pitch;
    if (TRANSPOSED) {
      from = x + (begin + down) * pitch + row + side;
      ahead = DEEP * pitch;
      across = rows_of_c - row - side;
      rows = 0;
    } else {
      from = x + (row + down) * pitch + begin + side;
      ahead = DEEP;
      across = side;
      rows = rows_of_c - row - down;
    }
  }

  // Starts copying a step; `left` is the remaining depth. Numbers out of range become zero.
  __device__ __forceinline__ void step(item* stage, int left) {
    const int lines = TRANSPOSED ? left - (int)(threadIdx.x / (LENGTH / NUMBERS)) : rows, numbers = TRANSPOSED ? across : left - across;
    const int bytes = numbers <= 0 ? 0 : (numbers < NUMBERS ? numbers * (int)sizeof(item) : VECTOR);
#pragma unroll
    for (int k = 0; k < COPIES; k++) {
      const int count = k * ROWS < lines ? bytes : 0;
      copy(stage + to + k * ROWS * PITCH, count ? from + k * apart : from, count);
    }
    from += ahead;
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
};

// Finds the rows of the factor matrices for a step; each thread finds those of one row of K.
__device__ __forceinline__ void find_step(const real* (*lines)[PARTS], const Product& product, unsigned at, unsigned depth,
                                          int columns) {
  if (threadIdx.x >= DEEP) return;
  const unsigned line = min(at + threadIdx.x, depth - 1);  // beyond the end, X is zero
  unsigned row = product.begin + line;
#pragma unroll
  for (int m = PARTS - 1; m >= 0; m--) {
    const unsigned index = m ? row % product.length[m] : row;
    if (m) row /= product.length[m];
    lines[threadIdx.x][m] = product.factor[m] + (long long)index * columns;
  }
}

// Loads this thread's pairs of each factor matrix for a step of K.
__device__ __forceinline__ void read_step(Pair (&pairs)[PARTS][EACH], const real* (*lines)[PARTS], int column, int columns) {
#pragma unroll
  for (int k = 0; k < EACH; k++)
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
      const real* line = lines[threadIdx.x / PAIRS + k * LINES][m];
      pairs[m][k] = column < columns ? *(const Pair*)(line + column) : Pair{};
    }
}

__device__ __forceinline__ void store_step(real* to, const Pair (&pairs)[PARTS][EACH]) {
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    Pair pair = pairs[0][k];
#pragma unroll
    for (int m = 1; m < PARTS; m++) {
      pair.a *= pairs[m][k].a;
      pair.b *= pairs[m][k].b;
    }
    real* place = to + (threadIdx.x / PAIRS + k * LINES) * SPAN + threadIdx.x % PAIRS * 2;
#if REAL_IS_DOUBLE
    *(Pair*)place = pair;
#else
    const Pair high = {rounded(pair.a), rounded(pair.b)};
    *(Pair*)place = high;
    *(Pair*)(place + MADE) = {pair.a - high.a, pair.b - high.b};
#endif
  }
}

extern __shared__ __align__(16) unsigned char memory[];

// `pitch` is the row stride of x; `rows` and `columns` are those of C, which is added to if `adds`.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
multiply_block(const item* __restrict__ x, long long pitch, int rows, unsigned depth, const __grid_constant__ Tiling<real> tiling,
               const Product product, int columns, int adds, real* __restrict__ c) {
  real* stages = (real*)memory;
  const Tile<real, TALL, WIDE> tile(tiling, depth, columns);
  const int row = tile.row, column = tile.column, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4, place = lane % 4, own = column + threadIdx.x % PAIRS * 2;
  const int top = warp / ACROSS * 16 * TILES, left = warp % ACROSS * 32;
  const unsigned begin = tile.begin, end = tile.end;
  const int steps = (end - begin + DEEP - 1) / DEEP;
  __shared__ const real* lines[2][DEEP][PARTS];
  Pair pairs[PARTS][EACH];
  Copies copies(x, pitch, row, rows, begin);
  find_step(lines[0], product, begin, end, columns);
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < steps) copies.step((item*)(stages + s * STAGE), end - begin - s * DEEP);
    else asm volatile("cp.async.commit_group;" ::: "memory");
    __syncthreads();
    read_step(pairs, lines[s % 2], own, columns);
    store_step(stages + s * STAGE + HELD, pairs);
    find_step(lines[(s + 1) % 2], product, begin + (s + 1) * DEEP, end, columns);
  }
  __syncthreads();
  read_step(pairs, lines[(STAGES - 1) % 2], own, columns);
  find_step(lines[STAGES % 2], product, begin + STAGES * DEEP, end, columns);
  real sum[TILES][FEW][4] = {};
  for (int s = 0; s < steps; s++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    const int next = s + STAGES - 1;
    if (next < steps) {
      real* target = stages + next % STAGES * STAGE;
      copies.step((item*)target, end - begin - next * DEEP);
      store_step(target + HELD, pairs);
      read_step(pairs, lines[(next + 1) % 2], own, columns);
      find_step(lines[next % 2], product, begin + (next + 2) * DEEP, end, columns);
    } else asm volatile("cp.async.commit_group;" ::: "memory");
    const real* of_k = stages + s % STAGES * STAGE + HELD;
    const item* held = (const item*)(of_k - HELD);
#if !REAL_IS_DOUBLE
    // Tensor cores truncate when they add, so they add few products, and the sums are rounded here.
    real now[TILES][FEW][4] = {};
#define SUM now
#else
#define SUM sum
#endif
#pragma unroll
    for (int k = 0; k < DEEP; k += EIGHT) {
      Fragment a[TILES][4], b[FEW][2];
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int h = 0; h < 4; h++) {
          const int i = top + t * 16 + group + h % 2 * 8, d = k + place + h / 2 * 4;
          a[t][h] = part(held + (TRANSPOSED ? d * PITCH + i : i * PITCH + d));
        }
#pragma unroll
      for (int u = 0; u < FEW; u++)
#pragma unroll
        for (int h = 0; h < 2; h++) b[u][h] = made(of_k + (k + place + h * 4) * SPAN + left + u * 8 + group);
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int u = 0; u < FEW; u++) multiply(SUM[t][u], a[t], b[u]);
    }
#if !REAL_IS_DOUBLE
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int u = 0; u < FEW; u++)
#pragma unroll
        for (int k = 0; k < 4; k++) sum[t][u][k] += now[t][u][k];
#endif
  }
  const Tile<real, TALL, WIDE> of_c(tiling, depth, columns);
  real* to = of_c.target(tiling, c, rows, columns);
  if (of_c.part >= 0) adds = 0;
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int u = 0; u < FEW; u++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int i = of_c.row + top + t * 16 + group + h * 8, k = of_c.column + left + u * 8 + place * 2;
        if (i < rows && k < columns) {  // rows have whole pairs
          const real one = sum[t][u][2 * h], other = sum[t][u][2 * h + 1];
          real* pair = to + (long long)i * columns + k;
          pair[0] = adds ? pair[0] + one : one;
          pair[1] = adds ? pair[1] + other : other;
        }
      }
}
