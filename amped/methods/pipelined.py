"""Iterations that a device computes ahead of the host.

An iteration is noted down once and launched as a whole. The host waits for one while the device computes the next,
reads a few numbers, and decides. So the last iteration may have been computed in vain: what it began from is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backend.device import Replay
from ..backend.ops.equations import Equations, EquationsStatus
from ..operators.base import Operator

AHEAD = 2  # iterations that are queued at a time


class Pipelined:
    """Launches the iterations of a method.

    Parameters
    ----------
    operator : Operator
    equations : Equations
    queue : callable
        Queues an iteration; its argument says whether the fit needs an exact pass.
    """

    def __init__(self, operator: Operator, equations: Equations, queue: Callable[[bool], None]) -> None:
        self._operator, self._equations, self._queue = operator, equations, queue
        device, memory = operator.machine.device, equations.memory
        assert memory is not None
        assert equations.reported is not None
        self._states, self._reported = (operator.matrices, memory), equations.reported
        self._kept = [device.empty(state.shape, np.uint8) for state in self._states]
        self._replays: dict[tuple[bool, Hashable], Replay] = {}  # by exactness, and by what is kept when one begins
        self._ends: dict[tuple[bool, Hashable], Hashable] = {}  # what is kept when one ends
        self._flying = deque[Replay]()  # launched, and not waited for

    def next(self, exact: bool, left: int) -> EquationsStatus:
        """Wait for the next of `left` iterations; return what it told. Those that follow are launched before."""
        while len(self._flying) < min(AHEAD, left):
            self._flying.append(self._launched((exact, self._operator.kept())))
        return self._equations.read(self._flying.popleft().wait())[0]

    def _launched(self, which: tuple[bool, Hashable]) -> Replay:
        if which not in self._replays:
            self._replays[which] = self._noted(*which)
        replay = self._replays[which]
        replay.launch()
        self._operator.resume(self._ends[which])
        return replay

    def back(self) -> None:
        """Give up all that was computed since the last iteration that raised no flag."""
        self._wait()
        for state, kept in zip(self._states, self._kept, strict=True):
            state[...] = kept
        for mode in range(self._operator.order):
            self._operator.changed(mode)

    def settle(self) -> None:
        """Wait for what was launched, in vain."""
        self._wait()

    def factor(self, mode: int) -> NDArray[Any]:
        """Return a copy of a factor matrix in host memory, as it was after the iteration that was waited for last."""
        return self._operator.factor(mode, self._kept[0] if self._flying else None)

    def _wait(self) -> None:
        while self._flying:
            self._flying.popleft().wait()
        self._operator.clock.collect()

    def _noted(self, exact: bool, begins: Hashable) -> Replay:
        operator, equations = self._operator, self._equations
        states, queue, ends = list(zip(self._states, self._kept, strict=True)), self._queue, self._ends

        def iteration() -> None:  # without `self`, which holds it
            operator.resume(begins)
            with operator.machine.device.side_stream():
                for state, kept in states:
                    equations.snapshot(state, kept)
            queue(exact)
            operator.wait_comm()
            equations.report()
            ends[exact, begins] = operator.kept()

        operator.synchronize()
        replay = operator.machine.device.capture(iteration, self._reported, operator.clock)
        assert replay is not None
        return replay
