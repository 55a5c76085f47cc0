// Kernels of the GPU sort by 64-bit words; see words.py. One thread per nonzero, or per run of equal nonzeros.
// `order` is a permutation: the nonzero at each sorted position; null is the identity.

typedef unsigned int place;
typedef unsigned long long word;
typedef long long count;

constexpr int AT_ONCE = 16;  // loads in flight while a long run is summed

__device__ count me() { return (count)blockIdx.x * blockDim.x + threadIdx.x; }

__device__ count at(const place* order, count p) { return order ? order[p] : p; }

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
__device__ void add_up(Real* values, const place* order, const count* starts, count nonzeros, bool* kept, count runs) {
  const count r = me();
  if (r >= runs) return;
  const count begin = starts[r], end = r + 1 < runs ? starts[r + 1] : nonzeros;
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

extern "C" __global__ void add_up_32(float* values, const place* order, const count* starts, count nonzeros,
                                     bool* kept, count runs) {
  add_up(values, order, starts, nonzeros, kept, runs);
}

extern "C" __global__ void add_up_64(double* values, const place* order, const count* starts, count nonzeros,
                                     bool* kept, count runs) {
  add_up(values, order, starts, nonzeros, kept, runs);
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
