// Losses and gradients estimated from samples; see amped/backend/ops/sampled.py and sampled.cuh.
//
//   BLOCKS, LEAST   thread blocks per multiprocessor, and samples of a team, at least
//
// Before this text stand `map_value` and `map_slope`, the loss's formulas.
//
// A lane draws a sample. Its coordinates are then broadcast to its team, LANES lanes with a vector of columns each, which
// evaluates the samples of its lanes in turn. A team has RUN consecutive samples. As these are in order, some modes' rows
// repeat; their gradients are summed in registers, and added to memory when the row changes.
//
// If EXACT, sums are integers, multiples of a power of two that follows from the largest addend (`bound_samples`).

#include "sampled.cuh"
#include "coordinate_table.cuh"

constexpr int BATCHES = LANES < LEAST ? LEAST / LANES : 1, RUN = LANES * BATCHES, STRATA = 2;
constexpr double UNIT_INTERVAL = 1.0 / (1ull << 53);
constexpr int SUM_BITS = 62, LEAST_EXPONENT = -900;

enum Origin { LISTED,
              EVERY,
              ABSENT,
              ANYWHERE,
              BLIND };

struct Elements {
  const int* coordinates;
  const real* values;
  const int* slots;
  long long nnz, mask;
  int begin[ORDER], length[ORDER];
};
struct Stratum {
  long long samples;
  double ratio, weight;  // ratio: length of the part of the list, or of the first mode, for each sample
  int origin, less_zero;
};
struct Strata {
  Stratum at[STRATA];
  int count, second;  // first block of the second stratum
};
struct Model {
  const real* matrix;
  long long offset[ORDER];
  double lower;
  unsigned solved;  // a bit per mode
  int sum_bits;     // binary logarithm of the number of samples, rounded up
};
struct Sample {
  int at[ORDER];
  real value;
  bool counts;
};

// The key of a stratum; see `key_of` of counter_rng.py.
__device__ __forceinline__ word key_of(word key, int stratum) {
  return mixed(mixed(GOLDEN * (1 + key)) + GOLDEN * (word)(1 + stratum));
}

__device__ __forceinline__ double uniform(word key, word number) {
  return (double)(mixed(key + number * GOLDEN) >> 11) * UNIT_INTERVAL;
}

__device__ __forceinline__ long long in_order(word key, word number, long long place, double ratio, long long length) {
  const long long at = (long long)(((double)place + uniform(key, number)) * ratio);
  return at < length ? at : length - 1;
}

// The position of a nonzero, or EMPTY; see coordinate_table.py.
__device__ __forceinline__ int find(const Elements& in, const int* at) {
  for (word place = hashed(at);; place++) {
    const int position = __ldg(in.slots + (place & in.mask));
    if (position == EMPTY) return EMPTY;
    bool same = true;
#pragma unroll
    for (int k = 0; k < ORDER; k++) same &= __ldg(in.coordinates + (long long)position * ORDER + k) == at[k];
    if (same) return position;
  }
}

__device__ __forceinline__ Sample draw(const Elements& in, const Stratum& of, word key, long long n) {
  Sample drawn;
  drawn.counts = n < of.samples, drawn.value = 0;
  if (!drawn.counts) n = of.samples - 1;
  if (of.origin <= EVERY) {
    const long long position = of.origin == EVERY ? n : in_order(key, n, n, of.ratio, in.nnz);
#pragma unroll
    for (int k = 0; k < ORDER; k++) drawn.at[k] = __ldg(in.coordinates + position * ORDER + k);
    drawn.value = __ldg(in.values + position);
    return drawn;
  }
  drawn.at[0] = in.begin[0] + (int)in_order(key, n * ORDER, n, of.ratio, in.length[0]);
#pragma unroll
  for (int k = 1; k < ORDER; k++) drawn.at[k] = in.begin[k] + (int)(uniform(key, n * ORDER + k) * in.length[k]);
  if (of.origin == BLIND) return drawn;
  const int position = find(in, drawn.at);
  if (position == EMPTY) return drawn;
  if (of.origin == ABSENT) drawn.counts = false;
  else drawn.value = __ldg(in.values + position);
  return drawn;
}

