"""A sparse tensor on all ranks, for estimates of a loss and its gradient from samples, and stochastic steps.

Each rank has all nonzeros of some rows of one mode, and draws its share of the samples in these rows. All ranks have
all factor matrices, sum the gradients, and take the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.shards.partition import Cut

from ...backend.coordinate_table import table_size
from ...backend.counter_rng import key_of
from ...backend.device import Array
from ...backend.exchange import Machine
from ...backend.losses import Loss
from ...backend.ops.sampled import (
    SAMPLED,
    ListedElements,
    MatrixRows,
    SampledFormulas,
    SampledProvider,
    SampleOrigin,
    SampleSize,
    StepRule,
    Stratum,
)
from ...errors import InputError
from ...parallel.mpi import together
from ..factors import Factors
from ..limits import check_range
from ..placement import Loading, Plan, Setting, check_rank, nonzero_bytes
from ..sources.device_tensor import equal_parts
from ..sources.protocols import SparseSource
from .whole_rows import fewest_split, load_rows

ESTIMATED = 100_000  # samples of an estimate of the loss: a hundredth of the nonzeros, but at least this number
HASHING = 64  # bytes of host memory per nonzero while the table is built
MOST_DRAWN = 16  # coordinates drawn per sampled zero at most: as most may be those of nonzeros


class SampledUse(NamedTuple):
    """What samples are drawn for.

    Attributes
    ----------
    loss : Loss
    zeros : bool
        Whether absent elements are zeros. Otherwise they do not count.
    moments : int
        The matrices of moments that the method keeps.
    """

    loss: Loss
    zeros: bool
    moments: int

    @property
    def formulas(self) -> SampledFormulas:
        """The formulas that samples evaluate."""
        return SampledFormulas(self.loss.of, self.loss.slope, self.loss.lower)


class Distribution(NamedTuple):
    """MatrixRows of mode `along` for each rank."""

    along: int
    cut: Cut

    @classmethod
    def of(cls, source: SparseSource, ranks: int) -> Distribution:
        """Choose a mode that hardly splits rows. Collective."""
        return cls(*fewest_split(source, ranks, [0] if ranks == 1 else [*range(len(source.shape))]))

    def most(self, part: int) -> int:
        """Return an upper bound of the nonzeros of a rank, which gets the whole of split rows."""
        nonzeros = self.cut.nonzeros
        return int(nonzeros[-1] if self.cut.split_rows.size else nonzeros[part + 1] - nonzeros[part])


@dataclass(frozen=True)
class SampledPlan(Plan):
    """The plan of one rank."""

    nnz: int = 0
    read: int = field(default=0)
    counted: ClassVar[str] = "nonzeros"

    @property
    def read_bytes(self) -> int:
        """An upper bound of the bytes that an epoch reads; see `Plan`."""
        return self.read


def provider_of(setting: Setting, use: SampledUse) -> SampledProvider:
    """Return the provider of a device; raise `InputError` if there is none."""
    provider = SAMPLED.first(setting.device, lambda each: each.suits(use.formulas))
    if provider is None:
        raise InputError(f"{setting.device.name} does not compute sampled gradients of loss {use.loss.name!r}")
    return provider


def sampled_plan(
    source: SparseSource, distribution: Distribution, part: int, setting: Setting, use: SampledUse, loading: Loading
) -> SampledPlan:
    """Return the plan of a rank; raise `InputError` if its memory is too small."""
    rank, dtype, device = setting.ranks[0], setting.options.dtype, setting.device
    check_rank(rank)
    provider, nnz, rows = provider_of(setting, use), distribution.most(part), sum(source.shape)
    stride, order = provider.stride(rank, dtype), len(source.shape)
    each, matrix = nonzero_bytes(order, dtype), rows * stride * dtype.itemsize
    estimated = (1 + MOST_DRAWN) * max(source.nnz // 100, ESTIMATED)
    size = SampleSize(rows, stride, order, nnz, dtype, estimated, setting.options.deterministic)
    used = {
        "nonzeros": nnz * each + (4 * table_size(nnz) if use.zeros else 0),
        "factor matrices": matrix if device.on_host else 2 * matrix,  # with a copy from before an epoch
        "moments": use.moments * matrix,
        "gradients": provider.bytes(size),
    }
    if (needed := sum(used.values())) > setting.memory:
        raise InputError(
            f"device memory: nonzeros, factor matrices and gradients need {needed:,} bytes, but "
            f"{max(0, setting.memory):,} are available; use more ranks or a lower rank"
        )
    mine = loading if part == 0 else loading.others or Loading(streamed=loading.streamed)
    copies = rows * rank * (8 * use.moments + 2 * dtype.itemsize)  # before an epoch, and of the model
    later = copies + (needed if device.on_host else 0)
    placing = nnz * (2 * each + (HASHING if use.zeros and device.on_host else 0))
    host = max(mine.reading, mine.tensor + max(mine.dealing + mine.sorting + placing, later))
    host += device.host_bytes + 3 * device.code_bytes + (0 if part else setting.root_bytes)
    return SampledPlan((), dtype, 0, nnz, used, host, nnz=nnz, read=1000 * needed)


class SampledOperator(Factors):
    """Estimates from samples of a sparse tensor; construction is collective. See `Placed`."""

    plan: SampledPlan

    def __init__(self, source: SparseSource, machine: Machine, setting: Setting, use: SampledUse) -> None:
        """Load this rank's share of `source`."""
        comm, device, options = machine.comm, machine.device, setting.options
        self.machine, self.options, self.shape, self.ranks = machine, options, source.shape, setting.ranks
        self.clock, self.norm, self.kernels = device.clock(), source.norm, ["sampled"] * len(source.shape)
        check_range(source.value_range, options.dtype, source.path)
        distribution = Distribution.of(source, comm.size)
        loading = source.loading(comm.size, options.dtype, device.on_host)
        self.plan = together(comm, lambda: sampled_plan(source, distribution, comm.rank, setting, use, loading))
        self._provider, self._use = provider_of(setting, use), use
        self._offsets = list(accumulate(source.shape, initial=0))
        stride = self._provider.stride(self.ranks[0], options.dtype)
        self.matrix = device.zeros((self._offsets[-1], stride), options.dtype)
        self._elements = self._loaded(source, distribution)
        source.placed()
        self.nnz, self.zeros = source.nnz, use.zeros
        mine = len(self._elements.values), math.prod(map(float, self._elements.lengths))
        self._mine, self._sizes = mine, [sum(each) for each in zip(*comm.allgather(mine), strict=True)]

    def _loaded(self, source: SparseSource, distribution: Distribution) -> ListedElements:
        """Load the nonzeros of the rows that this rank owns."""
        comm, device, (along, cut) = self.machine.comm, self.machine.device, distribution
        columns, values = load_rows(source, comm, along, cut, self.options.dtype)
        coordinates = device.to_device(np.stack(columns, axis=1))
        slots = self._provider.slots(coordinates) if self._use.zeros else device.empty((0,), np.int32)
        begin, lengths = [0] * self.order, list(source.shape)
        begin[along] = int(cut.rows[comm.rank])
        lengths[along] = int(cut.rows[comm.rank + 1]) - begin[along]
        return ListedElements(coordinates, device.to_device(values), slots, begin, lengths)

    def prepare(self, lower: Sequence[float], ridge: Sequence[float], solved: Sequence[bool]) -> None:
        """Allocate the buffers of gradients, for the bounds and the ridge of each mode; see `MatrixRows`."""
        rows = MatrixRows(self._offsets, self.ranks[0], lower, ridge, solved)
        stride, exact = self.matrix.shape[1], self.options.deterministic
        self._sampled = self._provider.make(self._elements, rows, self._use.formulas, stride, exact)

    def strata(self, sampling: str, samples: int) -> list[Stratum]:
        """Return this rank's samples for a gradient.

        Parameters
        ----------
        sampling : {"stratified", "semi-stratified", "uniform", "nonzeros"}
            Nonzeros and zeros; nonzeros and elements that are taken as zeros; any elements; all nonzeros and some
            zeros. If absent elements do not count, all of them draw from the listed ones.
        samples : int
            The number of nonzeros on all ranks, and the number of other elements.
        """
        if not self._use.zeros:
            return self._listed(samples)
        if sampling == "uniform":
            return self._anywhere(SampleOrigin.ANYWHERE, 2 * samples)
        if sampling == "semi-stratified":
            return self._listed(samples, less_zero=True) + self._anywhere(SampleOrigin.BLIND, samples)
        listed = self.nnz if sampling == "nonzeros" else samples
        return self._listed(listed) + self._anywhere(SampleOrigin.ABSENT, samples)

    def estimate_strata(self) -> list[Stratum]:
        """Return this rank's samples for an estimate of the loss."""
        count = max(self.nnz // 100, ESTIMATED)
        zeros = self._sizes[1] - self._sizes[0]
        return self._listed(count) + (
            self._anywhere(SampleOrigin.ABSENT, int(min(count, zeros))) if self._use.zeros else []
        )

    def _listed(self, samples: int, less_zero: bool = False) -> list[Stratum]:
        nnz, every = self._mine[0], self._sizes[0]
        if not nnz:
            return []
        if samples >= every:
            return [Stratum(SampleOrigin.EVERY, nnz, 1.0, less_zero)]
        mine = _share(samples, nnz, every)
        return [Stratum(SampleOrigin.LISTED, mine, nnz / mine, less_zero)]

    def _anywhere(self, origin: SampleOrigin, samples: int) -> list[Stratum]:
        nnz, elements = self._mine
        absent = elements - nnz
        if not (absent if origin == SampleOrigin.ABSENT else elements):
            return []
        mine = _share(samples, elements, self._sizes[1])
        if origin == SampleOrigin.ABSENT:  # as many absent elements on average, as far as possible
            mine = math.ceil(mine * min(MOST_DRAWN, elements / absent))
        return [Stratum(origin, mine, elements / mine)]

    def value(self, strata: Sequence[Stratum], key: int) -> tuple[float, float]:
        """Return the estimated loss, and its derivative in the logarithm of a common factor of all m. Collective."""
        comm = self.machine.comm
        sums = np.array(self._sampled.value(self.matrix, strata, key_of(key, comm.rank)))
        if comm.size > 1:
            comm.all_reduce(sums, "sum")
        return float(sums[0]), float(sums[1])

    def steps(self, strata: Sequence[Stratum], keys: Sequence[int], moments: Sequence[Array], rule: StepRule) -> None:
        """Take a step along the estimated gradient of each key; the first has the number of `rule`. Collective."""
        if self.machine.comm.size == 1:
            mine = [key_of(key, 0) for key in keys]
            with self.span("compute", 0):
                queued = self._sampled.queue(self.matrix, moments, strata, mine, rule)
            if queued:
                return
        for k, key in enumerate(keys):
            self._step(strata, key, moments, rule._replace(number=rule.number + k))

    def _step(self, strata: Sequence[Stratum], key: int, moments: Sequence[Array], rule: StepRule) -> None:
        comm, exchange = self.machine.comm, self.machine.exchange
        with self.span("compute", 0):
            rows = self._sampled.gradient(self.matrix, strata, key_of(key, comm.rank))
        if comm.size > 1:
            with self.span("exchange", 0):
                exchange.reduce(rows.gradient, "sum")
                exchange.reduce(rows.touched, "max")
        with self.span("solve", 0):
            self._sampled.step(self.matrix, moments, rows, rule)

    def moments(self) -> list[Array]:
        """Allocate the matrices of moments, which are zero."""
        return [self.machine.device.zeros(self.matrix.shape, self.options.dtype) for _ in range(self._use.moments)]

    def rows_of(self, matrix: Array) -> list[Array]:
        """Return the rows of each mode of a matrix, without padding."""
        ends = zip(self._offsets[:-1], self._offsets[1:], strict=True)
        return [matrix[begin:end, : self.ranks[0]] for begin, end in ends]

    @property
    def matrices(self) -> Array:
        return self.matrix.reshape(-1).view(np.uint8)

    def set_factor(self, mode: int, factor: Floats, columns: slice | None = None) -> None:
        rows = np.ascontiguousarray(factor, self.options.dtype)
        self.rows_of(self.matrix)[mode][:, columns or slice(None)] = self.machine.device.to_device(rows)

    def stored(self, mode: int, matrices: Array | None = None) -> Array:
        whole = self.matrix if matrices is None else matrices.view(self.options.dtype).reshape(self.matrix.shape)
        return self.rows_of(whole)[mode]

    def factor(self, mode: int, matrices: Array | None = None, columns: slice | None = None) -> Floats:
        rows = self.stored(mode, matrices)[:, columns or slice(None)]
        return np.array(self.machine.device.to_host(rows), order="C")

    def rows(self, mode: int, matrices: Array | None = None) -> Floats:
        return self.factor(mode, matrices)

    def changed(self, mode: int) -> None:
        """See `Placed`: nothing depends on factor matrices."""

    def _bounds(self, mode: int) -> NDArray[np.int64]:
        return equal_parts(self.shape[mode], self.machine.comm.size)

    def owned(self, mode: int) -> Array:
        begin, end = self._bounds(mode)[self.machine.comm.rank :][:2]
        return self.rows_of(self.matrix)[mode][begin:end]

    def publish(self, mode: int, sums: Array | None = None) -> None:
        if self.machine.comm.size > 1:
            bounds, (begin, end) = self._bounds(mode), self._offsets[mode : mode + 2]
            self.machine.exchange.gather_rows(self.matrix[begin:end], bounds[:-1], bounds[1:], sums)

    def gathered(self, mode: int, rows: Array) -> Floats:
        bounds, rank = self._bounds(mode), self.machine.comm.rank
        whole = np.empty((self.shape[mode], self.ranks[0]), self.options.dtype)
        whole[bounds[rank] : bounds[rank + 1]] = self.machine.device.to_host(rows)
        self.machine.comm.all_gather_rows(whole, bounds[:-1], bounds[1:])
        return whole


def _share(count: int, size: float, total: float) -> int:
    """Return the part of `count` samples for `size` of `total` elements, at least one."""
    return max(1, round(count * size / total))
