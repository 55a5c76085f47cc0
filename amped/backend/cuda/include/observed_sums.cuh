// Sums of a warp over nonzeros of a row, for up to 32 columns: G, (x - m) v, and (x - m)^2; see observed.cu.
//
// Eight lanes load the rows of nonzeros n and n + 4 of each eight, C columns each, and multiply them to v. (Lanes that loaded
// rows in the order that tensor cores need would read the same banks of the L1 cache, four at a time.) The matrix G, the sum
// of v v^T, is computed by tensor cores in half precision: lane (g, t) = (lane / 4, lane % 4) gets columns C * g to
// C * g + C - 1 of nonzeros t and t + 4, and these registers are operands of m16n8k8 on both sides. With v = h + l, where h and l
// have half precision, G = H H^T + L H^T + H L^T up to single precision; only the tiles on and above the diagonal are computed.
// Tensor cores truncate their sums, so those of 32 nonzeros are added to other registers.
//
// Columns of v are scaled by powers of two, so that no number exceeds half precision. The first scales follow from the
// largest numbers of the factor matrices' columns. If the numbers of a row are so small that half precision loses their
// digits, the row's scales are raised, and its sums are computed again.

#pragma once

#include "observed_rows.cuh"

constexpr int PAIRS = C / 2;
constexpr int UPPER = C == 2 ? 2 : 6;  // tiles (i, j), j >= 2 i
constexpr unsigned ALL = ~0u;
constexpr int HIGHEST = 14;  // exponent of the largest scaled numbers; half precision ends at 2^16

__device__ __forceinline__ void multiply_add(float (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a0), "r"(a1), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// Two numbers in half precision; the remainders replace the numbers.
__device__ __forceinline__ unsigned take_halves(float& x, float& y) {
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
  float of_x, of_y;
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }" : "=f"(of_x), "=f"(of_y) : "r"(both));
  x -= of_x, y -= of_y;
  return both;
}

struct Sums {
  float gram[UPPER][4] = {};
  float slope[C] = {};  // the sum of (x - m) v
  float squares = 0;
};

// What a lane knows of its columns: the row before, divided by the scales, and the scales.
struct Own {
  Columns row, scale;
};

// Adds v v^T of eight nonzeros on and above the diagonal: the tiles of H H^T, H L^T, and L H^T, in turn, so that none waits
// for the one before it.
__device__ __forceinline__ void add_products(float (&hot)[UPPER][4], const Columns (&v)[2]) {
  unsigned parts[2][C];  // high and low: a column of two nonzeros
#pragma unroll
  for (int k = 0; k < C; k++) {
    const int from = threadIdx.x % 4 * 8 + threadIdx.x % 32 / 4;
    float x = __shfl_sync(ALL, v[0].at[k], from), y = __shfl_sync(ALL, v[1].at[k], from);
    parts[0][k] = take_halves(x, y), parts[1][k] = take_halves(x, y);
  }
#pragma unroll
  for (int l = 0; l < 3; l++)
#pragma unroll
    for (int i = 0, tile = 0; i < PAIRS; i++)
#pragma unroll
      for (int j = 2 * i; j < C; j++, tile++)
        multiply_add(hot[tile], parts[l / 2][2 * i], parts[l / 2][2 * i + 1], parts[l % 2][j]);
}

