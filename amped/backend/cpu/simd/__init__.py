"""Operations that generate LLVM code: vectors, registers, division and thread teams; see docs/design/simd.md."""
