// What follows the kernels of mttkrp.cu: sums of chunks become sums of output rows.

constexpr int FAN_IN = 32;

// One level of the sum of carries. Item i stands at chunk i * step; it has a carry if the run that it begins in began
// before it: in an earlier chunk (level 0), or at or before the item of the level below that stands `back` chunks before
// it. A thread takes one column of FAN_IN items, adds those of one run, and passes its first run up if an item of that
// run stands before it: every output row is then written by one thread of a level. `starts` and `runs` as in mttkrp.cu.
extern "C" __global__ void __launch_bounds__(128)
combine(const int* __restrict__ starts, const int* __restrict__ runs, const double* __restrict__ carry,
        double* __restrict__ up, double* __restrict__ out, long long items, long long step, long long back, int columns) {
  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long group = thread / columns, first = group * FAN_IN, last = min(first + FAN_IN, items);
  const int column = thread % columns;
  if (first >= items) return;
  double sum = 0;
  int run = -1;
  bool passed_up = false;
  auto flush = [&] {
    if (run < 0) return;
    if (passed_up) up[group * columns + column] = sum;
    else out[(long long)runs[run] * columns + column] += sum;
  };
  for (long long i = first; i < last; i++) {
    const long long at = i * step;
    const int current = starts[at] >> 1;
    if (back ? i == 0 || starts[at - back] >> 1 != current : !(starts[at] & 1)) continue;
    if (current != run) {
      flush();
      run = current;
      passed_up = i == first && i > 0 && starts[at - step] >> 1 == current;
      sum = 0;
    }
    sum += carry[i * columns + column];
  }
  flush();
}

// Add sums in single precision to those in double.
extern "C" __global__ void widen(const float4* __restrict__ narrow, double2* __restrict__ out, long long vectors) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= vectors) return;
  const float4 x = narrow[i];
  double2 a = out[2 * i], b = out[2 * i + 1];
  a.x += x.x;
  a.y += x.y;
  b.x += x.z;
  b.y += x.w;
  out[2 * i] = a;
  out[2 * i + 1] = b;
}
