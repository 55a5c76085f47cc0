// State of CP-ALS's normal equations on the device, and its flags; see amped/backend/ops/equations.py and
// normal_equations/state.py.

#pragma once

#include "block_sums.cuh"

// Of a run; MODE is the mode that raised a flag.
enum Fact { ITERATIONS,
            FIT,
            BEST,
            FLAGS,
            SQUARED_NORMS,
            MODE,
            FACTS };
enum Flag { SINGULAR = 1,
            NOISY = 2,
            RANGE = 4,
            NOT_FINITE = 8,
            NEAR = 16 };
struct State {  // addresses; plural names have `order` matrices
  double *facts, *norms, *scales, *divisor, *grams, *weights, *totals, *inverse;
  int order, parts, constrained, part;  // unconstrained: `weights` are the last mode's norms
};
struct System { double *gram, *right, *begin; };  // as in ops/nonnegative.py
struct Limits {  // as in launches/device_matrices.py
  double norm, most, noise, condition, accuracy, rounding, near;
  int gains;
};

__device__ double larger(double a, double b) { return a > b || isnan(a) ? a : b; }  // NaN propagates
__device__ void raise(const State& s, int flag, int mode) {
  s.facts[FLAGS] = (int)s.facts[FLAGS] | flag;
  s.facts[MODE] = mode;
}

// Raises a flag if the equations are singular or not finite. `sizes` is the product of the norms of the matrix and its
// inverse; `positive`: all pivots were positive; `exactly`: the MTTKRP is in double precision. For one thread.
__device__ void judge(const State& s, const Limits& limits, int mode, int exactly, bool finite, bool positive, double sizes) {
  const double fit = s.facts[FIT], distance = isnan(fit) ? 1 : fmax(1 - fit, limits.accuracy);
  const double most = exactly ? limits.condition : fmin(limits.condition, limits.noise * distance);
  if (!finite) raise(s, NOT_FINITE, mode);
  else if (!positive || !(sizes <= most)) raise(s, SINGULAR, mode);
}

// Computes the fit from the squared norm of the model, its inner product with the tensor, and the size of the rounding
// error. Fits near 1 count only if `exact`. For one thread.
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
