"""Kernels of a GPU, a module for each operation."""
