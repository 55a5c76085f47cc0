// MTTKRP over nonzeros in coordinate form: the published algorithms, to compare with and for the least memory.
//
// ATOMIC      Algorithm 2 of AMPED (MTTKRP-A and -B of GenTen): each nonzero is added to its output row by itself, in the
//             factors' precision. A row that gets millions of them loses those below its last bit.
// otherwise   MTTKRP-C of GenTen: a permutation brings the nonzeros of a row together; a thread adds up runs of equal row
//             and adds their sums to the output in double precision.
//
// Compiled for INPUTS (input modes), REAL, LANES (threads that share a row), WIDTH (vectors of a factor row), COLUMN (which
// column of the nonzeros is the output index; the others are those of the input modes, in order) and ATOMIC.

typedef REAL real;

constexpr int PER_VECTOR = 16 / sizeof(real), COLUMNS = WIDTH * PER_VECTOR;
constexpr int CHUNK = 128;  // nonzeros; as many are summed up in single precision
constexpr int BATCH = 4;    // nonzeros whose factor rows are in flight together

struct __align__(16) Vector {
  real at[PER_VECTOR];
};
struct Nonzeros {
  const int* column[INPUTS + 1];
  const real* values;
  const unsigned* order;  // null: as they are
  const Vector* factor[INPUTS];
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
        const Vector f = in.factor[m][(long long)index * WIDTH + vector];
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
