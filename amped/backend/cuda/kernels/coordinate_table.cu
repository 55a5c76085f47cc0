// Fills a table of coordinates, (nnz, ORDER), whose slots are EMPTY; see amped/backend/coordinate_table.py.

#include "coordinate_table.cuh"

extern "C" __global__ void __launch_bounds__(256) fill_slots(const int* __restrict__ coordinates, long long nnz, int* slots, word mask) {
  const long long position = blockIdx.x * 256ll + threadIdx.x;
  if (position >= nnz) return;
  word place = hashed(coordinates + position * ORDER);
  while (atomicCAS(slots + (place & mask), EMPTY, (int)position) != EMPTY) place++;
}
