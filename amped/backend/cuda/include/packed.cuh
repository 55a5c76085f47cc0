// Shared code of mttkrp.cu, phi.cu, interleaved.cu and rowproblems.cu: packed nonzeros, sorted by tile and, within a
// tile, by output row.
//
// A tile is a block of rows of each input factor matrix. A job is a contiguous part of one tile's nonzeros. Its GROUPS
// chunks, one per group of LANES threads, are inter-shard partitions (AMPED, section 3.1.2). A run is a sequence of
// nonzeros of equal output row. Each thread sums 16 bytes of the row in registers over a run. The sum is then handled
// by layout:
//
// - segmented: One tile. The sum of a run that began in its chunk is stored; that of a run that began earlier is the
//   chunk's carry. `combine` sums the carries in double precision, in a fixed order: no atomics, bitwise repeatable.
// - TILED: Output rows recur in many tiles, so sums are added by vector reductions in L2, in the factors' precision:
//   those of short runs to the output's rows, that of each long run to a separate row after the output, which
//   `gather_long` adds in double precision. The packer marks long runs, and splits those that are too long. If products
//   are in double precision but values are not, all sums are added to the output's rows. Blocks of the input modes in
//   STAGED are loaded into shared memory.
//
// Compile-time parameters, one set per layout:
//   INPUTS        number of input modes
//   REAL          type of products and short sums
//   STORED        type of factor rows: REAL, 16 bits, or FLOAT (records and rows in single precision, REAL is double)
//   LANES, WIDTH  threads of a group; vectors per factor row
//   GROUPS        groups of a thread block
//   BLOCKS        thread blocks per multiprocessor
//   BATCH         nonzeros whose factor rows are loaded together
//   TILED         1: see above
//   STAGED        bit mask of input modes
//   FIBRE         1: nonzeros of equal output and first input index share one multiplication by that input's row
//   ROWS_OF_MORE  1: the row stride is given by the launch, not by WIDTH
//   PASSING       bit mask of input modes whose rows the L2 cache evicts first
//   SUMS_PASS     1: the L2 cache evicts the output's rows first
//   RECORD        bytes of a record: VALUE_BITS, the number itself if VALUE_RAW, else VALUE_GRAIN * (code + VALUE_LOW);
//                 FIELDS, the bits of each input index; one bit for a new fibre (if FIBRE); one bit for a new run

#pragma once

typedef REAL real;
typedef unsigned int word;

#ifndef THREAD_COUNT
#define THREAD_COUNT GROUPS* LANES  // threads of a block
#endif
#define STORED_AS_REAL 0
#define STORED_AS_FP16 1
#define STORED_AS_BF16 2
#define STORED_AS_FLOAT 3

// Whether values in records are in single precision.
constexpr bool SINGLE = STORED == STORED_AS_FLOAT || sizeof(real) == 4;
constexpr int PER_VECTOR = STORED == STORED_AS_REAL ? 16 / sizeof(real) : STORED == STORED_AS_FLOAT ? 4
                                                                                                    : 8;
constexpr int THREADS = THREAD_COUNT, PANELS = (WIDTH + LANES - 1) / LANES, COLUMNS = WIDTH * PER_VECTOR;
constexpr int WHOLE = RECORD / 4, WORDS = (RECORD + 3) / 4;  // 32-bit words of a record: whole, and rounded up
constexpr int STRIP = 4;  // interleaved chunks, so that a warp reads whole cache lines
constexpr int AT_ONCE = 4;  // records that a thread loads at once
constexpr int UNIT = STRIP * AT_ONCE * RECORD;               // bytes
constexpr int FIELD_BITS[] = {FIELDS};

__device__ constexpr int field_at(int m) { return m ? field_at(m - 1) + FIELD_BITS[m - 1] : VALUE_BITS; }
constexpr int FIBRE_AT = field_at(INPUTS), RUN_AT = FIBRE_AT + FIBRE;

struct __align__(16) Packed {  // 16 bytes of a factor row as stored
  uint4 bits;
};
struct Vector {
  real at[PER_VECTOR];
};
struct Record {
  word at[WORDS];
};
struct Records {
  Record at[AT_ONCE];
};
struct Job {
  long long unit;
  int chunk;  // nonzeros
  int base[INPUTS];
};
struct Inputs {
  const Packed* factor[INPUTS];
  int block[INPUTS];  // rows per block of staged modes
  int length[INPUTS];
};

template <int AT, int BITS>
__device__ __forceinline__ word bits(const Record& r) {
  constexpr int k = AT / 32, shift = AT % 32;
  constexpr word mask = BITS >= 32 ? ~0u : (1u << BITS % 32) - 1;
  if constexpr (BITS == 0) return 0;
  else if constexpr (shift + BITS <= 32) return r.at[k] >> shift & mask;
  else return __funnelshift_r(r.at[k], r.at[k + 1], shift) & mask;
}

__device__ __forceinline__ real value_of(const Record& r) {
#if VALUE_RAW
  if constexpr (SINGLE) return __uint_as_float(r.at[0]);
  else return __hiloint2double(r.at[1], r.at[0]);
#else
  return (real)(VALUE_GRAIN) * (real)(int)(bits<0, VALUE_BITS>(r) + (word)(VALUE_LOW));
#endif
}

