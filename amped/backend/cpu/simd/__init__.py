"""Operations that generate LLVM code: vectors, registers, division and thread teams; see docs/design/simd.md."""

from partitioner.host.jit import load_compiler

load_compiler()  # the modules import Numba: measure its memory first
