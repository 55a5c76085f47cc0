// Least squares of a row by its normal equations, (G + ridge I) b = right, solved by a team of threads. See
// rows/equations.py of the CPU for the method.
//
//   RANK      columns
//   TEAM      threads of a team: 32, a warp; more, a thread block
//   PACKED    1: the rows of lower triangles follow one another; 0: matrices are RANK x RANK
//   BY_LANES  1: each lane of a team has a row in registers, which is faster, and takes a second to compile

#pragma once

constexpr double LEAST_PIVOT = 1e-12, DOUBTED = 1e-8, CONSISTENT = 1e-7, ROUNDING = 1e-15;  // see row_constants.py
constexpr double LEAST_NOISES = 2, DOUBTED_NOISES = 8;  // the same as multiples of the rounding error of G
constexpr double NOISY = 10;  // CONSISTENT as a multiple of the root of this error
constexpr double INFINITE = 1e300;  // replaces pivots that are too small, so that their unknowns vanish
constexpr int TRIANGLE = RANK * (RANK + 1) / 2, GRAM = PACKED ? TRIANGLE : RANK * RANK;
constexpr int VECTORS = 8, LENGTH = RANK + RANK % 2;  // in addition to the factor; aligned, as they are loaded in pairs
constexpr int GAP = PACKED ? 0 : TRIANGLE % 2;  // before them; packed, the factor follows a triangle

__device__ __forceinline__ int member() { return threadIdx.x % TEAM; }
__device__ __forceinline__ void wait_for_team() {
  if constexpr (TEAM == 32) __syncwarp();
  else __syncthreads();
}
#define EACH(r) for (int r = member(); r < RANK; r += TEAM)

__device__ double sum_of_team(double x) {  // for each thread
#pragma unroll
  for (int far = 16; far; far /= 2) x += __shfl_xor_sync(~0u, x, far);
  if constexpr (TEAM > 32) {
    __shared__ double sums[TEAM / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < TEAM / 32; w++) x += sums[w];
  }
  return x;
}

struct Row {
  double* gram;  // G, on and below the diagonal; replaced if the solution is not unique
  double* lower;  // the Cholesky factor, a packed triangle
  double *old, *slope, *b, *right, *scale, *left, *y, *z;
  int* pivots;
  double noise;  // relative rounding error of G

  __device__ Row(double* gram, double* room, double noise) : gram(gram), lower(room), noise(noise) {
    double** vectors[VECTORS] = {&old, &slope, &b, &right, &scale, &left, &y, &z};
    room += TRIANGLE + GAP;
    for (int k = 0; k < VECTORS; k++, room += LENGTH) *vectors[k] = room;
    pivots = (int*)room;
  }
  static constexpr int BYTES = 8 * (TRIANGLE + GAP + VECTORS * LENGTH) + 4 * LENGTH;  // except `gram`

  __device__ __forceinline__ double& g(int i, int k) const { return gram[PACKED ? i * (i + 1) / 2 + k : i * RANK + k]; }
  __device__ __forceinline__ double both(int i, int k) const { return i < k ? g(k, i) : g(i, k); }
  __device__ __forceinline__ double& l(int i, int k) const { return lower[i * (i + 1) / 2 + k]; }

  __device__ double product(int r, const double* with) const {  // a row of G times a vector
    double sum = 0;
#pragma unroll 8
    for (int k = 0; k < RANK; k++) sum += both(r, k) * with[k];
    return sum;
  }
};

// Puts the largest remaining pivot at position `c`.
__device__ void choose_pivot(const Row& row, int c) {
  if (member() == 0) {
    int at = c;
    for (int i = c + 1; i < RANK; i++)
      if (row.left[i] > row.left[at]) at = i;
    if (at != c) {
      const int p = row.pivots[c];
      row.pivots[c] = row.pivots[at], row.pivots[at] = p;
      const double left = row.left[c];
      row.left[c] = row.left[at], row.left[at] = left;
      for (int j = 0; j < c; j++) {
        const double other = row.l(c, j);
        row.l(c, j) = row.l(at, j), row.l(at, j) = other;
      }
    }
  }
  wait_for_team();
}

