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

#include "record_at.cuh"

constexpr int C = RANK <= 16 ? 2 : 4, PAIRS = C / 2, SPAN = 8 * C;  // columns of a lane, and of all
constexpr int UPPER = C == 2 ? 2 : 6;  // tiles (i, j), j >= 2 i
constexpr int GROUP = 8, TURN = 32;  // nonzeros: multiplied together; decoded together
constexpr int SLOT = (INPUTS + 4) / 4 * 4;  // words of a decoded nonzero: its input rows and its value
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

struct __align__(4 * C) Columns {
  float at[C];
};

// Loads a lane's columns of a row; the compiler would take three instructions for the address.
__device__ __forceinline__ Columns load(const float* base, word row) {
  const void* from;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(from) : "r"(row), "n"(COLUMNS * sizeof(float)), "l"(base));
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

// Reads a lane's nonzeros: each 32nd of a task's.
struct Reader {
  const char* records;
  unsigned size, chunk, at;  // nonzeros of a chunk, number of the chunk, and position in it
  unsigned left;  // of the lane's nonzeros after this one

  __device__ Reader(const Nonzeros& of, unsigned begin, unsigned end) : records(of.records), size(of.jobs->chunk) {
    const unsigned lane = threadIdx.x % 32, q = min(begin + lane, end - 1);
    chunk = q / size, at = q % size, left = (end - 1 - q) / TURN;
  }
  __device__ __forceinline__ Record next() {
    const unsigned unit = chunk / STRIP * (size / AT_ONCE) + at / AT_ONCE;
    const Record r = record_in(records + (unsigned long long)unit * UNIT, chunk % STRIP * AT_ONCE + at % AT_ONCE);
    if (left) {
      left--, at += TURN;
      if (at >= size) at -= size, chunk++;
    }
    return r;
  }
};

struct Slot {  // a decoded nonzero
  word at[SLOT];
  __device__ __forceinline__ float value() const { return __uint_as_float(at[SLOT - 1]); }
};

template <int M>
__device__ __forceinline__ void decode(const Record& r, Slot& slot) {
  if constexpr (M < INPUTS) {
    slot.at[M] = bits<field_at(M), FIELD_BITS[M]>(r);
    decode<M + 1>(r, slot);
  } else slot.at[SLOT - 1] = __float_as_uint(value_of(r));
}

__device__ __forceinline__ void put(uint4* to, const Record& r) {
  Slot slot = {};
  decode<0>(r, slot);
#pragma unroll
  for (int k = 0; k < SLOT; k += 4) to[k / 4] = {slot.at[k], slot.at[k + 1], slot.at[k + 2], slot.at[k + 3]};
}

__device__ __forceinline__ Slot get(const uint4* from) {
  Slot slot;
#pragma unroll
  for (int k = 0; k < SLOT; k += 4) {
    const uint4 x = from[k / 4];
    slot.at[k] = x.x, slot.at[k + 1] = x.y, slot.at[k + 2] = x.z, slot.at[k + 3] = x.w;
  }
  return slot;
}

// The factor matrices, from a lane's first column on.
struct Bases {
  const float* at[INPUTS];
};

// A lane's columns of the factor rows of two nonzeros, n and n + 4 of eight, and the value of one of them.
constexpr bool LATER = INPUTS * C <= 8;  // registers suffice to multiply when the rows are used, not when they are loaded
constexpr int HELD = LATER ? INPUTS : 1;
struct Pair {
  Columns rows[2][HELD];
  float value;  // of the second one if the lane is `of_second`
};

__device__ __forceinline__ bool of_second() { return threadIdx.x & 4; }

template <int M>
__device__ __forceinline__ void load_rows(const Bases& in, const Slot& slot, Columns (&to)[HELD]) {
  if constexpr (M < INPUTS) {
    const Columns f = load(in.at[M], slot.at[M]);
    if constexpr (M == 0 || LATER) to[LATER ? M : 0] = f;
    else
#pragma unroll
      for (int k = 0; k < C; k++) to[0].at[k] *= f.at[k];
    load_rows<M + 1>(in, slot, to);
  }
}

__device__ __forceinline__ Pair fetch(const Bases& in, const uint4* slots, int first) {
  Pair pair;
  float value[2];
#pragma unroll
  for (int u = 0; u < 2; u++) {
    const Slot slot = get(slots + (first + threadIdx.x % 32 / 8 + 4 * u) * (SLOT / 4));
    load_rows<0>(in, slot, pair.rows[u]);
    value[u] = slot.value();
  }
  pair.value = of_second() ? value[1] : value[0];
  return pair;
}

// Factor rows on their way to a lane.
#if FAR
// They are mostly in the device's memory, and are copied to shared memory a turn ahead. A lane reads what it has copied.
// Copies do not pass through the L1 cache, and so have 16 bytes.
constexpr int GROUPS_AHEAD = TURN / GROUP;
struct Coming {
  Columns* ring;  // [group][second or not][input][lane]

