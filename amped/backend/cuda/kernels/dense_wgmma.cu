// The product of a dense single-precision block, as a matrix X, with a Khatri-Rao product that is never stored: C = X
// K, or X^T K, by the tensor cores of a Hopper GPU. Numbers are split into high + low parts of 11 bits each (TF32):
// three products give the accuracy of single precision. A warpgroup holds parts of X in registers, and those of K in
// shared memory.
//
//   WIDE    columns of C per thread block: 32, 64 or 128
//   STAGES  steps of the depth that are in shared memory at once
//   BLOCKS  target of thread blocks per multiprocessor
//   LONG    1: the last factor matrix has at least as many rows as a step
//
// See also the parameters of dense_steps.cuh.
//
// A thread block computes a tile of TALL x WIDE numbers of C, or a part of it: see dense_tiles.cuh. X is loaded into
// shared memory by asynchronous copies, STAGES - 1 steps of DEEP ahead. K is computed one step later, from rows
// loaded one step before. A step is multiplied while the next K is computed and until the next X is loaded into
// registers.

#include "dense_steps.cuh"
#include "dense_tiles.cuh"

constexpr int TALL = 128, DEEP = 32, FOUR = 4, THREADS = 256;  // FOUR: numbers of a vector
constexpr int PITCH = TRANSPOSED ? TALL + 8 : DEEP + FOUR;  // row stride of X; puts vectors into different banks
constexpr int LENGTH = TRANSPOSED ? TALL : DEEP, LINES = TRANSPOSED ? DEEP : TALL;  // size of X in shared memory
constexpr int HELD = LINES * PITCH, MADE = DEEP * WIDE, STAGE = HELD + 2 * MADE;  // K: high parts, then low parts
constexpr int QUADS = DEEP / FOUR, EACH = WIDE * QUADS / THREADS;  // quads (vectors of K) per column, and per thread
constexpr int HAS = 2, SUMS = WIDE / 2;  // rows of C per thread; sums per thread
static_assert(HELD * 4 % 1024 == 0, "K is aligned");

// The position in a step of K of number `s` of quad `q`, which corresponds to number q of X in lane s of four.
__device__ __forceinline__ int place_of(int q, int s) { return TRANSPOSED || SHIFTED ? s + FOUR * q : QUADS * s + q; }

__device__ __forceinline__ float rounded(float x) { return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u); }

// The quads of a column of K that a thread computes. Rows beyond the end do not matter, because X is zero there.
#if LONG  // a step spans at most two rows of the other factor matrices
struct Maker {
  static constexpr int LAST = PARTS - 1;
  const Product<float>& product;
  const int column, columns;
  unsigned row[PARTS], turn;  // next row of each factor matrix; row of the step where the last one wraps around
  float numbers[EACH][FOUR], leads[2];

  __device__ Maker(const Product<float>& product, int column, int columns, unsigned begin)
      : product(product), column(column), columns(columns) {
    product.find(begin, [&](int m, unsigned index) { row[m] = index; });
  }

  // Loads the rows for a step, and advances to the next one.
  __device__ __forceinline__ void read() {
    turn = product.length[LAST] - row[LAST];
    leads[0] = lead();
    if (turn >= DEEP) {
#pragma unroll
      for (int e = 0; e < EACH; e++)
#pragma unroll
        for (int s = 0; s < FOUR; s++) numbers[e][s] = number(LAST, row[LAST] + place_of(quad(e), s));
      row[LAST] += DEEP;
    } else {
#pragma unroll
      for (int e = 0; e < EACH; e++)
#pragma unroll
        for (int s = 0; s < FOUR; s++) {
          const unsigned k = place_of(quad(e), s);
          numbers[e][s] = number(LAST, k < turn ? row[LAST] + k : k - turn);
        }
      row[LAST] = DEEP - turn;
      bool carry = true;
#pragma unroll
      for (int m = LAST - 1; m >= 0; m--) {
        row[m] += carry;
        carry = row[m] == product.length[m];
        if (carry) row[m] = 0;
      }
      leads[1] = lead();
    }
  }

  __device__ __forceinline__ float lead() const {
    float product_of = 1;
#pragma unroll
    for (int m = 0; m < LAST; m++) product_of *= number(m, row[m]);
    return product_of;
  }
  __device__ __forceinline__ float made(int e, int s) const { return numbers[e][s] * (place_of(quad(e), s) < turn ? leads[0] : leads[1]); }
#else
struct Maker {
  const Product<float>& product;
  const int column, columns;
  unsigned row, last;
  float numbers[PARTS][EACH][FOUR];

  __device__ Maker(const Product<float>& product, int column, int columns, unsigned begin)
      : product(product), column(column), columns(columns), row(begin), last(1) {
#pragma unroll
    for (int m = 0; m < PARTS; m++) last *= product.length[m];
    last -= 1 + product.begin;
  }