// Computes the Cholesky factor of the matrix scaled to a unit diagonal; returns its number of columns, which is less
// than RANK if a pivot is too small. `left` becomes the inverses of its diagonal.
__device__ int factorise(const Row& row, double ridge, bool pivoting) {
  wait_for_team();
  EACH (r) {
    const double square = row.g(r, r) + ridge;
    row.scale[r] = square > 0 ? 1 / sqrt(square) : 0;
    row.left[r] = square > 0 ? 1 : 0;
    row.pivots[r] = r;
  }
  wait_for_team();
  const double least = pivoting ? fmax(LEAST_PIVOT, LEAST_NOISES * row.noise) : fmax(DOUBTED, DOUBTED_NOISES * row.noise);
  for (int c = 0; c < RANK; c++) {
    if (pivoting) choose_pivot(row, c);
    const double square = row.left[c];
    if (!(square > least)) return c;
    const double over_pivot = 1 / sqrt(square);
    const int p = row.pivots[c];
    const double scale = row.scale[p] * over_pivot;
    for (int i = c + 1 + member(); i < RANK; i += TEAM) {
      const int q = row.pivots[i];
      double entry = 0;
#pragma unroll 8
      for (int j = 0; j < c; j++) entry -= row.l(i, j) * row.l(c, j);
      entry = entry * over_pivot + row.both(q, p) * row.scale[q] * scale;
      row.l(i, c) = entry;
      row.left[i] -= entry * entry;
    }
    wait_for_team();
    if (member() == 0) row.l(c, c) = square * over_pivot, row.left[c] = over_pivot;
  }
  return RANK;
}

// Sets b to the solution, by the complete factor.
__device__ void substitute(const Row& row) {
  wait_for_team();
  EACH (i) row.y[i] = row.right[row.pivots[i]] * row.scale[row.pivots[i]];
  wait_for_team();
  for (int i = 0; i < RANK; i++) {
    const double y = row.y[i] * row.left[i];
    for (int k = i + 1 + member(); k < RANK; k += TEAM) row.y[k] -= row.l(k, i) * y;
    if (member() == 0) row.z[i] = y;
    wait_for_team();
  }
  for (int i = RANK - 1; i >= 0; i--) {
    const double z = row.z[i] * row.left[i];
    for (int k = member(); k < i; k += TEAM) row.z[k] -= row.l(i, k) * z;
    if (member() == 0) row.b[row.pivots[i]] = z * row.scale[row.pivots[i]];
    wait_for_team();
  }
}

// Sets b to the solution by a factorisation L D L^T, and returns true, unless a pivot is in doubt. Lane i has row i; G is kept.
__device__ __noinline__ bool solve_by_lanes(double* gram, double* room, double noise, double ridge) {
  const Row row(gram, room, noise);
  const int lane = member(), i = min(lane, RANK - 1);
  double mine[RANK];  // G, then L D, before the diagonal
#pragma unroll
  for (int k = 0; k < RANK; k++) mine[k] = k < i ? row.g(i, k) : 0;
  const double square = row.g(i, i) + ridge, least = fmax(DOUBTED, DOUBTED_NOISES * row.noise);
  double left = square, y = row.right[i];  // the pivot, and the right-hand side, without the columns that are done
#pragma unroll
  for (int c = 0; c < RANK - 1; c++) {
    __syncwarp();
    double sum[2] = {mine[c], 0};
#pragma unroll
    for (int k = 0; k < c; k++) sum[k % 2] -= mine[k] * row.l(c, k);
    mine[c] = sum[0] + sum[1];
    const double entry = mine[c] * (1 / __shfl_sync(~0u, left, c)), solved = __shfl_sync(~0u, y, c);
    if (lane > c && lane < RANK) row.l(lane, c) = entry, left -= mine[c] * entry, y -= entry * solved;
  }
  __syncwarp();
  y /= left;
#pragma unroll
  for (int c = RANK - 1; c > 0; c--) {
    const double solved = __shfl_sync(~0u, y, c), entry = row.l(c, min(lane, c));
    if (lane < c) y -= entry * solved;
  }
  if (lane < RANK) row.b[lane] = y;
  return __all_sync(~0u, lane >= RANK || left > least * square);
}

