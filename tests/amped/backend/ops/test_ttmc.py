"""Each backend's TTMc of a shard, called directly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from forms import PRECISIONS, exhaustive
from nonzeros import DTYPES
from oracle import BACKENDS, random_nonzeros
from tuckers import coo_ttmc

from amped.backend.device import Device
from amped.backend.ops.mttkrp import MTTKRP, Kernel, Share
from amped.backend.ops.ttmc import TTMC, TtmcProvider
from partitioner.shards.partition import SortedTensor, mode_order
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.value_range import ValueRange

ROUNDING = {"fp32": 1e-6, "fp64": 1e-13}
# Shapes, ranks, and with which precision a case runs by default: the vectors in which rows are computed are of 32 or
# 64 bytes, and for each, each order and each precision code is compiled.
CASES = [
    ((40, 30, 20), (1, 1, 1), "fp32"), ((40, 30, 20), (7, 7, 7), "fp64"), ((40, 30, 20), (16, 16, 16), "fp32"),
    ((40, 30, 20), (20, 20, 20), "fp32"), ((40, 70, 70), (1, 33, 64), ""), ((40, 9, 70), (40, 5, 33), "fp32"),
    ((50, 1, 30), (4, 1, 5), "fp32"), ((1, 40, 30), (1, 6, 6), "fp32"), ((200, 90), (16, 7), "fp64"),
    ((30, 70), (3, 64), ""), ((30, 20, 10, 9), (3, 4, 5, 6), "fp64"), ((30, 20, 10, 9), (8, 8, 8, 8), "fp64"),
    ((9, 8, 7, 6, 5), (2, 3, 1, 3, 2), ""), ((5, 9, 4, 6, 5, 3), (2, 2, 3, 1, 2, 3), "fp32"),
    ((12, 12, 12, 12), (4, 10, 9, 11), "fp64"),
]  # fmt: skip


class Problem:
    """A tensor with repeated nonzeros, most of them in one row of each mode, and factor matrices."""

    def __init__(self, shape: Sequence[int], ranks: Sequence[int], mode: int, precision: str, nonzeros: int) -> None:
        columns, values = random_nonzeros(len(shape), shape, nonzeros)
        self.tensor = SparseTensor(columns.T, values, shape)
        rng, self.dtype = np.random.default_rng(5), np.dtype(DTYPES[precision])
        self.factors = [rng.standard_normal(s).astype(self.dtype) for s in zip(shape, ranks, strict=True)]
        self.inputs = mode_order(len(shape), mode)[1:]
        self.ranks, self.rows = [ranks[m] for m in self.inputs], shape[mode]
        copy = SortedTensor(self.tensor, mode, self.dtype)
        self.columns, self.values = [copy.column(k) for k in range(len(shape))], copy.values
        wide = self.tensor.values.astype(self.dtype)
        self.expected = coo_ttmc(self.tensor.columns, wide, self.factors, mode)
        self.shape = shape

    def share(self, device: Device, first: int = 0) -> Share:
        lengths = tuple(self.shape[m] for m in self.inputs)
        stride, low, high = device.stride(7, self.dtype.itemsize), self.values.min(), self.values.max()
        rows, values = slice(first, self.rows), ValueRange(float(low), float(high), 0.0)
        return Share(lengths, rows, self.values.size, stride, self.dtype, values)

    def padded(self, device: Device) -> list[Any]:
        found = []
        for mode in self.inputs:
            length, rank = self.factors[mode].shape
            matrix = device.zeros((length, device.stride(rank, self.dtype.itemsize)), self.dtype)
            matrix[:, :rank] = device.to_device(self.factors[mode])
            found.append(matrix)
        return found


def provider(device: Device, share: Share) -> tuple[Kernel, TtmcProvider]:
    every = ((kernel, how) for kernel in MTTKRP.providers(device) for how in TTMC.providers(device))
    return next((kernel, how) for kernel, how in every if how.suits(kernel, share))


def run(device: Device, problem: Problem, cuts: Sequence[int] = (), first: int = 0, double: bool = False) -> np.ndarray:
    """Compute shards between `cuts`, one after the other; what is around the output must stay as it is."""
    share = problem.share(device, first)
    kernel, how = provider(device, share)
    rows, width = problem.rows - first, problem.expected.shape[1]
    guarded, inputs = device.empty((rows + 2, width), np.float64), problem.padded(device)
    guarded[:] = np.nan
    for start, stop in pairwise([0, *cuts, problem.values.size]):
        continues = bool(start and problem.columns[0][start] == problem.columns[0][start - 1])
        parts = [device.to_device(np.ascontiguousarray(c[start:stop])) for c in (*problem.columns, problem.values)]
        shard = kernel.make(parts[:-1], parts[-1], share, continues)
        scratch = device.empty((how.bytes(share, problem.ranks, stop - start),), np.uint8)
        scratch.fill(0xFF)  # NaN, as floating point numbers
        begin = 0 if not start else int(problem.columns[0][start - 1]) + 1 - first
        end = rows if stop == problem.values.size else int(problem.columns[0][stop - 1]) + 1 - first
        how.run(shard, inputs, problem.ranks, guarded[1:-1], slice(begin, end), scratch, double)
    device.synchronize()
    found = device.to_host(guarded)
    assert np.all(np.isnan(found[[0, -1]]))
    return np.asarray(found[1:-1])


def close(found: np.ndarray, wanted: np.ndarray, precision: str) -> None:
    error = np.linalg.norm(found - wanted, axis=1)
    assert np.all(error <= 10 * ROUNDING[precision] * (np.linalg.norm(wanted, axis=1) + np.linalg.norm(wanted) / 10))
    assert np.linalg.norm(found - wanted) <= ROUNDING[precision] * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("shape", "ranks", "precision"),
    [(pytest.param if each == due else exhaustive)(*case, each) for *case, due in CASES for each in PRECISIONS],
)
@pytest.mark.parametrize("backend", [*BACKENDS, ("null", 1)], indirect=True)
def test_the_result_is_the_oracle_s(
    backend: Device, shape: tuple[int, ...], ranks: tuple[int, ...], precision: str
) -> None:
    """Of the first and the last mode."""
    for mode in (0, len(shape) - 1):
        problem = Problem(shape, ranks, mode, precision, 700)
        close(run(backend, problem), problem.expected, precision)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_shards_that_share_a_row(backend: Device, precision: str) -> None:
    """The heavy row, the last one, goes over all of them but the first; one shard is within it."""
    problem = Problem((20, 300, 400), (3, 5, 6), 0, precision, 2000)
    cuts = [problem.values.size * k // 100 for k in (7, 45, 46, 60)]
    close(run(backend, problem, cuts), problem.expected, precision)


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_long_sums_are_in_double_precision(backend: Device) -> None:
    """A single fibre of 200,000 equal nonzeros, whose sum in single precision would be wrong in the fourth digit."""
    count = 200_000
    problem = Problem((2, 2, 3), (2, 2, 2), 0, "fp32", 10)
    rng = np.random.default_rng(0)
    problem.columns = [
        np.zeros(count, np.int32),
        np.zeros(count, np.int32),
        np.sort(rng.integers(0, 3, count, np.int32)),
    ]
    problem.values = (rng.random(count) + 0.5).astype(np.float32)
    problem.expected = coo_ttmc(problem.columns, problem.values, problem.factors, 0)
    close(run(backend, problem), problem.expected, "fp32")


@pytest.mark.parametrize(("shape", "ranks"), [CASES[2][:2], exhaustive(*CASES[8][:2]), exhaustive(*CASES[12][:2])])
@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_double_precision_of_numbers_in_single_precision(
    backend: Device, shape: tuple[int, ...], ranks: tuple[int, ...]
) -> None:
    problem = Problem(shape, ranks, 0, "fp32", 700)
    problem.expected = coo_ttmc(
        problem.columns, problem.values.astype(np.float64), [f.astype(np.float64) for f in problem.factors], 0
    )
    close(run(backend, problem, [problem.values.size // 2], double=True), problem.expected, "fp64")


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_the_same_bits_every_time(backend: Device) -> None:
    problem = Problem((20, 30, 40), (3, 5, 6), 1, "fp32", 3000)
    assert run(backend, problem).tobytes() == run(backend, problem).tobytes()
