// Tiling of the product C = X K in dense_wgmma.cu and dense_multiply.cu. C is cut into tiles of HIGH x BROAD numbers.
// As many tiles as occupy the GPU a whole number of times are computed whole. The depth of the remaining tiles is
// cut into parts, which are summed later, so that they occupy the GPU about as well.

#pragma once

template <typename Real>
struct Tiling {  // see `Tiling` in code/dense.py
  Real* rest;  // (parts, rows of the cut tiles, columns)
  int whole;  // number of row blocks that are not cut
  int parts;
  unsigned share;  // depth of a part
};

// Thread blocks are numbered by rows, then columns, for whole tiles; then by rows, parts and columns for cut tiles.
template <typename Real, int HIGH, int BROAD>
struct Tile {
  int row, column;  // first row and column of C
  int part;  // part; -1 if the tile is whole
  unsigned begin, end;  // range of the depth

  __device__ __forceinline__ Tile(const Tiling<Real>& tiling, unsigned depth, int columns) {
    int block;
    // Otherwise the tile would occupy registers from here to its store.
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    const int across = (columns + BROAD - 1) / BROAD, number = block / across, later = number - tiling.whole;
    column = block % across * BROAD;
    part = later < 0 ? -1 : later % tiling.parts;
    row = (later < 0 ? number : tiling.whole + later / tiling.parts) * HIGH;
    begin = part < 0 ? 0 : part * tiling.share;
    end = part < 0 ? depth : min(begin + tiling.share, depth);
  }

  // The address of row 0 of C, such that this tile's row and column lead to its destination.
  __device__ __forceinline__ Real* target(const Tiling<Real>& tiling, Real* c, int rows, int columns) const {
    const long long uncut = tiling.whole * (long long)HIGH;
    return part < 0 ? c : tiling.rest + (part * (rows - uncut) - uncut) * columns;
  }
};
