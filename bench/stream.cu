// STREAM's four operations, in double precision: a = b, a = s b, a = b + c, a = b + s c. Each thread takes two numbers.

#define EACH(name, result)                                                                                            \
  extern "C" __global__ void name(double2* __restrict__ a, const double2* __restrict__ b, const double2* __restrict__ c, \
                                  double s, long long pairs) {                                                        \
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;                                                   \
    if (i >= pairs) return;                                                                                           \
    const double2 x = b[i];                                                                                           \
    a[i] = result;                                                                                                    \
  }

EACH(copy, x)
EACH(scale, make_double2(s * x.x, s * x.y))
EACH(add, make_double2(x.x + c[i].x, x.y + c[i].y))
EACH(triad, make_double2(x.x + s * c[i].x, x.y + s * c[i].y))
