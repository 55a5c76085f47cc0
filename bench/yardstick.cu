// Reference kernels, for speed (yardstick) and for errors (oracle).
//
// yardstick  A first-cut segmented MTTKRP in single precision. LANES threads take a nonzero, four columns each; a run of
//            equal output rows is summed in registers, and the ends of a chunk are added by a vector reduction.
// oracle     The same in double precision throughout, one warp per chunk, with atomics at the ends of runs.
//
// Compile-time parameters: ORDER (modes), LANES (vectors per factor row; a power of two up to 32), REAL (values, factors).

typedef REAL real;

constexpr int INPUTS = ORDER - 1, FLIGHT = LANES < 4 ? LANES : 4;  // nonzeros whose factor rows are loaded together
constexpr int WARP = 32;

struct Nonzeros {
  const int* index[ORDER];     // output mode, ascending, then input modes
  const void* factor[INPUTS];  // input factor matrices
};

__device__ __forceinline__ void add(float4* at, float4 v) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
#else
  float* p = (float*)at;
  atomicAdd(p, v.x), atomicAdd(p + 1, v.y), atomicAdd(p + 2, v.z), atomicAdd(p + 3, v.w);
#endif
}

extern "C" __global__ void __launch_bounds__(256)
    yardstick(Nonzeros a, const float* __restrict__ value, float4* __restrict__ out, long long count, int chunk) {
  int lane = threadIdx.x & (LANES - 1);
  long long begin = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / LANES * chunk;
  long long end = begin + chunk < count ? begin + chunk : count;
  if (begin >= count) return;
  unsigned group = LANES == WARP ? 0xffffffffu : ((1u << (LANES % WARP)) - 1u) << ((threadIdx.x & 31) / LANES * LANES);
  float4 sum = make_float4(0, 0, 0, 0);
  int row = a.index[0][begin];
  bool first = true;
  for (long long s = begin; s < end; s += LANES) {
    int index[ORDER];
    float x = 0;
    long long q = s + lane;
#pragma unroll
    for (int m = 0; m < ORDER; m++) index[m] = q < end ? __ldcs(a.index[m] + q) : 0;
    if (q < end)
      x = __ldcs(value + q);
    else
      index[0] = -1;
#pragma unroll
    for (int u0 = 0; u0 < LANES; u0 += FLIGHT) {
      float4 f[INPUTS][FLIGHT];
#pragma unroll
      for (int u = 0; u < FLIGHT; u++)
#pragma unroll
        for (int m = 0; m < INPUTS; m++) {
          long long at = __shfl_sync(group, index[m + 1], u0 + u, LANES);
          f[m][u] = __ldg((const float4*)a.factor[m] + at * LANES + lane);
        }
#pragma unroll
      for (int u = 0; u < FLIGHT; u++) {
        int i = __shfl_sync(group, index[0], u0 + u, LANES);
        float v = __shfl_sync(group, x, u0 + u, LANES);
        if (i < 0) continue;
        if (i != row) {
          float4* at = out + (long long)row * LANES + lane;
          if (first)
            add(at, sum);
          else
            *at = sum;
          first = false, row = i, sum = make_float4(0, 0, 0, 0);
        }
        float4 p = f[0][u];
#pragma unroll
        for (int m = 1; m < INPUTS; m++) p.x *= f[m][u].x, p.y *= f[m][u].y, p.z *= f[m][u].z, p.w *= f[m][u].w;
        sum.x += v * p.x, sum.y += v * p.y, sum.z += v * p.z, sum.w += v * p.w;
      }
    }
  }
  add(out + (long long)row * LANES + lane, sum);
}

extern "C" __global__ void oracle(Nonzeros a, const real* value, double* out, long long count, int chunk, int columns) {
  long long begin = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / WARP * chunk;
  long long end = begin + chunk < count ? begin + chunk : count;
  for (int c = threadIdx.x % WARP; c < columns && begin < end; c += WARP) {
    double sum = 0;
    int row = a.index[0][begin];
    for (long long p = begin; p < end; p++) {
      int i = a.index[0][p];
      if (i != row) {
        atomicAdd(out + (long long)row * columns + c, sum);
        row = i, sum = 0;
      }
      double product = value[p];
      for (int m = 0; m < INPUTS; m++)
        product *= ((const real*)a.factor[m])[(long long)a.index[m + 1][p] * columns + c];
      sum += product;
    }
    atomicAdd(out + (long long)row * columns + c, sum);
  }
}
