// Indices and values of synthetic nonzeros, each a function of its number; counter_rng.py does the same on the host.
//
// Compile-time parameter: REAL, the type of values.

typedef unsigned long long word;
typedef REAL real;

constexpr word GOLDEN = 0x9E3779B97F4A7C15ull;
constexpr int IN_SHARED = 8192;  // rows that a thread block counts in shared memory

struct Distribution {
  word key;
  long long length;
  double heavy;  // share of the nonzeros that are in one row
  double span, power;
  int kind;  // 0: uniform, 1: logarithmic (skew 1), 2: a power
};

__device__ __forceinline__ word mixed(word key, word number) {  // splitmix64
  word z = key + (number + 1) * GOLDEN;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__device__ __forceinline__ int index_of(const Distribution& d, word number) {
  double u = (double)(mixed(d.key, number) >> 11) * 0x1p-53;
  u = d.heavy > 0 ? (u - d.heavy) / (1 - d.heavy) : u;
  double x = 0;
  if (u > 0) x = d.kind == 0 ? u * d.length : d.kind == 1 ? exp(u * d.span) - 1 : pow(u * d.span + 1, d.power) - 1;
  long long k = min((long long)x, d.length - 1);
  return (int)((word)(k * 2654435761ll + 12345) % (word)d.length);
}

// For the nonzeros from `begin` on, or for those listed in `at`.
extern "C" __global__ void indices(Distribution d, word begin, const long long* at, long long count, int* out) {
  long long step = (long long)gridDim.x * blockDim.x;
  for (long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x; t < count; t += step)
    out[t] = index_of(d, at ? (word)at[t] : begin + t);
}

// Uniform in (0, 1], or, if `whole` is not 0, an integer from 1 to `whole`.
extern "C" __global__ void values(word key, int whole, word begin, const long long* at, long long count, real* out) {
  long long step = (long long)gridDim.x * blockDim.x;
  for (long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x; t < count; t += step) {
    word bits = mixed(key, at ? (word)at[t] : begin + t);
    out[t] = whole ? (real)(1 + (((bits >> 32) * whole) >> 32)) : (real)((double)((bits >> 40) + 1) * 0x1p-24);
  }
}

// Histogram: adds the nonzeros `begin` to `begin + count` to the counts of their rows.
extern "C" __global__ void counts(Distribution d, word begin, long long count, word* rows) {
  __shared__ unsigned mine[IN_SHARED];
  bool shared = d.length <= IN_SHARED;
  if (shared) {
    for (int row = threadIdx.x; row < d.length; row += blockDim.x) mine[row] = 0;
    __syncthreads();
  }
  long long step = (long long)gridDim.x * blockDim.x;
  for (long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x; t < count; t += step) {
    int row = index_of(d, begin + t);
    if (shared)
      atomicAdd(&mine[row], 1u);
    else
      atomicAdd(&rows[row], 1ull);
  }
  if (shared) {
    __syncthreads();
    for (int row = threadIdx.x; row < d.length; row += blockDim.x)
      if (mine[row]) atomicAdd(&rows[row], (word)mine[row]);
  }
}
