"""Sources of dense tensors: an array in rank 0's memory, or a file that every rank reads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from partitioner.array_types import DType, HostArray
from partitioner.host.threads import fair_threads
from partitioner.readers import PLAIN, ReadOptions, open_dense
from partitioner.store.shared_fs import check_same
from partitioner.tensors.dense import DenseTensor, one_zero, sparse_of
from partitioner.tensors.digest import MASK
from partitioner.tensors.labels import Labels
from partitioner.tensors.statistics import ElementStatistics, joined
from partitioner.tensors.stored import Stored
from partitioner.tensors.value_range import NO_NORM, ValueRange
from partitioner.wording import readable

from ...errors import InputError
from ...parallel.mpi import Comm, on_root, together
from .grid import Grid
from .protocols import DeviceMemory, ProductSource, SparseSource
from .sparse import TensorSource


class DenseSource:
    """A dense tensor that is distributed to the ranks in blocks; all methods are collective. See `DescribedSource`.

    Attributes
    ----------
    modes : tuple of int
        The modes in memory order.
    lengths : tuple of int
        Their lengths, in memory order.
    in_file : bool
        Whether elements stay in a file, accessible to all ranks, until they are used.
    lends : bool
        Whether a device may use elements in its memory in place, without copying them.
    """

    kind = "dense"
    duplicates, zeros, stored = 0, 0, False
    planned_values = ValueRange(0.0, 0.0, 0.0)  # plans do not depend on them
    density: float | None = None
    lends = True

    def __init__(
        self, tensor: DenseTensor | None, comm: Comm, path: str | os.PathLike[str] | None = None, in_file: bool = False
    ) -> None:
        """Use the tensor of rank 0, or that of every rank if it is `in_file`."""
        self._tensor, self._comm, self.path, self.in_file = tensor, comm, path, in_file
        root = self._root
        known = comm.bcast(None if root is None else (root.shape, root.dtype, root.modes, root.labels))
        if known is None:
            raise InputError("no tensor on rank 0")
        self.shape: tuple[int, ...] = known[0]
        self.value_dtype: DType = known[1]
        self.modes: tuple[int, ...] = known[2]
        self.labels: Labels | None = known[3]
        self.lengths = tuple(self.shape[m] for m in self.modes)
        self.nnz = math.prod(self.shape)
        self.known: ElementStatistics | None = None

    @property
    def _root(self) -> DenseTensor | None:
        return self._tensor if self._comm.rank == 0 else None

    @property
    def statistics(self) -> ElementStatistics:
        """Statistics of all elements, which are read for it unless `set_statistics` has set them."""
        if self.known is None:
            self._take(self._measured())
        assert self.known is not None
        return self.known

    def set_statistics(self, mine: ElementStatistics) -> None:
        """Set the statistics from those of each rank's block on its device, so that elements are read only once.

        If some elements are not finite there, or all are zero, the original elements are read again: they may be out of
        range for the device's type, which the caller detects; otherwise an error names the element.
        """
        every = self._comm.allgather(mine)
        if self.known is None:
            sound = all(each.bad < 0 for each in every) and joined(every).largest
            self._take(joined(every) if sound else self._measured())

    def _take(self, statistics: ElementStatistics) -> None:
        together(self._comm, lambda: self._tensor.check_finite(statistics) if self._tensor is not None else None)
        self.known = statistics

    @property
    def norm(self) -> float:
        """See `DescribedSource`."""
        return self.statistics.norm()

    @property
    def value_range(self) -> ValueRange:
        """See `DescribedSource`."""
        grain = 1.0 if self.value_dtype.kind in "biu" else 0.0
        return ValueRange(self.statistics.low, self.statistics.high, grain)

    @property
    def known_norm(self) -> float | None:
        """See `DescribedSource`."""
        return None if self.known is None else self.norm

    @property
    def repaired(self) -> dict[str, int]:
        """See `DescribedSource`: empty."""
        return {}

    def describe(self) -> str:
        """See `DescribedSource`."""
        norm = "" if self.known is None else f", norm {readable(self.norm)}"
        return f"{' x '.join(map(str, self.shape))}, dense, {self.value_dtype}{norm}"

    def line_where(self, wrong: Callable[[float], bool]) -> int | None:
        """See `DescribedSource`: None, as its files have no lines."""
        return None

    def sparse(self, memory: DeviceMemory | None) -> SparseSource:
        """See `DescribedSource`: zeros are left out, but for one of a tensor of zeros. Collective."""
        tensor = self.tensor()
        convert = sparse_of if self.statistics.largest else one_zero
        nonzeros = on_root(self._comm, lambda: None if tensor is None else convert(tensor))
        return TensorSource(nonzeros, self._comm, self.path, memory)

    def product(self) -> ProductSource:
        """See `DescribedSource`."""
        raise InputError("dense tensor: ttm supports sparse and semi-sparse tensors", path=self.path)

    def stay_on_device(self) -> None:
        """See `DescribedSource`: has no effect, as the tensor is not on a device before it is placed."""

    def _measured(self) -> ElementStatistics:
        """Return the statistics of all elements, from reading them."""
        if not self.in_file:
            root = self._root
            result = self._comm.bcast(None if root is None else root.facts())
            assert result is not None
            return result
        tensor, threads = self._tensor, fair_threads(self._comm)
        assert tensor is not None
        mine = together(self._comm, lambda: tensor.facts(self._share, threads))
        return joined(self._comm.allgather(mine))

    @property
    def _share(self) -> tuple[slice, slice]:
        """The ranges of the first modes, in memory order, whose elements this rank reads."""
        return Grid.of(self.lengths, self._comm.size).block(self._comm.rank)

    def rounded_norm(self, dtype: DType) -> float:
        """Return the norm of the elements rounded to the type of factor matrices; `NO_NORM` if all are zero."""
        return self.statistics.norm(rounded=dtype == np.float32) or NO_NORM

    def used(self, mode: int) -> int:
        """See `DescribedSource`: all indices."""
        return self.shape[mode]

    def used_indices(self, mode: int) -> None:
        """See `DescribedSource`."""

    def tensor(self) -> DenseTensor | None:
        self.statistics  # noqa: B018  # reads elements on all ranks, to raise an error if some are not finite
        return self._root

    def unchecked(self) -> DenseTensor | None:
        """See `DescribedSource`."""
        return self._root

    def digest(self) -> int:
        mine: int = 0
        if self.in_file and self._tensor is not None:
            mine = self._tensor.digest(self._share)
        elif self._root is not None:
            mine = self._root.digest()
        result: int = sum(self._comm.allgather(mine)) & MASK
        return result

    @property
    def on_gpu(self) -> bool:
        """Whether elements are in the memory of the GPU of the only rank."""
        return self._tensor is not None and self._tensor.on_gpu is not None and self._comm.size == 1

    @property
    def plain(self) -> bool:
        """Whether elements are uncompressed in a file, so that threads can read them."""
        return self._tensor is not None and isinstance(self._tensor.memory, Stored) and self._tensor.memory.plain

    @property
    def mapped(self) -> bool:
        """Whether elements are in a memory-mapped file. They are copied, as the file may be truncated meanwhile."""
        return self._tensor is not None and isinstance(self._tensor.memory, np.memmap)

    def block(self, grid: Grid, on_host: bool = True) -> Any:
        """Return this rank's block, with modes in memory order: a view of the tensor if possible.

        It is in GPU memory if the tensor is, unless `on_host`.
        """
        if self.on_gpu and not on_host:
            assert self._tensor is not None
            return self._tensor.on_gpu.array
        if self.in_file or self._comm.size == 1:
            assert self._tensor is not None
            memory, place = self._tensor.memory, grid.block(self._comm.rank)
            result: HostArray | Stored = memory.within(place) if isinstance(memory, Stored) else memory[place]
            return result
        root, ranks = self._root, range(self._comm.size)
        offsets = np.cumsum([0, *(math.prod(grid.shape(rank)) for rank in ranks)])
        flat = None
        if root is not None and grid.parts[1] == 1:
            flat = root.memory[:].reshape(-1)
        elif root is not None:
            flat = np.concatenate([root.memory[grid.block(rank)].reshape(-1) for rank in ranks])
        mine = self._comm.scatter(flat, offsets, self.value_dtype.newbyteorder("="))  # MPI requires native byte order
        return mine.reshape(grid.shape(self._comm.rank))


def open_dense_source(path: str | os.PathLike[str], comm: Comm, form: ReadOptions = PLAIN) -> DenseSource:
    """Open the file of a dense tensor on all ranks. Collective."""
    check_same(comm, path)
    return DenseSource(together(comm, lambda: open_dense(path, form)), comm, path, in_file=True)


def of_array(tensor: DenseTensor | None, comm: Comm, path: str | os.PathLike[str] | None = None) -> DenseSource:
    """Return the source of rank 0's tensor. Errors on rank 0 are raised on all ranks. Collective."""
    return DenseSource(on_root(comm, lambda: tensor), comm, path)
