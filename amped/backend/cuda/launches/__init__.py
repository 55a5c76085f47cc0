"""Launches of CUDA kernels that several operations share."""
