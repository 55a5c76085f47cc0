// Passes over the nonzeros of rows that PDNR and PQNR solve together; rowsteps.cu computes the steps. The nonzeros are
// packed (packed.cuh), in a single tile, sorted by row.
//
// Compile-time parameters in addition to those of packed.cuh:
//   RANK    columns
//   NEWTON  1: second derivatives are summed, too
//   MAPS    if defined, sums are those of any loss, with the functions map_weight, map_curve and map_value of an element
//           and the model's value, which precede this text: see code/rows.py. Otherwise they are those of PDNR and PQNR.
//
// A task is a part of one row's nonzeros, for one thread block, which processes TILE nonzeros at a time: their rows of
// Pi, in double precision, are in shared memory. Parts of rows are summed in the order of their nonzeros: results
// are repeatable.

#include "packed.cuh"
#include "record_at.cuh"

constexpr int TEAM = 128;                        // threads of a block
constexpr int TILE = RANK <= 256 ? 32 : 16;      // nonzeros
constexpr int SHARING = TEAM / TILE;  // threads that compute the model's value at a nonzero
constexpr int EDGE = RANK <= 24 ? 2 : 4;  // a thread sums EDGE x EDGE second derivatives
constexpr int SIDE = (RANK + EDGE - 1) / EDGE, SPAN = SIDE * EDGE, PITCH = SPAN | 1;
constexpr int PAIRS = SIDE * (SIDE + 1) / 2;  // such squares on and below the diagonal
constexpr int MOST_PARTS = 8;  // most parts of a tile that different threads sum
__device__ constexpr int parts_of(int jobs) { return TEAM / jobs < 1 ? 1 : TEAM / jobs < MOST_PARTS ? TEAM / jobs
                                                                                                    : MOST_PARTS; }
constexpr int HESSIAN_PARTS = parts_of(PAIRS), PHI_PARTS = parts_of(RANK), EACH = (RANK + TEAM - 1) / TEAM;
constexpr int LACK = RANK + NEWTON * RANK * RANK, SUMS = LACK + 2;  // numbers of a row: Phi, derivatives, LACK, counts
constexpr int LENGTHS = 11, MINE = (LENGTHS + SHARING - 1) / SHARING;  // step lengths 1, 1/2, 1/4, ...
constexpr int ACTIVE = 0;  // status of a row, as in rowsteps.cu
constexpr unsigned ALL = ~0u;

#ifndef MAPS
__device__ __forceinline__ double map_weight(double x, double m) { return x / m; }
__device__ __forceinline__ double map_curve(double x, double m) { return x / m / m; }
#endif

__device__ __forceinline__ double endless() { return __longlong_as_double(0x7ff0000000000000ll); }

struct Tasks {
  const int* row;  // position of each task's row in a batch, and in `first`
  const int* begin;  // first nonzero
  const int* end;
  int first;
};

struct Room {  // shared memory of a thread block
  double *pi, *vector, *second, *value, *weight, *curve;
  int* index;
  __device__ Room() {
    pi = (double*)held;
    vector = pi + TILE * PITCH;
    second = vector + RANK;
    value = second + RANK;
    weight = value + TILE;
    curve = weight + TILE;
    index = (int*)(curve + TILE);
  }
};

template <int M>
__device__ __forceinline__ void store_indices(const Record& r, int* to) {
  if constexpr (M < INPUTS) {
    to[M * TILE] = bits<field_at(M), FIELD_BITS[M]>(r);
    store_indices<M + 1>(r, to);
  }
}

// Loads the rows of Pi, and the values, of `count` nonzeros; other values are zero, and their rows undefined.
__device__ __forceinline__ void fill(const Inputs& in, const Nonzeros& of, int begin, int count, const Room& room) {
  __syncthreads();
  if (threadIdx.x < TILE) {
    const bool there = threadIdx.x < count;
    const Record r = record_at(of, begin + (there ? threadIdx.x : 0));
    store_indices<0>(r, room.index + threadIdx.x);
    room.value[threadIdx.x] = there ? (double)value_of(r) : 0;
  }
  __syncthreads();
  for (int k = threadIdx.x; k < count * SPAN; k += TEAM) {
    const int q = k / SPAN, column = k % SPAN;
    double product = 0;
    if (column < RANK) {
      product = 1;
#pragma unroll
      for (int m = 0; m < INPUTS; m++)
        product *= (double)((const real*)in.factor[m])[(long long)room.index[m * TILE + q] * COLUMNS + column];
    }
    room.pi[q * PITCH + column] = product;
  }
  __syncthreads();
}

