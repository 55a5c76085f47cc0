"""Compiled CPU kernels, and the code that splits work between their threads."""

from partitioner.host.jit import load_compiler

load_compiler()  # measures its memory; the modules import Numba
