// The hash of coordinates, as in amped/backend/coordinate_table.py, and the mix of counter_rng.py.
//
//   ORDER  modes

#pragma once

typedef unsigned long long word;

constexpr int EMPTY = -1;
constexpr word GOLDEN = 0x9E3779B97F4A7C15ull, FACTOR_0 = 0xBF58476D1CE4E5B9ull, FACTOR_1 = 0x94D049BB133111EBull;

__device__ __forceinline__ word mixed(word bits) {
  bits = (bits ^ (bits >> 30)) * FACTOR_0;
  bits = (bits ^ (bits >> 27)) * FACTOR_1;
  return bits ^ (bits >> 31);
}

__device__ __forceinline__ word hashed(const int* at) {
  word state = 0;
#pragma unroll
  for (int k = 0; k < ORDER; k++) {
    state = (state ^ (word)at[k]) * FACTOR_0;
    state ^= state >> 32;
  }
  return (state * GOLDEN) >> 32;
}