// Adds eight nonzeros, or the first `left` of them, to all sums, but the Gram matrix to `hot`.
template <bool ALL_COUNT>
__device__ __forceinline__ void add_eight(const Pair& pair, int left, const Own& own, float (&hot)[UPPER][4], Sums& sums) {
  const int n = threadIdx.x % 32 / 8, columns = RANK - C * (threadIdx.x % 8);  // columns that the lane has
  const bool second = of_second();
  Columns v[2];
  float model[2] = {};
#pragma unroll
  for (int u = 0; u < 2; u++)
#pragma unroll
    for (int k = 0; k < C; k++) {
      float x = pair.rows[u][0].at[k] * own.scale.at[k];
#pragma unroll
      for (int m = 1; m < HELD; m++) x *= pair.rows[u][m].at[k];
      if ((RANK < SPAN && k >= columns) || (!ALL_COUNT && n + 4 * u >= left)) x = 0;
      v[u].at[k] = x, model[u] += own.row.at[k] * x;
    }
  // Half of the lanes of a nonzero sum its model, half that of the other one.
  float mine = (second ? model[1] : model[0]) + __shfl_xor_sync(ALL, second ? model[0] : model[1], 4);
  mine += __shfl_xor_sync(ALL, mine, 2);
  mine += __shfl_xor_sync(ALL, mine, 1);
  const float error = ALL_COUNT || n + (second ? 4 : 0) < left ? pair.value - mine : 0;
  const float other = __shfl_xor_sync(ALL, error, 4);
  sums.squares += error * error;
  const float errors[2] = {second ? other : error, second ? error : other};
#pragma unroll
  for (int u = 0; u < 2; u++)
#pragma unroll
    for (int k = 0; k < C; k++) sums.slope[k] += errors[u] * v[u].at[k];
  add_products(hot, v);
}

// Adds the nonzeros of a task; lanes have parts of the sums. `slots` has room for two turns.
__device__ __forceinline__ void add(const Inputs& in, const Nonzeros& of, int begin, int end, const Own& own, Sums& sums,
                                    uint4* slots) {
  constexpr int LANE_SLOT = SLOT / 4, ROUND = TURN * LANE_SLOT;  // uint4 of a slot, and of a turn
  const int lane = threadIdx.x % 32, column = C * (lane % 8);
  uint4 *now = slots, *later = slots + ROUND;
  Bases bases;
#pragma unroll
  for (int m = 0; m < INPUTS; m++) bases.at[m] = (const float*)in.factor[m] + (column < COLUMNS ? column : 0);
  Reader reader(of, begin, end);
  put(now + lane * LANE_SLOT, reader.next());
  Record ahead = reader.next();
  __syncwarp();
  Coming coming;
  coming.begin(bases, now, end - begin, slots + 2 * ROUND);
  int left = end - begin;
  for (; left >= TURN; left -= TURN) {
    put(later + lane * LANE_SLOT, ahead);
    ahead = reader.next();
    __syncwarp();
    float hot[UPPER][4] = {};
#pragma unroll
    for (int q = 0; q < TURN; q += GROUP) {
      const Pair pair = coming.next(bases, now, later, q, left);
      add_eight<true>(pair, GROUP, own, hot, sums);
    }
#pragma unroll
    for (int k = 0; k < UPPER; k++)
#pragma unroll
      for (int e = 0; e < 4; e++) sums.gram[k][e] += hot[k][e];
    uint4* before = now;
    now = later, later = before;
    __syncwarp();
  }
  coming.end();
#pragma unroll 1
  for (int q = 0; q < left; q += GROUP) {
    const Pair pair = coming.last(bases, now, q);
    add_eight<false>(pair, left - q, own, sums.gram, sums);
  }
  __syncwarp();
#pragma unroll
  for (int far = 4; far < 32; far *= 2) {
    if (far > 4)
#pragma unroll
      for (int k = 0; k < C; k++) sums.slope[k] += __shfl_xor_sync(ALL, sums.slope[k], far);
    sums.squares += __shfl_xor_sync(ALL, sums.squares, far);
  }
}

// 1 / x for a power of two.
__device__ __forceinline__ float over(float power) { return __uint_as_float((254u << 23) - __float_as_uint(power)); }

