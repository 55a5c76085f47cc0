// Inverses of large symmetric positive definite matrices, computed by squares (square submatrices).
//
// Each step sweeps one square of rows and columns out of all others (Gauss-Jordan elimination, which keeps the matrix
// symmetric: only squares on and below the diagonal are stored). The updates use the inverse X of the square's
// Cholesky factor, because rounding errors of the square's inverse, X^T X, would be multiplied by its condition
// number. The thread block that updates the next square on the diagonal also computes its X.
//
//   SIDE  rows and columns of a square: 64, or 32 if thread blocks have less shared memory

#pragma once

// In an inversion, a thread has ACROSS x ACROSS numbers.
constexpr int THREADS = 256, WARPS = THREADS / 32, ACROSS = SIDE / 16;
constexpr int EIGHT = 8, DEPTH = 4;  // tensor-core product: EIGHT x DEPTH by DEPTH x EIGHT
constexpr int BESIDE = WARPS / (SIDE / EIGHT), EACH = SIDE / EIGHT / BESIDE;  // warps that share rows; results per warp
constexpr int PITCH = SIDE + 4;  // row stride in shared memory: 16 lanes hit 16 banks

struct Wide {
  double *even, *odd;  // used alternately, (squares * SIDE)^2
  double* parts;  // partial sums, see `Parts`
  int rank, squares;
};
struct Parts { double *sizes, *inverse_sizes, *finite, *positive, *fit; };

__device__ Parts parts_of(const Wide& w) {
  const int below = w.squares * (w.squares + 1) / 2;
  return {w.parts, w.parts + below, w.parts + 2 * below, w.parts + 3 * below, w.parts + 3 * below + w.squares};
}
__device__ long long pitch_of(const Wide& w) { return (long long)w.squares * SIDE; }
__device__ double* square_of(const Wide& w, int which, int i, int j) {
  return (which ? w.odd : w.even) + (i * pitch_of(w) + j) * SIDE;
}

// The square of a thread block, one for each on or below the diagonal; the first block has square `first` of the
// diagonal.
struct Place {
  int i, j;
  bool there;
};
__device__ Place place_of(int squares, int first) {
  const int a = (blockIdx.x + first) % squares, b = (blockIdx.y + first) % squares;
  return {max(a, b), min(a, b), blockIdx.x <= blockIdx.y};
}

// Copies a square to shared memory, transposed if `turned`.
__device__ void copy(double* to, const double* from, long long pitch, bool turned) {
#pragma unroll 4
  for (int e = threadIdx.x; e < SIDE * SIDE; e += THREADS) {
    const int row = e / SIDE, column = e % SIDE;
    to[turned ? column * PITCH + row : row * PITCH + column] = from[row * pitch + column];
  }
}

// Copies any square of the symmetric matrix to shared memory.
__device__ void load(double* to, const Wide& w, int which, int i, int j) {
  copy(to, square_of(w, which, max(i, j), min(i, j)), pitch_of(w), i < j);
}

struct Lane {  // position of a lane's results in a square: `row`, and two columns from `column(n)` on
  int top, far, near, beside;
  __device__ Lane() {
    const int warp = threadIdx.x / 32;
    top = warp / BESIDE * EIGHT, beside = warp % BESIDE, far = threadIdx.x % 32 / DEPTH, near = threadIdx.x % DEPTH;
  }
  __device__ int row() const { return top + far; }
  __device__ int first(int n) const { return (n * BESIDE + beside) * EIGHT; }
  __device__ int column(int n) const { return first(n) + 2 * near; }
};

// Adds the product of a square with a transposed square; both are in shared memory.
__device__ void multiply(double (&sums)[EACH][2], const double* left, const double* right, const Lane& lane) {
#if __CUDA_ARCH__ >= 800
#pragma unroll 4
  for (int k = 0; k < SIDE; k += DEPTH) {
    const double a = left[lane.row() * PITCH + k + lane.near];
#pragma unroll
    for (int n = 0; n < EACH; n++)
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(sums[n][0]), "+d"(sums[n][1]) : "d"(a), "d"(right[(lane.first(n) + lane.far) * PITCH + k + lane.near]));
  }
#else
  for (int k = 0; k < SIDE; k++)
#pragma unroll
    for (int n = 0; n < EACH; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) sums[n][e] += left[lane.row() * PITCH + k] * right[(lane.column(n) + e) * PITCH + k];
#endif
}

// Stores scaled sums in shared memory.
__device__ void put(double* to, const double (&sums)[EACH][2], double times, const Lane& lane) {
#pragma unroll
  for (int n = 0; n < EACH; n++)
#pragma unroll
    for (int e = 0; e < 2; e++) to[lane.row() * PITCH + lane.column(n) + e] = times * sums[n][e];
}

__device__ double over(double number) {  // 1 / number, for numbers of moderate size
  double found;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(found) : "d"(number));
#pragma unroll
  for (int k = 0; k < 2; k++) found = fma(found, fma(-number, found, 1.0), found);
  return found;
}

// Writes the inverse of the Cholesky factor of a square in shared memory; returns whether the square is positive
// definite. The inverse replaces eliminated columns; in the end its rows are multiplied by the roots of the pivots.
__device__ bool invert(const double* square, double* to, long long pitch) {
  __shared__ double line[2][SIDE], pivots[SIDE];
  const int down = threadIdx.x / 16, across = threadIdx.x % 16;
  double a[ACROSS][ACROSS];
#pragma unroll
  for (int p = 0; p < ACROSS; p++)
#pragma unroll
    for (int q = 0; q < ACROSS; q++) a[p][q] = square[(down + 16 * p) * PITCH + across + 16 * q];
  bool positive = true;
#pragma unroll
  for (int part = 0; part < ACROSS; part++)
#pragma unroll 1
    for (int n = 0; n < 16; n++) {
      double* row = line[n % 2];
      if (down == n)
#pragma unroll
        for (int q = 0; q < ACROSS; q++) row[across + 16 * q] = a[part][q];
      __syncthreads();
      const double pivot = row[16 * part + n], over_pivot = over(pivot);
      positive &= pivot > 0;
      if (!threadIdx.x) pivots[16 * part + n] = pivot;
      double times[ACROSS];
#pragma unroll
      for (int p = part; p < ACROSS; p++) times[p] = p > part || down > n ? row[down + 16 * p] * over_pivot : 0;
#pragma unroll
      for (int q = 0; q < ACROSS; q++) {
        const double other = row[across + 16 * q];
#pragma unroll
        for (int p = part; p < ACROSS; p++) {
          const double left = fma(-times[p], other, a[p][q]);
          a[p][q] = q == part && across == n && (p > part || down > n) ? -times[p] : left;
        }
      }
    }
  __syncthreads();
#pragma unroll
  for (int p = 0; p < ACROSS; p++) {
    const double root = 1 / sqrt(pivots[down + 16 * p]);
#pragma unroll
    for (int q = 0; q < ACROSS; q++) {
      const int i = down + 16 * p, j = across + 16 * q;
      to[i * pitch + j] = j < i ? a[p][q] * root : j == i ? root
                                                          : 0;
    }
  }
  return positive;
}
