// Phi of CP-APR over packed nonzeros: an MTTKRP whose values are divided by the model's. Each thread also holds 16
// bytes of the output mode's row B (`own`) over a run, next to its sum.
//
// Compile-time parameters in addition to those of packed.cuh:
//   THREAD_COUNT  threads of a block, which process as many groups of a job at a time as possible
//   LOGS          1: `logs` instead of `phi`, which sums value * log(model) over the nonzeros
//   MAPPED        1: `mapped` instead of `phi`: values are replaced by `map_weight(value, model)`, a formula before this
//                 text; those that are 0 do not count, as padding is 0
//   SUMS          1: `mapped` also sums `map_value(value, model)` over the nonzeros
// BATCH is 1, 2 or 4, PANELS is 1 if TILED or FIBRE, and STORED is STORED_AS_REAL.

#include "packed.cuh"
#include "quotients.cuh"

constexpr int TEAM = power_from(LANES);  // threads of a group; those from LANES on hold zeros
constexpr int TOGETHER = THREADS / TEAM, ROUNDS = (GROUPS + TOGETHER - 1) / TOGETHER;
constexpr int HELD = BATCH > TEAM ? BATCH / TEAM : 1;  // models' values per thread after `fold`

struct Own {  // a thread's access to rows of B
  const Packed* rows;
  int lane;
  Long apart;

  // The row of a run; long runs have separate numbers.
  __device__ __forceinline__ Vector of(int run) const {
    if constexpr (TILED && SINGLE)
      if (run >= apart.first) run = apart.rows[run - apart.first];
    Vector v = unpack(gather<false>(rows + (long long)run * WIDTH));
    if constexpr (LANES < TEAM)
      if (lane >= LANES) v = {};
    return v;
  }
};

// This thread's part of the model's value at a nonzero, if rows exceed a group's vectors: column by column.
__device__ __forceinline__ real wide_dot(const Rows& first, const Record& r, const Packed* own, int lane) {
  real sum = 0;
#pragma unroll 1
  for (int at = 0; at < WIDTH; at += LANES) {
    if (at + lane >= WIDTH || lane >= LANES) break;
    Rows rows = first;
#pragma unroll
    for (int m = 0; m < INPUTS; m++) rows.global[m] += at;
    Vector product[BATCH];
    Record records[BATCH];
#pragma unroll
    for (int u = 0; u < BATCH; u++) records[u] = r;
    multiply<0>(rows, records, product);
    sum += dot(product[0], unpack(gather<false>(own + at)));
  }
  return sum;
}

struct Sink {  // destination of a thread's sums
  total* out;
  double* carry;
  bool there;  // whether the thread has nonzeros
  bool live;  // and columns
};

