// The transformation that makes the columns of a matrix orthonormal, from its Gram matrix: see backend/ops/eigh.py.
//
// Compile-time parameter: COUNT (columns).

constexpr int THREADS = 256;
constexpr unsigned ALL = 0xFFFFFFFF;

// Writes the transformation, (COUNT, COUNT), the largest deviation of the Gram matrix from the identity, and the
// smallest pivot of its Cholesky factor, relative to its diagonal.
extern "C" __global__ void __launch_bounds__(THREADS)
whiten(const double* __restrict__ gram, double* __restrict__ change, double* __restrict__ off, double* __restrict__ pivots) {
  __shared__ double m[COUNT][COUNT + 1], length[COUNT], of_warp[THREADS / 32], roots[COUNT];
  const int t = threadIdx.x;
  double most = 0;
  for (int n = t; n < COUNT * COUNT; n += THREADS) {
    const int i = n / COUNT, j = n % COUNT;
    const double number = gram[n], far = fabs(number - (i == j));
    m[i][j] = number;
    if (i == j) length[i] = rsqrt(number);
    most = far > most || isnan(far) ? far : most;
  }
#pragma unroll
  for (int step = 16; step; step /= 2) {
    const double other = __shfl_xor_sync(ALL, most, step);
    most = other > most || isnan(other) ? other : most;
  }
  if (t % 32 == 0) of_warp[t / 32] = most;
  __syncthreads();
  for (int w = 0; w < THREADS / 32; w++) most = of_warp[w] > most || isnan(of_warp[w]) ? of_warp[w] : most;
  for (int n = t; n < COUNT * COUNT; n += THREADS) m[n / COUNT][n % COUNT] *= length[n / COUNT] * length[n % COUNT];
  __syncthreads();
  // Elimination; the lower half becomes the inverse of the Cholesky factor except for the scales of its rows.
  double least = 1;
  for (int k = 0; k < COUNT; k++) {
    const double pivot = m[k][k], over = 1 / pivot;
    least = pivot > least ? least : pivot;
    for (int n = t; n < (COUNT - k - 1) * COUNT; n += THREADS) {
      const int i = k + 1 + n / COUNT, j = n % COUNT;
      if (j != k) m[i][j] -= m[i][k] * over * m[k][j];
    }
    __syncthreads();
    for (int i = k + 1 + t; i < COUNT; i += THREADS) m[i][k] *= -over;
    if (!t) roots[k] = rsqrt(pivot);
    __syncthreads();
  }
  for (int n = t; n < COUNT * COUNT; n += THREADS) {
    const int i = n / COUNT, j = n % COUNT;
    change[n] = i > j ? 0 : (i == j ? 1 : m[j][i]) * roots[j] * length[i];
  }
  if (!t) *off = most, *pivots = least;
}
