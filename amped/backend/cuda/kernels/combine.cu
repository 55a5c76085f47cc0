// Reductions after mttkrp.cu, and zeros in the rows that it leaves out. Reductions after phi.cu and interleaved.cu are
// compiled together with their auxiliary kernels.

#include "combine.cuh"

constexpr int SPAN = 1024;  // rows that a warp examines

// Sets the rows from `begin` to `end` of `out` that have no run to zero. `runs` are the rows of the runs, ascending.
extern "C" __global__ void __launch_bounds__(128)
clear_gaps(const int* __restrict__ runs, int count, int begin, int end, double* __restrict__ out, int columns) {
  const int lane = threadIdx.x % 32;
  const long long first = begin + (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32 * SPAN;
  if (first >= end) return;
  const int last = first + SPAN < end ? first + SPAN : end;
  int low = 0, high = count;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (runs[middle] < first) low = middle + 1;
    else high = middle;
  }
  for (int next = first; next < last; low += 32) {  // rows before `next` are done
    const int row = low + lane < count ? min(runs[low + lane], last) : last;
    const int before = __shfl_up_sync(~0u, row, 1), from = lane ? before + 1 : next;
    for (unsigned gaps = __ballot_sync(~0u, from < row); gaps; gaps &= gaps - 1) {
      const int which = __ffs(gaps) - 1;
      const long long stop = __shfl_sync(~0u, row, which) * (long long)columns;
      for (long long k = __shfl_sync(~0u, from, which) * (long long)columns + lane; k < stop; k += 32) out[k] = 0;
    }
    next = __shfl_sync(~0u, row, 31) + 1;
  }
}
