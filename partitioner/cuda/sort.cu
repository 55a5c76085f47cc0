// Kernels of the GPU sort by 64-bit words; see sort_keys.py. One thread per nonzero, or per run of equal nonzeros.
// `order` is a permutation: the nonzero at each sorted position; null is the identity.

typedef unsigned int place;
typedef unsigned long long word;
typedef long long count;

constexpr int AT_ONCE = 16;  // loads in flight while a long run is summed

__device__ count me() { return (count)blockIdx.x * blockDim.x + threadIdx.x; }

__device__ count at(const place* order, count p) { return order ? order[p] : p; }

// Convert numbers.
extern "C" __global__ void to_32(const double* from, float* to, count numbers) {
  const count p = me();
  if (p < numbers) to[p] = (float)from[p];
}

extern "C" __global__ void to_64(const float* from, double* to, count numbers) {
  const count p = me();
  if (p < numbers) to[p] = from[p];
}

// Number words from 0.
extern "C" __global__ void number(word* words, count nonzeros) {
  const count p = me();
  if (p < nonzeros) words[p] = p;
}

// Insert a field of index bits into each word.
extern "C" __global__ void join(const int* column, const place* order, int down, word mask, int up, word* words,
                                count nonzeros) {
  const count p = me();
  if (p < nonzeros) words[p] |= ((word)column[at(order, p)] >> down & mask) << up;
}

// Extract the permutation from sorted words, composed with the previous pass's `order`.
extern "C" __global__ void split(const word* words, word mask, const place* order, place* sorted, count nonzeros) {
  const count p = me();
  if (p < nonzeros) sorted[p] = at(order, words[p] & mask);
}

// Mark nonzeros whose indices differ from the previous one's. `columns` is (modes, nonzeros), contiguous.
extern "C" __global__ void mark(const int* columns, int modes, const place* order, bool* first, count nonzeros) {
  const count p = me();
  if (p >= nonzeros) return;
  bool differs = p == 0;
  for (int m = 0; m < modes && !differs; m++) {
    const int* column = columns + m * nonzeros;
    differs = column[order[p]] != column[order[p - 1]];
  }
  first[p] = differs;
}

// Store the sum of each run of equal nonzeros in its first one, added in order as on the CPU.
template <typename Real>
__device__ void add_up(Real* values, const place* order, const place* starts, bool* kept, count runs) {
  const count r = me();
  if (r >= runs) return;
  const count begin = starts[r], end = starts[r + 1];
  double total = values[order[begin]];
  count q = begin + 1;
  for (; q + AT_ONCE <= end; q += AT_ONCE) {
    Real next[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) next[k] = values[order[q + k]];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) total += next[k];
  }
  for (; q < end; q++) total += values[order[q]];
  values[order[begin]] = total;
  kept[r] = total != 0;
}

extern "C" __global__ void add_up_32(float* values, const place* order, const place* starts, bool* kept, count runs) {
  add_up(values, order, starts, kept, runs);
}

extern "C" __global__ void add_up_64(double* values, const place* order, const place* starts, bool* kept, count runs) {
  add_up(values, order, starts, kept, runs);
}

// Gather 32- or 64-bit elements in sorted order.
template <typename Bits>
__device__ void gather(const Bits* elements, const place* order, Bits* sorted, count places) {
  const count p = me();
  if (p < places) sorted[p] = elements[order[p]];
}

extern "C" __global__ void gather_32(const unsigned* elements, const place* order, unsigned* sorted, count places) {
  gather(elements, order, sorted, places);
}

extern "C" __global__ void gather_64(const word* elements, const place* order, word* sorted, count places) {
  gather(elements, order, sorted, places);
}

constexpr int THREADS = 256;  // of a block that reduces, or selects
constexpr int WARPS = THREADS / 32;
constexpr int SELECTED = 16 * THREADS;  // elements of a block that selects

// Mark elements whose predecessor in a column differs; in the first column (`begins`), also the first element, and
// unmark the others. Without a column only the first element is marked.
extern "C" __global__ void mark_changes(const int* column, int begins, bool* marks, count elements) {
  const count p = me();
  if (p >= elements) return;
  const bool differs = column && p && column[p] != column[p - 1];
  if (begins) marks[p] = !p || differs;
  else if (differs) marks[p] = true;
}

// Mark indices from `low` to below `high`.
extern "C" __global__ void mark_between(const int* column, int low, int high, bool* marks, count elements) {
  const count p = me();
  if (p < elements) marks[p] = column[p] >= low && column[p] < high;
}

// Count the marks of each block of elements.
extern "C" __global__ void count_marks(const bool* marks, count* counts, count elements) {
  const count begin = (count)blockIdx.x * SELECTED + threadIdx.x;
  int found = 0;
  for (int k = 0; k < SELECTED; k += THREADS) found += __syncthreads_count(begin + k < elements && marks[begin + k]);
  if (threadIdx.x == 0) counts[blockIdx.x] = found;
}

