"""Devices, and the kernels that run on them: `cpu`, `cuda` and `null`, folders with the same names inside."""
