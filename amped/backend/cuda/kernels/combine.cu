// The reductions after the kernels of mttkrp.cu; those after phi.cu and interleaved.cu are compiled with what else they need.

#include "combine.cuh"
