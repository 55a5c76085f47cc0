"""Iterations that a device repeats as captured work."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from command import random_tensor
from numpy.typing import NDArray
from oracle import make_operator, random_factors

import amped
from amped.backend.exchange import connect
from amped.backend.null.device import NullDevice
from amped.methods.captured import CapturedIterations
from amped.parallel.mpi import Comm

CAPTURES, NBYTES = 2, 7


class RepeatedWork:
    """Queues the work in the first launches only, as a graph does; see `Replay`."""

    def __init__(self, queue: Callable[[], None], *_: object) -> None:
        self._queue, self._captured = queue, 0

    def launch(self) -> None:
        if self._captured < CAPTURES:
            self._queue()
            self._captured += 1

    def wait(self) -> NDArray[np.uint8]:
        return np.zeros(1, np.uint8)


def test_the_bytes_of_each_launch_are_counted(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NullDevice, "capture", lambda _, *args: RepeatedWork(*args))
    tensor = amped.SparseTensor(*random_tensor((5, 4, 3), 20), (5, 4, 3))
    operator = make_operator(tensor, random_factors(0, tensor.shape, 2), connect(NullDevice(comm), comm))
    traffic = operator.machine.exchange.traffic

    def queue() -> None:
        traffic.nbytes += NBYTES

    iterations, taken = CapturedIterations(operator, operator, np.zeros(1, np.uint8)), []
    traffic.take()
    for _ in range(5):
        iterations.launch(queue)
        taken.append(traffic.take())
    assert taken == [NBYTES] * 5
