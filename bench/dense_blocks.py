"""A dense tensor of random numbers on any number of ranks: each makes its own block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amped.backend.device import Array
from amped.backend.exchange import Machine
from amped.operators.sources.dense import DenseSource
from amped.operators.sources.grid import Grid
from partitioner.array_types import FloatDType, Floats
from partitioner.host.threads import fair_threads, parallel_map
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.statistics import ElementStatistics, joined
from partitioner.tensors.stored import Stored

BASE = 1 << 27  # bytes of random numbers in host memory, again and again


class _Form(NamedTuple):
    """What is known of the elements before there are any."""

    shape: tuple[int, ...]
    dtype: FloatDType


class RandomSource(DenseSource):
    """Random numbers from 0 to 1: in a GPU's memory where they are to stay there, else in the host's.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype
    machine : Machine
    """

    def __init__(self, shape: Sequence[int], dtype: FloatDType, machine: Machine) -> None:
        super().__init__(DenseTensor(Stored(_Form(tuple(shape), dtype))), machine.comm)
        self._machine = machine
        self.mine: Floats = np.empty(0)  # the block in host memory, once it is made

    def block(self, grid: Grid, on_host: bool = True) -> Array:
        """Make this rank's block."""
        shape, comm, xp = grid.shape(self._comm.rank), self._comm, self._machine.device.xp
        if on_host:
            self.mine = np.empty(shape, self.value_dtype)
            random_into(self.mine.reshape(-1), comm.rank, fair_threads(comm))
            return self.mine
        found, rng = self._machine.device.empty(shape, self.value_dtype), xp.random.default_rng(comm.rank)
        for part in found:
            part[...] = rng.random(part.shape, dtype=self.value_dtype)
        return found

    def _measured(self) -> ElementStatistics:
        known = [DenseTensor(self.mine).facts(threads=fair_threads(self._comm))] if self.mine.size else []
        return joined(self._comm.allgather(joined(known)))


def random_into(flat: Floats, seed: int, threads: int) -> None:
    """Fill an array with random numbers that repeat."""
    base = np.random.default_rng(seed).random(BASE // flat.itemsize, dtype=flat.dtype)
    parts = [flat[at : at + base.size] for at in range(0, flat.size, base.size)]
    parallel_map(lambda part: np.copyto(part, base[: part.size]), parts, threads)
