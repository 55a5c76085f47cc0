// Elementwise kernels of CP-APR's multiplicative updates; see amped/backend/ops/mu_update.py. A grid of threads visits
// the entries of (rows, columns) matrices, row by row; `stride` and `phi_stride` are row strides in numbers.
//
//   REAL  type of the factor matrices

typedef REAL real;
typedef long long count;

constexpr int WIDE = 32, TALL = 8;  // thread block for column sums: threads across and down

__device__ count first() { return blockIdx.x * (count)blockDim.x + threadIdx.x; }
__device__ count step() { return gridDim.x * (count)blockDim.x; }

__device__ unsigned int bits(float x) { return __float_as_uint(x); }
__device__ unsigned long long bits(double x) { return __double_as_longlong(x); }
__device__ float number(unsigned int x) { return __uint_as_float(x); }
__device__ double number(unsigned long long x) { return __longlong_as_double(x); }

// `kappas`, if not null, has one number per column.
extern "C" __global__ void begin(real* matrix, count stride, count rows, int columns, const double* __restrict__ weights,
                                 const double* __restrict__ kappas, double kappa, double least) {
  for (count e = first(); e < rows * columns; e += step()) {
    const int column = e % columns;
    real& entry = matrix[e / columns * stride + column];
    const bool small = entry < least;
    const double a = small ? number((bits(entry) | 1) - 1) : entry;  // or a zero could not be marked
    entry = (small && (bits(entry) & 1) ? a + (kappas ? kappas[column] : kappa) : a) * weights[column];
  }
}

// Non-negative numbers compare like their bits; NaN is the largest.
extern "C" __global__ void measure(const double* __restrict__ phi, count phi_stride, const real* __restrict__ matrix, count stride,
                                   count rows, int columns, unsigned long long* violation, const int* __restrict__ done) {
  if (*done) return;
  double most = 0;
  for (count e = first(); e < rows * columns; e += step()) {
    const count row = e / columns;
    const int column = e % columns;
    const double left = 1 - phi[row * phi_stride + column], entry = matrix[row * stride + column];
    const double found = fabs(entry < left ? entry : left);
    if (found > most || found != found) most = found;
  }
  unsigned long long bits = __double_as_longlong(most);
  for (int k = 16; k; k /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, k));
  if (threadIdx.x % 32 == 0 && bits) atomicMax(violation, bits);
}

extern "C" __global__ void apply(const double* __restrict__ phi, count phi_stride, real* matrix, count stride, count rows, int columns,
                                 const double* __restrict__ violation, double* fact, double tol, int* done) {
  if (*(volatile int*)done) return;
  const bool stops = *violation < tol;
  if (first() == 0) {
    fact[0] = *violation;
    if (stops) *done = 1;
    else fact[1] += 1;
  }
  if (stops) return;
  for (count e = first(); e < rows * columns; e += step()) {
    const count row = e / columns;
    const int column = e % columns;
    real& entry = matrix[row * stride + column];
    entry = entry * phi[row * phi_stride + column];
  }
}

// Each block sums its share of the rows of 32 columns, which is always the same.
extern "C" __global__ void __launch_bounds__(WIDE* TALL)
add_parts(const real* __restrict__ matrix, count stride, count rows, int columns, double* __restrict__ parts) {
  __shared__ double sums[TALL][WIDE];
  const int column = blockIdx.y * WIDE + threadIdx.x;
  double sum = 0;
  if (column < columns)
    for (count row = blockIdx.x * (count)TALL + threadIdx.y; row < rows; row += gridDim.x * (count)TALL) sum += matrix[row * stride + column];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y || column >= columns) return;
  for (int k = 1; k < TALL; k++) sum += sums[k][threadIdx.x];
  parts[blockIdx.x * (count)columns + column] = sum;
}

extern "C" __global__ void add_up(const double* __restrict__ parts, int blocks, int columns, double* sums) {
  const int column = first();
  if (column >= columns) return;
  double sum = 0;
#pragma unroll 8
  for (int k = 0; k < blocks; k++) sum += parts[k * (count)columns + column];
  sums[column] += sum;
}

extern "C" __global__ void end(const double* __restrict__ phi, count phi_stride, real* matrix, count stride, count rows, int columns,
                               const double* __restrict__ sums, double least) {
  for (count e = first(); e < rows * columns; e += step()) {
    const count row = e / columns;
    const int column = e % columns;
    real& entry = matrix[row * stride + column];
    const real scaled = sums[column] > 0 ? entry / sums[column] : (double)entry;
    const bool shifts = phi[row * phi_stride + column] > 1;
    entry = scaled < least ? number((bits(scaled) | 1) - !shifts) : scaled;
  }
}
