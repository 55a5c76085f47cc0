"""Compile-time parameters of CUDA kernels for each layout. Needs neither a GPU nor CuPy."""
