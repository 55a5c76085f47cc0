// Contraction of a partial result over one of its two modes: sums of its numbers times rows of that mode's factor
// matrix.
//
//   REAL  type of the partial result and of factor matrices
//   ROWS  rows of the output per thread: each row of the factor matrix is loaded once for all of them
//
// Matrices have `columns` columns in memory, a multiple of the numbers in VECTOR bytes.

typedef REAL real;
constexpr int WARP = 32, THREADS = 256, WARPS = THREADS / WARP, VECTOR = 16, LANES = VECTOR / sizeof(real), AHEAD = 2;

struct alignas(VECTOR) Vector {
  real of[LANES];
};

// out[row] = sum over `at` of partial[row * row_step + at * sum_step] * factor[at], for `rows` rows. The block sums a
// chunk of `at`, from blockIdx.y * chunk on, and stores it at out + blockIdx.y * rows * columns, or adds it if
// `adds`. Grid: (rows x columns, chunks).
extern "C" __global__ void __launch_bounds__(THREADS)
contract_pair(const real* __restrict__ partial, const real* __restrict__ factor, int columns, int rows, int count,
              long long row_step, long long sum_step, int chunk, int adds, double* __restrict__ out) {
  __shared__ double sums[WARPS - 1][ROWS][LANES][WARP];
  const int sides = (columns + WARP * LANES - 1) / (WARP * LANES), lane = threadIdx.x % WARP, across = threadIdx.x / WARP;
  const int column = (blockIdx.x % sides * WARP + lane) * LANES, row = blockIdx.x / sides * ROWS;
  const int begin = blockIdx.y * chunk, end = min(begin + chunk, count);
  double total[ROWS][LANES] = {};
  if (column < columns) {
    const real* of[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) of[r] = partial + min(row + r, rows - 1) * row_step * columns + column;
    for (int at = begin + across; at < end; at += WARPS * AHEAD) {
      Vector weight[AHEAD], number[AHEAD][ROWS];
#pragma unroll
      for (int a = 0; a < AHEAD; a++) {
        const long long place = min(at + a * WARPS, end - 1);
        weight[a] = *reinterpret_cast<const Vector*>(factor + place * columns + column);
#pragma unroll
        for (int r = 0; r < ROWS; r++) number[a][r] = *reinterpret_cast<const Vector*>(of[r] + place * sum_step * columns);
      }
#pragma unroll
      for (int a = 0; a < AHEAD; a++)
        if (at + a * WARPS < end)
#pragma unroll
          for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int l = 0; l < LANES; l++) total[r][l] += (double)(weight[a].of[l] * number[a][r].of[l]);
    }
  }
  if (across)
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int l = 0; l < LANES; l++) sums[across - 1][r][l][lane] = total[r][l];
  __syncthreads();
  if (across || column >= columns) return;
  out += blockIdx.y * (long long)rows * columns;
#pragma unroll
  for (int r = 0; r < ROWS; r++)
    if (row + r < rows)
#pragma unroll
      for (int l = 0; l < LANES; l++) {
        double* place = out + (row + r) * (long long)columns + column + l;
        double sum = adds ? *place : 0;
        for (int w = 0; w < WARPS; w++) sum += w ? sums[w - 1][r][l][lane] : total[r][l];
        *place = sum;
      }
}
