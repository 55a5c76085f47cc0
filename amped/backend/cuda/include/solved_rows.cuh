// Rows of factor matrices that warps solve, SIDE at a time: reading what is given, storing the result, and its sums.
//
// A warp holds rows in one of two ways. In both, `far` is its lane / 4 and `near` is lane % 4:
//   by rows     row `far`, columns 8 t + 2 near + {0, 1}
//   by columns  column 8 a + far, rows 2 near + {0, 1}
// A lane's part of rows by columns is what it needs of both operands of their Gram matrix.

#pragma once

constexpr int THREADS = 256, WARPS = THREADS / 32;

#include "add_parts.cuh"

constexpr int SIDE = 8;  // of a result of the tensor cores
constexpr int WIDE = (RANK + SIDE - 1) / SIDE, SPAN = WIDE * SIDE, TRIANGLE = WIDE * (WIDE + 1) / 2;
constexpr int RESIDENT = WIDE <= 4 ? 2 : 1;  // thread blocks of a multiprocessor, whose registers they share

typedef double Numbers[WIDE][2];

struct Rows {
  const double* source;  // of the MTTKRP
  long long source_stride;
  REAL* target;
  long long target_stride, count;
  int columns, with_dots;
};

// Adds the product of 8 x 4 by 4 x 8 numbers. Each lane holds element (lane / 4, lane % 4) of the left operand, element
// (lane % 4, lane / 4) of the right one, and elements (lane / 4, 2 * (lane % 4) + {0, 1}) of the result.
__device__ __forceinline__ void multiply_add(double (&result)[2], double left, double right) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(result[0]), "+d"(result[1]) : "d"(left), "d"(right));
}

// Reads rows of the source, from `first` on, by rows; numbers beyond the last row or column are 0.
__device__ __forceinline__ void load(Numbers& numbers, const Rows& all, long long first, int far, int near) {
  const double* from = all.source + (first + far) * all.source_stride + 2 * near;
  const bool pairs = ((unsigned long long)all.source | all.source_stride * sizeof(double)) % sizeof(double2) == 0;
#pragma unroll
  for (int t = 0; t < WIDE; t++) {
    const int column = t * SIDE + 2 * near;
    numbers[t][0] = numbers[t][1] = 0;
    if (first + far >= all.count) continue;
    if (pairs && column + 1 < all.columns) {
      const double2 both = *(const double2*)(from + t * SIDE);
      numbers[t][0] = both.x, numbers[t][1] = both.y;
    } else {
      if (column < all.columns) numbers[t][0] = from[t * SIDE];
      if (column + 1 < all.columns) numbers[t][1] = from[t * SIDE + 1];
    }
  }
}

// Stores an (RANK, RANK) matrix as `multiply` needs it: by columns of its result, rows, and lanes; SPAN * SPAN / 2 pairs.
__device__ __forceinline__ void read_factor(double2* factor, const double* __restrict__ matrix) {
  for (int k = threadIdx.x; k < SPAN * SPAN / 2; k += THREADS) {
    const int column = k / 32 / WIDE * SIDE + k % 32 / 4, row = k / 32 % WIDE * SIDE + 2 * (k % 4);
    const bool there = column < RANK;
    factor[k] = {there && row < RANK ? matrix[row * RANK + column] : 0,
                 there && row + 1 < RANK ? matrix[(row + 1) * RANK + column] : 0};
  }
}

// Adds the product of rows and the matrix to `result`, by columns.
__device__ __forceinline__ void multiply(Numbers& result, const double2* factor, const Numbers& rows, int lane) {
#pragma unroll
  for (int t = 0; t < WIDE; t++)
#pragma unroll
    for (int a = 0; a < WIDE; a++) {
      const double2 left = factor[(a * WIDE + t) * 32 + lane];
      multiply_add(result[a], left.x, rows[t][0]);
      multiply_add(result[a], left.y, rows[t][1]);
    }
}

// Sums of stored rows: the Gram matrix, inner products of columns with those of the source, if needed, and column maxima
// (magnitudes before rounding).
struct RowSums {
  double gram[TRIANGLE][2] = {}, dots[WIDE] = {}, most[WIDE] = {};

  // Stores rows by columns, rounded, from `first` on, and adds them.
  __device__ __forceinline__ void store(Numbers& numbers, const Rows& all, long long first, int far, int near) {
#pragma unroll
    for (int a = 0; a < WIDE; a++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const double exact = numbers[a][e];
        const REAL stored = exact;
        const long long row = first + 2 * near + e;
        const int column = a * SIDE + far;
        most[a] = larger(fabs(exact), most[a]);
        numbers[a][e] = stored;
        if (row >= all.count || column >= all.columns) continue;
        if (all.with_dots) dots[a] += all.source[row * all.source_stride + column] * (double)stored;
        all.target[row * all.target_stride + column] = stored;
      }
    add_gram(numbers);
  }

  // Adds the Gram matrix of rows by columns.
  __device__ __forceinline__ void add_gram(const Numbers& numbers) {
#pragma unroll
    for (int a = 0; a < WIDE; a++)
#pragma unroll
      for (int b = 0; b <= a; b++)
#pragma unroll
        for (int e = 0; e < 2; e++) multiply_add(gram[a * (a + 1) / 2 + b], numbers[a][e], numbers[b][e]);
  }

  // Writes the sums of a thread block to `part`, always added in the same order: bitwise repeatable. `sums`: ENTRIES
  // numbers of shared memory that no thread uses any more.
  __device__ void write(double* sums, double* part, int far, int near) {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int a = 0; a < WIDE; a++)
#pragma unroll
      for (int apart = 1; apart < 4; apart *= 2) {
        dots[a] += __shfl_xor_sync(~0u, dots[a], apart);
        most[a] = larger(__shfl_xor_sync(~0u, most[a], apart), most[a]);
      }
    for (int k = threadIdx.x; k < ENTRIES; k += THREADS) sums[k] = 0;
    for (int w = 0; w < WARPS; w++) {
      __syncthreads();
      if (w != warp) continue;
#pragma unroll
      for (int a = 0; a < WIDE; a++) {
        const int row = a * SIDE + far;
        if (row >= RANK) continue;
        if (!near) {
          sums[RANK * RANK + row] += dots[a];
          sums[(RANK + 1) * RANK + row] = larger(most[a], sums[(RANK + 1) * RANK + row]);
        }
#pragma unroll
        for (int b = 0; b <= a; b++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const int column = b * SIDE + 2 * near + e;
            if (column >= RANK) continue;
            sums[row * RANK + column] += gram[a * (a + 1) / 2 + b][e];
            if (a != b) sums[column * RANK + row] += gram[a * (a + 1) / 2 + b][e];
          }
      }
    }
    __syncthreads();
    for (int k = threadIdx.x; k < ENTRIES; k += THREADS) part[k] = sums[k];
  }
};
