// Positions of rows in a shard of packed nonzeros that are in a single tile.

#include "record_at.cuh"

// Writes the first nonzero of each row to `begins`; other entries are unchanged. One thread per chunk.
extern "C" __global__ void find_rows(const Nonzeros of, const int* __restrict__ starts, const int* __restrict__ runs, int chunks,
                                     int nonzeros, int* __restrict__ begins) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= chunks || starts[c] < 0) return;
  const int first = c * of.jobs->chunk, end = min(first + of.jobs->chunk, nonzeros);
  const int* run = runs + (starts[c] >> 1);
  if (!(starts[c] & 1) || c == 0) begins[*run] = first;
  for (int q = first + 1; q < end; q++)
    if (bits<RUN_AT, 1>(record_at(of, q))) begins[*++run] = q;
}