// The sample of a lane of the team, for all of its lanes.
__device__ __forceinline__ Sample broadcast(const Sample& mine, int lane) {
  Sample result;
#pragma unroll
  for (int k = 0; k < ORDER; k++) result.at[k] = __shfl_sync(ALL, mine.at[k], lane, LANES);
  result.value = __shfl_sync(ALL, mine.value, lane, LANES);
  result.counts = __shfl_sync(ALL, (int)mine.counts, lane, LANES);
  return result;
}

__device__ __forceinline__ Vector load(const real* from) {
  Vector v;
  if constexpr (PER_VECTOR == 4) {
    const float4 x = __ldg((const float4*)from);
    v.at[0] = x.x, v.at[1] = x.y, v.at[PER_VECTOR - 2] = x.z, v.at[PER_VECTOR - 1] = x.w;
  } else {
    const double2 x = __ldg((const double2*)from);
    v.at[0] = x.x, v.at[1] = x.y;
  }
  return v;
}

struct Rows {
  Vector at[ORDER];
};

__device__ __forceinline__ Rows rows_of(const Model& of, const Sample& sample, int vector) {
  Rows rows;
#pragma unroll
  for (int k = 0; k < ORDER; k++) rows.at[k] = load(of.matrix + (of.offset[k] + sample.at[k]) * COLUMNS + vector * PER_VECTOR);
  return rows;
}

template <typename T>
__device__ __forceinline__ T model_part(const Rows& rows) {
  T sum = 0;
#pragma unroll
  for (int c = 0; c < PER_VECTOR; c++) {
    T product = rows.at[0].at[c];
#pragma unroll
    for (int k = 1; k < ORDER; k++) product *= (T)rows.at[k].at[c];
    sum += product;
  }
  return sum;
}

template <typename T>
__device__ __forceinline__ T over_team(T sum) {
#pragma unroll
  for (int far = LANES / 2; far; far /= 2) sum += __shfl_xor_sync(ALL, sum, far);
  return sum;
}

__device__ __forceinline__ double slope_at(const Stratum& of, const Model& model, double x, double m) {
  const double slope = map_slope(x, m);
  return of.weight * (of.less_zero ? slope - map_slope(0, m) : slope);
}

// The sums of gradients in memory.
struct Sums {
  total* gradient;
  unsigned char* touched;
  word* bound;  // bits of the largest addend
};

__device__ __forceinline__ double scale_of(word bound, int sum_bits, bool inverse) {
  const double largest = __longlong_as_double(bound);
  if (!isfinite(largest)) return largest - largest;  // NaN
  const int exponent = SUM_BITS - sum_bits - 1 - (largest > 0 ? max(ilogb(largest), LEAST_EXPONENT) : LEAST_EXPONENT);
  return scalbn(1.0, inverse ? -exponent : exponent);
}

__device__ __forceinline__ void add(total* to, const Vector& v, double scale) {
#if EXACT
#pragma unroll
  for (int c = 0; c < PER_VECTOR; c++) atomicAdd((word*)to + c, (word)__double2ll_rn(scale * v.at[c]));
#elif __CUDA_ARCH__ >= 900
  if constexpr (PER_VECTOR == 4)
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"((float)v.at[0]), "f"((float)v.at[1]),
                 "f"((float)v.at[PER_VECTOR - 2]), "f"((float)v.at[PER_VECTOR - 1]) : "memory");
  else
#pragma unroll
    for (int c = 0; c < PER_VECTOR; c++) atomicAdd(to + c, v.at[c]);
#else
#pragma unroll
  for (int c = 0; c < PER_VECTOR; c++) atomicAdd(to + c, v.at[c]);
#endif
}

// Receives the gradients of samples: adds them to memory, or only finds the largest addend.
template <bool BOUND>
struct Receiver {
  Sums to;
  double scale, largest;

