// Phi of several models, or their log-likelihoods, over packed nonzeros. Like phi.cu, but a thread block computes the
// columns of one unit, number blockIdx.y: one model, or several small ones. LANES threads walk through a chunk.
// MODEL of them have all columns of one model, whose values are sums over these threads. The blocks of a unit are
// consecutive, so that the L1 caches hold much of its rows.
//
// Compile-time parameters in addition to those of packed.cuh:
//   THREAD_COUNT  threads of a block
//   LOGS          1: `logs` instead of `phi`, which sums value * log(model) over the nonzeros
// WIDTH is LANES, a power of two; ROWS_OF_MORE is 1, TILED and STAGED are 0, and STORED is STORED_AS_REAL.

#include "packed.cuh"
#include "quotients.cuh"

static_assert(power_from(LANES) == LANES, "sums over lanes");

struct Unit {
  int first;  // first column
  int lanes;  // lanes of each model
  int number;  // number of its first model
};

struct Where {  // the nonzeros
  const Job* jobs;
  const char* records;
  const int* starts;
  const int* runs;
};

struct Sink {  // destination of a thread's sums
  double* out;
  double* carry;
  long long columns;  // row stride
  bool live;
};

// Walks through the `count` nonzeros of a chunk; see phi.cu. `own` is at this thread's vector of row 0 of B.
template <int MODEL>
__device__ __forceinline__ double walk(const Rows& rows, const Packed* own, const char* unit, int chunk, int count,
                                       const int* __restrict__ runs, int start, real floor, const Sink& to) {
  constexpr int HELD = BATCH > MODEL ? BATCH / MODEL : 1;  // models' values per thread after `fold`
  const int lane = threadIdx.x % MODEL;
  const auto row_of = [&](int run) { return unpack(gather<false>(own + (long long)run * rows.width)); };
  const int* run = runs + (start >> 1);
  int current = *run, after = run[2];
  Vector b = row_of(current), next = row_of(run[1]);
  double logs = 0;
#if !LOGS
  Vector sum = {};
  bool carried = start & 1;
  auto flush = [&] {
    if (to.live) store(carried ? to.carry : to.out + current * to.columns, sum);
    carried = false;
    current = *++run;
    sum = {};
  };
#endif
  Records ahead = read(unit, chunk);
#if FIBRE
  Vector lead = rows.row<0>(ahead.at[0]);
#endif
  for (; count > 0; count -= AT_ONCE) {
    const Records now = ahead;
    unit += UNIT;
    ahead = read(unit, chunk);
#pragma unroll
    for (int at = 0; at < AT_ONCE; at += BATCH) {
      const Record* r = now.at + at;
      Vector product[BATCH];
      real model[BATCH];
      multiply<FIBRE>(rows, r, product);
      int begun = 0;  // runs begun in this batch
#pragma unroll
      for (int u = 0; u < BATCH; u++) {
        const bool begins = bits<RUN_AT, 1>(r[u]);
#if FIBRE
        if (bits<FIBRE_AT, 1>(r[u])) lead = rows.row<0>(r[u]);
#pragma unroll
        for (int k = 0; k < PER_VECTOR; k++) product[u].at[k] *= lead.at[k];
#endif
        if (begins) {
          begun++;
          b = next;
          next = row_of(after);
          after = run[2 + begun];
        }
        model[u] = dot(product[u], b);
      }
      fold<BATCH, MODEL>(model, lane);
#pragma unroll
      for (int h = 0; h < HELD; h++) model[h] = model[h] < floor ? floor : model[h];  // NaN propagates
#if LOGS
#pragma unroll
      for (int h = 0; h < HELD; h++) {
        real value = 0;
#pragma unroll
        for (int u = 0; u < BATCH; u++)
          if (u % HELD == h && lane == u * MODEL / BATCH) value = value_of(r[u]);
        logs += (double)value * (double)log(model[h]);
      }
      run += begun;
#else
#pragma unroll
      for (int h = 0; h < HELD; h++) model[h] = inverse(model[h]);
      real value[BATCH];
#pragma unroll
      for (int u = 0; u < BATCH; u++)
        value[u] = value_of(r[u]) * (MODEL > 1 ? __shfl_sync(ALL, model[u % HELD], u * MODEL / BATCH, MODEL) : model[u]);
#pragma unroll
      for (int u = 0; u < BATCH; u++) {
        if (bits<RUN_AT, 1>(r[u])) flush();
#pragma unroll
        for (int k = 0; k < PER_VECTOR; k++) sum.at[k] += value[u] * product[u].at[k];
      }
#endif
    }
  }
#if !LOGS
  flush();
#endif
  return logs;
}

