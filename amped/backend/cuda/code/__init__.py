"""How CUDA kernels are compiled for a layout; needs no GPU or CuPy."""
