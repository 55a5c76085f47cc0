// Sums over the rows of a factor matrix by column, and copies with columns in another order.
//
//   REAL  type of the matrix

typedef REAL real;

constexpr int WARP = 32, WARPS = 8, SUMS = 3;  // columns and rows of a thread block; squares, magnitudes, signed squares

// Each block sums some rows of 32 columns: `sums` is (blocks, SUMS, columns).
extern "C" __global__ void __launch_bounds__(WARP* WARPS)
column_sums(const real* __restrict__ matrix, long long rows, int columns, long long pitch, double* __restrict__ sums) {
  __shared__ double parts[SUMS][WARPS][WARP];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, column = blockIdx.y * WARP + lane;
  double sum[SUMS] = {};
  if (column < columns)
    for (long long row = (long long)blockIdx.x * WARPS + warp; row < rows; row += (long long)gridDim.x * WARPS) {
      const double x = matrix[row * pitch + column];
      sum[0] += x * x;
      sum[1] += fabs(x);
      sum[2] += x * fabs(x);
    }
  for (int k = 0; k < SUMS; k++) parts[k][warp][lane] = sum[k];
  __syncthreads();
  if (warp >= SUMS || column >= columns) return;
  double total = 0;
  for (int w = 0; w < WARPS; w++) total += parts[warp][w][lane];
  sums[((long long)blockIdx.x * SUMS + warp) * columns + column] = total;
}

// Each block writes the sums of some rows of 32 columns, (blocks, columns), in a fixed order.
template <typename T>
__device__ void sum_rows(const T* __restrict__ matrix, long long rows, int columns, long long pitch, double* __restrict__ sums) {
  __shared__ double parts[WARPS][WARP];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, column = blockIdx.y * WARP + lane;
  double sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (long long row = (long long)blockIdx.x * WARPS + warp; row < rows; row += (long long)gridDim.x * WARPS)
      sum += matrix[row * pitch + column];
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp || column >= columns) return;
  double total = 0;
  for (int w = 0; w < WARPS; w++) total += parts[w][lane];
  sums[(long long)blockIdx.x * columns + column] = total;
}

extern "C" __global__ void __launch_bounds__(WARP* WARPS)
totals(const real* __restrict__ matrix, long long rows, int columns, long long pitch, double* __restrict__ sums) {
  sum_rows(matrix, rows, columns, pitch, sums);
}

// The same for the sums of `totals`, in one block.
extern "C" __global__ void __launch_bounds__(WARP* WARPS)
add_totals(const double* __restrict__ matrix, long long rows, int columns, long long pitch, double* __restrict__ sums) {
  sum_rows(matrix, rows, columns, pitch, sums);
}

// Copies rows: column `order[c]`, divided by `divisor[c]`, becomes column c. Numbers up to `flushed` become 0.
extern "C" __global__ void arrange(const real* __restrict__ matrix, long long rows, int columns, long long pitch,
                                   const int* __restrict__ order, const real* __restrict__ divisor, real flushed,
                                   real* __restrict__ result) {
  const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x, row = at / columns;
  if (row >= rows) return;
  const int column = at % columns;
  const real x = matrix[row * pitch + order[column]] / divisor[column];
  result[at] = x <= flushed ? 0 : x;
}
