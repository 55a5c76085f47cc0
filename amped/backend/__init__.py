"""Devices, the kernels that run on them, and what carries rows between them.

`cpu`, `cuda` and `null` are folders with the same names inside.
"""
