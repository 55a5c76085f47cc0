// Leading eigenvectors of a tridiagonal matrix, transformed back by the reflections; see backend/ops/eigh.py.

#include "tridiagonal.cuh"

constexpr int THREADS = 256, ROUNDS = 8, OFTEN = 8;
constexpr double TINY = 1e-60;  // lower bound of the relative squares of off-diagonal entries

// Divides two numbers by a power of two near the larger one.
__device__ __forceinline__ void rescale(double& one, double& other) {
  const int exponent = max(__double2hiint(one) >> 20 & 0x7FF, __double2hiint(other) >> 20 & 0x7FF);
  const double scale = __hiloint2double((2046 - min(exponent, 2045)) << 20, 0);
  one *= scale, other *= scale;
}

// Returns the number of eigenvalues of T below `x`: sign changes of the leading minors (Barth, Martin and Wilkinson
// 1967).
__device__ __forceinline__ int below(const double* __restrict__ d, const double* __restrict__ squares, double x) {
  double before = 1, minor = d[0] - x;
  int count = minor < 0;
#pragma unroll 8
  for (int i = 1; i < SIZE; i++) {
    const double next = (d[i] - x) * minor - squares[i] * before;
    count += (__double2hiint(next) ^ __double2hiint(minor)) < 0;
    before = minor, minor = next;
    if (i % OFTEN == 0) rescale(minor, before);
  }
  return count;
}