  __device__ __forceinline__ Receiver(const Sums& sums, const Model& of) : to(sums), scale(1), largest(0) {
    if (EXACT && !BOUND) scale = scale_of(*sums.bound, of.sum_bits, false);
  }
  __device__ __forceinline__ void take(long long row, int vector, int mode, const Vector& v) {
    if (vector >= VECTORS) return;
    if constexpr (BOUND) {
#pragma unroll
      for (int c = 0; c < PER_VECTOR; c++) {
        const double size = fabs((double)v.at[c]);
        if (!(size <= largest)) largest = size;
      }
    } else {
      add(to.gradient + row * COLUMNS + vector * PER_VECTOR, v, scale);
      if (vector == mode % LANES % VECTORS && !to.touched[row]) to.touched[row] = 1;
    }
  }
};

// The gradients that a team has not passed on yet: those of one row of each mode.
struct Pending {
  Vector sum[ORDER];
  int row[ORDER];
};

template <bool BOUND>
__device__ __forceinline__ void receive(Pending& pending, int k, const Model& of, int vector, Receiver<BOUND>& to) {
  if (pending.row[k] >= 0) to.take(of.offset[k] + pending.row[k], vector, k, pending.sum[k]);
}

// Passes the gradient of a sample on, or holds it back; from the last mode to the first.
template <bool BOUND>
__device__ __forceinline__ void scatter(const Rows& rows, const Sample& sample, real slope, const Model& of, int vector,
                                        Pending& pending, Receiver<BOUND>& to) {
  Vector ahead[ORDER], rest;  // products of the rows before each mode, and of those behind it
  ahead[0] = rows.at[0];
#pragma unroll
  for (int k = 1; k < ORDER; k++)
#pragma unroll
    for (int c = 0; c < PER_VECTOR; c++) ahead[k].at[c] = ahead[k - 1].at[c] * rows.at[k].at[c];
#pragma unroll
  for (int c = 0; c < PER_VECTOR; c++) rest.at[c] = slope;
#pragma unroll
  for (int k = ORDER - 1; k >= 0; k--) {
    Vector whole = rest;
#pragma unroll
    for (int c = 0; c < PER_VECTOR; c++) {
      if (k) whole.at[c] *= ahead[k ? k - 1 : 0].at[c];
      rest.at[c] *= rows.at[k].at[c];
    }
    if (!(of.solved >> k & 1)) continue;
    if constexpr (EACH > 1) {
      to.take(of.offset[k] + sample.at[k], vector, k, whole);
    } else if (sample.at[k] == pending.row[k]) {
#pragma unroll
      for (int c = 0; c < PER_VECTOR; c++) pending.sum[k].at[c] += whole.at[c];
    } else {
      receive(pending, k, of, vector, to);
      pending.sum[k] = whole, pending.row[k] = sample.at[k];
    }
  }
}

// The part of a warp: stratum, key, and first sample of its team.
struct Part {
  int stratum;
  word key;
  long long first;

  __device__ __forceinline__ Part(const Strata& strata, word of_step) {
    stratum = blockIdx.x >= strata.second;
    key = key_of(of_step, stratum);
    const long long warp = (blockIdx.x - (stratum ? strata.second : 0)) * (long long)WARPS + threadIdx.x / 32;
    first = (warp * TEAMS + threadIdx.x % 32 / LANES) * RUN;
  }
};

template <bool BOUND>
__device__ __forceinline__ void evaluate(const Elements& in, const Strata& strata, const Model& model, word key, const Sums& sums) {
  const Part part(strata, key);
  const Stratum& of = strata.at[part.stratum];
  const int lane = threadIdx.x % LANES;
  Receiver<BOUND> to(sums, model);
  Pending pending;
#pragma unroll
  for (int k = 0; k < ORDER; k++) pending.row[k] = -1;
#pragma unroll 1
  for (int batch = 0; batch < BATCHES; batch++) {
    const Sample mine = draw(in, of, part.key, part.first + batch * LANES + lane);
#pragma unroll(LANES < 4 ? LANES : 4)
    for (int turn = 0; turn < LANES; turn++) {
      const Sample sample = broadcast(mine, turn);
      real m = 0;
      Rows rows;
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const int vector = lane + e * LANES;
        rows = rows_of(model, sample, vector < VECTORS ? vector : 0);
        if (vector < VECTORS) m += model_part<real>(rows);
      }
      const double whole = over_team(m);
      const real slope = slope_at(of, model, sample.value, whole < model.lower ? model.lower : whole);  // NaN propagates
      if (!sample.counts) continue;
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        const int vector = lane + e * LANES;
        if (EACH > 1 && vector < VECTORS) rows = rows_of(model, sample, vector);
        scatter<BOUND>(rows, sample, slope, model, vector, pending, to);
      }
    }
    __syncwarp();
  }
  if constexpr (EACH == 1)
