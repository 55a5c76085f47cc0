"""The CPU backend: NumPy, kernels compiled by Numba, exchange over MPI."""
