"""Sorted nonzeros of one mode, as passed to the kernels of every device in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from oracle import coo_mttkrp, random_factors

from amped.backend.cpu.ops import mttkrp as cpu_mttkrp
from amped.backend.device import Device
from amped.backend.ops.cast16 import CAST16
from amped.backend.ops.mttkrp import MTTKRP, Kernel, Share
from amped.options import GatherName
from partitioner.tensors.value_range import ValueRange

DTYPES = {"fp32": np.float32, "fp64": np.float64}

# Distributions of nonzeros over the output rows


def _heavy(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.where(rng.random(count) < 0.65, 17, rng.integers(0, 40, count))


SHAPES_OF_ROWS: dict[str, tuple[int, Callable[[np.random.Generator, int], np.ndarray]]] = {
    "uniform": (101, lambda rng, count: rng.integers(0, 101, count)),
    "heavy row": (40, _heavy),
    "heavy last row": (40, lambda rng, count: 39 - abs(_heavy(rng, count) - 17)),
    "one row": (1, lambda rng, count: np.zeros(count, int)),
    "mostly empty": (5003, lambda rng, count: rng.integers(0, 60, count) * 83 + 7),
    "far apart": (40_003, lambda rng, count: rng.integers(0, 30, count) ** 2 * 45 + 1000),
    "one per row": (1009, lambda rng, count: rng.permutation(1009)[:count]),
}


@lru_cache(4)  # because several kernels and devices compute the same problem
def _drawn(
    order: int, rank: int, rows: str, count: int, integers: bool, grain: float, longest: int
) -> list[np.ndarray]:
    """Return the columns of sorted nonzeros, their values, and the factors of a problem."""
    length, draw = SHAPES_OF_ROWS[rows]
    # Independent of the number of nonzeros: a GPU's kernels are compiled for the bits of indices.
    lengths = np.random.default_rng([order, rank]).integers(1, longest + 1, order - 1)
    shape, rng = (length, *map(int, lengths)), np.random.default_rng([order, rank, count])
    columns = np.stack([draw(rng, count), *(rng.integers(0, n, count) for n in shape[1:])])
    columns = columns[:, np.lexsort(columns[::-1])].astype(np.int32)
    values, factors = rng.random(count) + 0.5, random_factors(rank, shape, rank)
    if integers:
        values = rng.integers(-3, 4, count) * grain
        factors = [rng.integers(-2, 3, f.shape).astype(float) for f in factors]
    return [columns, values, *factors]


class Problem:
    """Sorted nonzeros, factors, and their MTTKRP in mode 0."""

    def __init__(
        self,
        order: int,
        rank: int,
        rows: str = "uniform",
        count: int = 1009,
        *,
        integers: bool = False,
        grain: float = 1,
        longest: int = 49,
    ):
        drawn = _drawn(order, rank, rows, count, integers, grain, longest)
        self.columns, self.values, *self.factors = (array.copy() for array in drawn)
        self.expected = coo_mttkrp(self.columns, self.values, self.factors, 0)
        self.grain = grain if integers else 0.0
        self.named = np.bincount(self.columns[0], minlength=SHAPES_OF_ROWS[rows][0]) > 0

    def share(self, backend: Device, precision: str, gather: GatherName = "full") -> Share:
        """Return the description of the nonzeros."""
        stride = stride_of(backend, precision, self.factors[0].shape[1], gather)
        values = ValueRange(float(self.values.min()), float(self.values.max()), self.grain)
        lengths = tuple(len(f) for f in self.factors)
        rows, dtype = slice(0, lengths[0]), np.dtype(DTYPES[precision])
        return Share(lengths[1:], rows, self.values.size, stride, dtype, values, gather=gather)

    def shard(self, share: Share, kernel: Kernel, start: int = 0, stop: int | None = None) -> Any:
        """Return the nonzeros `start` to `stop` in device memory."""
        part = slice(start, self.values.size if stop is None else stop)
        rows = self.columns[0]
        continues = bool(start and rows[start] == rows[start - 1])
        columns, values = [np.ascontiguousarray(column[part]) for column in self.columns], self.values[part]
        if isinstance(kernel, cpu_mttkrp.Segmented):  # kernels of a GPU accept any type and round while packing
            values = values.astype(share.dtype)
        return kernel.make(columns, values, share, continues)

    def inputs(self, backend: Device, share: Share) -> list[Any]:
        """Return the input factors in device memory, padded as the backend requires."""
        rows = []
        for factor in self.factors[1:]:
            rows.append(padded(backend, share, factor))
            if share.gather != "full":
                narrow = backend.empty(rows[-1].shape, np.uint16)
                CAST16.require(backend, lambda rounding: rounding.name == share.gather).run(rows.pop(), narrow)
                rows.append(narrow)
        return rows


def padded(backend: Device, share: Share, factor: np.ndarray) -> Any:
    """Return a factor matrix in device memory, padded to the columns that the backend requires."""
    wide = np.zeros((len(factor), share.stride), share.dtype)
    wide[:, : factor.shape[1]] = factor
    return backend.to_device(wide)


def stride_of(backend: Device, precision: str, rank: int, gather: GatherName = "full") -> int:
    return backend.stride(rank, np.dtype(DTYPES[precision]).itemsize if gather == "full" else 2)


def kernels(backend: Device, order: int = 3) -> Iterator[str]:
    """Yield the names of the MTTKRP kernels that support tensors of an order."""
    share = Share((1,) * (order - 1), slice(0, 1), 1, 4, np.dtype(np.float32), ValueRange(0.0, 1.0, 0.0))
    names = [kernel.name for kernel in MTTKRP.providers(backend) if kernel.suits(share)]
    assert len(set(names)) == len(names) >= 1
    yield from names
