"""A tensor to measure MTTKRPs on a CPU with: its nonzeros sorted for each mode, factor matrices, and random reads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from amped.backend.device import Device
from amped.backend.ops.mttkrp import MTTKRP, Share
from amped.operators.sources.sparse import TensorSource
from amped.operators.sparse.operator import SparseOperator
from amped.options import Options
from amped.parallel.mpi import SingleComm
from amped.runs.assembly import bring_up, place
from partitioner.shards.partition import mode_order
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.value_range import ValueRange

from .harness import Work, seconds_of
from .stored import tensor as synthetic_tensor
from .synthetic import SHAPES, recipe

Matrix = NDArray[np.float32]


class Mode(NamedTuple):
    """Nonzeros sorted by output row, then by the other modes; where the rows begin, (I_n + 1,)."""

    rows: NDArray[np.int32]
    indices: tuple[NDArray[np.int32], ...]
    values: Matrix
    offsets: NDArray[np.int64]


class Problem(NamedTuple):
    """A tensor, its nonzeros sorted for each mode, and factor matrices."""

    tensor: SparseTensor
    modes: tuple[Mode, ...]
    factors: list[Matrix]

    def inputs(self) -> Iterator[tuple[Mode, list[Matrix]]]:
        """Yield each mode and the factor matrices of the others."""
        for n, mode in enumerate(self.modes):
            yield mode, [factor for m, factor in enumerate(self.factors) if m != n]


def problem_of(shape: str, nonzeros: int | None, columns: int) -> Problem:
    """Return a tensor of a named shape, with its number of nonzeros or another one, and random factor matrices."""
    rng = np.random.default_rng(0)
    return Problem(*_draw(shape, nonzeros), [rng.random((n, columns), np.float32) for n in SHAPES[shape][0]])


@lru_cache(1)
def _draw(shape: str, nonzeros: int | None) -> tuple[SparseTensor, tuple[Mode, ...]]:
    tensor = synthetic_tensor(recipe(shape, nonzeros))
    return tensor, tuple(_mode(tensor, mode) for mode in range(tensor.order))


def _mode(tensor: SparseTensor, mode: int) -> Mode:
    order = np.argsort(tensor.columns[mode], kind="stable")
    rows, *others = (tensor.columns[m][order] for m in mode_order(len(tensor.shape), mode))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=tensor.shape[mode]))])
    return Mode(rows, tuple(others), tensor.values[order].astype(np.float32), offsets)


def operator_of(problem: Problem, cores: int, kernel: str = "auto") -> SparseOperator:
    """Return the problem's tensor placed for a number of cores, with its factor matrices."""
    options, columns = Options("cpu", kernel=kernel, threads=cores), problem.factors[0].shape[1]
    machine = bring_up(options, SingleComm())
    operator = place(TensorSource(problem.tensor, machine.comm), columns, machine, options)
    for mode, factor in enumerate(problem.factors):
        operator.set_factor(mode, factor)
    return operator


def reads_of(device: Device, rng: np.random.Generator, values: Matrix, factor: Matrix) -> Work:
    """Read rows of a matrix through MTTKRP with one input mode, in long sums whose cost is negligible."""
    length, columns = factor.shape
    rows = np.arange(values.size, dtype=np.int32) >> 10
    matrix = device.zeros((length, device.stride(columns, factor.itemsize)), factor.dtype)
    matrix[:, :columns] = factor
    out = device.zeros((int(rows[-1]) + 1, matrix.shape[1]), np.float64)
    share = Share((length,), slice(0, len(out)), values.size, matrix.shape[1], factor.dtype, ValueRange(0, 1, 0))
    indices = rng.integers(0, length, values.size, dtype=np.int32)
    kernels = [k for k in MTTKRP.providers(device) if k.name in ("segmented", "prefetched")]
    shards = [kernel.make([rows, indices], values, share, False) for kernel in kernels]

    def read(shard: Any) -> None:
        shard.kernel.run(shard, [matrix], out, slice(0, len(out)))

    best = min(shards, key=lambda shard: min(seconds_of(partial(read, shard)) for _ in range(3)))
    return partial(read, best)
