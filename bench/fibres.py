"""Random tensors to be multiplied with matrices, and what others compute the same with: CSR of fibres times dense."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from amped.backend.device import Array, Device
from amped.backend.fibres import Starts, fibre_starts
from amped.backend.ops.sort import SORT
from amped.operators.placement import Loading
from partitioner.array_types import FloatDType
from partitioner.sorting.sort import sort_nonzeros
from partitioner.tensors.value_range import ValueRange

from .counter_rng import Recipe
from .harness import Work

MOST_INDICES = (1 << 31) - 1  # of peers, whose indices have 32 bits
ROW_MAJOR = 2  # of cuSPARSE's orders of a dense matrix
ALGORITHMS = {"default": 0, "csr 2": 6}  # of cuSPARSE, for matrices by rows


class DrawnSource:
    """A tensor drawn on a device, with duplicates summed, which stays there. See `ProductSource`."""

    dense: tuple[int, ...] = ()
    labels = path = None

    def __init__(self, recipe: Recipe, device: Device) -> None:
        self.shape, self._device, order = recipe.lengths, device, len(recipe.lengths)
        self.sparse, numbers = tuple(range(order)), range(recipe.nonzeros)
        rng, xp = recipe.rng(device.xp), device.xp
        columns = xp.empty((order, recipe.nonzeros), np.int32)
        for mode in range(order):
            columns[mode] = rng.indices(mode, numbers)
        values = rng.values(numbers, np.dtype(np.float32))
        sort = SORT.first(device)
        if sort is None:
            done = sort_nonzeros(columns, values.astype(np.float32), range(order), self.shape, merge=True)
            self._columns, self._values = done.columns, done.values
        else:
            places, _ = sort.merge(columns, values, sort.places(columns, range(order), self.shape))
            self._columns = xp.stack([sort.take(column, places) for column in columns])
            self._values = sort.take(values, places)
        self.nnz, self.value_range = int(self._values.size), ValueRange(2.0**-24, 1e6, 0)

    def by_fibre(self, mode: int, dtype: FloatDType) -> list[Array]:
        """See `ProductSource`."""
        others, sort = [m for m in self.sparse if m != mode], SORT.first(self._device)
        lengths = [self.shape[m] for m in others]
        if mode == self.sparse[-1]:
            return [*(self._columns[m] for m in (*others, mode)), self._values.astype(dtype, copy=False)]
        if sort is None:
            done = sort_nonzeros(self._columns, self._values, others, self.shape, dtype=dtype)
            return [*(done.columns[m] for m in (*others, mode)), done.values]
        places = sort.places([self._columns[m] for m in others], range(len(others)), lengths)
        columns = [sort.take(self._columns[m], places) for m in (*others, mode)]
        return [*columns, sort.cast(sort.take(self._values, places), dtype)]

    def loading(self, ranks: int, dtype: FloatDType, on_host: bool) -> Loading:
        """See `ProductSource`: it is there."""
        return Loading()

    def leave_device(self) -> None:
        """See `ProductSource`: the next mode is drawn from it."""


class Fibres(NamedTuple):
    """Nonzeros in the order of fibres, as a sparse matrix with a row for each fibre."""

    starts: Array
    indices: Array
    values: Array
    length: int

    @classmethod
    def of(cls, source: DrawnSource, mode: int, dtype: FloatDType, xp: ModuleType) -> Fibres:
        """Return those of a mode."""
        *keys, indices, values = source.by_fibre(mode, dtype)
        starts = fibre_starts if xp is np else cuda_starts()
        return cls(starts(keys, int(indices.size)), indices, values, source.shape[mode])


def cuda_starts() -> Starts:
    """Return the function that finds fibres on a GPU."""
    from partitioner.cuda.sort import starts

    return starts


def peers(fibres: Fibres, matrix: Array, device: Device) -> dict[str, Work]:
    """Return what others compute the same product with, on the same nonzeros; nothing where indices are too long."""
    if fibres.indices.size > MOST_INDICES or fibres.starts.size - 1 > MOST_INDICES:
        return {}
    if device.on_host:
        from scipy import sparse

        shape = int(fibres.starts.size) - 1, fibres.length
        csr = sparse.csr_array((fibres.values, fibres.indices, fibres.starts.astype(np.int32)), shape=shape)
        return {"scipy": lambda: csr @ matrix}
    return _cusparse(fibres, matrix)


def _cusparse(fibres: Fibres, matrix: Array) -> dict[str, Work]:
    """CuPy's product, whose result is by columns, and cuSPARSE's own of matrices by rows."""
    import cupy
    from cupyx.scipy import sparse

    rows, starts = int(fibres.starts.size) - 1, fibres.starts.astype(np.int32)
    csr = sparse.csr_matrix((fibres.values, fibres.indices, starts), shape=(rows, fibres.length))
    by_columns = cupy.asfortranarray(matrix)
    works: dict[str, Work] = {"cusparse": lambda: csr @ by_columns}
    for name, algorithm in ALGORITHMS.items():
        works[f"cusparse by rows, {name}"] = _by_rows(fibres, starts, matrix, algorithm)
    return works


def _by_rows(fibres: Fibres, starts: Array, matrix: Array, algorithm: int) -> Work:
    import cupy
    from cupy_backends.cuda.libs import cusparse

    handle, rows, columns = cupy.cuda.device.get_cusparse_handle(), int(starts.size) - 1, matrix.shape[1]
    kind = 0 if matrix.dtype == np.float32 else 1  # of numbers, as CUDA counts them
    out = cupy.empty((rows, columns), matrix.dtype)
    index = cusparse.CUSPARSE_INDEX_32I
    addresses = starts.data.ptr, fibres.indices.data.ptr, fibres.values.data.ptr
    size = rows, fibres.length, int(fibres.indices.size)
    left = cusparse.createCsr(*size, *addresses, index, index, 0, kind)
    right = cusparse.createDnMat(fibres.length, columns, columns, matrix.data.ptr, kind, ROW_MAJOR)
    result = cusparse.createDnMat(rows, columns, columns, out.data.ptr, kind, ROW_MAJOR)
    one, zero = (np.array(number, matrix.dtype) for number in (1, 0))
    given = 0, 0, one.ctypes.data, left, right, zero.ctypes.data, result, kind, algorithm
    scratch = cupy.empty(max(1, cusparse.spMM_bufferSize(handle, *given)), np.uint8)

    def work() -> Any:
        held = starts, fibres, matrix, one, zero  # for as long as this is called
        cusparse.spMM(handle, *given, scratch.data.ptr)
        return out if held else None

    return work
