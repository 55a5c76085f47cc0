// Reduction of a symmetric matrix to tridiagonal form, Q T Q^T, by Householder reflections; see backend/ops/eigh.py.
//
// A cluster of thread blocks holds the matrix in registers: a block 32 rows, a warp four, a lane every 32nd column. In
// each step every warp computes the reflection of a column itself, from the same numbers in the same order. Then the
// blocks exchange the product of the matrix with it, and the next column: one cluster barrier per step.
//
// Compile-time parameters, here and in eigh.cu: SIZE (rows), COUNT (eigenvectors).

#pragma once

constexpr unsigned ALL = 0xFFFFFFFF;
constexpr int PARTS = (SIZE + 31) / 32, PADDED = 32 * PARTS;  // columns of a lane; also the number of thread blocks
constexpr int WARPS = 8, EACH = 32 / WARPS;  // rows of a warp
constexpr bool KEPT = PARTS <= 12;  // whether reflections stay in registers, which do not suffice for more columns
static_assert(EACH == 4);

__device__ __forceinline__ double add_up(double value) {
#pragma unroll
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(ALL, value, step);
  return value;
}

#if __CUDA_ARCH__ >= 900
// When `wait` returns, all blocks see what other blocks sent before `arrive`.
__device__ __forceinline__ void arrive() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Writes to the address that corresponds to `own` in another block of the cluster.
__device__ __forceinline__ void tell(double2* own, int block, double2 value) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(own)), "r"(block));
  asm volatile("st.shared::cluster.v2.f64 [%0], {%1, %2};" ::"r"(there), "d"(value.x), "d"(value.y) : "memory");
}

// Sums four numbers over a warp: lanes 8 r to 8 r + 7 have the sum of number r.
__device__ __forceinline__ double add_up_four(const double (&value)[EACH], int lane) {
  const bool low = lane & 16, odd = lane & 8;
  const double first = (low ? value[2] : value[0]) + __shfl_xor_sync(ALL, low ? value[0] : value[2], 16);
  const double second = (low ? value[3] : value[1]) + __shfl_xor_sync(ALL, low ? value[1] : value[3], 16);
  double sum = (odd ? second : first) + __shfl_xor_sync(ALL, odd ? first : second, 8);
#pragma unroll
  for (int step = 4; step; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
  return sum;
}

// Writes T's diagonal and off-diagonal, and the reflections 1 - factor v v^T, (SIZE, PADDED).
extern "C" __global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(32 * WARPS, 1)
tridiagonal(const double* __restrict__ matrix, double* __restrict__ diagonal, double* __restrict__ beside,
            double* __restrict__ reflections, double* __restrict__ factors) {
  // For each row: its product with the reflection, and its entry of the next column.
  __shared__ double2 told[2][PADDED];
  __shared__ double held[2][PADDED];   // reflections
  const int block = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = 32 * block + EACH * warp;
  // The update of the matrix is - v w^T - w v^T, where w is `factor` times the product of the matrix with v, minus
  // `part` times v.
  double a[EACH][PARTS], column[PARTS], v[PARTS], w[PARTS], factor = 0, part = 0;
#pragma unroll
  for (int j = 0; j < PARTS; j++) {
    const int c = 32 * j + lane;
#pragma unroll
    for (int r = 0; r < EACH; r++) a[r][j] = c < SIZE && first + r < SIZE ? matrix[(first + r) * SIZE + c] : 0;
    column[j] = c < SIZE ? matrix[c] : 0;
    v[j] = w[j] = 0;
  }
  for (int c = threadIdx.x; c < PADDED; c += 32 * WARPS) told[0][c] = told[1][c] = {0, 0}, held[0][c] = held[1][c] = 0;
  arrive();
  wait();

  for (int k = 0; k < SIZE; k++) {
    const int now = k % 2, next = k + 1;
    if (!block && !warp) {
#pragma unroll
      for (int j = 0; j < PARTS; j++)
        if (32 * j + lane == k) diagonal[k] = column[j];
    }
    if (next == SIZE) break;
    double row_v[EACH], row_w[EACH];
#pragma unroll
    for (int r = 0; r < EACH; r++) {
      row_v[r] = held[1 - now][first + r];
      row_w[r] = factor * told[1 - now][first + r].x - part * row_v[r];
    }
    double below = 0, pivot = 0;
#pragma unroll
    for (int j = 0; j < PARTS; j++) {
      if (32 * j + lane > next) below += column[j] * column[j];
      if (32 * j + lane == next) pivot = column[j];
    }
    below = add_up(below), pivot = __shfl_sync(ALL, pivot, next % 32);
    const double squared = pivot * pivot + below, norm = squared * rsqrt(squared);
    const double lead = below == 0 ? 0 : pivot + copysign(norm, pivot);  // first entry of v

    // Apply the previous reflection to the matrix, and multiply by the current one.
    double product[EACH] = {}, of_next[EACH] = {};
#pragma unroll
    for (int j = 0; j < PARTS; j++) {
      const int c = 32 * j + lane;
      if (32 * j + 32 < k) {  // finished columns, for which `held` has zeros
        if (warp == 1 && block == k % PARTS) reflections[k * PADDED + c] = 0;
        continue;
      }
      const double old_v = KEPT ? v[j] : held[1 - now][c], new_v = c > next && lead != 0 ? column[j] : (c == next ? lead : 0);
#pragma unroll
      for (int r = 0; r < EACH; r++) {
        a[r][j] -= row_v[r] * w[j] + row_w[r] * old_v;
        product[r] += a[r][j] * new_v;
        if (c == next) of_next[r] = a[r][j];
      }
      v[j] = new_v;
      if (!warp) held[now][c] = new_v;
      if (warp == 1 && block == k % PARTS) reflections[k * PADDED + c] = new_v;
    }
    double2 mine = {add_up_four(product, lane), 0};
#pragma unroll
    for (int r = 0; r < EACH; r++) {
      const double number = __shfl_sync(ALL, of_next[r], next % 32);
      if (lane / 8 == r) mine.y = number;
    }
#pragma unroll
    for (int to = 0; to < PARTS; to += 8)
      if (to + lane % 8 < PARTS) tell(&told[now][first + lane / 8], to + lane % 8, mine);
    arrive();
    factor = below == 0 ? 0 : 1 / (norm * fabs(lead));
    if (!block && !warp && !lane) beside[k] = below == 0 ? pivot : -copysign(norm, pivot), factors[k] = factor;
    wait();

    double inner = 0, to_next = told[now][next].x;
    double2 there[PARTS];
#pragma unroll
    for (int j = 0; j < PARTS; j++) {
      there[j] = told[now][32 * j + lane];
      inner += (KEPT ? v[j] : held[now][32 * j + lane]) * there[j].x;
    }
    part = factor * factor / 2 * add_up(inner);
    const double w_next = factor * to_next - part * lead;
#pragma unroll
    for (int j = 0; j < PARTS; j++) {
      const double of_v = KEPT ? v[j] : held[now][32 * j + lane];
      w[j] = factor * there[j].x - part * of_v;
      column[j] = there[j].y - of_v * w_next - w[j] * lead;
    }
  }
}
#endif
