// Packs nonzeros into the jobs, chunks, records and runs of packed.cuh. Compile-time parameters: INPUTS and REAL. One
// thread per chunk. `count_runs` first counts the runs and long runs that begin in each chunk; their prefix sums
// (`sum_counts`) determine where each chunk's runs are stored.

typedef REAL real;
typedef unsigned int word;

constexpr int STRIP = 4, AT_ONCE = 4;
// In tiles with fp32, runs of at least LONG_RUN nonzeros are long: each sum gets a separate row, so that an output row
// accumulates few single-precision sums per tile. End pieces of a cut run are long from LONG_END nonzeros on, middle
// pieces always.
constexpr int LONG_RUN = 64, LONG_END = 16;
constexpr int LONGEST_RUN = 512;  // nonzeros; longer runs are cut

struct Job {
  long long unit;
  int chunk;
  int base[INPUTS];
};
struct Span {
  long long begin, count;  // nonzeros of a job, in tile order
  int tile;
};
struct Sorted {
  const int* column[INPUTS + 1];  // output indices, then input indices
  const real* values;
  const word* order;  // permutation into tile order; null: identity
  __device__ long long at(long long x) const { return order ? order[x] : x; }
};
struct Layout {
  int jobs, groups, record, value_bits, fibre, tiled, continues, first_row, rows;
  double grain;  // 0: raw values
  long long low;
  int bits[INPUTS];
};
struct Chunk {
  long long begin, end;
  bool carried;     // the first run began in an earlier chunk or shard, and its sum is carried
  bool owns;  // this chunk stores the first run's entry of `runs`
  // The previous / next chunk has nonzeros of the same row and tile as this one's first / last.
  bool cut_before, cut_after;
  __device__ Chunk(const Sorted& in, const Job* jobs, const Span* spans, const Layout& layout, int c) {
    const int j = c / layout.groups;
    const Span& span = spans[j];
    const long long stop = span.begin + span.count;
    begin = min(span.begin + (long long)(c % layout.groups) * jobs[j].chunk, stop);
    end = min(begin + jobs[j].chunk, stop);
    const auto row = [&](long long x) { return in.column[0][in.at(x)]; };
    const bool empty = begin == end, first = begin == span.begin, last = end == stop;
    const bool tile_before = !first || (j > 0 && spans[j - 1].tile == span.tile);
    const bool tile_after = !last || (j + 1 < layout.jobs && spans[j + 1].tile == span.tile);
    cut_before = !empty && tile_before && row(begin) == row(begin - 1);
    cut_after = !empty && tile_after && row(end - 1) == row(end);
    carried = !layout.tiled && (cut_before || (layout.continues && begin == 0));
    owns = !empty && (!carried || begin == 0);
  }
};

// The current run of a chunk's thread.
struct Run {
  const Layout& layout;
  const Chunk& chunk;
  int row = 0, length = 0;
  bool part, first = true;  // continues a piece of its row; is the chunk's first run
  __device__ Run(const Layout& layout, const Chunk& chunk) : layout(layout), chunk(chunk), part(chunk.cut_before) {}
  // Returns whether a nonzero of row `next` begins a new run.
  __device__ bool ends_before(int next) const {
    return length && (next != row || (layout.tiled && length >= LONGEST_RUN));
  }
  __device__ void begin(int next) {
    part = next == row;
    length = 0;
    first = false;
  }
  __device__ void add(int of_row) {
    row = of_row;
    length++;
  }
  __device__ bool is_long(bool last) const {
    const bool cut_after = last ? chunk.cut_after : length >= LONGEST_RUN;
    const int least = part && cut_after ? 1 : (part || cut_after ? LONG_END : LONG_RUN);
    return layout.tiled && sizeof(real) == 4 && length >= least;
  }
  __device__ bool counts() const { return !first || chunk.owns; }
};

// Adds one input mode to the numbers of the nonzeros' tiles, which count the blocks of all modes in row-major order.
extern "C" __global__ void number_tiles(const int* __restrict__ column, int parts, int block, long long nonzeros, int* __restrict__ tile) {
  const long long q = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (q < nonzeros) tile[q] = tile[q] * parts + column[q] / block;
}

extern "C" __global__ void count_runs(Sorted in, const Job* __restrict__ jobs, const Span* __restrict__ spans, Layout layout,
                                      int chunks, int* __restrict__ counts, int* __restrict__ long_counts) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= chunks) return;
  const Chunk chunk(in, jobs, spans, layout, c);
  Run run(layout, chunk);
  int count = 0, long_ones = 0;
  const auto close = [&](bool last) {
    count += run.counts();
    long_ones += run.is_long(last);
  };
  for (long long x = chunk.begin; x < chunk.end; x++) {
    const int row = in.column[0][in.at(x)];
    if (run.ends_before(row)) {
      close(false);
      run.begin(row);
    }
    run.add(row);
  }
  if (chunk.begin < chunk.end) close(true);
  counts[c] = count;
  long_counts[c] = long_ones;
}

