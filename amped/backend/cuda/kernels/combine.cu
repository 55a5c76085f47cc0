// Reductions after mttkrp.cu. Those after phi.cu and interleaved.cu are compiled together with their auxiliary kernels.

#include "combine.cuh"
