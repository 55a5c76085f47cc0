// The sums of thread blocks that have solved rows of factor matrices, added to the totals.

#pragma once

#include "batch_index.cuh"

constexpr int ENTRIES = (RANK + 2) * RANK;        // a block's sums: Gram matrix, dots, largest
constexpr int SLICES = 8, ADDED = THREADS / SLICES;  // threads that share an entry; entries of a thread block

// Adds the blocks' sums to the totals, always in the same order: bitwise repeatable. The totals of a run are `apart`
// numbers after those of the previous run.
extern "C" __global__ void __launch_bounds__(THREADS)
add_parts(Runs runs, int again, const double* __restrict__ parts, int blocks, double* __restrict__ gram, double* __restrict__ dots,
          double* __restrict__ largest, long long apart) {  // `dots` may be null
  const Run run = run_of(runs, blockIdx.y, again ? RANGE : 0);
  if (!run.rank) return;
  __shared__ double of_slices[SLICES][ADDED];
  const int slice = threadIdx.x / ADDED, at = threadIdx.x % ADDED, entry = blockIdx.x * ADDED + at;
  const int row = entry / RANK, column = entry % RANK;
  const bool there = entry<ENTRIES, most = row> RANK;
  parts += run.number * (long long)blocks * ENTRIES;
  gram += run.number * apart, largest += run.number * apart, dots += dots ? run.number * apart : 0;
  double total = 0;
  if (there)
#pragma unroll 8
    for (int k = slice; k < blocks; k += SLICES) {
      const double part = parts[k * (long long)ENTRIES + entry];
      total = most ? larger(part, total) : total + part;
    }
  of_slices[slice][at] = total;
  __syncthreads();
  if (slice || !there) return;
  for (int k = 1; k < SLICES; k++) total = most ? larger(of_slices[k][at], total) : total + of_slices[k][at];
  if (most) largest[column] = larger(total, largest[column]);
  else if (row < RANK) gram[entry] += total;
  else if (dots) dots[column] += total;
}
