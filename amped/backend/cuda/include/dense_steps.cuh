// Pipeline steps of dense_wgmma.cu: copies of X to shared memory, and the rows of factor matrices that form K.
//
//   PARTS       factor matrices of the Khatri-Rao product; the last varies fastest
//   TRANSPOSED  1: the rows of C are the columns of X
//   SHIFTED     0: all rows of X are aligned to 16 bytes

#pragma once

template <typename Real>
struct Product {
  const Real* factor[PARTS];
  unsigned length[PARTS];
  unsigned begin;  // first row

  // Calls `take` with the row of each factor matrix that forms row `at` of the Khatri-Rao product.
  template <typename Take>
  __device__ __forceinline__ void find(unsigned at, Take take) const {
    unsigned row = begin + at;
#pragma unroll
    for (int m = PARTS - 1; m >= 0; m--) {
      const unsigned rest = m ? row / length[m] : 0;
      take(m, row - rest * length[m]);
      row = rest;
    }
  }
};

// The distance of an address from a multiple of 16 bytes, in numbers.
template <typename Real>
__device__ __forceinline__ int shift_of(const Real* address) {
  return SHIFTED ? (int)((unsigned long long)address % 16 / sizeof(Real)) : 0;
}

// Copies 16 bytes to shared memory; bytes from `bytes` on become zero.
__device__ __forceinline__ void copy(void* to, const void* from, int bytes) {
  const unsigned place = (unsigned)__cvta_generic_to_shared(to);
#if TRANSPOSED
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
#else  // the next step reads the following bytes
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
#endif
}

// A thread's part of the copies of X: LINES lines in steps of LENGTH numbers. Copies are aligned: if lines of X are not
// aligned, a copied line begins up to 16 bytes early and has one more vector of 16 bytes.
template <typename Real, int LENGTH, int LINES, int PITCH, int THREADS>
struct Copies {
  static constexpr int NUMBERS = 16 / sizeof(Real), SIDE = LENGTH / NUMBERS + SHIFTED, ALL = LINES * SIDE;
  static constexpr int COUNT = (ALL + THREADS - 1) / THREADS, BEYOND = SHIFTED * NUMBERS, OWN = THREADS % SIDE ? COUNT : 1;
  const Real *corner, *from[OWN];  // of the next step: its first number, and this thread's source
  long long pitch, ahead;  // distance to the next line, and to the next step
  int lines, across;  // remaining size, from the corner on

  __device__ Copies(const Real* x, long long pitch, int row, int rows, unsigned begin, unsigned end) : pitch(pitch) {
    corner = x + (TRANSPOSED ? begin * pitch + row : row * pitch + begin);
    ahead = TRANSPOSED ? LINES * pitch : LENGTH;
    lines = TRANSPOSED ? end - begin : rows - row;
    across = TRANSPOSED ? rows - row : end - begin;
#pragma unroll
    for (int k = 0; k < OWN; k++) from[k] = vector(k);
  }

  __device__ __forceinline__ int line(int k) const { return (threadIdx.x + k * THREADS) / SIDE; }
  __device__ __forceinline__ int number(int k) const { return (threadIdx.x + k * THREADS) % SIDE * NUMBERS; }
  __device__ __forceinline__ const Real* vector(int k) const {
    const Real* first = corner + line(k) * pitch;
    return first - shift_of(first) + number(k);
  }
  __device__ __forceinline__ const Real* next(int k) const {
    return OWN > 1 ? from[k % OWN] : from[0] + k * (THREADS / SIDE) * pitch;
  }

  // Starts copying a step. Numbers out of range become zero.
  __device__ __forceinline__ void step(Real* stage) {
    if (lines >= LINES && across >= LENGTH + BEYOND) {
#pragma unroll
      for (int k = 0; k < COUNT; k++)
        if (ALL % THREADS == 0 || k < COUNT - 1 || threadIdx.x + k * THREADS < ALL)
          copy(stage + line(k) * PITCH + number(k), next(k), 16);
    } else {
#pragma unroll 1
      for (int k = 0; k < COUNT; k++) {
        if (threadIdx.x + k * THREADS >= ALL) break;
        const int there = across + shift_of(corner + line(k) * pitch) - number(k);
        const int bytes = line(k) < lines ? min(max(there, 0), NUMBERS) * (int)sizeof(Real) : 0;
        copy(stage + line(k) * PITCH + number(k), bytes ? vector(k) : corner, bytes);
      }
    }
    corner += ahead;
    (TRANSPOSED ? lines : across) -= TRANSPOSED ? LINES : LENGTH;
#pragma unroll
    for (int k = 0; k < OWN; k++) from[k] += ahead;
  }
};

// Closes a group of copies; waits for all but the last LATER groups.
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}
