"""Products of sparse tensors with matrices: an oracle, and operators in all variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

import amped
from amped.backend.cpu.ops import ttm as cpu_ttm
from amped.backend.device import Device
from amped.backend.exchange import connect
from amped.operators.sources.described import SparseProduct
from amped.operators.sources.protocols import ProductSource
from amped.operators.sources.semisparse import SemiSparseProduct
from amped.operators.sources.sparse import TensorSource
from amped.operators.ttm import operator as ttm
from amped.operators.ttm import plan as ttm_plan
from amped.operators.ttm.operator import TtmOperator
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs.products import product_setting

SHAPES = [
    (9, 7),
    (9, 7, 5),
    (1, 40, 3),
    (30, 1, 1),
    (4, 5, 6, 3),
    (3, 2, 4, 2, 5),
    (2, 3, 2, 3, 2, 3),
    (1, 1),
    (300, 2, 2),
]


def dense_of(tensor: amped.SparseTensor) -> np.ndarray:
    """Return a tensor as a dense array."""
    found = np.zeros(tensor.shape)
    found[tuple(tensor.columns)] = tensor.values
    return found


def dense_product(array: np.ndarray, matrix: np.ndarray, mode: int) -> np.ndarray:
    """Return the product by its definition."""
    return np.moveaxis(np.tensordot(array, matrix, axes=(mode, 0)), -1, mode)


def tensor_of(shape: Sequence[int], nonzeros: int, seed: int = 0, heavy: float = 0.0) -> amped.SparseTensor:
    """Return distinct positive nonzeros; a share of them lies in one fibre of each mode."""
    rng = np.random.default_rng(seed)
    columns = rng.integers(0, np.array(shape)[:, None], (len(shape), nonzeros), np.int32)
    same = rng.random(nonzeros) < heavy
    for mode, column in enumerate(columns):
        if mode != seed % len(shape):
            column[same] = shape[mode] // 2
    return amped.SparseTensor(columns.T, rng.random(nonzeros) + 0.5, shape)


@contextmanager
def small_pieces(piece: int) -> Iterator[None]:
    """Limit shards to few nonzeros, and results to a few rows at a time."""
    with (
        mock.patch.multiple(ttm_plan, SMALLEST_SLOT=piece, SLOT_BYTES=piece * 8, PIECE_BYTES=1),
        mock.patch.multiple(ttm, FETCHED=200),
        mock.patch.multiple(cpu_ttm, SMALLEST=40),
    ):
        yield


def operator_of(source: ProductSource, device: Device, comm: Comm, mode: int, rank: int, **options: Any) -> TtmOperator:
    """Return an operator on a device; the device of the options is ignored."""
    machine, chosen = connect(device, comm), Options(**options)
    return TtmOperator(source, machine, product_setting(source, mode, rank, machine, chosen))


def source_of(tensor: Any, comm: Comm) -> ProductSource:
    """Return the source for a tensor in the memory of rank 0."""
    if isinstance(tensor, amped.SemiSparseTensor):
        return SemiSparseProduct(tensor, comm)
    return SparseProduct(TensorSource(tensor, comm))


def gathered(operator: TtmOperator, comm: Comm) -> tuple[np.ndarray, np.ndarray]:
    """Return coordinates and values of the rows of all ranks."""
    mine = [(part.indices.copy(), part.values.copy()) for part in operator.parts()]
    assert sum(len(values) for _, values in mine) == operator.fibres
    every = [part for parts in comm.allgather(mine) for part in parts]
    indices, values = (np.concatenate(arrays) for arrays in zip(*every, strict=True))
    assert len(values) == operator.rows[-1]
    coordinates = np.concatenate([c for some in comm.allgather(list(operator.coordinates())) for c in some])
    np.testing.assert_array_equal(coordinates, indices)
    return indices, values
