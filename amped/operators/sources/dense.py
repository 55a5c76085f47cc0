"""Where a dense tensor's elements come from: an array in rank 0's memory, or a file that every rank reads."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.host.threads import fair_threads
from partitioner.readers import PLAIN, ReadOptions, open_dense
from partitioner.store.shared_fs import check_same
from partitioner.tensors.dense import DenseTensor, Stored, sparse_of
from partitioner.tensors.digest import MASK
from partitioner.tensors.labels import Labels
from partitioner.tensors.sparse import ValueRange
from partitioner.tensors.statistics import ElementStatistics, joined

from ...errors import InputError
from ...parallel.mpi import Comm, on_root, together
from .grid import Grid
from .protocols import DeviceMemory, ProductSource, SparseSource
from .sparse import TensorSource


class DenseSource:
    """A dense tensor that is dealt to the ranks in blocks. See `DescribedSource`; all methods are collective.

    Attributes
    ----------
    modes : tuple of int
        The modes in memory order.
    lengths : tuple of int
        Their lengths, in memory order.
    in_file : bool
        Whether elements stay in a file, which all ranks see, until they are used.
    lends : bool
        Whether a device whose memory they are in may use them where they are.
    """

    kind = "dense"
    duplicates, zeros, stored = 0, 0, False
    planned_values = ValueRange(0.0, 0.0, 0.0)  # plans do not depend on them
    density: float | None = None
    lends = True

    def __init__(
        self, tensor: DenseTensor | None, comm: Comm, path: str | os.PathLike[str] | None = None, in_file: bool = False
    ) -> None:
        """Take the tensor of rank 0, or that of all ranks if it is `in_file`."""
        self._tensor, self._comm, self.path, self.in_file = tensor, comm, path, in_file
        root = self._root
        known = comm.bcast(None if root is None else (root.shape, root.dtype, root.modes, root.labels))
        if known is None:
            raise InputError("no tensor on rank 0")
        self.shape: tuple[int, ...] = known[0]
        self.value_dtype: np.dtype[Any] = known[1]
        self.modes: tuple[int, ...] = known[2]
        self.labels: Labels | None = known[3]
        self.lengths = tuple(self.shape[m] for m in self.modes)
        self.nnz = math.prod(self.shape)
        self.known: ElementStatistics | None = None

    @property
    def _root(self) -> DenseTensor | None:
        return self._tensor if self._comm.rank == 0 else None

    @property
    def facts(self) -> ElementStatistics:
        """What is known of all elements. Until a rank has told what it `found`, they are looked at for it."""
        if self.known is None:
            self._take(self._looked_at())
        assert self.known is not None
        return self.known

    def found(self, mine: ElementStatistics) -> None:
        """Take what each rank knows of its block as it is on its device: so elements are read once.

        Where some are not finite there, or all are zero, they are looked at as they were given: perhaps they were too
        large or small for the device's type, which the caller finds out, or an error says which element it is.
        """
        every = self._comm.allgather(mine)
        if self.known is None:
            sound = all(each.bad < 0 for each in every) and joined(every).largest
            self._take(joined(every) if sound else self._looked_at())

    def _take(self, facts: ElementStatistics) -> None:
        together(self._comm, lambda: self._tensor.check_finite(facts) if self._tensor is not None else None)
        if not facts.largest:
            raise InputError("every element is zero", path=self.path)
        self.known = facts

    @property
    def norm(self) -> float:
        """See `DescribedSource`."""
        return self.facts.norm()

    @property
    def value_range(self) -> ValueRange:
        """See `DescribedSource`."""
        grain = 1.0 if self.value_dtype.kind in "biu" else 0.0
        return ValueRange(self.facts.low, self.facts.high, grain)

    @property
    def known_norm(self) -> float | None:
        """See `DescribedSource`."""
        return None if self.known is None else self.norm

    @property
    def repaired(self) -> dict[str, int]:
        """See `DescribedSource`: nothing is."""
        return {}

    def describe(self) -> str:
        """See `DescribedSource`."""
        norm = "" if self.known is None else f", norm {self.norm:.6g}"
        return f"{' x '.join(map(str, self.shape))}, dense, {self.value_dtype}{norm}"

    def negative_line(self) -> int | None:
        """See `DescribedSource`: its files have no lines."""
        return None

    def sparse(self, room: DeviceMemory | None) -> SparseSource:
        """See `DescribedSource`: zeros are left out. Collective."""
        tensor = self.tensor()
        nonzeros = on_root(self._comm, lambda: None if tensor is None else sparse_of(tensor))
        return TensorSource(nonzeros, self._comm, self.path, room)

    def product(self) -> ProductSource:
        """See `DescribedSource`."""
        raise InputError("a dense tensor: ttm takes sparse and semi-sparse ones", path=self.path)

    def stay_on_device(self) -> None:
        """See `DescribedSource`: it is never there before it is placed."""

    def _looked_at(self) -> ElementStatistics:
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
        """The ranges of the first modes, in memory order, that this rank looks at."""
        return Grid.of(self.lengths, self._comm.size).block(self._comm.rank)

    def rounded_norm(self, dtype: np.dtype[Any]) -> float:
        """Return the norm after elements were rounded to a type of factor matrices."""
        return self.facts.norm(rounded=dtype == np.float32)

    def used(self, mode: int) -> int:
        """See `DescribedSource`: all of them."""
        return self.shape[mode]

    def tensor(self) -> DenseTensor | None:
        self.facts  # noqa: B018  # all ranks look: elements that are not finite are an error
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
        """Whether elements are in the memory of the GPU that one rank alone computes with."""
        return self._tensor is not None and self._tensor.on_gpu is not None and self._comm.size == 1

    @property
    def plain(self) -> bool:
        """Whether elements lie in a file as they are, and threads read them."""
        return self._tensor is not None and isinstance(self._tensor.memory, Stored) and self._tensor.memory.plain

    @property
    def mapped(self) -> bool:
        """Whether elements are in an array that is mapped from a file: they are copied, as a file may be cut short."""
        return self._tensor is not None and isinstance(self._tensor.memory, np.memmap)

    def block(self, grid: Grid, on_host: bool = True) -> Any:
        """Return this rank's block, with modes in memory order: a view of the tensor where it can be one.

        It is on the GPU if the tensor is, and the device is not the host.
        """
        if self.on_gpu and not on_host:
            assert self._tensor is not None
            return self._tensor.on_gpu.array
        if self.in_file or self._comm.size == 1:
            assert self._tensor is not None
            memory, place = self._tensor.memory, grid.block(self._comm.rank)
            result: NDArray[Any] | Stored = memory.within(place) if isinstance(memory, Stored) else memory[place]
            return result
        root, ranks = self._root, range(self._comm.size)
        offsets = np.cumsum([0, *(math.prod(grid.shape(rank)) for rank in ranks)])
        flat = None
        if root is not None and grid.parts[1] == 1:
            flat = root.memory[:].reshape(-1)
        elif root is not None:
            flat = np.concatenate([root.memory[grid.block(rank)].reshape(-1) for rank in ranks])
        mine = self._comm.scatter(flat, offsets, self.value_dtype.newbyteorder("="))  # MPI sends no other
        return mine.reshape(grid.shape(self._comm.rank))


def open_dense_source(path: str | os.PathLike[str], comm: Comm, form: ReadOptions = PLAIN) -> DenseSource:
    """Open the file of a dense tensor on all ranks. Collective."""
    check_same(comm, path)
    return DenseSource(together(comm, lambda: open_dense(path, form)), comm, path, in_file=True)


def of_array(tensor: DenseTensor | None, comm: Comm, path: str | os.PathLike[str] | None = None) -> DenseSource:
    """Return the source of rank 0's tensor; raise on all ranks what rank 0 does. Collective."""
    return DenseSource(on_root(comm, lambda: tensor), comm, path)
