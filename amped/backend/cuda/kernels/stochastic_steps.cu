// Stochastic steps of the rows that have samples: SGD, AdaGrad and Adam; see `StepRule` of amped/backend/ops/sampled.py.

#include "sampled.cuh"

struct Bounds {  // of each mode; see `MatrixRows`
  long long end[ORDER];
  double lower[ORDER], ridge[ORDER];
  unsigned solved;
  int span;  // rows of a warp
};
struct Decay {
  double first, second, eps;
};
struct Trained {
  real *matrix, *first, *second;
  summed* gradient;
  unsigned char* touched;
  unsigned long long* bound;  // of exact sums; see sampled.cu
};

__device__ __forceinline__ int mode_of(const Bounds& bounds, long long row) {
  int mode = 0;
#pragma unroll
  for (int k = 0; k < ORDER - 1; k++) mode += row >= bounds.end[k];
  return mode;
}

struct __align__(16) Gradient {
  summed at[PER_VECTOR];
};

// Takes the step of a vector of the matrix. With two moments by Adam, with one by AdaGrad.
template <int MOMENTS>
__device__ __forceinline__ void step_vector(const Trained& of, long long at, real lower, real ridge, const Step& step,
                                            const Decay& decay) {
  const Vector old = ((const Vector*)of.matrix)[at];
  const Gradient sum = ((const Gradient*)of.gradient)[at];
  Vector now, first, second;
  if constexpr (MOMENTS > 0) first = ((const Vector*)of.first)[at];
  if constexpr (MOMENTS > 1) second = ((const Vector*)of.second)[at];
  const real rate = step.rate, eps = decay.eps;
#pragma unroll
  for (int c = 0; c < PER_VECTOR; c++) {
    const real g = (real)sum.at[c] + 2 * ridge * old.at[c];
    real change = rate * g;
    if constexpr (MOMENTS == 2) {
      first.at[c] = (real)decay.first * first.at[c] + (real)(1 - decay.first) * g;
      second.at[c] = (real)decay.second * second.at[c] + (real)(1 - decay.second) * g * g;
      change = rate * (first.at[c] * (real)step.correction) / (sqrt(second.at[c] * (real)step.square_correction) + eps);
    } else if constexpr (MOMENTS == 1) {
      first.at[c] += g * g;
      change = rate * g / (sqrt(first.at[c]) + eps);
    }
    now.at[c] = old.at[c] - change;
    if (now.at[c] < lower) now.at[c] = lower;
  }
  ((Vector*)of.matrix)[at] = now;
  ((Gradient*)of.gradient)[at] = {};
  if constexpr (MOMENTS > 0) ((Vector*)of.first)[at] = first;
  if constexpr (MOMENTS > 1) ((Vector*)of.second)[at] = second;
}

// Takes the step of touched rows, and of all rows with a ridge; clears the gradient. A warp has `span` rows.
template <int MOMENTS>
__device__ __forceinline__ void take_step(const Trained& of, const Bounds& bounds, const Step& step, const Decay& decay) {
  __shared__ unsigned char chosen[WARPS][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const long long first = (blockIdx.x * (long long)WARPS + warp) * bounds.span, mine = first + lane;
  bool touched = false, active = false;
  if (lane < bounds.span && mine < bounds.end[ORDER - 1]) {
    const int mode = mode_of(bounds, mine);
    touched = of.touched[mine];
    active = (bounds.solved >> mode & 1) && (touched || bounds.ridge[mode] != 0);
  }
  if (touched) of.touched[mine] = 0;
  const unsigned all = __ballot_sync(ALL, active);
  if (active) chosen[warp][__popc(all & ((1u << lane) - 1))] = lane;
  __syncwarp();
  if (EXACT && blockIdx.x == 0 && threadIdx.x == 0) *of.bound = 0;
  for (int p = lane / LANES; p < __popc(all); p += TEAMS) {
    const long long row = first + chosen[warp][p];
    const int mode = mode_of(bounds, row);
    for (int vector = lane % LANES; vector < VECTORS; vector += LANES)
      step_vector<MOMENTS>(of, row * VECTORS + vector, bounds.lower[mode], bounds.ridge[mode], step, decay);
  }
}

#define STEPS(name, moments)                                                                                                \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                     \
  name(const __grid_constant__ Trained of, const __grid_constant__ Bounds bounds, const Step* __restrict__ steps, int step, \
       const Decay decay) {                                                                                                 \
    take_step<moments>(of, bounds, steps[step], decay);                                                                     \
  }
STEPS(sgd, 0)
STEPS(adagrad, 1)
STEPS(adam, 2)
