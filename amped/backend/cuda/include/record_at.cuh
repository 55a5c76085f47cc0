// Access to single packed nonzeros by number, in a single tile.

#pragma once

#include "packed.cuh"

struct Nonzeros {
  const Job* jobs;
  const char* records;
};

__device__ __forceinline__ Record record_in(const char* unit, int slot) {
  Record r;
#pragma unroll
  for (int w = 0; w < WHOLE; w++) r.at[w] = __ldg((const word*)(unit + w * 64) + slot);
  if constexpr (RECORD % 4) {
    word rest = 0;
    if constexpr (RECORD & 2) rest = __ldg((const unsigned short*)(unit + WHOLE * 64) + slot);
    if constexpr (RECORD & 1)
      rest |= (word)__ldg((const unsigned char*)unit + WHOLE * 64 + (RECORD & 2) * 16 + slot) << (RECORD & 2) * 8;
    r.at[WHOLE] = rest;
  }
  return r;
}

__device__ __forceinline__ Record record_at(const Nonzeros& of, int q) {
  const int chunk = of.jobs->chunk, whole = chunk * GROUPS, group = q % whole / chunk, k = q % chunk;
  const long long strip = of.jobs[q / whole].unit + (long long)(group / STRIP) * (chunk / AT_ONCE);
  return record_in(of.records + (strip + k / AT_ONCE) * UNIT, group % STRIP * AT_ONCE + k % AT_ONCE);
}
