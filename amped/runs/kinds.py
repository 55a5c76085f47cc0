"""The kinds of tensors in runs: one class per kind, listed in `TENSOR_KINDS`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from partitioner.host.stages import STAGES
from partitioner.host.threads import fair_threads
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor
from partitioner.wording import readable

from ..backend.exchange import Machine
from ..backend.ops.mttkrp import MTTKRP, Share
from ..backend.ops.ttmc import TTMC
from ..methods.hosvd import (
    dense_factors,
    dense_spectra_bytes,
    sparse_factors,
    spectra_bytes,
)
from ..methods.tucker_params import Compression
from ..operators.base import CoreOperator, Operator
from ..operators.dense.core import DenseCore, block_of, slices
from ..operators.dense.operator import DenseOperator
from ..operators.placement import Setting
from ..operators.products import Ttmc
from ..operators.sources.compact import compacted, kept_rows
from ..operators.sources.dense import DenseSource, of_array
from ..operators.sources.lengths import check_lengths
from ..operators.sources.protocols import DescribedSource, DeviceMemory, SparseSource
from ..operators.sources.sparse import TensorSource
from ..operators.sparse.operator import SparseOperator
from ..operators.sparse.tuning import Budget
from ..options import Options
from ..parallel.mpi import Comm
from ..report import dense as dense_text
from ..report import text
from .planning import PlannedDenseCore, PlannedDenseRun, PlannedRun, PlannedSparseRun

Matrix = NDArray[np.float64]
S = TypeVar("S", contravariant=True)


class CoreSource(Protocol):
    """A tensor for a Tucker decomposition, before it is placed. Its methods are collective."""

    def factors(self, compression: Compression, seed: int) -> list[Matrix]:
        """Return factor matrices from spectra, the same on every rank."""

    def place(self, machine: Machine, setting: Setting) -> CoreOperator:
        """Place the tensor, after a check of the memory for arrays of the modes' lengths."""


class TensorKind(Protocol[S]):
    """Operations on tensors of one kind, whose sources have type `S`. Its methods are collective."""

    def of_memory(self, tensor: Any, comm: Comm, memory: DeviceMemory) -> DescribedSource:
        """Return the source of a tensor in the memory of rank 0; other ranks pass None."""

    def place(self, source: S, machine: Machine, setting: Setting, budget: Budget | None) -> Operator:
        """Plan and place a tensor, after a check of the memory for arrays of the modes' lengths."""

    def for_core(self, source: S, machine: Machine, options: Options, memory: int) -> CoreSource:
        """Prepare a tensor for a Tucker decomposition on devices with `memory` bytes."""

    def prepare_core(self, source: S, machine: Machine, options: Options, ranks: Sequence[int]) -> None:
        """Start compiling the code that computes cores of these ranks; return immediately."""

    def with_spectra(
        self, source: S, machine: Machine, setting: Setting, compression: Compression, scipy: int
    ) -> Setting:
        """Return a setting with the memory for spectra; `scipy`: bytes of SciPy, if rank 0 loads it."""

    def plan(self, source: S, machine: Machine, setting: Setting, ranks: int) -> PlannedRun:
        """Plan a run on `ranks` ranks."""

    def info(self, name: str, source: S) -> tuple[dict[str, Any], str]:
        """Return the description of a tensor for ``info``: facts by name, and text."""


class SparseKind:
    """The kind of sparse tensors; see `TensorKind`."""

    def of_memory(self, tensor: SparseTensor | None, comm: Comm, memory: DeviceMemory) -> TensorSource:
        return TensorSource(tensor, comm, memory=memory)

    def place(self, source: SparseSource, machine: Machine, setting: Setting, budget: Budget | None) -> SparseOperator:
        check_lengths(source, setting, machine.comm)
        kept = kept_rows(source, setting)
        return SparseOperator(compacted(source, kept, setting), machine, setting, budget, kept)

    def prepare_core(self, source: SparseSource, machine: Machine, options: Options, ranks: Sequence[int]) -> None:
        device, lengths, dtype = machine.device, source.shape[:-1], options.dtype
        stride = device.stride(max(ranks), dtype.itemsize)
        share = Share(lengths, slice(0, source.shape[-1]), source.nnz, stride, dtype, source.value_range)
        for kernel, provider in product(MTTKRP.providers(device), TTMC.providers(device)):
            if kernel.suits(share) and provider.suits(kernel, share):
                provider.prepare(share, ranks[:-1])
                return

    def for_core(self, source: SparseSource, machine: Machine, options: Options, memory: int) -> SparseCoreSource:
        return SparseCoreSource(source, machine)

    def with_spectra(
        self, source: SparseSource, machine: Machine, setting: Setting, compression: Compression, scipy: int
    ) -> Setting:
        comm = machine.comm
        spectra = spectra_bytes(source.shape, setting.ranks, source.nnz, compression, comm.size, fair_threads(comm))
        return setting._replace(spectra=spectra, root_bytes=spectra.root + (0 if spectra.library else scipy))

    def plan(self, source: SparseSource, machine: Machine, setting: Setting, ranks: int) -> PlannedRun:
        copies = compacted(source, kept_rows(source, setting), setting)
        return PlannedSparseRun(copies, machine, setting, ranks)

    def info(self, name: str, source: SparseSource) -> tuple[dict[str, Any], str]:
        tensor = source.tensor()
        assert tensor is not None
        modes, (low, high, _) = text.skew(tensor), source.value_range
        facts = {"shape": source.shape, "nonzeros": source.nnz, "norm": source.norm, **source.repaired}
        lines = [
            dense_text.source_line(name, source),
            f"values from {readable(low)} to {readable(high)}; "
            f"{source.duplicates:,} duplicates summed, {source.zeros:,} zeros dropped",
            text.skew_table(modes),
            dense_text.advice(source, None),
        ]
        return {**facts, "values": (low, high), "modes": modes}, "\n".join(filter(None, lines))