// Writes the largest eigenvalues, the residuals of their eigenvectors of T relative to T, and the eigenvectors of the
// matrix divided by the roots of the eigenvalues, (SIZE, COUNT). A thread block computes one eigenpair.
extern "C" __global__ void __launch_bounds__(THREADS)
eigenvectors(const double* __restrict__ diagonal, const double* __restrict__ beside, const double* __restrict__ reflections,
             const double* __restrict__ factors, double* __restrict__ values, double* __restrict__ left_over,
             double* __restrict__ vectors) {
  __shared__ double d[SIZE], e[SIZE + 1], squares[SIZE + 1];
  // Minors from both ends, and the previous ones.
  __shared__ double up[SIZE], down[SIZE], up_before[SIZE], down_before[SIZE];
  __shared__ double z[PADDED + 2];  // the eigenvector, with a zero at either end
  __shared__ double of_warp[THREADS / 32];
  const int t = threadIdx.x, warp = t / 32, lane = t % 32;
  double norm = 0;
  for (int i = t; i < SIZE; i += THREADS) {
    d[i] = diagonal[i], e[i] = i ? beside[i - 1] : 0;  // e[i] precedes d[i]
    const double size = fabs(d[i]) + fabs(e[i]) + (i + 1 < SIZE ? fabs(beside[i]) : 0);
    norm = size > norm || isnan(size) ? size : norm;
  }
#pragma unroll
  for (int step = 16; step; step /= 2) {
    const double other = __shfl_xor_sync(ALL, norm, step);
    norm = other > norm || isnan(other) ? other : norm;
  }
  if (!lane) of_warp[warp] = norm;
  __syncthreads();
  for (int w = 0; w < THREADS / 32; w++) norm = of_warp[w] > norm || isnan(of_warp[w]) ? of_warp[w] : norm;
  if (!(norm > 0 && norm < 1e300)) {
    if (!t) values[blockIdx.x] = left_over[blockIdx.x] = norm - norm + (norm == 0 ? 0 : nan(""));
    for (int i = t; i < SIZE; i += THREADS) vectors[i * COUNT + blockIdx.x] = 0;
    return;
  }
  for (int i = t; i < SIZE; i += THREADS) d[i] /= norm, e[i] /= norm, squares[i] = fmax(e[i] * e[i], TINY);
  if (!t) e[SIZE] = 0, squares[SIZE] = 0;
  __syncthreads();

  double low = -1.01, high = 1.01;
  for (int round = 0; round < ROUNDS; round++) {
    const double step = (high - low) / (THREADS + 1), x = low + (t + 1) * step;
    const int beneath = __syncthreads_count(below(d, squares, x) <= SIZE - 1 - (int)blockIdx.x);
    const double bottom = low;
    if (beneath) low = bottom + beneath * step;
    if (beneath < THREADS) high = bottom + (beneath + 1) * step;
  }
  const double value = (low + high) / 2;

  // The factorisations of T - value from both ends meet where the eigenvector is large (Parlett and Dhillon 1997).
  if (!t) {
    double before = up_before[0] = 1, minor = up[0] = d[0] - value;
#pragma unroll 8
    for (int i = 1; i < SIZE; i++) {
      if (i % OFTEN == 0) rescale(minor, before);
      const double next = (d[i] - value) * minor - squares[i] * before;
      before = up_before[i] = minor, minor = up[i] = next;
    }
  } else if (t == 32) {
    double before = down_before[SIZE - 1] = 1, minor = down[SIZE - 1] = d[SIZE - 1] - value;
#pragma unroll 8
    for (int i = SIZE - 2; i >= 0; i--) {
      if (i % OFTEN == 0) rescale(minor, before);
      const double next = (d[i] - value) * minor - squares[i + 1] * before;
      before = down_before[i] = minor, minor = down[i] = next;
    }
  }
  __syncthreads();
  for (int i = t; i < SIZE; i += THREADS) up[i] /= up_before[i], down[i] /= down_before[i];
  __syncthreads();
  double least = 1e300;
  int meeting = 0;
  for (int i = lane; i < SIZE; i += 32) {
    const double gap = fabs(up[i] + down[i] - (d[i] - value));
    if (gap < least) least = gap, meeting = i;
  }
#pragma unroll
  for (int step = 16; step; step /= 2) {
    const double other = __shfl_xor_sync(ALL, least, step);
    const int at = __shfl_xor_sync(ALL, meeting, step);
    if (other < least || (other == least && at < meeting)) least = other, meeting = at;
  }
  __syncthreads();
  for (int i = t; i < SIZE; i += THREADS) {
    up[i] = -e[i + 1] / (fabs(up[i]) < TINY ? TINY : up[i]), down[i] = -e[i] / (fabs(down[i]) < TINY ? TINY : down[i]);
  }
  for (int i = t; i < PADDED + 2; i += THREADS) z[i] = 0;
  __syncthreads();
  if (!t) {
    double number = z[meeting + 1] = 1;
#pragma unroll 8
    for (int i = meeting - 1; i >= 0; i--) z[i + 1] = number *= up[i];
  } else if (t == 32) {
    double number = 1;
#pragma unroll 8
    for (int i = meeting + 1; i < SIZE; i++) z[i + 1] = number *= down[i];
  }
  __syncthreads();
  if (warp) return;

  double x[PARTS], squared = 0, left = 0;
#pragma unroll
  for (int j = 0; j < PARTS; j++) {
    const int i = 32 * j + lane;
    x[j] = z[i + 1];
    squared += x[j] * x[j];
    if (i >= SIZE) continue;
    const double off = e[i] * z[i] + (d[i] - value) * x[j] + e[i + 1] * z[i + 2];
    left += off * off;
  }
  squared = add_up(squared), left = add_up(left);
  const double scale = rsqrt(squared);
  if (!lane) values[blockIdx.x] = value * norm, left_over[blockIdx.x] = sqrt(left) * scale;
#pragma unroll
  for (int j = 0; j < PARTS; j++) x[j] *= scale;

  // Two reflections at once, the last ones first.
  double one[PARTS], other[PARTS];
  const auto load = [&](int k) {
#pragma unroll
    for (int j = 0; j < PARTS; j++) {
      one[j] = k >= 0 ? reflections[k * PADDED + 32 * j + lane] : 0;
      other[j] = k >= 1 ? reflections[(k - 1) * PADDED + 32 * j + lane] : 0;
    }
  };
  load(SIZE - 2);
  for (int k = SIZE - 2; k >= 0; k -= 2) {
    double first[PARTS], second[PARTS], dot = 0, other_dot = 0, inner = 0;
#pragma unroll
    for (int j = 0; j < PARTS; j++) {
      first[j] = one[j], second[j] = other[j];
      dot += first[j] * x[j], other_dot += second[j] * x[j], inner += first[j] * second[j];
    }
    load(k - 2);
#pragma unroll
    for (int step = 16; step; step /= 2) {
      dot += __shfl_xor_sync(ALL, dot, step);
      other_dot += __shfl_xor_sync(ALL, other_dot, step);
      inner += __shfl_xor_sync(ALL, inner, step);
    }
    const double by = factors[k] * dot, other_by = k ? factors[k - 1] * (other_dot - by * inner) : 0;
#pragma unroll
    for (int j = 0; j < PARTS; j++) x[j] -= by * first[j] + other_by * second[j];
  }
  const double over = rsqrt(value * norm);
#pragma unroll
  for (int j = 0; j < PARTS; j++)
    if (32 * j + lane < SIZE) vectors[(32 * j + lane) * COUNT + blockIdx.x] = x[j] * over;
}
