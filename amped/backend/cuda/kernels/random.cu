// Uniform random numbers in [0, 1) by PCG64, those of NumPy's generator.
//
//   REAL  type of the matrix

typedef unsigned long long Word;

// A number of 128 bits.
struct Wide {
  Word high, low;
};

__device__ __forceinline__ Wide times(Wide a, Wide b) {
  return {__umul64hi(a.low, b.low) + a.high * b.low + a.low * b.high, a.low * b.low};
}

__device__ __forceinline__ Wide plus(Wide a, Wide b) {
  const Word low = a.low + b.low;
  return {a.high + b.high + (low < a.low), low};
}

// Some steps at once; see `LinearSteps` in amped/backend/ops/random.py.
struct Steps {
  Wide factor, term;

  __device__ __forceinline__ Wide operator()(Wide state) const { return plus(times(state, factor), term); }
  __device__ __forceinline__ Steps then(const Steps& other) const { return {times(factor, other.factor), other(term)}; }
};

// Replaces a matrix, row by row: thread t has numbers t, t + threads, ...; `stride` are as many steps as there are threads.
extern "C" __global__ void draw(Wide state, Steps step, Steps stride, long long count, int columns, long long pitch,
                                REAL* __restrict__ matrix) {
  const long long threads = gridDim.x * (long long)blockDim.x, first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  Steps before = {{0, 1}, {0, 0}};
  for (long long left = first + 1; left; left >>= 1) {  // a number follows the step to its state
    if (left & 1) before = before.then(step);
    step = step.then(step);
  }
  state = before(state);
  for (long long at = first; at < count; at += threads) {
    const Word mixed = state.high ^ state.low;
    const int turn = state.high >> 58;
    const Word bits = mixed >> turn | mixed << (-turn & 63);
    matrix[at / columns * pitch + at % columns] = (bits >> 11) * (1.0 / (1ull << 53));
    state = stride(state);
  }
}
