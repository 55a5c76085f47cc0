// Reductions after the kernels of mttkrp.cu and phi.cu: partial sums of chunks become sums of output rows.
//
// Compile-time parameter: SKIPS (default 0). If 1, kernels return immediately where a flag in device memory is set.

#pragma once

#if SKIPS
#define SKIP_FLAG , const int* skip
#define SKIP \
  if (skip && *skip) return
#define ONE_BLOCK , 1  // so that the compiler need not limit registers for more blocks
#else
#define SKIP_FLAG
#define SKIP
#define ONE_BLOCK
#endif

constexpr int FAN_IN = 16;

// A thread's part of one level of the tree reduction of carries. Item i stands for chunk i * step. It has a carry if
// its first run began earlier: in an earlier chunk (level 0, `back` is 0), else at or before the chunk `back` before
// it. A thread takes one column of FAN_IN items and sums the carries of each run. If an item before them belongs to
// the thread's first run, that sum goes up a level. Hence one thread per level writes an output row. `starts` and
// `runs` as in mttkrp.cu.
__device__ __forceinline__ void level(const int* __restrict__ starts, const int* __restrict__ runs, const double* carry,
                                      double* up, double* out, long long items, long long step, long long back,
                                      int columns, long long thread) {
  const long long group = thread / columns, first = group * FAN_IN;
  const int column = thread % columns;
  if (first >= items) return;
  int run_of[FAN_IN];  // -1 if the item has no carry
  double carries[FAN_IN];
#pragma unroll  // so that the loads of all items are in flight together
  for (int k = 0; k < FAN_IN; k++) {
    const long long i = first + k;
    run_of[k] = -1;
    if (i >= items) continue;
    const int start = starts[i * step];
    const bool carried = back ? i > 0 && starts[i * step - back] >> 1 == start >> 1 : start & 1;
    if (carried) run_of[k] = start >> 1;
    carries[k] = carry[i * columns + column];
  }
  double sum = 0;
  int run = -1;
  bool passed_up = false;
  const auto flush = [&] {
    if (run < 0) return;
    if (passed_up) up[group * columns + column] = sum;
    else out[(long long)runs[run] * columns + column] += sum;
  };
#pragma unroll
  for (int k = 0; k < FAN_IN; k++) {
    if (run_of[k] < 0) continue;
    if (run_of[k] != run) {
      flush();
      run = run_of[k];
      passed_up = k == 0 && first > 0 && starts[(first - 1) * step] >> 1 == run;
      sum = 0;
    }
    sum += carries[k];
  }
  flush();
}

extern "C" __global__ void __launch_bounds__(128)
combine(const int* __restrict__ starts, const int* __restrict__ runs, const double* __restrict__ carry,
        double* __restrict__ up, double* __restrict__ out, long long items, long long step, long long back,
        int columns SKIP_FLAG) {
  SKIP;
  level(starts, runs, carry, up, out, items, step, back, columns, blockIdx.x * (long long)blockDim.x + threadIdx.x);
}

// All levels from one with few items on, in one thread block: a launch per level would take longer.
extern "C" __global__ void __launch_bounds__(512 ONE_BLOCK)
combine_rest(const int* __restrict__ starts, const int* __restrict__ runs, const double* carry, double* up, double* out,
             long long items, long long step, long long back, int columns SKIP_FLAG) {
  SKIP;
  while (true) {
    const long long groups = (items + FAN_IN - 1) / FAN_IN;
    for (long long thread = threadIdx.x; thread < groups * columns; thread += blockDim.x)
      level(starts, runs, carry, up, out, items, step, back, columns, thread);
    if (items <= FAN_IN) return;
    __syncthreads();
    carry = up, up += groups * columns, back = step, step *= FAN_IN, items = groups;
  }
}

// Add single-precision sums to the double-precision `out`: the first `added` vectors accumulate, the others are set.
extern "C" __global__ void widen(const float4* __restrict__ narrow, double2* __restrict__ out, long long vectors,
                                 long long added SKIP_FLAG) {
  SKIP;
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  const float4 x = narrow[i];
  double2 a = {}, b = {};
  if (i < added) {
    a = out[2 * i];
    b = out[2 * i + 1];
  }
  a.x += x.x;
  a.y += x.y;
  b.x += x.z;
  b.y += x.w;
  out[2 * i] = a;
  out[2 * i + 1] = b;
}

// Add the sums of long runs to their rows. A thread takes one column of FAN_IN runs, which often share a row.
extern "C" __global__ void __launch_bounds__(128)
gather_long(const int* __restrict__ rows, const float* __restrict__ sums, double* __restrict__ out, long long items,
            int columns SKIP_FLAG) {
  SKIP;
  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long first = thread / columns * FAN_IN;
  const int column = thread % columns;
  int row[FAN_IN + 1];
  float sum_of[FAN_IN];
#pragma unroll
  for (int k = 0; k < FAN_IN; k++) {
    row[k] = first + k < items ? rows[first + k] : -1;
    sum_of[k] = first + k < items ? sums[(first + k) * columns + column] : 0;
  }
  row[FAN_IN] = -1;
  double sum = 0;
#pragma unroll
  for (int k = 0; k < FAN_IN; k++) {
    sum += sum_of[k];
    if (row[k + 1] == row[k]) continue;
    if (row[k] >= 0) atomicAdd(out + (long long)row[k] * columns + column, sum);
    sum = 0;
  }
}