// Replace counts by the sums of those before, and store the total after them. One block of 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) sum_before(count* counts, count blocks) {
  __shared__ count sums[1024];
  const count part = (blocks + 1023) / 1024, begin = min(threadIdx.x * part, blocks), end = min(begin + part, blocks);
  count sum = 0;
  for (count b = begin; b < end; b++) sum += counts[b];
  sums[threadIdx.x] = sum;
  for (int step = 1; step < 1024; step *= 2) {
    __syncthreads();
    const count before = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
  }
  count before = sums[threadIdx.x] - sum;
  for (count b = begin; b < end; b++) {
    const count own = counts[b];
    counts[b] = before;
    before += own;
  }
  if (threadIdx.x == 1023) counts[blocks] = before;
}

// Store the positions of marked elements in order, then the number of elements; `before` is from `sum_before`.
extern "C" __global__ void select_marked(const bool* marks, const count* before, place* selected, count elements) {
  __shared__ int found[WARPS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  count next = before[blockIdx.x];
  for (int k = 0; k < SELECTED; k += THREADS) {
    const count p = (count)blockIdx.x * SELECTED + k + threadIdx.x;
    const bool marked = p < elements && marks[p];
    const unsigned votes = __ballot_sync(~0u, marked);
    if (lane == 0) found[warp] = __popc(votes);
    __syncthreads();
    int earlier = __popc(votes & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < WARPS; w++) {
      if (w < warp) earlier += found[w];
      all += found[w];
    }
    if (marked) selected[next + earlier] = p;
    next += all;
    __syncthreads();
  }
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) selected[next] = elements;
}

// Count the elements of each index. Threads of a warp with the same index are counted together.
extern "C" __global__ void count_indices(const int* column, word* counts, count elements) {
  const count p = me();
  const unsigned active = __ballot_sync(~0u, p < elements);
  if (p >= elements) return;
  const int index = column[p];
  const unsigned same = __match_any_sync(active, index);
  if (threadIdx.x % 32 == __ffs(same) - 1) atomicAdd(counts + index, (word)__popc(same));
}

template <typename Combine>
__device__ double of_block(double mine, Combine combine) {
  __shared__ double all[THREADS];
  all[threadIdx.x] = mine;
  for (int half = THREADS / 2; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) all[threadIdx.x] = combine(all[threadIdx.x], all[threadIdx.x + half]);
  }
  __syncthreads();
  const double result = all[0];
  __syncthreads();
  return result;
}

// The least and the largest value of those that a block looks at, and how many binary digits after the point make all of
// them whole numbers, at most `digits`.
template <typename Real>
__device__ void bounds(const Real* values, int digits, double* found, count nonzeros) {
  const double infinite = 1.0 / 0.0;
  double low = infinite, high = -infinite;
  int needed = 0;
  for (count p = me(); p < nonzeros; p += (count)gridDim.x * blockDim.x) {
    const double value = values[p];
    low = fmin(low, value);
    high = fmax(high, value);
    for (double scaled = ldexp(value, needed); needed < digits && scaled != rint(scaled); scaled *= 2) needed++;
  }
  low = of_block(low, [](double a, double b) { return fmin(a, b); });
  high = of_block(high, [](double a, double b) { return fmax(a, b); });
  const double most = of_block(needed, [](double a, double b) { return fmax(a, b); });
  if (threadIdx.x) return;
  found[3 * blockIdx.x] = low;
  found[3 * blockIdx.x + 1] = high;
  found[3 * blockIdx.x + 2] = most;
}

extern "C" __global__ void bounds_32(const float* values, int digits, double* found, count nonzeros) {
  bounds(values, digits, found, nonzeros);
}

extern "C" __global__ void bounds_64(const double* values, int digits, double* found, count nonzeros) {
  bounds(values, digits, found, nonzeros);
}

// The sum of squares of each `size` values, divided by the largest before they are squared.
template <typename Real>
__device__ void squares(const Real* values, double largest, count size, double* found, count nonzeros) {
  const count begin = blockIdx.x * size, end = min(begin + size, nonzeros);
  double sum = 0;
  for (count p = begin + threadIdx.x; p < end; p += blockDim.x) {
    const double scaled = values[p] / largest;
    sum += scaled * scaled;
  }
  sum = of_block(sum, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) found[blockIdx.x] = sum;
}

extern "C" __global__ void squares_32(const float* values, double largest, count size, double* found, count nonzeros) {
  squares(values, largest, size, found, nonzeros);
}

extern "C" __global__ void squares_64(const double* values, double largest, count size, double* found, count nonzeros) {
  squares(values, largest, size, found, nonzeros);
}
