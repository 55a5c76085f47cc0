// Factor rows of the nonzeros of a task, as a warp reads them; see observed_sums.cuh.
//
//   RANK  columns
//   FAR   1: rows are mostly in the device's memory; 0: in its caches

#pragma once

#include "record_at.cuh"

constexpr int C = RANK <= 16 ? 2 : 4, SPAN = 8 * C;  // columns of a lane, and of all
constexpr int GROUP = 8, TURN = 32;  // nonzeros: multiplied together; decoded together
constexpr int SLOT = (INPUTS + 4) / 4 * 4;  // words of a decoded nonzero: its input rows and its value

struct __align__(4 * C) Columns {
  float at[C];
};

// The address of a lane's columns of a row; the compiler would take three instructions.
__device__ __forceinline__ const void* row_at(const float* base, word row) {
  const void* at;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(at) : "r"(row), "n"(COLUMNS * sizeof(float)), "l"(base));
  return at;
}

__device__ __forceinline__ Columns load(const float* base, word row) {
  const void* from = row_at(base, row);
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
      const void* from = row_at(in.at[M], slot.at[M]);
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
