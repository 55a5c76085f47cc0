"""Leading left singular vectors of a tall matrix whose rows ranks share, all of it queued on a device.

As `leading_rows` finds them from a Gram matrix, but that no rank waits for its host until all is done: what is found
is looked at then. Where it is not good enough, nothing is lost but its time.
"""

from __future__ import annotations

import math

import numpy as np

from ..backend.device import Array
from ..backend.exchange import Machine
from ..backend.ops.eigh import TURNS, Eigh, EighStatus, facts_of, found, leading_of
from ..operators.base import CoreOperator

ORTHONORMAL = 1e-14  # the largest entry by which a Gram matrix may differ from the identity, for each column
LEFT_OVER = 1e-13  # of a tridiagonal matrix times an eigenvector, relative to it, at most
PIVOT = 1e-8  # of Gram matrices at least: below, eigenvectors came out alike
EPS = np.finfo(np.float64).eps


class QueuedRows:
    """Finds the rows that a rank owns, where its device and those of all ranks can. Making one is collective."""

    def __init__(self, operator: CoreOperator) -> None:
        self._operator, self._comm = operator, operator.machine.comm
        self._device, self._xp = operator.machine.device, operator.machine.device.xp
        self._ways: list[Eigh | None] = []
        for length, rank in zip(operator.shape, operator.ranks, strict=True):
            width = math.prod(operator.ranks) // rank
            way = leading_of(self._device, width, rank) if length > width >= rank else None
            self._ways.append(way if all(self._comm.allgather(way is not None)) else None)
            if way is not None:
                way.prepare(width, rank)

    def find(self, mode: int, matrix: Array, room: Array) -> bool:
        """Put them into the mode's factor matrix, as `LeadingRows.find` does; or return False on all ranks.

        `room` is for rows of them, in double precision.
        """
        way, operator, xp = self._ways[mode], self._operator, self._xp
        if way is None:
            return False
        width, rank = matrix.shape[1], room.shape[1]
        facts = self._device.zeros((facts_of(rank),), np.float64)
        vectors = self._device.empty((width, rank), np.float64)
        way.eigenvectors(self._gram(mode, matrix), vectors, facts)
        if self._comm.size > 1:  # all take rank 0's
            if self._comm.rank:
                vectors.fill(0)
            operator.reduce(vectors, "sum", mode)
        xp.matmul(matrix, vectors, out=room)
        spare, change = self._device.empty(room.shape, np.float64), self._device.empty((rank, rank), np.float64)
        for turn in range(TURNS):
            way.whiten(self._gram(mode, room), change, facts, turn)
            if turn < TURNS - 1:
                xp.matmul(room, change, out=spare)
                room, spare = spare, room
        operator.owned(mode)[...] = room
        return bool(self._comm.bcast(good(found(self._device.to_host(facts)), width)))

    def _gram(self, mode: int, matrix: Array) -> Array:
        """Return the Gram matrix of all ranks' rows."""
        gram = self._device.empty((matrix.shape[1],) * 2, np.float64)
        self._xp.matmul(matrix.T, matrix, out=gram)
        self._operator.reduce(gram, "sum", mode)
        return gram


def good(told: EighStatus, width: int) -> bool:
    """Tell whether eigenvectors are right, and the last columns orthonormal; of numbers that are none, nothing is."""
    counting = told.values > EPS * max(8, width) * told.values.max()
    there = bool(np.all(counting) and np.all(told.left_over <= LEFT_OVER) and np.all(told.pivots >= PIVOT))
    return there and bool(told.off[-1] <= ORTHONORMAL * len(told.values))


def queued_bytes(machine: Machine, owned: int, rank: int, width: int) -> int:
    """Return the bytes that this takes on a device for a while, beside two Gram matrices."""
    way = leading_of(machine.device, width, rank)
    return 8 * owned * rank + way.bytes(width, rank) if way else 0
