// Plain kernels over coordinates (COO), as others compute: to compare with.
//
// mttkrp  PASTA's (Li et al. 2019): a thread for each nonzero and column, and an atomic addition for each of them.
// phi     Phi of SparTen on a GPU (Algorithm 3 of its paper), but for Pi, which is not stored: a group of LANES threads takes
//         a nonzero, and adds its part to the output atomically.
//
// Compile-time parameters: INPUTS (input modes), REAL (of all numbers), COLUMNS (of a factor matrix
// in memory), LANES (threads of a group: a power of two up to 32, at least as many as columns if there are fewer), STORES (1:
// sums are stored instead of added, so that results are wrong: what atomics cost).

typedef REAL real;

struct Nonzeros {
  const int* index[INPUTS + 1];  // output mode, input modes
  const real* factor[INPUTS];
};

__device__ __forceinline__ void add(real* to, real v) {
#if STORES
  *(volatile real*)to = v;
#else
  atomicAdd(to, v);
#endif
}

__device__ __forceinline__ real product(const Nonzeros& a, long long p, int column) {
  real x = a.factor[0][(long long)a.index[1][p] * COLUMNS + column];
#pragma unroll
  for (int m = 1; m < INPUTS; m++) x *= a.factor[m][(long long)a.index[m + 1][p] * COLUMNS + column];
  return x;
}

extern "C" __global__ void mttkrp(const Nonzeros a, const real* __restrict__ value, real* out, long long count) {
  const long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x, p = t / COLUMNS;
  const int column = t % COLUMNS;
  if (p < count) add(out + (long long)a.index[0][p] * COLUMNS + column, value[p] * product(a, p, column));
}

extern "C" __global__ void phi(const Nonzeros a, const real* __restrict__ value, const real* __restrict__ own, real* out,
                               real floor, long long count) {
  const long long p = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / LANES;
  const int lane = threadIdx.x % LANES;
  const bool there = p < count;
  const long long row = there ? a.index[0][p] : 0;
  real model = 0;
  for (int column = lane; column < COLUMNS && there; column += LANES) model += own[row * COLUMNS + column] * product(a, p, column);
#pragma unroll
  for (int step = LANES / 2; step; step /= 2) model += __shfl_xor_sync(~0u, model, step);
  if (!there) return;
  const real quotient = value[p] / (model < floor ? floor : model);
  for (int column = lane; column < COLUMNS; column += LANES) add(out + row * COLUMNS + column, quotient * product(a, p, column));
}
