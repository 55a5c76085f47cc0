// One pass over rows of an MTTKRP: they are solved and stored, and what CP-ALS has to know of all of them is added up.
//
//   RANK  columns
//   REAL  of the factor matrix
//
// A block of threads takes tiles of ROWS rows in turn. A thread has EACH rows by WIDE columns of a tile, SIDE apart, and
// as many columns by columns of the Gram matrix, so that a number from shared memory is used several times.

constexpr int SIDE = 16, ROWS = 64, EACH = ROWS / SIDE, WIDE = (RANK + SIDE - 1) / SIDE;
constexpr int SPAN = WIDE * SIDE, PITCH = SPAN + 1;  // doubles of a row of the inverse, and of the tile
constexpr int ENTRIES = (RANK + 2) * RANK;           // what a block leaves: its Gram matrix, dots, largest

__device__ double larger(double a, double b) { return a > b || isnan(a) ? a : b; }  // what is no number stays

// Writes source @ inverse, rounded, to `target`. `parts` gets for each block of threads the Gram matrix of what is
// stored, the inner products of its columns with those of `source`, and the largest magnitudes before rounding.
extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
solve(const double* __restrict__ source, long long source_stride, const double* __restrict__ inverse,
      REAL* __restrict__ target, long long target_stride, long long rows, double* __restrict__ parts) {
  extern __shared__ double shared[];
  double *factor = shared, *tile = shared + RANK * SPAN;
  const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
  for (int k = threadIdx.x; k < RANK * SPAN; k += SIDE * SIDE)
    factor[k] = k % SPAN < RANK ? inverse[k / SPAN * RANK + k % SPAN] : 0;
  double gram[WIDE][WIDE] = {}, dots[WIDE] = {}, largest[WIDE] = {};
  for (long long first = blockIdx.x * (long long)ROWS; first < rows; first += gridDim.x * (long long)ROWS) {
    __syncthreads();
    for (int k = threadIdx.x; k < ROWS * RANK; k += SIDE * SIDE) {
      const int row = k / RANK, column = k % RANK;
      tile[row * PITCH + column] = first + row < rows ? source[(first + row) * source_stride + column] : 0;
    }
    __syncthreads();
    double solved[EACH][WIDE] = {};
#pragma unroll 4
    for (int k = 0; k < RANK; k++)
#pragma unroll
      for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++)
          solved[i][j] += tile[(ty + i * SIDE) * PITCH + k] * factor[k * SPAN + tx + j * SIDE];
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
      for (int j = 0; j < WIDE; j++) {
        const int row = ty + i * SIDE, column = tx + j * SIDE;
        largest[j] = larger(fabs(solved[i][j]), largest[j]);
        const REAL stored = solved[i][j];
        solved[i][j] = stored;
        if (column >= RANK || first + row >= rows) continue;
        target[(first + row) * target_stride + column] = stored;
        dots[j] += tile[row * PITCH + column] * solved[i][j];
      }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
      for (int j = 0; j < WIDE; j++) tile[(ty + i * SIDE) * PITCH + tx + j * SIDE] = solved[i][j];
    __syncthreads();
#pragma unroll 2
    for (int row = 0; row < ROWS; row++)
#pragma unroll
      for (int i = 0; i < WIDE; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++)
          gram[i][j] += tile[row * PITCH + ty + i * SIDE] * tile[row * PITCH + tx + j * SIDE];
  }
  double* part = parts + blockIdx.x * (long long)ENTRIES;
  double* sums = tile;  // SIDE rows of dots, and of largest
  __syncthreads();
#pragma unroll
  for (int j = 0; j < WIDE; j++) {
    const int column = tx + j * SIDE;
    sums[ty * PITCH + column] = dots[j];
    sums[(SIDE + ty) * PITCH + column] = largest[j];
#pragma unroll
    for (int i = 0; i < WIDE; i++)
      if (ty + i * SIDE < RANK && column < RANK) part[(ty + i * SIDE) * RANK + column] = gram[i][j];
  }
  __syncthreads();
  for (int column = threadIdx.x; column < RANK; column += SIDE * SIDE) {
    double dot = 0, most = 0;
    for (int k = 0; k < SIDE; k++) {
      dot += sums[k * PITCH + column];
      most = larger(sums[(SIDE + k) * PITCH + column], most);
    }
    part[RANK * RANK + column] = dot;
    part[(RANK + 1) * RANK + column] = most;
  }
}

// Adds what the blocks left to the totals, in the order of the blocks: the bits are the same each time.
extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
add_parts(const double* __restrict__ parts, int blocks, double* __restrict__ gram, double* __restrict__ dots,
          double* __restrict__ largest) {  // no dots are kept at address 0
  const int entry = blockIdx.x * SIDE * SIDE + threadIdx.x;
  if (entry >= ENTRIES) return;
  const int row = entry / RANK, column = entry % RANK;
  double total = row <= RANK ? 0 : largest[column];
#pragma unroll 8
  for (int k = 0; k < blocks; k++) {
    const double part = parts[k * (long long)ENTRIES + entry];
    total = row <= RANK ? total + part : larger(part, total);
  }
  if (row < RANK) gram[entry] += total;
  else if (row > RANK) largest[column] = total;
  else if (dots) dots[column] += total;
}
