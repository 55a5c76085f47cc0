"""How ranks share a dense tensor: by index ranges of its slowest mode, or of its two slowest ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

EVEN = 1.1  # a grid over two modes has to make the largest block smaller by this factor


class Grid(NamedTuple):
    """Blocks of a tensor, by ranges of its first two modes in memory order; a rank that is too many has none."""

    lengths: tuple[int, ...]  # in memory order
    ranks: int
    parts: tuple[int, int]

    @classmethod
    def of(cls, lengths: tuple[int, ...], ranks: int) -> Grid:
        """Return the grid with the smallest largest block; one over two modes only where that is clearly better."""
        first, second = lengths[:2]
        result = [(p, ranks // p) for p in range(1, min(ranks, first) + 1)]
        grids = [cls(lengths, ranks, (p, min(q, second))) for p, q in result]
        best = min(grids, key=lambda grid: (grid.largest, grid.parts[1]))
        plain = cls(lengths, ranks, (min(ranks, first), 1))
        return plain if plain.largest <= EVEN * best.largest else best

    @property
    def largest(self) -> int:
        """The most pairs of indices of the two modes that a block has."""
        (first, second), (p, q) = self.lengths[:2], self.parts
        return -(-first // p) * -(-second // q)

    def block(self, rank: int) -> tuple[slice, slice]:
        """Return a rank's ranges of the two modes."""
        p, q = self.parts
        if rank >= p * q:
            return slice(0, 0), slice(0, 0)
        return _part(self.lengths[0], rank // q, p), _part(self.lengths[1], rank % q, q)

    def shape(self, rank: int) -> tuple[int, ...]:
        """Return the lengths of a rank's block."""
        first, second = self.block(rank)
        return first.stop - first.start, second.stop - second.start, *self.lengths[2:]

    def one_owner(self, place: int) -> bool:
        """Return whether each row of a mode, by its place in memory order, is computed by one rank alone."""
        return self.ranks == 1 or (place == 0 and self.parts[1] == 1)

    def rows(self, place: int) -> NDArray[np.int64]:
        """Return which rows of a mode each rank owns: rank ``r``, ``rows[r]`` to ``rows[r + 1]``."""
        parts = self.parts[0] if self.one_owner(place) else self.ranks
        ends = [self.lengths[place] * min(rank, parts) // parts for rank in range(self.ranks + 1)]
        return np.array(ends, np.int64)


def _part(length: int, part: int, parts: int) -> slice:
    return slice(length * part // parts, length * (part + 1) // parts)