#pragma unroll
    for (int k = 0; k < ORDER; k++) receive(pending, k, model, lane, to);
  if constexpr (BOUND) {
    word bits = __double_as_longlong(to.largest);
#pragma unroll
    for (int far = 16; far; far /= 2) {
      const word other = __shfl_xor_sync(ALL, bits, far);
      bits = other > bits ? other : bits;
    }
    if (threadIdx.x % 32 == 0) atomicMax(sums.bound, bits);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
add_samples(const __grid_constant__ Elements in, const __grid_constant__ Strata strata, const __grid_constant__ Model model,
            const Step* __restrict__ steps, int step, const Sums sums) {
  evaluate<false>(in, strata, model, steps[step].key, sums);
}

#if EXACT
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
bound_samples(const __grid_constant__ Elements in, const __grid_constant__ Strata strata, const __grid_constant__ Model model,
              const Step* __restrict__ steps, int step, const Sums sums) {
  evaluate<true>(in, strata, model, steps[step].key, sums);
}

// Converts the sums of touched rows to doubles, in place.
extern "C" __global__ void __launch_bounds__(THREADS) convert_sums(const Sums sums, long long rows, int sum_bits) {
  const long long at = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (at >= rows * COLUMNS || !sums.touched[at / COLUMNS]) return;
  ((double*)sums.gradient)[at] = (double)sums.gradient[at] * scale_of(*sums.bound, sum_bits, true);
}
#endif

// Sums two doubles over a block, for its first thread.
__device__ __forceinline__ double2 over_block(double2 mine) {
  __shared__ double2 of_warp[WARPS];
#pragma unroll
  for (int far = 16; far; far /= 2) {
    mine.x += __shfl_xor_sync(ALL, mine.x, far);
    mine.y += __shfl_xor_sync(ALL, mine.y, far);
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  double2 sum = {0, 0};
  for (int w = 0; w < WARPS; w++) sum.x += of_warp[w].x, sum.y += of_warp[w].y;
  return sum;
}

// Writes the sums of a block's samples: the loss, and the products of its derivative and m. In double precision.
extern "C" __global__ void __launch_bounds__(THREADS)
evaluate_samples(const __grid_constant__ Elements in, const __grid_constant__ Strata strata, const __grid_constant__ Model model,
                 word key, double2* __restrict__ parts) {
  const Part part(strata, key);
  const Stratum& of = strata.at[part.stratum];
  const int lane = threadIdx.x % LANES;
  double2 sums = {0, 0};
#pragma unroll 1
  for (int batch = 0; batch < BATCHES; batch++) {
    const Sample mine = draw(in, of, part.key, part.first + batch * LANES + lane);
    double m = 0;
#pragma unroll 1
    for (int turn = 0; turn < LANES; turn++) {
      const Sample sample = broadcast(mine, turn);
      double sum = 0;
#pragma unroll 1
      for (int vector = lane; vector < VECTORS; vector += LANES) sum += model_part<double>(rows_of(model, sample, vector));
      sum = over_team(sum);
      if (turn == lane) m = sum;
    }
    if (!mine.counts) continue;
    if (m < model.lower) m = model.lower;
    const double x = mine.value, value = map_value(x, m);
    sums.x += of.weight * (of.less_zero ? value - map_value(0, m) : value);
    sums.y += slope_at(of, model, x, m) * m;
  }
  sums = over_block(sums);
  if (threadIdx.x == 0) parts[blockIdx.x] = sums;
}

// Sums the parts of all blocks, in a fixed order, with one block.
extern "C" __global__ void __launch_bounds__(THREADS) add_parts(double2* parts, int count) {
  double2 sums = {0, 0};
  for (int at = threadIdx.x; at < count; at += THREADS) sums.x += parts[at].x, sums.y += parts[at].y;
  sums = over_block(sums);
  if (threadIdx.x == 0) parts[0] = sums;
}