class SparseCoreSource:
    """A sparse tensor for a Tucker decomposition; see `CoreSource`."""

    def __init__(self, source: SparseSource, machine: Machine) -> None:
        self._source, self._machine = source, machine

    def factors(self, compression: Compression, seed: int) -> list[Matrix]:
        return sparse_factors(self._source, self._machine, compression, seed)

    def place(self, machine: Machine, setting: Setting) -> SparseOperator:
        return SPARSE.place(self._source, machine, setting, None)


class DenseKind:
    """The kind of dense tensors; see `TensorKind`."""

    def of_memory(self, tensor: DenseTensor | None, comm: Comm, memory: DeviceMemory) -> DenseSource:
        return of_array(tensor, comm)

    def place(self, source: DenseSource, machine: Machine, setting: Setting, budget: Budget | None) -> DenseOperator:
        check_lengths(source, setting, machine.comm)
        return DenseOperator(source, machine, setting)

    def prepare_core(self, source: DenseSource, machine: Machine, options: Options, ranks: Sequence[int]) -> None:
        """See `TensorKind`: cores are computed by BLAS."""

    def for_core(self, source: DenseSource, machine: Machine, options: Options, memory: int) -> DenseCoreSource:
        return DenseCoreSource(source, machine, options, memory)

    def with_spectra(
        self, source: DenseSource, machine: Machine, setting: Setting, compression: Compression, scipy: int
    ) -> Setting:
        nbytes = dense_spectra_bytes(source, setting.ranks, compression, machine.device, setting.options.dtype)
        return setting._replace(unfolding=nbytes, root_bytes=scipy)

    def plan(self, source: DenseSource, machine: Machine, setting: Setting, ranks: int) -> PlannedRun:
        planned = PlannedDenseCore if isinstance(setting.product, Ttmc) else PlannedDenseRun
        return planned(source, machine, setting, ranks)

    def info(self, name: str, source: DenseSource) -> tuple[dict[str, Any], str]:
        values = source.value_range[:2]
        facts = {"shape": source.shape, "nonzeros": source.statistics.nonzeros, "norm": source.norm, "values": values}
        return {"dense": True, **facts}, dense_text.description(name, source)


class DenseCoreSource:
    """A rank's block of a dense tensor, on the device if it fits in half of the memory; see `CoreSource`."""

    def __init__(self, source: DenseSource, machine: Machine, options: Options, memory: int) -> None:
        self._source, self._machine = source, machine
        grid = slices(source, machine.comm.size)
        largest = max(math.prod(grid.shape(rank)) for rank in range(machine.comm.size)) * options.dtype.itemsize
        resident = options.placement != "stream" and largest <= memory // 2
        with STAGES.of("copy"):
            self._block = block_of(source, grid, machine, options.dtype, resident)
        if all(machine.comm.allgather(resident)):
            source.set_statistics(self._block.statistics())

    def factors(self, compression: Compression, seed: int) -> list[Matrix]:
        return dense_factors(self._source, self._machine, self._block, compression)

    def place(self, machine: Machine, setting: Setting) -> DenseCore:
        check_lengths(self._source, setting, machine.comm)
        return DenseCore(self._source, machine, setting, self._block)


SPARSE, DENSE = SparseKind(), DenseKind()
TENSOR_KINDS: dict[str, TensorKind[Any]] = {"sparse": SPARSE, "dense": DENSE}


def kind_of(source: DescribedSource) -> TensorKind[DescribedSource]:
    """Return the kind of a source's tensor."""
    return TENSOR_KINDS[source.kind]
