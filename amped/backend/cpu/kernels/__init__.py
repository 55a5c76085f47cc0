"""Kernels of a CPU, a module for each family."""
