// Of dense_wgmma.cu and dense_multiply.cu: which numbers of a product C = X K a block of threads computes. C is cut in tiles of
// HIGH x BROAD numbers. As many as occupy the GPU a whole number of times are computed whole. The depth of those that are left is
// cut in parts, which are added up later: so these occupy it about as well.

#pragma once

template <typename Real>
struct Tiling {  // see `Tiling` in dense_code.py
  Real* rest;    // (parts, rows of what is cut, columns)
  int whole;     // blocks of rows that are not cut
  int parts;
  unsigned share;  // of the depth that a part has
};

// Blocks of threads are numbered by rows, then columns; after those that are whole by rows, then parts, then columns.
template <typename Real, int HIGH, int BROAD>
struct Tile {
  int row, column;      // of C, the first
  int part;             // -1: the tile is whole
  unsigned begin, end;  // of the depth

  __device__ __forceinline__ Tile(const Tiling<Real>& tiling, unsigned depth, int columns) {
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));  // or a tile is in registers from when it is read until it is stored
    const int across = (columns + BROAD - 1) / BROAD, number = block / across, later = number - tiling.whole;
    column = block % across * BROAD;
    part = later < 0 ? -1 : later % tiling.parts;
    row = (later < 0 ? number : tiling.whole + later / tiling.parts) * HIGH;
    begin = part < 0 ? 0 : part * tiling.share;
    end = part < 0 ? depth : min(begin + tiling.share, depth);
  }

  // Where row 0 of C would be, so that this tile is where it is to be stored.
  __device__ __forceinline__ Real* target(const Tiling<Real>& tiling, Real* c, int rows, int columns) const {
    const long long uncut = tiling.whole * (long long)HIGH;
    return part < 0 ? c : tiling.rest + (part * (rows - uncut) - uncut) * columns;
  }
};
