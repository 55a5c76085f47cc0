// Solves rows of row_equations.cuh on a CPU, as a team of one thread. Reads their number, and for each row G, the right-hand
// side and the ridge; writes the row, the change of the squared residuals, and whether there is no unique solution.
//
//   RANK  columns

#include <algorithm>
#include <cmath>
#include <cstdio>

#define __device__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#define TEAM 1
#define PACKED 1
#define BY_LANES 0

using std::fmax;
using std::min;
struct {
  int x = 0;
} threadIdx;
void __syncwarp() {}
void __syncthreads() {}
double __shfl_xor_sync(unsigned, double, int) { return 0; }  // the number of a thread that there is not
double __shfl_sync(unsigned, double x, int) { return x; }
bool __all_sync(unsigned, bool x) { return x; }

#include "row_equations.cuh"

int main() {
  static double room[2 * TRIANGLE + VECTORS * LENGTH + RANK];
  const Row row(room, room + TRIANGLE, 0);
  int rows;
  if (scanf("%d", &rows) != 1) return 1;
  for (int n = 0; n < rows; n++) {
    double x, ridge;
    for (int r = 0; r < RANK; r++)
      for (int c = 0; c < RANK; c++) {
        if (scanf("%lf", &x) != 1) return 1;
        if (c <= r) row.g(r, c) = x;
      }
    for (int r = 0; r < RANK; r++, row.old[r - 1] = 0)
      if (scanf("%lf", &row.slope[r]) != 1) return 1;
    if (scanf("%lf", &ridge) != 1) return 1;
    const Solved solved = solve_row<double>(row, Terms{ridge, 0}, 0, false);
    for (int r = 0; r < RANK; r++) printf("%.17g ", row.b[r]);
    printf("%.17g %g\n", solved.squares, solved.deficient);
  }
}
