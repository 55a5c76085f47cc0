// Isotonic and unimodal regression of the columns of a matrix; see amped/backend/ops/isotonic.py. Everything is float64.
//
// Blocks of equal values are known by their first row: it has their sum and length; the length of other rows is 0. The
// last row of a block has the number of its first row.

constexpr int THREADS = 256;

typedef long long count;

struct Columns {  // of (columns, rows) matrices
  double* sums;  // initially the numbers, finally the result
  int *lengths, *firsts;
};

// Pools blocks from `first` on, of a sum and a length, with blocks below `end` that do not increase, and before, down to
// `begin`, until the means on both sides differ in the right way.
__device__ void pool(const Columns& a, int begin, int first, int next, int end, double sum) {
  for (bool changed = true; changed;) {
    changed = false;
    while (next < end && a.sums[next] * (next - first) <= sum * a.lengths[next]) {
      const int length = a.lengths[next];
      sum += a.sums[next], a.lengths[next] = 0, next += length, changed = true;
    }
    while (first > begin) {
      const int before = a.firsts[first - 1];
      if (a.sums[before] * (next - first) < sum * a.lengths[before]) break;
      sum += a.sums[before], a.lengths[first] = 0, first = before, changed = true;
    }
  }
  a.sums[first] = sum, a.lengths[first] = next - first, a.firsts[next - 1] = first;
}

// A block of threads per column; the second half of the grid solves rows from `peaks` on, decreasing ones, if `peaks` is
// not null. `sign` is -1 for decreasing columns. Each thread pools a part of the column, then threads join pairs of parts.
extern "C" __global__ void __launch_bounds__(THREADS)
monotone(double* sums, int* lengths, int* firsts, int rows, const int* __restrict__ peaks, int sign) {
  const int column = blockIdx.x, second = blockIdx.y, t = threadIdx.x;
  const int origin = second ? peaks[column] : 0, size = (peaks && !second ? peaks[column] : rows) - origin;
  const count skip = column * (count)rows + origin;
  const Columns a = {sums + skip, lengths + skip, firsts + skip};
  const double factor = second ? -sign : sign;
  const int each = (size + THREADS - 1) / THREADS;
  const int begin = min(size, t * each), end = min(size, begin + each);
  for (int row = begin; row < end; row++) a.lengths[row] = 0;
  for (int row = begin; row < end; row++) pool(a, begin, row, row + 1, row + 1, factor * a.sums[row]);
  for (int width = 1; width < THREADS; width *= 2) {
    __syncthreads();
    const int middle = min(size, (t + width) * each), last = min(size, (t + 2 * width) * each);
    if (t % (2 * width) || middle >= last) continue;
    const int first = a.firsts[middle - 1], next = middle + a.lengths[middle];
    if (a.sums[first] * a.lengths[middle] < a.sums[middle] * a.lengths[first]) continue;
    const double sum = a.sums[first] + a.sums[middle];
    a.lengths[middle] = 0;
    pool(a, begin, first, next, last, sum);
  }
  __syncthreads();
  __shared__ int latest[THREADS];
  int first = -1;  // of the last block that begins in the part
  for (int row = begin; row < end; row++)
    if (a.lengths[row]) a.sums[row] *= factor / a.lengths[row], first = row;
  latest[t] = first;
  __syncthreads();
  if (begin >= end) return;
  for (int before = t - 1; before >= 0 && (first = latest[before]) < 0;) before--;
  for (int row = begin; row < end; row++)
    if (a.lengths[row]) first = row;
    else a.sums[row] = a.sums[first];
}

// The squared errors of the isotonic regressions of the first 0, 1, ... numbers of each column of a (rows, columns)
// matrix, less the numbers' squares: ``errors``, (2, rows + 1, columns); the second half is that of the last 0, 1, ...
// numbers. One thread each, with stacks in `stacks`, (2, 4, rows + 1, columns): sums, lengths, means and errors.
extern "C" __global__ void prefix_errors(const double* __restrict__ matrix, int rows, int columns, double low, double high,
                                         double* stacks, double* errors) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, second = blockIdx.y;
  if (column >= columns) return;
  const count size = (rows + (count)1) * columns;
  double *sums = stacks + second * 4 * size + column, *lengths = sums + size, *means = lengths + size, *totals = means + size;
  errors += second * size + column;
  const double lowest = __longlong_as_double(0xfff0000000000000ll);
  double top_sum = 0, top_length = 0, top_mean = lowest, top_total = 0;
  count top = 0;
  sums[0] = lengths[0] = totals[0] = errors[0] = 0, means[0] = lowest;
  for (int row = 0; row < rows; row++) {
    double sum = matrix[(second ? rows - 1 - row : row) * (count)columns + column], length = 1, mean = sum;
    while (top_mean >= mean) {
      sum += top_sum, length += top_length, mean = sum / length;
      top -= columns;
      top_sum = sums[top], top_length = lengths[top], top_mean = means[top], top_total = totals[top];
    }
    const double level = fmin(fmax(mean, low), high);
    top += columns;
    top_sum = sum, top_length = length, top_mean = mean, top_total += level * (length * level - 2 * sum);
    sums[top] = sum, lengths[top] = length, means[top] = mean, totals[top] = top_total;
    errors[(row + (count)1) * columns] = top_total;
  }
}

// The first row of the decreasing part of each column, that with the least error. A block of threads per column.
extern "C" __global__ void __launch_bounds__(THREADS)
find_peaks(const double* __restrict__ errors, int rows, int columns, int* peaks) {
  __shared__ double least[THREADS];
  __shared__ int places[THREADS];
  const int column = blockIdx.x, t = threadIdx.x;
  const count size = (rows + (count)1) * columns;
  double best = __longlong_as_double(0x7ff0000000000000ll);
  int place = 0;
  for (int row = t; row <= rows; row += THREADS) {
    const double error = errors[row * (count)columns + column] + errors[size + (rows - row) * (count)columns + column];
    if (error < best) best = error, place = row;
  }
  least[t] = best, places[t] = place;
  for (int far = THREADS / 2; far; far /= 2) {
    __syncthreads();
    if (t >= far) continue;
    const double other = least[t + far];
    if (other < least[t] || (other == least[t] && places[t + far] < places[t])) least[t] = other, places[t] = places[t + far];
  }
  if (!t) peaks[column] = places[0];
}
