// Shared code of the TTMc kernels: nonzeros in coordinate format, and rows of the result that several chunks share. A
// row is written by the chunk in which it begins; sums of later chunks are carried, and added by `carry_up`.
//
// Compile-time parameters: STORED (type of values and factors), REAL (of products and short sums), INPUTS, RANKS
// (columns of each input mode), STRIDES (columns in memory), BATCH (nonzeros that a thread loads at once).

#pragma once

typedef STORED stored;
typedef REAL real;

constexpr int RANK[] = {RANKS}, STRIDE[] = {STRIDES};
constexpr int C = INPUTS - 1, B = INPUTS > 1 ? INPUTS - 2 : 0, W_MODES = INPUTS > 2 ? INPUTS - 2 : 0;
constexpr int FAN_IN = 64;  // carries summed by one thread

__host__ __device__ constexpr int product(int from, int to) {
  int found = 1;
  for (int m = from; m < to; m++) found *= RANK[m];
  return found;
}

constexpr int WIDTH = product(0, INPUTS), OF_W = product(0, W_MODES), OF_B = INPUTS > 1 ? RANK[B] : 1;

struct Nonzeros {
  const int* column[INPUTS + 1];
  const stored* values;
  const stored* factor[INPUTS];
  long long count, first_row, new_begin, new_end;  // rows of the result relative to its first
  int chunk;
};

template <typename T>
struct __align__(sizeof(T) * BATCH) Batch {
  T at[BATCH];
};

// Returns the first row of a chunk if it began in an earlier chunk, otherwise -1.
__device__ __forceinline__ int carried_row(const int* __restrict__ rows, long long chunk, int size) {
  const long long at = chunk * size;
  return at && rows[at - 1] == rows[at] ? rows[at] : -1;
}

// Sums the carries of a row within groups of FAN_IN chunks, then over the groups: `last` adds the total to the row.
extern "C" __global__ void __launch_bounds__(256)
carry_up(const int* __restrict__ rows, long long chunks, int size, long long first_row, int last, double* __restrict__ carry,
         double* __restrict__ out) {
  const long long chunk = blockIdx.x;
  const int row = carried_row(rows, chunk, size);
  const bool begins = row >= 0 && carried_row(rows, chunk - (chunk > 0), size) != row;
  if (row < 0 || !(begins || (!last && chunk % FAN_IN == 0))) return;
  for (int column = blockIdx.y * blockDim.x + threadIdx.x; column < WIDTH; column += gridDim.y * blockDim.x) {
    double sum = carry[chunk * WIDTH + column];
    const long long edge = (chunk / FAN_IN + 1) * FAN_IN;
    if (last) {
      for (long long c = edge; c < chunks && carried_row(rows, c, size) == row; c += FAN_IN) sum += carry[c * WIDTH + column];
      out[(row - first_row) * WIDTH + column] += sum;
    } else {
      for (long long c = chunk + 1; c < min(edge, chunks) && carried_row(rows, c, size) == row; c++)
        sum += carry[c * WIDTH + column];
      carry[chunk * WIDTH + column] = sum;
    }
  }
}
