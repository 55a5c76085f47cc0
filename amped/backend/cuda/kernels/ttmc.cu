// TTMc over nonzeros in coordinate format, sorted by output row and then by input indices: see backend/ops/ttmc.py.
//
// A group of LANES threads walks through a chunk of nonzeros. Each thread holds a part of a row of the result in
// registers: BS of the columns of the second to last input mode (b), V of the last one (c), and WS of the Kronecker
// product of all earlier modes (w). Nonzeros of a fibre are summed as rows of c; the sum times the fibre's row of b
// is added to a slice's sum, and that times w to the row. Threads of a group do not communicate: a group may lie in
// two warps.
//
// Compile-time parameters in addition to those of ttmc_rows.cuh: BS, LANES_B (threads along b), LANES_C (along c), WS,
// PANELS_B, PANELS_C, PANELS_W (thread blocks that share the columns), THREADS, BLOCKS.

#include "ttmc_rows.cuh"

constexpr int V = 16 / sizeof(stored), LANES = LANES_B * LANES_C;
struct __align__(16) Vector {
  real at[V];
};
struct __align__(16) Stored {
  stored at[V];
};
__device__ __forceinline__ Vector load(const stored* at) {
  const Stored some = *reinterpret_cast<const Stored*>(at);
  Vector found;
#pragma unroll
  for (int e = 0; e < V; e++) found.at[e] = some.at[e];
  return found;
}

// A thread's share of the columns.
struct Place {
  int b, c, w;
};

struct Row {
  Vector sum[WS][BS];
};

__device__ __forceinline__ void write(Row& row, const Place& place, double* __restrict__ to, bool add) {
#pragma unroll
  for (int p = 0; p < WS; p++)
#pragma unroll
    for (int k = 0; k < BS; k++)
#pragma unroll
      for (int e = 0; e < V; e++) {
        if (place.w + p < OF_W && place.b + k < OF_B && place.c + e < RANK[C]) {
          double* at = to + ((place.w + p) * OF_B + place.b + k) * RANK[C] + place.c + e;
          const double number = row.sum[p][k].at[e];
          *at = add ? *at + number : number;
        }
        row.sum[p][k].at[e] = 0;
      }
}

__device__ __forceinline__ void load_b(const Nonzeros& in, int index, const Place& place, real (&b)[BS]) {
  const stored* from = in.factor[B] + (long long)index * STRIDE[B] + place.b;
  if constexpr (BS % V == 0) {
#pragma unroll
    for (int k = 0; k < BS; k += V) {
      const Vector some = place.b + k < STRIDE[B] ? load(from + k) : Vector{};
#pragma unroll
      for (int e = 0; e < V; e++) b[k + e] = some.at[e];
    }
  } else {
#pragma unroll
    for (int k = 0; k < BS; k++) b[k] = place.b + k < STRIDE[B] ? (real)from[k] : (real)0;
  }
}

// A number of the Kronecker product of the rows of all modes before b.
__device__ __forceinline__ real weight(const Nonzeros& in, const int (&index)[INPUTS], int at) {
  real found = 1;
#pragma unroll
  for (int m = W_MODES - 1; m >= 0; m--) {
    found *= in.factor[m][(long long)index[m] * STRIDE[m] + at % RANK[m]];
    at /= RANK[m];
  }
  return found;
}

