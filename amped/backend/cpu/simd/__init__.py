"""Vector code built with LLVM: vectors, registers, division, and a team of threads."""
