// Gram matrices in double precision, of matrices with any number of columns up to MOST: compiled once, because runs of
// small tensors would wait for code of each number of columns.
//
//   REAL  type of the matrix

constexpr int MOST = 64, THREADS = 256, TILE = 32;   // columns, threads of a block, rows in shared memory
constexpr int SIDE = 16, EACH = MOST / SIDE;         // a thread has EACH x EACH entries, SIDE apart
constexpr int SLICES = 8, ADDED = THREADS / SLICES;  // threads that add up an entry, and entries of a block

// Each block writes the Gram matrix of some rows, (blocks, columns * columns), always added in the same order.
extern "C" __global__ void __launch_bounds__(THREADS)
gram(const REAL* __restrict__ matrix, long long pitch, long long rows, int columns, double* __restrict__ parts) {
  __shared__ double tile[TILE][MOST];
  const int i = threadIdx.x / SIDE, j = threadIdx.x % SIDE;
  double sums[EACH][EACH] = {};
  for (long long first = (long long)blockIdx.x * TILE; first < rows; first += (long long)gridDim.x * TILE) {
    __syncthreads();
#pragma unroll 1
    for (int k = threadIdx.x; k < TILE * MOST; k += THREADS) {
      const int row = k / MOST, column = k % MOST;
      const bool there = first + row < rows && column < columns;
      tile[row][column] = there ? (double)matrix[(first + row) * pitch + column] : 0;
    }
    __syncthreads();
#pragma unroll 1
    for (int row = 0; row < TILE; row++) {
      double left[EACH], right[EACH];
      for (int a = 0; a < EACH; a++) left[a] = tile[row][i + a * SIDE], right[a] = tile[row][j + a * SIDE];
      for (int a = 0; a < EACH; a++)
        for (int b = 0; b < EACH; b++) sums[a][b] += left[a] * right[b];
    }
  }
  parts += blockIdx.x * (long long)columns * columns;
  for (int a = 0; a < EACH; a++)
    for (int b = 0; b < EACH; b++) {
      const int row = i + a * SIDE, column = j + b * SIDE;
      if (row < columns && column < columns) parts[row * columns + column] = sums[a][b];
    }
}

// Adds up what `blocks` blocks have written.
extern "C" __global__ void __launch_bounds__(THREADS)
add_parts(const double* __restrict__ parts, int blocks, int entries, double* __restrict__ total) {
  __shared__ double slices[SLICES][ADDED];
  const int slice = threadIdx.x / ADDED, at = threadIdx.x % ADDED, entry = blockIdx.x * ADDED + at;
  double sum = 0;
  if (entry < entries)
#pragma unroll 1
    for (int k = slice; k < blocks; k += SLICES) sum += parts[k * (long long)entries + entry];
  slices[slice][at] = sum;
  __syncthreads();
  if (slice || entry >= entries) return;
  for (int k = 1; k < SLICES; k++) sum += slices[k][at];
  total[entry] = sum;
}
