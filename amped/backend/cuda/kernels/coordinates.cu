// MTTKRP over nonzeros in coordinate (COO) format: the published algorithms, for comparison and for least memory.
//
// ATOMIC      Algorithm 2 of AMPED (MTTKRP-A and -B of GenTen): one atomic addition per nonzero to its output row, in
// the //             factors' precision. In rows with millions of nonzeros, additions below the last bit are lost.
// otherwise   MTTKRP-C of GenTen: a permutation sorts the nonzeros by row; a thread sums runs of equal row and adds
// each //             sum to the output in double precision.
//
// Compile-time parameters: INPUTS (input modes), STORED (type of values and factors), REAL (of products), LANES
// (threads per row), WIDTH (vectors per factor row), COLUMN (index column of the output mode; the others are the
// input modes, in order) and ATOMIC.

typedef REAL real;

typedef STORED stored;

constexpr int PER_VECTOR = 16 / sizeof(stored), COLUMNS = WIDTH * PER_VECTOR;
constexpr int CHUNK = 128;  // nonzeros: longest sum in the factors' precision
constexpr int BATCH = 4;    // nonzeros whose factor rows are loaded together

struct __align__(16) Row {  // 16 bytes of a row
  stored at[PER_VECTOR];
};
struct Vector {
  real at[PER_VECTOR];
};
struct Nonzeros {
  const int* column[INPUTS + 1];
  const stored* values;
  const unsigned* order;  // permutation; null: identity
  const Row* factor[INPUTS];
  long long count, first_row;
};

#if ATOMIC
typedef real total;
#else
typedef double total;
#endif

#if __CUDA_ARCH__ >= 900
constexpr bool WHOLE_VECTORS = sizeof(total) == 4;
#else
constexpr bool WHOLE_VECTORS = false;
#endif

__device__ __forceinline__ void add(total* to, const Vector& v) {
  if constexpr (WHOLE_VECTORS) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"((float)v.at[0]), "f"((float)v.at[1]),
                 "f"((float)v.at[PER_VECTOR - 2]), "f"((float)v.at[PER_VECTOR - 1]) : "memory");
  } else {
#pragma unroll
    for (int k = 0; k < PER_VECTOR; k++) atomicAdd(to + k, (total)v.at[k]);
  }
}

extern "C" __global__ void __launch_bounds__(256) mttkrp(const __grid_constant__ Nonzeros in, total* __restrict__ out) {
  const int group = threadIdx.x / LANES, vector = blockIdx.y * LANES + threadIdx.x % LANES;
  const long long begin = (blockIdx.x * (long long)(blockDim.x / LANES) + group) * CHUNK;
  const long long end = min(begin + CHUNK, in.count);
  if (begin >= end || vector >= WIDTH) return;
  Vector sum = {};
  int row = -1;
  const auto flush = [&] {
    if (row >= 0) add(out + (row - in.first_row) * COLUMNS + vector * PER_VECTOR, sum);
    sum = {};
  };
  for (long long x = begin; x < end; x += BATCH) {
    Vector product[BATCH];
    int rows[BATCH];
#pragma unroll
    for (int u = 0; u < BATCH; u++) {
      const long long place = min(x + u, end - 1), at = in.order ? in.order[place] : place;
      rows[u] = in.column[COLUMN][at];
      const real value = in.values[at];
#pragma unroll
      for (int k = 0; k < PER_VECTOR; k++) product[u].at[k] = value;
#pragma unroll
      for (int m = 0; m < INPUTS; m++) {
        const int index = in.column[m + (m >= COLUMN)][at];
        const Row f = in.factor[m][(long long)index * WIDTH + vector];
#pragma unroll
        for (int k = 0; k < PER_VECTOR; k++) product[u].at[k] *= f.at[k];
      }
    }
#pragma unroll
    for (int u = 0; u < BATCH; u++) {
      if (x + u >= end) break;
      if (ATOMIC || rows[u] != row) flush();
      row = rows[u];
#pragma unroll
      for (int k = 0; k < PER_VECTOR; k++) sum.at[k] += product[u].at[k];
    }
  }
  flush();
}