// Walks through the `count` nonzeros of a chunk: adds their part of Phi to the rows of `to`, or returns their part of
// the log-likelihood. `start` as in mttkrp.cu. All threads of a warp walk through chunks of equal length. `first`
// and `own` are at the thread's vector of a row's first columns, `rows` at the vector of its panel.
__device__ __forceinline__ double walk(const Rows& rows, const Rows& first, const Own& own, const char* unit, int chunk,
                                       int count, const int* __restrict__ runs, int start, real floor, const Sink& to) {
  const int* run = runs + (start >> 1);
  int current = *run, after = 0;
  Vector b, next;
  if constexpr (PANELS == 1) {
    b = own.of(current);
    next = own.of(run[1]);
    after = run[2];
  }
  double logs = 0;
#if !LOGS
  Vector sum = {};
#if !TILED
  bool carried = start & 1;
#endif
  auto flush = [&] {
#if TILED
    if (to.live) add(to.out + (long long)current * COLUMNS, sum);
#else
    if (to.live) store(carried ? to.carry : to.out + (long long)current * COLUMNS, sum);
    carried = false;
#endif
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
      int begun = 0;  // runs begun in this batch; sums follow once all its values are known
#pragma unroll
      for (int u = 0; u < BATCH; u++) {
        const bool begins = bits<RUN_AT, 1>(r[u]);
#if FIBRE
        if (bits<FIBRE_AT, 1>(r[u])) lead = rows.row<0>(r[u]);
#pragma unroll
        for (int k = 0; k < PER_VECTOR; k++) product[u].at[k] *= lead.at[k];
#endif
        if (begins) begun++;
        if constexpr (PANELS == 1) {
          if (begins) {
            b = next;
            next = own.of(after);
            after = run[2 + begun];
          }
          model[u] = dot(product[u], b);
        } else model[u] = wide_dot(first, r[u], own.rows + (long long)run[begun] * WIDTH, own.lane);
      }
      fold<BATCH, TEAM>(model, own.lane);
#pragma unroll
      for (int h = 0; h < HELD; h++) model[h] = model[h] < floor ? floor : model[h];  // NaN propagates
#if LOGS
#pragma unroll
      for (int h = 0; h < HELD; h++) {
        real value = 0;
#pragma unroll
        for (int u = 0; u < BATCH; u++)
          if (u % HELD == h && own.lane == u * TEAM / BATCH) value = value_of(r[u]);
        logs += (double)value * (double)log(model[h]);
      }
      run += begun;
#else
#pragma unroll
      for (int h = 0; h < HELD; h++) {
#if MAPPED
        const int mine = BATCH > TEAM ? own.lane * HELD + h : own.lane * BATCH / TEAM;
        real x = value_of(r[0]);
#pragma unroll
        for (int u = 1; u < BATCH; u++)
          if (u == mine) x = value_of(r[u]);
        if constexpr (SUMS)
          if (x != 0 && mine * TEAM / BATCH == own.lane) logs += map_value(x, model[h]);
        model[h] = x != 0 ? map_weight(x, model[h]) : 0;
#else
        model[h] = inverse(model[h]);
#endif
      }
      real value[BATCH];
#pragma unroll
      for (int u = 0; u < BATCH; u++) {
        value[u] = TEAM > 1 ? __shfl_sync(ALL, model[u % HELD], u * TEAM / BATCH, TEAM) : model[u];
        if constexpr (!MAPPED) value[u] *= value_of(r[u]);
      }
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
  return to.there ? logs : 0;  // lanes without columns have sums of `fold`, too
}

struct Where {  // nonzeros, and rows of B
  const Job* jobs;
  const int* first_job;
  const char* records;
  const int* starts;
  const int* runs;
  const Packed* own;
};

// One round of a job: TOGETHER of its chunks.
__device__ __forceinline__ double compute(const Inputs& in, const Where& from, const Long& apart, long long j, int round,
                                          int panel, real floor, total* out, double* carry) {
  const Job& job = from.jobs[j];
  const int lane = threadIdx.x % TEAM, vector = LANES < TEAM ? min(lane, LANES - 1) : lane;
  const int column = PANELS > 1 ? min(panel * LANES + vector, WIDTH - 1) : vector;
  int group = round * TOGETHER + threadIdx.x / TEAM;
  const bool there = (ROUNDS * TOGETHER == GROUPS || group < GROUPS) && from.starts[j * GROUPS + group] >= 0;
  if (!there) group = 0;  // a group with nonzeros, because all threads of a warp take part in its shuffles
  const long long c = j * GROUPS + group;
  Rows rows, first;
  int at = vector;
#pragma unroll
  for (int m = 0; m < INPUTS; m++) {
    rows.shared[m] = first.shared[m] = at;
    if (STAGED >> m & 1) at += in.block[m] * LANES;
    else {
      first.global[m] = in.factor[m] + (long long)job.base[m] * WIDTH + vector;
      rows.global[m] = first.global[m] + column - vector;
    }
  }
  const long long strip = job.unit + (long long)(group / STRIP) * (job.chunk / AT_ONCE);
  const bool live = there && lane < LANES && panel * LANES + lane < WIDTH;
  const int at_column = column * PER_VECTOR;
  return walk(rows, first, {from.own + vector, lane, apart}, from.records + strip * UNIT, group % STRIP, job.chunk, from.runs,
              from.starts[c], floor, {out + at_column, carry + c * COLUMNS + at_column, there, live});
}

#if LOGS
#define KERNEL logs
#elif MAPPED
#define KERNEL mapped
#else
#define KERNEL phi
#endif

// `phi` and `mapped` add to `out` and `carry` like `mttkrp`. `logs` stores one sum per thread block in `carry`, `mapped` in
// `sums`.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
KERNEL(const __grid_constant__ Inputs in, const Job* __restrict__ jobs, const int* __restrict__ first_job,
       const char* __restrict__ records, const int* __restrict__ starts, const int* __restrict__ runs, total* __restrict__ out,
       double* __restrict__ carry, const Long apart, const Packed* __restrict__ own, real floor, const int* skip,
       double* __restrict__ sums) {
  if (skip && *skip) return;
  const Where from = {jobs, first_job, records, starts, runs, own};
  double sum = 0;
#if STAGED
  int holds[INPUTS];
#pragma unroll
  for (int m = 0; m < INPUTS; m++) holds[m] = -1;
  for (int j = first_job[blockIdx.x]; j < first_job[blockIdx.x + 1]; j++) {
    stage(in, jobs[j], 0, holds);
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round++) sum += compute(in, from, apart, j, round, 0, floor, out, carry);
  }
#else
#pragma unroll 1
  for (int round = 0; round < ROUNDS; round++) sum += compute(in, from, apart, blockIdx.x, round, blockIdx.y, floor, out, carry);
#endif
#if LOGS
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) carry[blockIdx.x] = sum;
#elif SUMS
  sum = sum_of_block(sum);
  if (threadIdx.x == 0 && blockIdx.y == 0) sums[blockIdx.x] = sum;
#endif
}
