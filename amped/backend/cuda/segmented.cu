// MTTKRP over nonzeros sorted by output row: each output row is a sum of consecutive nonzeros.
//
// A chunk of consecutive nonzeros is an inter-shard partition (AMPED, section 3.1.2). A group of threads takes one
// chunk; each thread keeps 16 bytes of the current output row in registers and adds a run of nonzeros of equal row
// to it. Runs that begin inside the chunk are stored; the first run, if it began in an earlier chunk, goes to the
// chunk's `carry`, and `combine` adds the carries to the output in double precision, 32 to 1 at each level. So there
// are no atomics: sums are taken in an order that depends on the shard alone, and results are bitwise repeatable.
//
// Compiled for each ORDER (number of modes), REAL (float or double: values and factors in memory) and WIDE (products and
// sums of a run). Output and carries are in double precision. The rank is a run-time number: a row of a factor matrix is
// `width` vectors of 16 bytes, zero-padded.

typedef REAL real;
typedef WIDE wide;

constexpr int PER_VECTOR = 16 / sizeof(real);
constexpr int UNROLL = ORDER <= 4 ? 4 : 2;  // nonzeros in flight: more gathers hide more latency, until registers run out
constexpr int BLOCKS = ORDER == 4 ? 4 : 5;   // on a multiprocessor: as many as leave registers enough not to spill
constexpr int FAN_IN = 32;

struct __align__(16) Vector {
  real at[PER_VECTOR];
};
struct Sum {
  wide at[PER_VECTOR];
};
struct __align__(4 * UNROLL) Indices {
  int at[UNROLL];
};
struct __align__(UNROLL * sizeof(real) > 16 ? 16 : UNROLL * sizeof(real)) Values {
  real at[UNROLL];
};
struct Inputs {
  const int* index[ORDER - 1];
  const Vector* factor[ORDER - 1];
};
// Which vector of which item a thread works on: the items of a block side by side, wide rows over blockIdx.y.
struct Place {
  long long item;
  int vector;
  __device__ Place(int lanes)
      : item(blockIdx.x * (long long)(blockDim.x / lanes) + threadIdx.x / lanes),
        vector(blockIdx.y * lanes + threadIdx.x % lanes) {}
};

template <class Wide>
__device__ __forceinline__ Wide stream(const Wide* p) {  // read once: do not keep in the cache
  Wide out;
  if constexpr (sizeof(Wide) >= 16) {
#pragma unroll
    for (int k = 0; k < sizeof(Wide) / 16; k++) ((int4*)&out)[k] = __ldcs((const int4*)p + k);
  } else {
    *(int2*)&out = __ldcs((const int2*)p);
  }
  return out;
}

__device__ __forceinline__ Vector gather(const Vector* p) {
  int4 bits = __ldg((const int4*)p);
  return *(Vector*)&bits;
}

extern "C" __global__ void __launch_bounds__(128, BLOCKS)
segmented(Inputs in, const int* __restrict__ rows, const real* __restrict__ values, double* __restrict__ out,
          double* __restrict__ carry, long long nonzeros, int chunk, int lanes, int width, int row_begin, int continues) {
  const Place here(lanes);
  const long long begin = here.item * chunk, end = min(begin + chunk, nonzeros);
  if (begin >= nonzeros || here.vector >= width) return;
  int row = rows[begin];
  bool carried = begin ? rows[begin - 1] == row : continues;
  Sum sum = {};
  auto flush = [&] {
    double* target = carried ? carry + here.item * width * PER_VECTOR : out + (long long)(row - row_begin) * width * PER_VECTOR;
#pragma unroll
    for (int k = 0; k < PER_VECTOR; k += 2)
      ((double2*)(target + here.vector * PER_VECTOR))[k / 2] = make_double2(sum.at[k], sum.at[k + 1]);
  };
  for (long long p = begin; p < end; p += UNROLL) {
    Indices row_of = stream((const Indices*)(rows + p)), index[ORDER - 1];
    Values value = stream((const Values*)(values + p));
#pragma unroll
    for (int m = 0; m < ORDER - 1; m++) index[m] = stream((const Indices*)(in.index[m] + p));
    if (p + UNROLL > end) {  // past the end: repeat the first nonzero with weight zero
#pragma unroll
      for (int u = 1; u < UNROLL; u++)
        if (p + u >= end) {
          value.at[u] = 0;
          row_of.at[u] = row_of.at[u - 1];
#pragma unroll
          for (int m = 0; m < ORDER - 1; m++) index[m].at[u] = index[m].at[0];
        }
    }
    Sum product[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      const Vector f = gather(in.factor[0] + (long long)index[0].at[u] * width + here.vector);
#pragma unroll
      for (int k = 0; k < PER_VECTOR; k++) product[u].at[k] = f.at[k];
    }
#pragma unroll
    for (int m = 1; m < ORDER - 1; m++)
#pragma unroll
      for (int u = 0; u < UNROLL; u++) {
        const Vector f = gather(in.factor[m] + (long long)index[m].at[u] * width + here.vector);
#pragma unroll
        for (int k = 0; k < PER_VECTOR; k++) product[u].at[k] *= (wide)f.at[k];
      }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      if (row_of.at[u] != row) {
        flush();
        carried = false;
        row = row_of.at[u];
        sum = {};
      }
#pragma unroll
      for (int k = 0; k < PER_VECTOR; k++) sum.at[k] += (wide)value.at[u] * product[u].at[k];
    }
  }
  flush();
}

// One level of the sum of carries. Item i stands at nonzero i * step; it has a carry if the nonzero `back` before it,
// where an item of the level below stands, is of the same row. A group of threads takes FAN_IN items, adds runs of
// equal row, and passes its first run up if an item of that row stands before it: every output row is then written by
// one group of a level.
extern "C" __global__ void __launch_bounds__(128)
combine(const int* __restrict__ rows, const double* __restrict__ carry, double* __restrict__ up, double* __restrict__ out,
        long long items, long long step, long long back, int lanes, int width, int row_begin, int continues) {
  const Place here(lanes);
  const long long first = here.item * FAN_IN, last = min(first + FAN_IN, items);
  if (first >= items || here.vector >= width) return;
  double sum[PER_VECTOR];
  int row = -1;
  bool passed_up = false;
  auto flush = [&] {
    if (row < 0) return;
    double* above = up + (here.item * width + here.vector) * PER_VECTOR;
    double* target = out + ((long long)(row - row_begin) * width + here.vector) * PER_VECTOR;
#pragma unroll
    for (int k = 0; k < PER_VECTOR; k++)
      if (passed_up) above[k] = sum[k];
      else target[k] += sum[k];
  };
  for (long long i = first; i < last; i++) {
    const long long at = i * step;
    const int current = rows[at];
    if (!(i ? rows[at - back] == current : (continues && back == 1))) continue;
    if (current != row) {
      flush();
      row = current;
      passed_up = i == first && i > 0 && rows[at - step] == current;
#pragma unroll
      for (int k = 0; k < PER_VECTOR; k++) sum[k] = 0;
    }
#pragma unroll
    for (int k = 0; k < PER_VECTOR; k++) sum[k] += carry[(i * width + here.vector) * PER_VECTOR + k];
  }
  flush();
}
