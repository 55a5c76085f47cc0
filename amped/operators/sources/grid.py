"""The distribution of a dense tensor over ranks: by ranges of its slowest mode, or of its two slowest modes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

EVEN = 1.1  # a grid over two modes must reduce the largest block by this factor


class Grid(NamedTuple):
    """Blocks of a tensor by ranges of its first two modes in memory order; surplus ranks have empty blocks."""

    lengths: tuple[int, ...]  # in memory order
    ranks: int
    parts: tuple[int, int]

    @classmethod
    def of(cls, lengths: tuple[int, ...], ranks: int) -> Grid:
        """Return the grid that minimises the largest block, over two modes only if that is clearly better."""
        first, second = lengths[:2]
        result = [(p, ranks // p) for p in range(1, min(ranks, first) + 1)]
        grids = [cls(lengths, ranks, (p, min(q, second))) for p, q in result]
        best = min(grids, key=lambda grid: (grid.largest, grid.parts[1]))
        plain = cls(lengths, ranks, (min(ranks, first), 1))
        return plain if plain.largest <= EVEN * best.largest else best

    @property
    def largest(self) -> int:
        """The largest number of index pairs of the two modes in a block."""
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
        """Return whether each row of the mode at `place` in memory order is computed by a single rank."""
        return self.ranks == 1 or (place == 0 and self.parts[1] == 1)

    def rows(self, place: int) -> NDArray[np.int64]:
        """Return the offsets of the rows that ranks own: rank ``r`` owns ``rows[r]`` to ``rows[r + 1]``."""
        parts = self.parts[0] if self.one_owner(place) else self.ranks
        ends = [self.lengths[place] * min(rank, parts) // parts for rank in range(self.ranks + 1)]
        return np.array(ends, np.int64)


def _part(length: int, part: int, parts: int) -> slice:
    return slice(length * part // parts, length * (part + 1) // parts)