// The product of a row of Pi with a vector, for all threads that share the nonzero.
__device__ __forceinline__ double dot(const double* pi, const double* vector) {
  double sum = 0;
  for (int r = threadIdx.x % SHARING; r < RANK; r += SHARING) sum += pi[threadIdx.x / SHARING * PITCH + r] * vector[r];
#pragma unroll
  for (int far = SHARING / 2; far; far /= 2) sum += __shfl_xor_sync(ALL, sum, far);
  return sum;
}

// Computes a task's part of Phi at `b`, second derivatives up to the diagonal, the distance of models below the floor
// (or the loss), and counts. A block computes TEAM squares of second derivatives, number blockIdx.y; number 0 also
// the other sums.
extern "C" __global__ void __launch_bounds__(TEAM)
add_sums(const __grid_constant__ Inputs in, const Nonzeros of, const Tasks tasks, const int* __restrict__ status,
         const double* __restrict__ b, double* __restrict__ parts, double floor) {
  const int row = tasks.row[blockIdx.x] - tasks.first;
  if (status[row] != ACTIVE) return;
  const Room room;
  for (int r = threadIdx.x; r < RANK; r += TEAM) room.vector[r] = b[(long long)row * RANK + r];
  const int pair = PAIRS < TEAM ? threadIdx.x % PAIRS : blockIdx.y * TEAM + threadIdx.x;
  const int part = PAIRS < TEAM ? threadIdx.x / PAIRS : 0, phi_part = RANK < TEAM ? threadIdx.x / RANK : 0;
  const int phi_column = RANK < TEAM ? threadIdx.x % RANK : threadIdx.x;
  const bool counts_too = blockIdx.y == 0;
  int up = (int)((sqrtf(8.0f * pair + 1) - 1) / 2);
  up += ((up + 1) * (up + 2) / 2 <= pair) - (up * (up + 1) / 2 > pair);
  const int across = pair - up * (up + 1) / 2;
  const bool squares = NEWTON && pair < PAIRS && part < HESSIAN_PARTS;
  double square[EDGE][EDGE] = {}, phi[EACH] = {}, lack = 0, counts = 0;
  for (int begin = tasks.begin[blockIdx.x], end = tasks.end[blockIdx.x]; begin < end; begin += TILE) {
    const int count = min(TILE, end - begin), q = threadIdx.x / SHARING;
    fill(in, of, begin, count, room);
    const double model = dot(room.pi, room.vector), floored = model < floor ? floor : model;
    if (threadIdx.x % SHARING == 0 && q < count) {
      room.weight[q] = map_weight(room.value[q], floored);
      room.curve[q] = map_curve(room.value[q], floored);
#ifdef MAPS
      lack += map_value(room.value[q], floored);
#else
      lack += (model - floored) * room.value[q];
#endif
      counts += room.value[q];
    }
    __syncthreads();
    if (counts_too && phi_part < PHI_PARTS)
      for (int k = 0; k < EACH; k++)
        if (phi_column + k * TEAM < RANK)
          for (int at = phi_part; at < count; at += PHI_PARTS)
            phi[k] += room.weight[at] * room.pi[at * PITCH + phi_column + k * TEAM];
    if (squares)
      for (int at = part; at < count; at += HESSIAN_PARTS) {
        const double *left = room.pi + at * PITCH + up * EDGE, *right = room.pi + at * PITCH + across * EDGE;
#pragma unroll
        for (int i = 0; i < EDGE; i++) {
          const double factor = room.curve[at] * left[i];
#pragma unroll
          for (int k = 0; k < EDGE; k++) square[i][k] += factor * right[k];
        }
      }
  }
  double* to = parts + (long long)blockIdx.x * SUMS;
  for (int turn = 0; turn < MOST_PARTS; turn++) {
    __syncthreads();
    if (counts_too && phi_part == turn && turn < PHI_PARTS)
      for (int k = 0; k < EACH; k++)
        if (phi_column + k * TEAM < RANK) to[phi_column + k * TEAM] = phi[k] + (turn ? to[phi_column + k * TEAM] : 0);
    if (squares && part == turn)
#pragma unroll
      for (int i = 0; i < EDGE; i++)
#pragma unroll
        for (int k = 0; k < EDGE; k++) {
          const int r = up * EDGE + i, c = across * EDGE + k;
          double* at = to + RANK + r * RANK + c;
          if (r < RANK && c <= r) *at = square[i][k] + (turn ? *at : 0);
        }
  }
  if (!counts_too) return;
  if (threadIdx.x % SHARING == 0) {
    room.weight[threadIdx.x / SHARING] = lack;
    room.curve[threadIdx.x / SHARING] = counts;
  }
  __syncthreads();
  if (threadIdx.x < 2) {
    const double* from = threadIdx.x ? room.curve : room.weight;
    double sum = 0;
    for (int q = 0; q < TILE; q++) sum += from[q];
    to[LACK + threadIdx.x] = sum;
  }
}

