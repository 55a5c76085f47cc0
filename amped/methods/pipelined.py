"""Iterations that a device computes ahead of the host.

An iteration is captured once and launched as a whole. While the device computes the next iteration, the host waits for
the previous one, reads a few numbers, and decides how to continue. The next iteration may then have to be discarded;
therefore its initial state is saved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

import numpy as np

from ..backend.device import Array, Replay
from ..backend.ops.equations import Equations, EquationsStatus
from ..operators.base import Operator
from .captured import captured

AHEAD = 2  # iterations queued at a time


class Pipelined:
    """Launches the iterations of a method.

    Parameters
    ----------
    operator : Operator
    equations : Equations
    queue : callable
        Queues an iteration; its argument says whether the fit needs a pass in double precision.
    """

    def __init__(self, operator: Operator, equations: Equations, queue: Callable[[bool], None]) -> None:
        self._operator, self._equations, self._queue = operator, equations, queue
        device, memory = operator.machine.device, equations.memory
        assert memory is not None
        assert equations.reported is not None
        self._states, self._reported = (operator.matrices, memory), equations.reported
        self._kept = [device.empty(state.shape, np.uint8) for state in self._states]
        self._replays: dict[tuple[bool, Hashable], Replay] = {}  # by exactness and `Operator.kept` at the beginning
        self._ends: dict[tuple[bool, Hashable], Hashable] = {}  # `Operator.kept` at the end
        self._in_flight = deque[Replay]()  # launched, and not waited for

    def next(self, exact: bool, left: int) -> EquationsStatus:
        """Return the status of the next of `left` iterations, after launching the one that follows."""
        while len(self._in_flight) < min(AHEAD, left):
            self._in_flight.append(self._launched((exact, self._operator.kept())))
        replay = self._in_flight.popleft()
        return self._equations.read(replay.wait())[0]

    def _launched(self, which: tuple[bool, Hashable]) -> Replay:
        if which not in self._replays:
            self._replays[which] = self._captured(*which)
        replay = self._replays[which]
        replay.launch()
        self._operator.resume(self._ends[which])
        return replay

    def back(self) -> None:
        """Restore the state after the last iteration that raised no flag."""
        self._wait()
        for state, kept in zip(self._states, self._kept, strict=True):
            state[...] = kept
        for mode in range(self._operator.order):
            self._operator.changed(mode)

    def settle(self) -> None:
        """Wait for launched iterations and discard their results."""
        self._wait()

    @property
    def matrices(self) -> Array | None:
        """A copy of `Operator.matrices` after the iteration that was waited for last; None if the operator's are."""
        return self._kept[0] if self._in_flight else None

    def _wait(self) -> None:
        traffic = self._operator.machine.exchange.traffic
        counted = traffic.nbytes
        while self._in_flight:
            self._in_flight.popleft().wait()
        traffic.nbytes = counted  # discarded iterations do not count
        self._operator.clock.collect()

    def _captured(self, exact: bool, begins: Hashable) -> Replay:
        operator, equations = self._operator, self._equations
        states, queue, ends = list(zip(self._states, self._kept, strict=True)), self._queue, self._ends

        def iteration() -> None:  # must not refer to `self`, which refers to the replay
            operator.resume(begins)
            with operator.machine.device.side_stream():
                for state, kept in states:
                    equations.snapshot(state, kept)
            queue(exact)
            operator.wait_comm()
            equations.report()
            ends[exact, begins] = operator.kept()

        return captured(operator, iteration, self._reported)