// Sets b to the solution, and returns true, unless a pivot is in doubt.
__device__ __forceinline__ bool solve_without_pivoting(const Row& row, double ridge) {
  wait_for_team();
  if constexpr (BY_LANES) return solve_by_lanes(row.gram, row.lower, row.noise, ridge);
  else {
    if (factorise(row, ridge, false) < RANK) return false;
    substitute(row);
    return true;
  }
}

// Solves S y = y for the Cholesky factor of S in place of G, and `count` unknowns. One thread.
__device__ void solve_small(const Row& row, int count) {
  for (int j = 0; j < count; j++) {
    for (int k = 0; k < j; k++) row.y[j] -= row.g(j, k) * row.y[k];
    row.y[j] /= row.g(j, j);
  }
  for (int j = count - 1; j >= 0; j--) {
    for (int k = j + 1; k < count; k++) row.y[j] -= row.g(k, j) * row.y[k];
    row.y[j] /= row.g(j, j);
  }
}

// Sets b to the shortest solution, L S^-1 S^-1 L^T right with the factor L of `count` columns and S = L^T L.
__device__ void shortest(const Row& row, int count) {
  EACH (i)
    if (const double scale = row.scale[row.pivots[i]]; scale > 0)  // else L is zero there
      for (int j = 0; j <= min(i, count - 1); j++) row.l(i, j) /= scale;
  wait_for_team();
  for (int j = member(); j < count; j += TEAM) {
    row.y[j] = 0;
    for (int i = j; i < RANK; i++) row.y[j] += row.l(i, j) * row.right[row.pivots[i]];
    for (int k = 0; k <= j; k++) {
      double sum = 0;
      for (int i = j; i < RANK; i++) sum += row.l(i, j) * row.l(i, k);
      row.g(j, k) = sum;
    }
  }
  wait_for_team();
  if (member() == 0) {
    for (int j = 0; j < count; j++) {  // without columns that depend on others up to rounding
      const double least = ROUNDING * row.g(j, j);
      for (int k = 0; k <= j; k++) {
        double entry = row.g(j, k);
        for (int i = 0; i < k; i++) entry -= row.g(j, i) * row.g(k, i);
        row.g(j, k) = k < j ? entry / row.g(k, k) : entry > least ? sqrt(entry)
                                                                  : INFINITE;
      }
    }
    solve_small(row, count);
    solve_small(row, count);
  }
  wait_for_team();
  EACH (i) {
    double sum = 0;
    for (int j = 0; j <= min(i, count - 1); j++) sum += row.l(i, j) * row.y[j];
    row.b[row.pivots[i]] = sum;
  }
  wait_for_team();
}

// Returns whether b solves the equations of the factor L of `count` columns. The shortest solution loses digits if components
// differ much in size.
__device__ bool is_solution(const Row& row, int count) {
  for (int j = member(); j < count; j += TEAM) {
    row.y[j] = 0;
    for (int i = j; i < RANK; i++) row.y[j] += row.l(i, j) * row.b[row.pivots[i]];
  }
  wait_for_team();
  double left = 0, size = 0;
  EACH (i) {
    const int p = row.pivots[i];
    double rest = -row.right[p];
    for (int j = 0; j <= min(i, count - 1); j++) rest += row.l(i, j) * row.y[j];
    left += rest * rest * row.scale[p] * row.scale[p];
    size += row.right[p] * row.right[p] * row.scale[p] * row.scale[p];
  }
  left = sum_of_team(left), size = sum_of_team(size);
  const double most = fmax(CONSISTENT, NOISY * sqrt(row.noise));  // columns that noise hides are no part of L
  return left <= most * most * size;
}

// Sets the first `count` components by pivots to the solution of their equations, by the factor L; the others to zero.
__device__ void solve_some(const Row& row, int count) {
  wait_for_team();
  EACH (r) row.b[r] = 0;
  wait_for_team();
  if (member() == 0) {
    for (int i = 0; i < count; i++) {
      row.y[i] = row.right[row.pivots[i]];
      for (int j = 0; j < i; j++) row.y[i] -= row.l(i, j) * row.y[j];
      row.y[i] /= row.l(i, i);
    }
    for (int i = count - 1; i >= 0; i--) {
      for (int j = i + 1; j < count; j++) row.y[i] -= row.l(j, i) * row.y[j];
      row.y[i] /= row.l(i, i);
      row.b[row.pivots[i]] = row.y[i];
    }
  }
  wait_for_team();
}