#ifndef MAPS
// Computes a task's part of the change of the objective from `b` for each length of `step`, except the sum of the step:
// infinity if the model falls below the floor at a nonzero where it was above. Below the floor the logarithm is
// continued linearly.
extern "C" __global__ void __launch_bounds__(TEAM)
add_changes(const __grid_constant__ Inputs in, const Nonzeros of, const Tasks tasks, const int* __restrict__ status,
            const double* __restrict__ b, const double* __restrict__ step, double* __restrict__ parts, double floor) {
  const int row = tasks.row[blockIdx.x] - tasks.first;
  if (status[row] != ACTIVE) return;
  const Room room;
  for (int r = threadIdx.x; r < RANK; r += TEAM) {
    room.vector[r] = b[(long long)row * RANK + r];
    room.second[r] = step[(long long)row * RANK + r];
  }
  double change[MINE] = {};
  for (int begin = tasks.begin[blockIdx.x], end = tasks.end[blockIdx.x]; begin < end; begin += TILE) {
    fill(in, of, begin, min(TILE, end - begin), room);
    const double model = dot(room.pi, room.vector), moves = dot(room.pi, room.second);
    const double value = room.value[threadIdx.x / SHARING], floored = model < floor ? floor : model;
    const double lack = model - floored, inverse = 1 / floored;
#pragma unroll
    for (int k = 0; k < MINE; k++) {
      const int length = k * SHARING + threadIdx.x % SHARING;
      double moved = fma(moves, ldexp(1.0, -length), lack), line = 0;
      if (lack < 0) {
        line = fmin(moved, 0.0) - lack;
        moved = fmax(moved, 0.0);
      }
      moved *= inverse;
      const bool falls = moved + 1 - floor * inverse < 0;
      if (value > 0) change[k] -= falls ? -endless() : value * (line * inverse + log1p(fmax(moved, -1 + 1e-15)));
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < MINE; k++) {
    for (int far = SHARING; far < 32; far *= 2) change[k] += __shfl_xor_sync(ALL, change[k], far);
    if (threadIdx.x % 32 < SHARING) room.pi[threadIdx.x / 32 * MINE * SHARING + k * SHARING + threadIdx.x % 32] = change[k];
  }
  __syncthreads();
  if (threadIdx.x < LENGTHS) {
    double sum = 0;
    for (int warp = 0; warp < TEAM / 32; warp++) sum += room.pi[warp * MINE * SHARING + threadIdx.x];
    parts[(long long)blockIdx.x * LENGTHS + threadIdx.x] = sum;
  }
}

// Adds the parts of `count` rows, `width` numbers each; the tasks of row k are first[k] to first[k + 1]. Without
// `places`, row k is row k of the state, and its sums replace its first part.
extern "C" __global__ void gather(const double* parts, const int* __restrict__ first, int first_task, int count, int width,
                                  const int* __restrict__ places, const int* __restrict__ status, double* sums) {
  const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const int row = at / width, column = at % width;
  if (row >= count || status[places ? places[row] : row] != ACTIVE) return;
  const int begin = first[row] - first_task, end = first[row + 1] - first_task;
  double sum = 0;
  for (int t = begin; t < end; t++) sum += parts[(long long)t * width + column];
  if (places) sums[(long long)places[row] * width + column] += sum;
  else sums[(long long)begin * width + column] = sum;
}
#else
// Sets the rows of a batch, `b`, to the rows `names` of `own`, and their status.
extern "C" __global__ void take_rows(const int* __restrict__ names, const real* __restrict__ own, int count, double* b, int* status) {
  const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long row = at / RANK;
  if (row >= count) return;
  b[at] = (double)own[(long long)names[row] * COLUMNS + at % RANK];
  if (at % RANK == 0) status[row] = ACTIVE;
}

// Adds the parts of a batch's rows to the rows `names` of `out`: gradient, all second derivatives, and the loss.
extern "C" __global__ void add_systems(const double* parts, const int* __restrict__ first, int first_task, int count,
                                       const int* __restrict__ names, double* out) {
  constexpr int OUT = LACK + 1;
  const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x, row = at / OUT;
  if (row >= count) return;
  const int column = at % OUT, r = (column - RANK) / RANK, c = (column - RANK) % RANK;
  const int from = column >= RANK && column < LACK && c > r ? RANK + c * RANK + r : column;
  double sum = 0;
  for (int t = first[row] - first_task; t < first[row + 1] - first_task; t++) sum += parts[(long long)t * SUMS + from];
  out[names[row] * (long long)OUT + column] += sum;
}
#endif