__device__ __forceinline__ void add_slice(const Nonzeros& in, const int (&index)[INPUTS], const Place& place, Vector (&slice)[BS],
                                          Row& row) {
#pragma unroll
  for (int p = 0; p < WS; p++) {
    const real w = place.w + p < OF_W ? weight(in, index, place.w + p) : (real)0;
#pragma unroll
    for (int k = 0; k < BS; k++)
#pragma unroll
      for (int e = 0; e < V; e++) row.sum[p][k].at[e] += w * slice[k].at[e];
  }
#pragma unroll
  for (int k = 0; k < BS; k++) slice[k] = Vector{};
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
ttmc(const __grid_constant__ Nonzeros in, double* __restrict__ out, double* __restrict__ carry) {
  const long long group = (blockIdx.x * (long long)THREADS + threadIdx.x) / LANES;
  const int lane = (blockIdx.x * (long long)THREADS + threadIdx.x) % LANES;
  const int panel_c = blockIdx.y % PANELS_C, panel_b = blockIdx.y / PANELS_C % PANELS_B, panel_w = blockIdx.y / (PANELS_C * PANELS_B);
  const Place place = {(panel_b * LANES_B + lane / LANES_C) * BS, (panel_c * LANES_C + lane % LANES_C) * V, panel_w * WS};
  const long long begin = group * in.chunk, end = min(begin + in.chunk, in.count);
  if (begin >= end || place.c >= STRIDE[C] || place.b >= OF_B) return;

  Row row = {};
  Vector fibre = {};
  [[maybe_unused]] Vector slice[BS] = {};
  [[maybe_unused]] real b[BS];
  int index[INPUTS], of = in.column[0][begin];
  bool carried = begin && in.column[0][begin - 1] == of;
#pragma unroll
  for (int m = 0; m < INPUTS; m++) index[m] = in.column[m + 1][begin];
  if constexpr (INPUTS > 1) load_b(in, index[B], place, b);

  const auto close = [&](bool whole) {  // ends a fibre, and perhaps its slice
    if constexpr (INPUTS == 1) {
#pragma unroll
      for (int e = 0; e < V; e++) row.sum[0][0].at[e] += fibre.at[e];
    } else {
#pragma unroll
      for (int k = 0; k < BS; k++)
#pragma unroll
        for (int e = 0; e < V; e++) {
          if constexpr (W_MODES > 0) slice[k].at[e] += b[k] * fibre.at[e];
          else row.sum[0][k].at[e] += b[k] * fibre.at[e];
        }
    }
    fibre = Vector{};
    if constexpr (W_MODES > 0) {
      if (whole) add_slice(in, index, place, slice, row);
    }
  };
  const auto flush = [&] {
    const long long at = of - in.first_row;
    if (carried) write(row, place, carry + group * WIDTH, false);
    else write(row, place, out + at * WIDTH, at < in.new_begin || at >= in.new_end);
    carried = false;
  };

  for (long long x = begin; x < end; x += BATCH) {
    Batch<int> next[INPUTS + 1];  // a whole batch can be read, because columns end with unused memory
    const Batch<stored> value = *reinterpret_cast<const Batch<stored>*>(in.values + x);
    Vector rows[BATCH];
#pragma unroll
    for (int m = 0; m <= INPUTS; m++) next[m] = *reinterpret_cast<const Batch<int>*>(in.column[m] + x);
#pragma unroll
    for (int u = 0; u < BATCH; u++) {
      const int at = next[INPUTS].at[x + u < end ? u : 0];
      rows[u] = load(in.factor[C] + (long long)at * STRIDE[C] + place.c);
    }
#pragma unroll
    for (int u = 0; u < BATCH; u++) {
      if (x + u >= end) break;
      const bool other_row = next[0].at[u] != of;
      bool other_slice = other_row;
#pragma unroll
      for (int m = 0; m < W_MODES; m++) other_slice |= next[m + 1].at[u] != index[m];
      const bool other_fibre = other_slice || (INPUTS > 1 && next[B + 1].at[u] != index[B]);
      if (other_fibre) {
        close(other_slice);
        if (other_row) {
          flush();
          of = next[0].at[u];
        }
        if constexpr (INPUTS > 1) load_b(in, next[B + 1].at[u], place, b);
#pragma unroll
        for (int m = 0; m < INPUTS - 1; m++) index[m] = next[m + 1].at[u];
      }
#pragma unroll
      for (int e = 0; e < V; e++) fibre.at[e] += (real)value.at[u] * rows[u].at[e];
    }
  }
  close(true);
  flush();
}
