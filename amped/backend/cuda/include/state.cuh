// What equations know of the factor matrices of CP-ALS, and its flags; see amped/backend/ops/equations.py and small.py.

#pragma once

enum Fact { ITERATIONS, FIT, BEST, FLAGS, SQUARED_NORMS, MODE, FACTS };  // of a run; MODE is where a flag was raised
enum Flag { SINGULAR = 1, NOISY = 2, RANGE = 4, NOT_FINITE = 8, NEAR = 16 };
struct State {  // addresses; `order` matrices of each kind where they are plural
  double *facts, *norms, *scales, *divisor, *grams, *weights, *totals, *inverse;
  int order, parts, constrained, part;  // `weights` are the last norms unless it is
};
struct System { double *gram, *right, *begin; };  // as in nonnegative.py
struct Limits {  // as in cuda/held.py
  double norm, most, noise, condition, accuracy, rounding, near;
  int gains;
};

__device__ double larger(double a, double b) { return a > b || isnan(a) ? a : b; }  // NaN wins
__device__ void raise(const State& s, int flag, int mode) {
  s.facts[FLAGS] = (int)s.facts[FLAGS] | flag;
  s.facts[MODE] = mode;
}

__device__ double add_up(double value) {  // over the block, to all of its threads
  __shared__ double of_warp[32];
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
#pragma unroll 4
  for (int w = 0; w < blockDim.x / 32; w++) total += of_warp[w];
  return total;
}

// Writes whether equations are singular or not finite, from the sizes of a matrix and of its inverse, which is `positive` if
// all pivots were; `exactly`: of an MTTKRP in double precision. By one thread.
__device__ void judge(const State& s, const Limits& limits, int mode, int exactly, bool finite, bool positive, double sizes) {
  const double fit = s.facts[FIT], distance = isnan(fit) ? 1 : fmax(1 - fit, limits.accuracy);
  const double most = exactly ? limits.condition : fmin(limits.condition, limits.noise * distance);
  if (!finite) raise(s, NOT_FINITE, mode);
  else if (!positive || !(sizes <= most)) raise(s, SINGULAR, mode);
}

// Writes the fit, from the squared norm of the model, its inner product with the tensor, and what that is rounded by; `exact`
// ones count. By one thread.
__device__ void take_fit(const State& s, const Limits& limits, double squared, double inner, double size, double length, int exact) {
  const int flags = s.facts[FLAGS];
  const double left = limits.norm * limits.norm + squared - 2 * inner, distance = sqrt(left < 0 ? 0 : left) / limits.norm;
  const bool rounded = limits.rounding * size > limits.accuracy * distance || s.facts[BEST] > limits.near;
  if (!isfinite(distance)) raise(s, NOT_FINITE, s.order);
  else if (limits.gains && !exact && rounded) raise(s, NEAR, s.order);
  else {
    s.facts[FIT] = 1 - distance;
    s.facts[BEST] = larger(1 - distance, s.facts[BEST]);
    s.facts[ITERATIONS] += 1;
    s.facts[SQUARED_NORMS] = length;
    s.facts[FLAGS] = flags & ~NEAR;
  }
}
