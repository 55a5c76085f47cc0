// Rows of the matrix of all factor matrices, and stochastic steps.
//
//   ORDER, COLUMNS  modes, and columns of the matrix in memory, a multiple of a vector's
//   REAL            type of values and of the matrix
//   EXACT           whether sums must not depend on the order of additions

#pragma once

typedef REAL real;

#if EXACT
typedef long long total;
typedef double summed;  // the gradient that steps read
#else
typedef real total;
typedef real summed;
#endif

constexpr int PER_VECTOR = 16 / sizeof(real), VECTORS = COLUMNS / PER_VECTOR;
__device__ constexpr int lanes_of(int lanes) { return lanes >= VECTORS || lanes == 32 ? lanes : lanes_of(2 * lanes); }
constexpr int LANES = lanes_of(1), TEAMS = 32 / LANES, EACH = (VECTORS + LANES - 1) / LANES;
constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr unsigned ALL = ~0u;

struct Step {
  unsigned long long key;
  double rate, correction, square_correction;
};
struct __align__(16) Vector {
  real at[PER_VECTOR];
};