// Returns the row and the scales of a lane's columns. `largest` has the bits of the largest numbers of each input's columns.
__device__ __forceinline__ Own own_of(const float* row, const float* __restrict__ largest) {
  const int column = C * (threadIdx.x % 8);
  Columns most;
#pragma unroll
  for (int k = 0; k < C; k++) most.at[k] = 1;
  if (column < COLUMNS)
#pragma unroll
    for (int m = 0; m < INPUTS; m++) {
      const Columns of_input = *(const Columns*)(largest + m * COLUMNS + column);
#pragma unroll
      for (int k = 0; k < C; k++) most.at[k] *= of_input.at[k];
    }
  Own own;
#pragma unroll
  for (int k = 0; k < C; k++) {
    const int exponent = max((int)(__float_as_uint(most.at[k]) >> 23) - 127, HIGHEST - 126);
    own.scale.at[k] = most.at[k] ? __uint_as_float((unsigned)min(127 + HIGHEST - exponent, 253) << 23) : 1;
    own.row.at[k] = column + k < RANK ? row[column + k] * over(own.scale.at[k]) : 0;
  }
  return own;
}

// What a warp has in shared memory between the sums and the solution: G, both halves; the slope; and the scales.
constexpr int PITCH = SPAN + 4;  // of G: reads of four numbers by eight lanes hit all banks
constexpr int SLOPE = SPAN * PITCH, SCALE = SLOPE + SPAN;

// Writes it, and waits for the warp.
__device__ __forceinline__ void put_sums(const Sums& sums, const Own& own, float* room) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const auto& G = sums.gram;
#pragma unroll
  for (int e = 0; e < 4; e++) {
    float* at = room + (C * g + e / 2) * PITCH + C * (2 * t + e % 2);
    if constexpr (C == 2) *(float2*)at = {G[0][e], G[1][e]};
    else {
      *(float4*)at = {G[0][e], G[1][e], G[2][e], G[3][e]};
      *(float2*)(at + 2 * PITCH + 2) = {G[4][e], G[5][e]};
      // The tile of rows 2 and 3, and of columns 0 and 1, is not computed.
      const int j = 2 + e / 2, x = e % 2;
      *(float2*)(room + (C * (2 * t + x) + j) * PITCH + C * g) = {G[j][x], G[j][2 + x]};
    }
  }
  if (lane < 8)
#pragma unroll
    for (int k = 0; k < C; k++) room[SLOPE + C * lane + k] = sums.slope[k], room[SCALE + C * lane + k] = own.scale.at[k];
  __syncwarp();
}

// Sums of n small numbers v have relative rounding errors of 2^-25 / (sqrt(n) |v|), that is 2^-25 over the root of their
// squares, because the errors of h + l are 2^-25 at most, and independent. ENOUGH makes that 2^-23, or less than what the ridge
// hides. Numbers with squares below LOST may be missing in the sums.
constexpr float ENOUGH = 0x1p-4f, LOST = 0x1p-48f;

__device__ __forceinline__ bool loses_digits(const float* room, int column, float ridge) {
  const float squares = room[column * (PITCH + 1)] + ridge * room[SCALE + column] * room[SCALE + column];
  return room[SLOPE + column] != 0 && squares < ENOUGH;
}

// Returns whether numbers of a column are too small for half precision.
__device__ __forceinline__ bool lose_digits(const float* room, float ridge) {
  const int lane = threadIdx.x % 32;
  return __any_sync(ALL, lane < RANK && loses_digits(room, lane, ridge));
}

// Raises the scales of such columns, from the sums of `count` nonzeros. No number exceeds the root of its column's sum of squares, so the new scales are safe.
__device__ __forceinline__ void raise_scales(Own& own, int count, float ridge, const float* room) {
#pragma unroll
  for (int k = 0; k < C; k++) {
    const int column = C * (threadIdx.x % 8) + k;
    if (column >= RANK || !loses_digits(room, column, ridge)) continue;
    const float squares = room[column * (PITCH + 1)];
    const int root = ((int)(__float_as_uint(squares + count * LOST) >> 23) - 127) / 2 + 1;
    const int exponent = min((int)(__float_as_uint(own.scale.at[k]) >> 23) + HIGHEST - root, 253);
    own.row.at[k] *= own.scale.at[k];
    own.scale.at[k] = __uint_as_float((unsigned)exponent << 23);
    own.row.at[k] *= over(own.scale.at[k]);
  }
  __syncwarp();
}
