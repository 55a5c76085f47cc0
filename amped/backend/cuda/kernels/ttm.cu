// A sparse tensor times a matrix in one mode, fibre by fibre (SpTTM); see amped/backend/ops/ttm.py.
//
// Nonzeros are sorted by fibre. The highest bit of an index marks the last nonzero of a fibre, so that starts of fibres
// need not be read. Chunks of nonzeros are cut between fibres, or within long ones; see amped/backend/fibres.py. A
// group of threads sums a chunk, each thread one vector of the rows: the sum of a fibre stays in registers and is
// stored once. The chunk's part of a fibre that continues is carried, and `settle` adds it up.
//
//   REAL     type of values, matrix and result
//   WIDTH    numbers per value: 1, or those of the dense modes of a semi-sparse tensor
//   VECTORS  vectors of 16 bytes per row of the matrix
//   LANES    threads of a group; wider rows take several groups, numbered by blockIdx.y
//   GROUPS   groups of a thread block
//   AHEAD    nonzeros whose rows are loaded together, a multiple of 4

typedef REAL real;
typedef long long count;

constexpr int NUMBERS = 16 / sizeof(real);  // numbers of a vector
constexpr int COLUMNS = WIDTH * VECTORS;  // vectors of a row of the result
constexpr unsigned INDEX = 0x7fffffff;

struct __align__(16) vector { real x[NUMBERS]; };
struct __align__(16) four { unsigned x[4]; };
struct __align__(16) chunk { int begin, end, fibre, slot; };  // nonzeros; fibre of the first; slot of the carry, or -1
struct __align__(16) item { int begin, end, fibre, slot; };  // slots to add; fibre of the sum, or -1 and a slot

// Nonzeros are read once, so they bypass the caches, which hold rows of the matrix.
template <typename Bits>
__device__ Bits streamed(const void* from) {
  const float4 bits = __ldcs((const float4*)from);
  return reinterpret_cast<const Bits&>(bits);
}

__device__ vector row_of(const real* from) {
  const float4 bits = __ldg((const float4*)from);
  return reinterpret_cast<const vector&>(bits);
}

__device__ void store(real* to, const vector& from) { __stcs((float4*)to, reinterpret_cast<const float4&>(from)); }

// Loads nonzeros from a multiple of four on.
__device__ void read(const unsigned* indices, const real* values, count begin, unsigned (&index)[AHEAD], real (&value)[AHEAD]) {
#pragma unroll
  for (int j = 0; j < AHEAD; j += 4) {
    const four some = streamed<four>(indices + begin + j);
#pragma unroll
    for (int k = 0; k < 4; k++) index[j + k] = some.x[k];
  }
#pragma unroll
  for (int j = 0; WIDTH == 1 && j < AHEAD; j += NUMBERS) {
    const vector some = streamed<vector>(values + begin + j);
#pragma unroll
    for (int k = 0; k < NUMBERS; k++) value[j + k] = some.x[k];
  }
}

extern "C" __global__ void __launch_bounds__(LANES* GROUPS)
ttm(const unsigned* __restrict__ indices, const real* __restrict__ values, const chunk* __restrict__ chunks, int chunks_there,
    const real* __restrict__ matrix, real* __restrict__ out, double* __restrict__ carries) {
  const int group = blockIdx.x * GROUPS + threadIdx.x / LANES, column = blockIdx.y * LANES + threadIdx.x % LANES;
  if (group >= chunks_there || column >= COLUMNS) return;
  const chunk mine = chunks[group];
  const real* from = matrix + column % VECTORS * NUMBERS;
  const real* values_of_mine = values + column / VECTORS;
  real* place = out + ((count)mine.fibre * COLUMNS + column) * NUMBERS;
  vector sum = {};
  unsigned next_index[AHEAD];
  real next_value[AHEAD];
  read(indices, values, mine.begin & ~3, next_index, next_value);
  for (int begin = mine.begin & ~3; begin < mine.end; begin += AHEAD) {
    unsigned index[AHEAD];
    real value[AHEAD];
    vector rows[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      index[j] = next_index[j];
      value[j] = next_value[j];
    }
    read(indices, values, begin + AHEAD, next_index, next_value);
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      rows[j] = row_of(from + (count)(index[j] & INDEX) * (VECTORS * NUMBERS));
      if (WIDTH > 1) value[j] = values_of_mine[(count)(begin + j) * WIDTH];
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      const bool there = begin + j >= mine.begin && begin + j < mine.end;
      const real factor = there ? value[j] : 0;
#pragma unroll
      for (int i = 0; i < NUMBERS; i++) sum.x[i] += factor * rows[j].x[i];
      if (there && index[j] > INDEX) {
        store(place, sum);
        place += COLUMNS * NUMBERS;
        sum = vector();
      }
    }
  }
  if (mine.slot < 0) return;
#pragma unroll
  for (int i = 0; i < NUMBERS; i++) carries[((count)mine.slot * COLUMNS + column) * NUMBERS + i] = sum.x[i];
}

// Adds runs of carries to the fibre's row, or to another carry.
extern "C" __global__ void settle(const item* __restrict__ items, int items_there, double* carries, real* out) {
  constexpr int WHOLE = COLUMNS * NUMBERS;
  const count me = blockIdx.x * (count)blockDim.x + threadIdx.x, number = me / WHOLE, column = me % WHOLE;
  if (number >= items_there) return;
  const item mine = items[number];
  double sum = 0;
#pragma unroll 8
  for (int slot = mine.begin; slot < mine.end; slot++) sum += carries[(count)slot * WHOLE + column];
  if (mine.fibre < 0) {
    carries[(count)mine.slot * WHOLE + column] = sum;
  } else {
    real& target = out[(count)mine.fibre * WHOLE + column];
    target = target + sum;
  }
}

// The fibre that has a nonzero: the last one of those that begin no later. `starts` has an element more than there are
// fibres, the number of nonzeros.
__device__ int fibre_of(const unsigned* starts, int fibres, count nonzero) {
  int low = 0, high = fibres + 1;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (starts[middle] <= nonzero) low = middle;
    else high = middle;
  }
  return low;
}

__device__ count cut_near(const unsigned* starts, int fibres, count nonzeros, count target, int slack) {
  if (target >= nonzeros) return nonzeros;
  const int fibre = fibre_of(starts, fibres, target);
  const count back = target - starts[fibre], on = starts[fibre + 1] - target;
  return min(back, on) > slack ? target : back <= on ? target - back
                                                     : target + on;
}

// Cuts nonzeros into chunks, one per thread; see `cut_chunks` in fibres.py. Instead of a slot, a chunk gets the fibre
// that continues after it, or -1.
extern "C" __global__ void cut(const unsigned* __restrict__ starts, int fibres, count nonzeros, int size, int slack, int chunks_there,
                               chunk* __restrict__ chunks) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= chunks_there) return;
  const count begin = cut_near(starts, fibres, nonzeros, (count)c * size, slack);
  const count end = cut_near(starts, fibres, nonzeros, (count)(c + 1) * size, slack);
  const int last = fibre_of(starts, fibres, max(end, (count)1) - 1);
  const bool continues = end > begin && starts[last + 1] > end;
  chunks[c] = {(int)begin, (int)end, fibre_of(starts, fibres, begin), continues ? last : -1};
}

// Marks the last nonzero of each fibre.
extern "C" __global__ void mark_ends(unsigned* indices, const unsigned* __restrict__ starts, int fibres) {
  const int f = blockIdx.x * blockDim.x + threadIdx.x;
  if (f < fibres) indices[starts[f + 1] - 1] |= ~INDEX;
}