  // Loads the rows for a step, and advances to the next one. Each lane finds one row.
  __device__ __forceinline__ void read() {
    unsigned rows[PARTS];
    product.find(min(row + place_of(threadIdx.x % 32 / FOUR, threadIdx.x % FOUR), last), [&](int m, unsigned r) { rows[m] = r; });
#pragma unroll
    for (int e = 0; e < EACH; e++)
#pragma unroll
      for (int s = 0; s < FOUR; s++)
#pragma unroll
        for (int m = 0; m < PARTS; m++) numbers[m][e][s] = number(m, __shfl_sync(0xffffffff, rows[m], quad(e) * FOUR + s));
    row += DEEP;
  }

  __device__ __forceinline__ float made(int e, int s) const {
    float made = numbers[0][e][s];
#pragma unroll
    for (int m = 1; m < PARTS; m++) made *= numbers[m][e][s];
    return made;
  }
#endif

  __device__ __forceinline__ int quad(int e) const { return threadIdx.x / WIDE + e * (THREADS / WIDE); }
  __device__ __forceinline__ float number(int m, unsigned row) const {
    const unsigned bytes = columns * sizeof(float);
    return *(const float*)((const char*)(product.factor[m] + column) + (unsigned long long)row * bytes);
  }

  // Stores both parts: a line of 128 bytes per column, swizzled as wgmma requires.
  __device__ __forceinline__ void store(float* to) const {
    const int own = threadIdx.x % WIDE;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      float high[FOUR], low[FOUR];
#pragma unroll
      for (int s = 0; s < FOUR; s++) {
        const float number = made(e, s);
        high[s] = rounded(number);
        low[s] = number - high[s];
      }
      float* place = to + own * DEEP + (quad(e) ^ own % 8) * FOUR;
      *(float4*)place = make_float4(high[0], high[1], high[2], high[3]);
      *(float4*)(place + MADE) = make_float4(low[0], low[1], low[2], low[3]);
    }
  }
};

// Loads a thread's numbers of a step of X: one of each quad, for each of its rows.
__device__ __forceinline__ void read_x(float (&x)[HAS][QUADS], const float* held, int line) {
  const int place = threadIdx.x % 4;
#if TRANSPOSED && SHIFTED
#pragma unroll
  for (int i = 0; i < HAS; i++)
#pragma unroll
    for (int q = 0; q < QUADS; q++) x[i][q] = held[line + (place + FOUR * q) * PITCH + 8 * i];
#elif TRANSPOSED
#pragma unroll
  for (int q = 0; q < QUADS; q++) {
    const float* from = held + line + (place + FOUR * q) * PITCH;
    const float2 two = *(const float2*)from;
    x[0][q] = two.x, x[1][q] = two.y;
  }
#else
#pragma unroll
  for (int i = 0; i < HAS; i++)
#if SHIFTED
#pragma unroll
    for (int q = 0; q < QUADS; q++) x[i][q] = held[line + 8 * i * PITCH + place + FOUR * q];
#else
#pragma unroll
    for (int q = 0; q < QUADS; q += FOUR) {
      const float4 four = *(const float4*)(held + line + 8 * i * PITCH + place * QUADS + q);
      x[i][q] = four.x, x[i][q + 1] = four.y, x[i][q + 2] = four.z, x[i][q + 3] = four.w;
    }
#endif
#endif
}

#define FOUR_SUMS(k) "+f"(sum[k]), "+f"(sum[k + 1]), "+f"(sum[k + 2]), "+f"(sum[k + 3])
#define EIGHT_SUMS(k) FOUR_SUMS(k), FOUR_SUMS(k + 4)
#define SUMS_16(k) EIGHT_SUMS(k), EIGHT_SUMS(k + 8)
#define NAMES_4 "%0, %1, %2, %3"
#define NAMES_8 NAMES_4 ", %4, %5, %6, %7"
#define NAMES_16 NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                          \
  NAMES_32                                                                                \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48" \
  ", %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#if WIDE == 32
#define ALL_SUMS SUMS_16(0)
#define OPERANDS "n32k8", NAMES_16, "{%16, %17, %18, %19}, %20", "%21"
#elif WIDE == 64
#define ALL_SUMS SUMS_16(0), SUMS_16(16)
#define OPERANDS "n64k8", NAMES_32, "{%32, %33, %34, %35}, %36", "%37"
#else
#define ALL_SUMS SUMS_16(0), SUMS_16(16), SUMS_16(32), SUMS_16(48)
#define OPERANDS "n128k8", NAMES_64, "{%64, %65, %66, %67}, %68", "%69"
#endif
#define TEXT_OF(size, sums, factors, adds)                                               \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " adds ", 0;\nwgmma.mma_async.sync.aligned.m64" size \
  ".f32.tf32.tf32 {" sums "}, " factors ", p, 1, 1;\n}"
#define TEXT(...) TEXT_OF(__VA_ARGS__)

// Starts a product of 64 x 8 numbers of X with 8 x WIDE of K, which is added to the sums, or replaces them.
__device__ __forceinline__ void multiply(float (&sum)[SUMS], const float (&a)[4], unsigned long long k, int adds) {
  asm volatile(TEXT(OPERANDS)
               : ALL_SUMS
               : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                 "l"(k), "r"(adds));
}