// Dispatches on the number of lanes per model.
template <int MODEL, typename... Arguments>
__device__ __forceinline__ double walk_as(int lanes, const Arguments&... given) {
  if constexpr (MODEL < LANES)
    if (lanes > MODEL) return walk_as<2 * MODEL>(lanes, given...);
  return walk<MODEL>(given...);
}

// Returns the column of a thread, and whether to write it. Threads of finished models repeat another model of the unit,
// which reads no additional data; -1 if all are finished.
__device__ __forceinline__ int column_of(const Unit& unit, const int* done, bool& live) {
  const int lane = threadIdx.x % LANES, each = unit.lanes * PER_VECTOR;
  int model = lane / unit.lanes;
  if (done) {
    live = !done[unit.first + model * each];
    int other = -1;
    for (int k = 0; k < LANES / unit.lanes; k++)
      if (!done[unit.first + k * each]) other = k;
    if (other < 0) return -1;
    if (!live) model = other;
  }
  return unit.first + model * each + lane % unit.lanes * PER_VECTOR;
}

// Stores the sum of each model of a unit over the block's threads, always added in the same order.
__device__ __forceinline__ void store_sums(const Unit& unit, double sum, double* parts) {
  __shared__ double sums[THREADS];
  sums[threadIdx.x] = sum;
  __syncthreads();
  const int model = threadIdx.x;
  if (model >= LANES / unit.lanes) return;
  double whole = 0;
  for (int at = model * unit.lanes; at < THREADS; at += LANES)
    for (int k = 0; k < unit.lanes; k++) whole += sums[at + k];
  parts[(unit.number + model) * (long long)gridDim.x + blockIdx.x] = whole;
}

#if LOGS
#define KERNEL logs
#else
#define KERNEL phi
#endif

// `phi` stores sums of runs in `out` or `carry`, as `mttkrp` does. `logs` stores a sum per thread block in `carry`,
// model by model. Models whose `done`, by first column, is nonzero are skipped.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
KERNEL(const __grid_constant__ Inputs in, const __grid_constant__ Where from, double* __restrict__ out,
       double* __restrict__ carry, const Packed* __restrict__ own, int width, real floor, int chunks,
       const Unit* __restrict__ units, const int* __restrict__ done) {
  const Unit unit = units[blockIdx.y];
  bool live = true;
  const int column = column_of(unit, done, live);
  if (column < 0) return;
  int c = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
  const bool there = c < chunks;
  if (!there) c = 0;  // all threads of a warp take part in its shuffles
  const Job& job = from.jobs[c / GROUPS];
  const int group = c % GROUPS;
  Rows rows;
  rows.width = width;
#pragma unroll
  for (int m = 0; m < INPUTS; m++) rows.global[m] = in.factor[m] + column / PER_VECTOR;
  const char* at = from.records + (job.unit + (long long)(group / STRIP) * (job.chunk / AT_ONCE)) * UNIT;
  const long long columns = (long long)width * PER_VECTOR;
  const Sink to = {out + column, carry + c * columns + column, columns, there && live};
  const Packed* of_row = own + column / PER_VECTOR;
  const double sum = walk_as<1>(unit.lanes, rows, of_row, at, group % STRIP, job.chunk, from.runs, from.starts[c], floor, to);
#if LOGS
  store_sums(unit, there ? sum : 0, carry);
#endif
}