// In-place inclusive prefix sums of each row of `counts`, (rows, items). One thread block per row, each thread sums a
// part.
extern "C" __global__ void __launch_bounds__(1024) sum_counts(int* counts, long long items) {
  __shared__ int sums[1024];
  int* row = counts + blockIdx.x * items;
  const long long part = (items + blockDim.x - 1) / blockDim.x;
  const long long begin = min(threadIdx.x * part, items), end = min(begin + part, items);
  int sum = 0;
  for (long long x = begin; x < end; x++) sum += row[x];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int step = 1; step < blockDim.x; step *= 2) {
    const int before = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  sum = sums[threadIdx.x] - sum;
  for (long long x = begin; x < end; x++) row[x] = sum += row[x];
}

// Writes one record, from the lowest bit up, into the planes of its unit.
struct Writer {
  unsigned char* unit;
  int slot, whole, rest, at = 0, filled = 0;
  unsigned long long pending = 0;
  __device__ Writer(unsigned char* unit, int slot, int record) : unit(unit), slot(slot), whole(record / 4), rest(record % 4) {}
  __device__ __forceinline__ void word_out() {
    if (at < whole) ((word*)(unit + at * 64))[slot] = (word)pending;
    else {
      if (rest & 2) ((unsigned short*)(unit + whole * 64))[slot] = (unsigned short)pending;
      if (rest & 1) (unit + whole * 64 + (rest & 2) * 16)[slot] = (unsigned char)(pending >> (rest & 2) * 8);
    }
    at++;
    pending >>= 32;
  }
  __device__ __forceinline__ void put(unsigned long long field, int bits) {  // at most 32 bits
    pending |= field << filled;
    filled += bits;
    if (filled < 32) return;
    word_out();
    filled -= 32;
  }
  __device__ __forceinline__ void finish() {
    while (at < whole + (rest > 0)) word_out();
  }
};

extern "C" __global__ void pack(Sorted in, const Job* __restrict__ jobs, const Span* __restrict__ spans, Layout layout, int chunks,
                                const int* __restrict__ first_run, const int* __restrict__ first_long, int* __restrict__ starts,
                                int* __restrict__ runs, int* __restrict__ long_rows, unsigned char* __restrict__ records) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= chunks) return;
  const Chunk chunk(in, jobs, spans, layout, c);
  const Job& job = jobs[c / layout.groups];
  const int group = c % layout.groups;
  const long long strip = job.unit + (long long)(group / STRIP) * (job.chunk / AT_ONCE);
  const int unit_bytes = STRIP * AT_ONCE * layout.record;
  Run run(layout, chunk);
  int at_run = first_run[c] - !chunk.owns, at_long = first_long[c], lead = 0;
  starts[c] = chunk.begin < chunk.end ? at_run * 2 + chunk.carried : -1;
  const auto close = [&](bool last) {
    int target = run.row - layout.first_row;
    if (run.is_long(last)) {
      long_rows[at_long] = target;
      target = layout.rows + at_long++;
    }
    if (run.counts()) runs[at_run] = target;
    at_run++;
  };
  if (chunk.begin == chunk.end) return;
  const int value_low = min(layout.value_bits, 32), value_high = layout.value_bits - value_low;
  for (int t = 0; t < job.chunk; t++) {
    Writer out(records + (strip + t / AT_ONCE) * unit_bytes, group % STRIP * AT_ONCE + t % AT_ONCE, layout.record);
    const long long x = chunk.begin + t;
    // Padding: value 0 with the chunk's last indices, because other indices could fetch an infinite row and give NaN.
    const long long at = in.at(min(x, chunk.end - 1));
    unsigned long long code = layout.grain != 0 ? (unsigned long long)-layout.low : 0;
    bool begins = false, fibre = false;
    if (x < chunk.end) {
      const int row = in.column[0][at], head = in.column[1][at];
      begins = run.ends_before(row);
      fibre = begins || (t && head != lead);
      if (begins) {
        close(false);
        run.begin(row);
      }
      run.add(row);
      lead = head;
      const real value = in.values[at];
      if (layout.grain != 0) code = (unsigned long long)(__double2ll_rn((double)value / layout.grain) - layout.low);
      else if (sizeof(real) == 4) code = __float_as_uint((float)value);
      else code = __double_as_longlong((double)value);
    }
    out.put(code & 0xffffffff, value_low);
    out.put(code >> 32, value_high);
#pragma unroll
    for (int m = 0; m < INPUTS; m++) out.put((word)(in.column[m + 1][at] - job.base[m]), layout.bits[m]);
    if (layout.fibre) out.put(fibre, 1);
    out.put(begins, 1);
    out.finish();
  }
  close(true);
}
