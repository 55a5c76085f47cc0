"""Kernels of the null device, a module for each operation."""