// Loads one chunk's 4 records of the 16 in a unit, stored in planes: one per whole word, then of 16 bits, then of 8
// bits. Streaming loads, because records are read once and must not evict factor rows from the caches.
__device__ __forceinline__ Records read(const char* unit, int chunk) {
  Records r;
#pragma unroll
  for (int k = 0; k < WHOLE; k++) {
    const uint4 x = __ldcs((const uint4*)(unit + k * 64 + chunk * 16));
    r.at[0].at[k] = x.x;
    r.at[1].at[k] = x.y;
    r.at[2].at[k] = x.z;
    r.at[3].at[k] = x.w;
  }
  if constexpr (RECORD % 4) {
    word rest[AT_ONCE] = {};
    if constexpr (RECORD & 2) {
      const uint2 x = __ldcs((const uint2*)(unit + WHOLE * 64 + chunk * 8));
      rest[0] = x.x & 0xffff;
      rest[1] = x.x >> 16;
      rest[2] = x.y & 0xffff;
      rest[3] = x.y >> 16;
    }
    if constexpr (RECORD & 1) {
      const word x = __ldcs((const word*)(unit + WHOLE * 64 + (RECORD & 2) * 16 + chunk * 4));
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) rest[u] |= (x >> 8 * u & 0xff) << (RECORD & 2) * 8;
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) r.at[u].at[WHOLE] = rest[u];
  }
  return r;
}

__device__ __forceinline__ Vector unpack(const Packed& p) {
  Vector v;
#if STORED == STORED_AS_REAL
  v = *(const Vector*)&p;
#else
  const word* w = (const word*)&p.bits;
#pragma unroll
  for (int k = 0; k < 4; k++) {
#if STORED == STORED_AS_FLOAT
    v.at[k] = __uint_as_float(w[k]);
#elif STORED == STORED_AS_BF16
    v.at[2 * k] = __uint_as_float(w[k] << 16);
    v.at[2 * k + 1] = __uint_as_float(w[k] & 0xffff0000u);
#else
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(v.at[2 * k]), "=f"(v.at[2 * k + 1]) : "r"(w[k]));
#endif
  }
#endif
  return v;
}

template <bool PASSES>
__device__ __forceinline__ unsigned long long policy() {
  unsigned long long p;
  if constexpr (PASSES) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
  else asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(p));
  return p;
}

template <bool PASSES>
__device__ __forceinline__ Packed gather(const Packed* from) {
  Packed p;
  if constexpr (PASSES)
    asm("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(p.bits.x), "=r"(p.bits.y), "=r"(p.bits.z), "=r"(p.bits.w) : "l"(from), "l"(policy<PASSES>()));
  else p.bits = __ldg(&from->bits);
  return p;
}

extern __shared__ Packed held[];

struct Rows {  // a thread's access to factor rows: 16 bytes of each
  const Packed* global[INPUTS];
  int shared[INPUTS];
#if ROWS_OF_MORE
  int width;  // vectors from row to row
#else
  static constexpr int width = WIDTH;
#endif

  template <int M>
  __device__ __forceinline__ Vector row(const Record& r) const {
    const word i = bits<field_at(M), FIELD_BITS[M]>(r);
    if constexpr (STAGED >> M & 1) return unpack(held[shared[M] + i * LANES]);
    return unpack(gather<(PASSING >> M & 1)>(global[M] + (unsigned long long)i * width));
  }
};

// Multiplies rows of input modes M, M + 1, ... into `product`; the first input mode sets it.
template <int M>
__device__ __forceinline__ void multiply(const Rows& rows, const Record* r, Vector* product) {
  if constexpr (M < INPUTS) {
#pragma unroll
    for (int u = 0; u < BATCH; u++) {
      const Vector f = rows.row<M>(r[u]);
#pragma unroll
      for (int k = 0; k < PER_VECTOR; k++) product[u].at[k] = M == FIBRE ? f.at[k] : product[u].at[k] * f.at[k];
    }
    multiply<M + 1>(rows, r, product);
  }
}

#if TILED
typedef real total;
#else
typedef double total;
#endif

__device__ __forceinline__ void add(float* to, const Vector& v) {
#pragma unroll
  for (int k = 0; k < PER_VECTOR; k += 4)
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to + k), "f"((float)v.at[k]),
                 "f"((float)v.at[k + 1]), "f"((float)v.at[k + 2]), "f"((float)v.at[k + 3]), "l"(policy<SUMS_PASS>()) : "memory");
#else
    for (int i = k; i < k + 4; i++) atomicAdd(to + i, (float)v.at[i]);
#endif
}
__device__ __forceinline__ void add(double* to, const Vector& v) {
#pragma unroll
  for (int k = 0; k < PER_VECTOR; k++) atomicAdd(to + k, (double)v.at[k]);
}
__device__ __forceinline__ void store(double* to, const Vector& v) {
#pragma unroll
  for (int k = 0; k < PER_VECTOR; k += 2) ((double2*)to)[k / 2] = make_double2(v.at[k], v.at[k + 1]);
}

struct Long {  // output rows of the runs whose sums have separate rows after the output
  const int* rows;
  int first;  // number of the first such row

  __device__ __forceinline__ int row(int run) const { return STORED == STORED_AS_FLOAT && run >= first ? rows[run - first] : run; }
};

#if STAGED
// Copies the tile's blocks of factor rows to shared memory, unless they are there already.
__device__ __forceinline__ void stage(const Inputs& in, const Job& job, int panel, int* holds) {
  __syncthreads();
  Packed* to = held;
#pragma unroll
  for (int m = 0; m < INPUTS; m++)
    if (STAGED >> m & 1) {
      if (job.base[m] != holds[m] || PANELS > 1) {
        holds[m] = job.base[m];
        const int count = min(in.block[m], in.length[m] - job.base[m]) * LANES;
        for (int i = threadIdx.x; i < count; i += THREADS) {
          const int column = panel * LANES + i % LANES;
          if (column < WIDTH) to[i] = in.factor[m][(long long)(job.base[m] + i / LANES) * WIDTH + column];
        }
      }
      to += in.block[m] * LANES;
    }
  __syncthreads();
}
#endif
