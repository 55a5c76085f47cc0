"""Kernels of a CPU, a module for each operation."""
