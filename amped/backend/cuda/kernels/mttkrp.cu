// MTTKRP over packed nonzeros; see packed.cuh.

#include "packed.cuh"

// Sums the `count` nonzeros of a chunk. `start`: 2 * (number of its first run) + (1 if that run began in an earlier
// chunk).
__device__ __forceinline__ void walk(const Rows& rows, const char* unit, int chunk, int count, const int* __restrict__ runs,
                                     int start, const Long& apart, total* __restrict__ out, double* __restrict__ carry) {
  const int* run = runs + (start >> 1);
  int current = *run, next = *++run;
  bool carried = start & 1;
  Vector sum = {};
#if FIBRE
  Vector part = {}, lead;
  auto close = [&] {
#pragma unroll
    for (int k = 0; k < PER_VECTOR; k++) {
      sum.at[k] += lead.at[k] * part.at[k];
      part.at[k] = 0;
    }
  };
#endif
  auto flush = [&] {
#if TILED
    add(out + (long long)apart.row(current) * COLUMNS, sum);
#else
    total* to = out + (long long)current * COLUMNS;
    store(carried ? carry : to, sum);
    carried = false;
#endif
    current = next;
    next = *++run;
    sum = {};
  };
  Records ahead = read(unit, chunk);  // loaded one step ahead, to hide the memory latency
#if FIBRE
  lead = rows.row<0>(ahead.at[0]);
#endif
  for (; count > 0; count -= AT_ONCE) {
    const Records now = ahead;
    unit += UNIT;
    ahead = read(unit, chunk);
#pragma unroll
    for (int b = 0; b < AT_ONCE; b += BATCH) {
      Vector product[BATCH];
      multiply<FIBRE>(rows, now.at + b, product);
#pragma unroll
      for (int u = 0; u < BATCH; u++) {
        const Record& r = now.at[b + u];
#if FIBRE
        if (bits<FIBRE_AT, 1>(r)) {
          close();
          lead = rows.row<0>(r);
          if (bits<RUN_AT, 1>(r)) flush();
        }
        Vector& into = part;
#else
        if (bits<RUN_AT, 1>(r)) flush();
        Vector& into = sum;
#endif
#pragma unroll
        for (int k = 0; k < PER_VECTOR; k++) into.at[k] += value_of(r) * product[u].at[k];
      }
    }
  }
#if FIBRE
  close();
#endif
  flush();
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
mttkrp(const __grid_constant__ Inputs in, const Job* __restrict__ jobs, const int* __restrict__ first_job,
       const char* __restrict__ records, const int* __restrict__ starts, const int* __restrict__ runs, total* __restrict__ out,
       double* __restrict__ carry, const Long apart) {
  const int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
#if STAGED
  int holds[INPUTS];
#pragma unroll
  for (int m = 0; m < INPUTS; m++) holds[m] = -1;
  for (int panel = 0; panel < PANELS; panel++)
    for (int j = first_job[blockIdx.x]; j < first_job[blockIdx.x + 1]; j++) {
      const Job& job = jobs[j];
      stage(in, job, panel, holds);
#else
  const int panel = blockIdx.y, j = blockIdx.x;
  {
    const Job& job = jobs[j];
#endif
      const int column = panel * LANES + lane;
      const long long c = (long long)j * GROUPS + group;
      const int start = starts[c];
      if (start >= 0 && column < WIDTH) {
        Rows rows;
        int at = lane;
#pragma unroll
        for (int m = 0; m < INPUTS; m++) {
          rows.shared[m] = at;
          if (STAGED >> m & 1) at += in.block[m] * LANES;
          else rows.global[m] = in.factor[m] + (long long)job.base[m] * WIDTH + column;
        }
        const long long strip = job.unit + (long long)(group / STRIP) * (job.chunk / AT_ONCE);
        const int at_column = column * PER_VECTOR;
        walk(rows, records + strip * UNIT, group % STRIP, job.chunk, runs, start, apart, out + at_column,
             carry + c * COLUMNS + at_column);
      }
    }
}