// Makes the compiler treat the sums as modified here.
__device__ __forceinline__ void keep(float (&sum)[SUMS]) {
  asm volatile("" : ALL_SUMS::"memory");
}

// Starts the products of a step. Tensor cores truncate when they add, so they add few products.
__device__ __forceinline__ void multiply_step(float (&sum)[SUMS], const float (&of_x)[HAS][QUADS], unsigned long long high_k) {
  constexpr int STEP = 2;  // 16 bytes, 8 rows of K
  const unsigned long long low_k = high_k + MADE / FOUR;
  float high[QUADS / 2][4], low[QUADS / 2][4];
#pragma unroll
  for (int k = 0; k < QUADS / 2; k++)
#pragma unroll
    for (int h = 0; h < 4; h++) {
      const float x = of_x[h % 2][2 * k + h / 2];
      high[k][h] = rounded(x);
      low[k][h] = x - high[k][h];
    }
  keep(sum);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < QUADS / 2; k++) {
    multiply(sum, low[k], high_k + k * STEP, k > 0);
    multiply(sum, high[k], low_k + k * STEP, 1);
    multiply(sum, high[k], high_k + k * STEP, 1);
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits for the products, and adds them to the sums.
__device__ __forceinline__ void add_up(float (&sum)[SUMS], float (&now)[SUMS]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  keep(now);
#pragma unroll
  for (int k = 0; k < SUMS; k++) sum[k] += now[k];
}

extern __shared__ __align__(1024) unsigned char memory[];

// `pitch` is the row stride of x; `rows` and `columns` are those of C, which is added to if `adds`.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
multiply_block(const float* __restrict__ x, long long pitch, int rows, unsigned depth, const __grid_constant__ Tiling<float> tiling,
               const __grid_constant__ Product<float> product, int columns, int adds, float* __restrict__ c) {
  float* stages = (float*)memory;
  const Tile<float, TALL, WIDE> tile(tiling, depth, columns);
  const int row = tile.row, column = tile.column, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4, place = lane % 4, top = warp * 16;
  const unsigned begin = tile.begin, end = tile.end;
  const int steps = (end - begin + DEEP - 1) / DEEP;
  // Rows of C of this thread: the first, and the distance to the next.
  constexpr int NEXT = TRANSPOSED && !SHIFTED ? 1 : 8;
  const int first = top + (TRANSPOSED && !SHIFTED ? HAS * group : group);
  const float* corner = x + (TRANSPOSED ? (begin + place) * pitch + row : (row + first) * pitch + begin);
  const int line = (TRANSPOSED ? first : first * PITCH) + shift_of(corner);
  Maker maker(product, min(column + (int)threadIdx.x % WIDE, columns - 1), columns, begin);
  Copies<float, LENGTH, LINES, PITCH, THREADS> copies(x, pitch, row, rows, begin, end);
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < steps) copies.step(stages + s * STAGE);
    end_copies();
  }
  for (int s = 0; s < STAGES - 2; s++) {
    maker.read();
    maker.store(stages + s * STAGE + HELD);
  }
  maker.read();
  float sum[SUMS] = {}, now[SUMS] = {};
  // Current step; step whose K is computed; step whose X is copied.
  int stage = 0, filled = STAGES - 2, copied = STAGES - 1;
  for (int s = 0; s < steps; s++) {
    wait_copies<STAGES - 2>();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // makes K visible to wgmma
    __syncthreads();
    if (s + STAGES - 1 < steps) copies.step(stages + copied * STAGE);
    end_copies();
    const float* held = stages + stage * STAGE;
    // Descriptor of K for wgmma: address, distance of 8 columns in units of 16 bytes, swizzle mode of 128 bytes.
    const unsigned long long of_k = (unsigned)__cvta_generic_to_shared(held + HELD) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
    float of_x[HAS][QUADS];
    read_x(of_x, held, line);
    add_up(sum, now);  // of the previous step, which was multiplied meanwhile
    multiply_step(now, of_x, of_k);
    if (s + STAGES - 2 < steps) {
      maker.store(stages + filled * STAGE + HELD);
      maker.read();
    }
    filled = copied;
    copied = stage;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  add_up(sum, now);
  const Tile<float, TALL, WIDE> of_c(tiling, depth, columns);
  float* to = of_c.target(tiling, c, rows, columns);
  if (of_c.part >= 0) adds = 0;
#pragma unroll
  for (int i = 0; i < HAS; i++)
#pragma unroll
    for (int u = 0; u < WIDE / 8; u++) {
      const int r = of_c.row + first + i * NEXT, k = of_c.column + u * 8 + place * 2;
      if (r < rows && k < columns) {  // rows have whole pairs
        const float one = sum[4 * u + 2 * i], other = sum[4 * u + 2 * i + 1];
        float2* pair = (float2*)(to + (long long)r * columns + k);
        *pair = adds ? make_float2(pair->x + one, pair->y + other) : make_float2(one, other);
      }
    }
}