// Improves b >= 0 by sweeps over its components (HALS).
__device__ void descend(const Row& row, double ridge, int sweeps) {
  EACH (r) row.b[r] = row.old[r];
  wait_for_team();
  EACH (r) row.y[r] = row.right[r] - row.product(r, row.b);
  wait_for_team();
  for (bool moved = true; moved && sweeps; sweeps--) {
    moved = false;
    for (int r = 0; r < RANK; r++) {
      const double pivot = row.g(r, r) + ridge, now = row.b[r];
      const double next = pivot > 0 ? fmax(now + (row.y[r] - ridge * now) / pivot, 0.0) : 0;
      wait_for_team();
      if (next != now) {
        moved = true;
        EACH (k) row.y[k] -= row.both(k, r) * (next - now);
        if (member() == 0) row.b[r] = next;
      }
      wait_for_team();
    }
  }
}

struct Terms {
  double ridge;
  int sweeps;  // of non-negative rows; 0: no bounds
};
// Equations that rows have in common; `gram` is null if there are none. Those of a row are the difference to the sums of the
// elements that it lacks.
struct Common {
  const double* gram;  // RANK x RANK
  const double* rights;  // the right-hand side of each row, and their distance
  long long pitch;
};
struct Solved {
  double squares;  // the sum of squared residuals
  double deficient;  // 1: there is no unique solution
  double size;  // the sum of squares of the solution
};

// Replaces G of the elements that a row lacks by that of the others, and sets their slope; returns the sum of squared residuals
// without the squares of the values.
__device__ double subtract(const Row& row, const Common& common, long long name) {
#pragma unroll 8
  for (int e = member(); e < RANK * RANK; e += TEAM)
    if (e % RANK <= e / RANK) row.g(e / RANK, e % RANK) = common.gram[e] - row.g(e / RANK, e % RANK);
  wait_for_team();
  double squares = 0;
  EACH (r) {
    const double right = common.rights[name * common.pitch + r];
    row.slope[r] = right - row.product(r, row.old);
    squares -= row.old[r] * (right + row.slope[r]);
  }
  return sum_of_team(squares);
}

// Solves a row. `old` is the row before; `slope` is the sum of (x - m) v over its nonzeros x, `squares` that of
// (x - m)^2, where m is the old model's value. The residuals of the new row follow from its distance to the old one,
// so that little is lost by rounding as the steps get small. The row becomes `b`, as it is stored.
// `whole`: no part of the squared residuals is lacking.
template <class Stored>
__device__ Solved solve_row(const Row& row, const Terms& terms, double squares, bool whole = true) {
  wait_for_team();
  EACH (r) row.right[r] = row.slope[r] + row.product(r, row.old);
  Solved solved = {squares, 0, 0};
  int count = RANK;
  if (terms.sweeps) descend(row, terms.ridge, terms.sweeps);
  else if (!solve_without_pivoting(row, terms.ridge)) {
    count = factorise(row, terms.ridge, true);
    solved.deficient = count < RANK;
    if (count == RANK) substitute(row);
    else {
      shortest(row, count);
      if (!is_solution(row, count)) solve_some(row, count);
    }
  }
  EACH (r) {
    row.b[r] = (double)(Stored)row.b[r];
    row.z[r] = row.b[r] - row.old[r];
  }
  wait_for_team();
  double change = 0, size = 0;
  EACH (r) {
    size += row.b[r] * row.b[r];
    double moved = 0;
    if (count == RANK) moved = row.product(r, row.z) * row.z[r];
    else if (r < count) {  // G is gone
      for (int i = r; i < RANK; i++) moved += row.l(i, r) * row.z[row.pivots[i]];
      moved *= moved;
    }
    change += moved - 2 * row.z[r] * row.slope[r] - (count < RANK ? terms.ridge * row.z[r] * row.z[r] : 0);
  }
  solved.squares = squares + sum_of_team(change);
  if (whole) solved.squares = fmax(solved.squares, 0.0);
  solved.size = sum_of_team(size);
  return solved;
}
