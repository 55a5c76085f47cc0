"""Iterations that a device repeats as captured work."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..backend.byte_count import ByteCount
from ..backend.device import Array, Replay
from ..operators.base import Placed


class Keeper(Protocol):
    """Has partial results, which captured work reads and replaces. See `operators.base.Operator`."""

    def kept(self) -> Hashable:
        """Return a key of the valid partial results; None if there are none."""

    def resume(self, kept: Hashable) -> None:
        """Continue with these partial results."""


class CapturedIterations:
    """Launches iterations that are captured once for each state in which they begin.

    Parameters
    ----------
    operator : Placed
    keeper : Keeper
        Its partial results are the state.
    read : (bytes,) uint8 device array
        The results of an iteration.
    """

    def __init__(self, operator: Placed, keeper: Keeper, read: Array) -> None:
        self._operator, self._keeper, self._read = operator, keeper, read
        self._replays = dict[tuple[Hashable, Hashable], tuple[Replay, list[Hashable]]]()

    def launch(self, queue: Callable[[], None], variant: Hashable = None) -> NDArray[np.uint8]:
        """Return the results of an iteration, after waiting for it.

        Parameters
        ----------
        queue : callable
            Queues an iteration. It must not refer to this object or its owner: the device's memory would be freed late.
        variant : hashable, optional
            A key of what `queue` does.
        """
        which = variant, self._keeper.kept()
        if which not in self._replays:
            self._replays[which] = self._captured(queue, which[1])
        replay, ends = self._replays[which]
        replay.launch()
        self._keeper.resume(ends[0])
        return replay.wait()

    def _captured(self, queue: Callable[[], None], begins: Hashable) -> tuple[Replay, list[Hashable]]:
        """Return a captured iteration, and the state in which it ends."""
        operator, keeper, ends = self._operator, self._keeper, list[Hashable]()

        def work() -> None:
            keeper.resume(begins)
            queue()
            ends[:] = [keeper.kept()]

        return captured(operator, work, self._read), ends


def captured(operator: Placed, queue: Callable[[], None], read: Array) -> Replay:
    """Return work on an operator, captured by its device, which has a queue; see `Device.capture`."""
    operator.synchronize()
    replay = operator.machine.device.capture(queue, read, operator.clock)
    assert replay is not None
    return _CountedReplay(replay, operator.machine.exchange.traffic)


class _CountedReplay:
    """Captured work whose exchanged bytes count when each launch ends, not when it is captured; see `Replay`."""

    def __init__(self, replay: Replay, traffic: ByteCount) -> None:
        self._replay, self._traffic, self._nbytes = replay, traffic, 0

    def launch(self) -> None:
        before = self._traffic.nbytes
        self._replay.launch()
        if self._traffic.nbytes > before:  # this launch captured the work
            self._nbytes, self._traffic.nbytes = self._traffic.nbytes - before, before

    def wait(self) -> NDArray[np.uint8]:
        result = self._replay.wait()
        self._traffic.nbytes += self._nbytes
        return result