  __device__ __forceinline__ Columns& at(int group, int u, int m) const { return ring[((group * 2 + u) * INPUTS + m) * 32]; }
  template <int M>
  __device__ __forceinline__ void copy_rows(const Bases& in, const Slot& slot, int group, int u) {
    if constexpr (M < INPUTS) {
      const void* from;
      asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(from) : "r"(slot.at[M]), "n"(COLUMNS * sizeof(float)), "l"(in.at[M]));
      const unsigned to = __cvta_generic_to_shared(&at(group, u, M));
      asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(4 * C) : "memory");
      copy_rows<M + 1>(in, slot, group, u);
    }
  }
  // Starts to copy the rows of a group, if there are nonzeros in it.
  __device__ __forceinline__ void copy(const Bases& in, const uint4* slots, int group, bool any) {
    if (any)
#pragma unroll
      for (int u = 0; u < 2; u++)
        copy_rows<0>(in, get(slots + (group * GROUP + threadIdx.x % 32 / 8 + 4 * u) * (SLOT / 4)), group, u);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  __device__ __forceinline__ Pair take(const uint4* slots, int group) const {
    Pair pair;
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
      for (int m = 0; m < INPUTS; m++) {
        const Columns f = at(group, u, m);
        if (m == 0 || LATER) pair.rows[u][LATER ? m : 0] = f;
        else
#pragma unroll
          for (int k = 0; k < C; k++) pair.rows[u][0].at[k] *= f.at[k];
      }
    const int nonzero = group * GROUP + threadIdx.x % 32 / 8 + (of_second() ? 4 : 0);
    pair.value = ((const float*)slots)[nonzero * SLOT + SLOT - 1];
    return pair;
  }

  __device__ __forceinline__ void begin(const Bases& in, const uint4* now, int count, uint4* room) {
    ring = (Columns*)room + threadIdx.x % 32;
#pragma unroll
    for (int group = 0; group < GROUPS_AHEAD; group++) copy(in, now, group, count > group * GROUP);
  }
  __device__ __forceinline__ Pair next(const Bases& in, const uint4* now, const uint4* later, int q, int left) {
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS_AHEAD - 1) : "memory");
    const Pair pair = take(now, q / GROUP);
    copy(in, later, q / GROUP, left - TURN > q);
    return pair;
  }
  __device__ __forceinline__ void end() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
  __device__ __forceinline__ Pair last(const Bases&, const uint4* now, int q) { return take(now, q / GROUP); }
};
#else
// They are mostly in caches, and are loaded into registers a group ahead.
struct Coming {
  Pair pair;

  __device__ __forceinline__ void begin(const Bases& in, const uint4* now, int, uint4*) { pair = fetch(in, now, 0); }
  __device__ __forceinline__ Pair next(const Bases& in, const uint4* now, const uint4* later, int q, int) {
    const Pair before = pair;
    pair = q + GROUP < TURN ? fetch(in, now, q + GROUP) : fetch(in, later, 0);
    return before;
  }
  __device__ __forceinline__ void end() {}
  __device__ __forceinline__ Pair last(const Bases& in, const uint4* now, int q) {
    const Pair before = pair;
    pair = fetch(in, now, (q + GROUP) % TURN);
    return before;
  }
};
#endif

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

// Numbers keep their digits if their squares exceed ENOUGH; those with squares below LOST may be missing in the sums. Digits
// that are smaller than rounding errors of the ridge do not matter.
constexpr float ENOUGH = 0x1p-8f, LOST = 0x1p-48f;

__device__ __forceinline__ bool loses_digits(const float* room, int column, int count, float ridge) {
  const float squares = room[column * (PITCH + 1)] + ridge * room[SCALE + column] * room[SCALE + column];
  return room[SLOPE + column] != 0 && squares < count * ENOUGH;
}

// Returns whether numbers of a column are too small for half precision, from the sums of `count` nonzeros.
__device__ __forceinline__ bool lose_digits(const float* room, int count, float ridge) {
  const int lane = threadIdx.x % 32;
  return __any_sync(ALL, lane < RANK && loses_digits(room, lane, count, ridge));
}

// Raises the scales of such columns. No number exceeds the root of its column's sum of squares, so the new scales are safe.
__device__ __forceinline__ void raise_scales(Own& own, int count, float ridge, const float* room) {
#pragma unroll
  for (int k = 0; k < C; k++) {
    const int column = C * (threadIdx.x % 8) + k;
    if (column >= RANK || !loses_digits(room, column, count, ridge)) continue;
    const float squares = room[column * (PITCH + 1)];
    const int root = ((int)(__float_as_uint(squares + count * LOST) >> 23) - 127) / 2 + 1;
    const int exponent = min((int)(__float_as_uint(own.scale.at[k]) >> 23) + HIGHEST - root, 253);
    own.row.at[k] *= own.scale.at[k];
    own.scale.at[k] = __uint_as_float((unsigned)exponent << 23);
    own.row.at[k] *= over(own.scale.at[k]);
  }
  __syncwarp();
}
