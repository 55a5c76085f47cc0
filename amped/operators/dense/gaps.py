"""Row problems of a dense tensor with few missing elements.

With zeros in place of missing elements, the right-hand sides of all rows are an MTTKRP. The matrix of a row is the
elementwise product of the other modes' Gram matrices, minus the sum of ``v v^T`` over the row's missing elements. An
iteration therefore takes the time of a dense iteration, plus a time proportional to the number of missing elements.
If most elements of a row are missing, the difference is little more than rounding errors; such a row is solved from its
observed elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, Floats
from partitioner.tensors.value_range import ValueRange

from ...backend.device import Array, Device
from ...backend.ops.gram import gram, gram_bytes
from ...backend.ops.mttkrp import MTTKRP, Kernel, KernelBytes, Share
from ...backend.ops.rowproblems import (
    ROWPROBLEMS,
    CommonEquations,
    GapRowsProvider,
    RowBytes,
    RowProblemsProvider,
    RowTerms,
)
from ...backend.plain.split import khatri_rao, split_of
from ...backend.row_constants import PRECISE
from ...backend.rows import blocks_of
from ...backend.systems import least_pivot
from ...options import Options
from ...parallel.mpi import Comm
from ..modes import ModePlan
from .operator import DenseOperator

Columns = NDArray[np.int32]
PRECISE_OF = {"fp64": PRECISE, "fp32": 1e-2}
"""If the squared residuals are a smaller fraction of the squared norm, they are computed from residuals."""
LEAST_SINGLE = 1e-4
"""With smaller pivots, the squared residuals could rise by more than 1e-10 of the squared norm."""
LEAST, MISSING = 1 << 17, 0.4  # fewest elements of a tensor, and the largest fraction of missing ones
NUMBERS = 1 << 22  # residuals that are computed at a time, unless a slice has more


class ElementList(NamedTuple):
    """Indices, (order, n), and values of elements."""

    columns: Columns
    values: Floats

    def sorted_by(self, mode: int) -> ElementList:
        order = np.argsort(self.columns[mode], kind="stable")
        return ElementList(self.columns[:, order], self.values[order])

    def where(self, condition: NDArray[np.bool_]) -> ElementList:
        return ElementList(self.columns[:, condition], self.values[condition])

    def of_rows(self, mode: int, chosen: NDArray[np.bool_]) -> ElementList:
        """Return the elements of the chosen rows of a mode, of which there are often none."""
        if not chosen.any():
            return ElementList(self.columns[:, :0], self.values[:0])
        return self.where(chosen[self.columns[mode]])

    def squares(self, dtype: FloatDType) -> float:
        """Return the sum of the squares of the values, rounded to a type."""
        values = self.values.astype(dtype).astype(np.float64)
        return float(np.vdot(values, values))


RowElements = Callable[[int, NDArray[np.bool_]], ElementList]
"""Returns the observed elements of the chosen rows of a mode."""


class ModeGaps(NamedTuple):
    """The elements by which a rank solves its rows of a mode."""

    missing: ElementList  # of rows of which at most half is missing
    observed: ElementList  # of the other rows
    empty: NDArray[np.intp]  # rows without observed elements


def mode_gaps(missing: Columns, of_rows: RowElements | None, modes: Sequence[ModePlan], comm: Comm) -> list[ModeGaps]:
    """Return the elements by which this rank solves its rows of each mode. Collective.

    Parameters
    ----------
    missing : (order, n) array
        All missing elements, on every rank.
    of_rows : RowElements, optional
        Of all observed elements, on rank 0.
    modes : sequence of ModePlan
        The plan of this rank.
    comm : Comm
    """
    result = []
    for mode in modes:
        few = _few_observed(mode, missing)
        observed = comm.bcast(None if of_rows is None else of_rows(mode.mode, few))
        assert observed is not None
        result.append(_owned_gaps(mode, missing, few, observed))
    return result


def gaps_of(mode: ModePlan, missing: Columns, of_rows: RowElements) -> ModeGaps:
    """Return the elements by which a rank solves its rows of a mode, on the rank with all elements."""
    few = _few_observed(mode, missing)
    return _owned_gaps(mode, missing, few, of_rows(mode.mode, few))


def _owned_gaps(mode: ModePlan, missing: Columns, few: NDArray[np.bool_], observed: ElementList) -> ModeGaps:
    """Return the elements of a rank's rows of a mode; `observed` are those of all rows of `few`."""
    begin, end = mode.owned.start, mode.owned.stop

    def owned(elements: ElementList) -> ElementList:
        rows = elements.columns[mode.mode]
        return elements.where((rows >= begin) & (rows < end)).sorted_by(mode.mode)

    holes = ElementList(missing, np.zeros(missing.shape[1])).of_rows(mode.mode, ~few)
    empty = np.bincount(missing[mode.mode], minlength=end)[begin:end] == math.prod(mode.share.lengths)
    return ModeGaps(owned(holes), owned(observed), np.flatnonzero(empty))


def _whole_rows(mode: ModePlan, gaps: ModeGaps) -> NDArray[np.intp]:
    """Return the owned rows of which all elements are observed."""
    whole = np.ones(mode.owned.stop - mode.owned.start, bool)
    for elements in (gaps.missing, gaps.observed):
        whole[elements.columns[mode.mode] - mode.owned.start] = False
    whole[gaps.empty] = False
    return np.flatnonzero(whole)


def _few_observed(mode: ModePlan, missing: Columns) -> NDArray[np.bool_]:
    """Return the rows of a mode of which most elements are missing."""
    counts = np.bincount(missing[mode.mode], minlength=int(mode.cut.rows[-1]))
    few: NDArray[np.bool_] = 2 * counts > math.prod(mode.share.lengths)
    return few


class _Holes(NamedTuple):
    """The missing elements of a rank's block: their positions in it, on the device, and those of slices' first ones."""

    places: Array
    ends: NDArray[np.intp]


def _in_block(operator: DenseOperator, missing: Columns) -> _Holes:
    columns = [missing[mode] for mode in operator.modes]
    inside = np.ones(missing.shape[1], bool)
    for column, each in zip(columns, operator.ranges, strict=True):
        inside &= (column >= each.start) & (column < each.stop)
    lengths = [each.stop - each.start for each in operator.ranges]
    places = np.empty(0, np.int64)
    if inside.any():
        inner = [column[inside] - each.start for column, each in zip(columns, operator.ranges, strict=True)]
        places = np.sort(np.ravel_multi_index(inner, lengths))
    ends = np.searchsorted(places, math.prod(lengths[1:]) * np.arange(lengths[0] + 1))
    return _Holes(operator.machine.device.to_device(places), ends)


class _Rows(NamedTuple):
    """The elements of a mode on a rank, as the shard of a kernel."""

    shard: Any
    made: Any


class GapRows:
    """Solves the rows of a placed dense tensor, zero where elements are missing; see `RowSolver`.

    Its methods are collective.

    Attributes
    ----------
    repeats : bool
        Whether the same work is queued each time, without waiting for the device: all elements are resident.
    """

    def __init__(self, operator: DenseOperator, gaps: Sequence[ModeGaps], missing: Columns) -> None:
        """`missing` are all missing elements, on every rank."""
        self._operator, self._device = operator, operator.machine.device
        modes = operator.plan.modes
        self._rank, self._tools = modes[0].rank, tools(self._device, modes[0])
        missing_rows, observed_rows = self._tools.gaps, self._tools.observed
        self._missing_rows = [self._rows(m, e.missing, missing_rows) for m, e in zip(modes, gaps, strict=True)]
        self._observed_rows = [self._rows(m, e.observed, observed_rows) for m, e in zip(modes, gaps, strict=True)]
        dtype = operator.plan.dtype
        self._whole = [
            missing_rows.make_common(_whole_rows(mode, each), self._rank, dtype)
            for mode, each in zip(modes, gaps, strict=True)
        ]
        self._empty = [self._device.to_device(each.empty) for each in gaps]
        self._scratch = self._device.empty((most_scratch(modes, gaps, self._device),), np.uint8)
        # A Gram matrix for each mode; and, last, the elementwise product of some of them.
        self._grams = self._device.zeros((operator.order + 1, self._rank, self._rank), np.float64)
        self._gram_versions = [-1] * operator.order  # of the factor matrices whose Gram matrices they are
        self._missing = _in_block(operator, missing)
        comm = operator.machine.comm
        self._observed_squares = np.array([each.observed.squares(operator.options.dtype) for each in gaps])
        if comm.size > 1:
            comm.all_reduce(self._observed_squares, "sum")
        self.repeats = not any(comm.allgather(operator.plan.streamed))

    def _rows(self, mode: ModePlan, elements: ElementList, provider: RowProblemsProvider[RowTerms]) -> _Rows | None:
        """Return a shard of elements, None if there are none."""
        share = share_of(mode, elements)
        if not share.nnz:
            return None
        others = [column for m, column in enumerate(elements.columns) if m != mode.mode]
        columns = [np.ascontiguousarray(column) for column in (elements.columns[mode.mode], *others)]
        shard = self._tools.kernel.make(columns, elements.values.astype(share.dtype), share, False)
        return _Rows(shard, provider.make(shard, share))

    def solve(self, mode: int, limits: RowTerms, seen: Array, then: Sequence[int] = ()) -> None:
        """See `RowSolver.solve`."""
        operator, plan = self._operator, self._operator.plan.modes[mode]
        with operator.clock.span("compute", mode):
            gram_of_others = self._gram(mode)
        rights = operator.mttkrp(mode, None, then, self._needs_double(gram_of_others, limits.ridge))
        operator.wait_comm()
        with operator.clock.span("compute", mode):
            common = CommonEquations(gram_of_others, rights)
            own, partial = operator.work.factors[mode][plan.owned], limits._replace(partial=True)
            if self._empty[mode].size:
                own[self._empty[mode]] = 0
            subtracting, inputs = partial._replace(common=common), operator.work.inputs(mode)
            self._tools.gaps.run_common(self._whole[mode], own, self._rank, subtracting, seen)
            for provider, rows, terms in (
                (self._tools.gaps, self._missing_rows[mode], subtracting),
                (self._tools.observed, self._observed_rows[mode], partial),
            ):
                if rows is not None:
                    provider.run(rows.made, rows.shard, inputs, own, self._rank, terms, seen, None, self._scratch)

    def _needs_double(self, matrix: Array, ridge: float) -> bool:
        """Return whether rounding errors of an MTTKRP in single precision could become large errors of the rows.

        Only on a CPU, as a GPU would wait for the host.
        """
        single = self._operator.options.precision == "fp32" and self._device.on_host
        return single and least_pivot(matrix, ridge) < LEAST_SINGLE

    def _gram(self, mode: int) -> Array:
        """Return the product of the other modes' Gram matrices."""
        first, *others = (self._gram_of(other) for other in range(self._operator.order) if other != mode)
        product = self._grams[-1]
        product[...] = first
        for gram_of in others:
            product *= gram_of
        return product

    def _gram_of(self, mode: int) -> Array:
        """Return the Gram matrix of a mode's factor matrix, computed once for each of its changes."""
        work = self._operator.work
        if self._gram_versions[mode] != work.versions[mode]:
            self._grams[mode] = gram(self._device, work.factors[mode][:, : self._rank])
            self._gram_versions[mode] = work.versions[mode]
        return self._grams[mode]

    def kept(self) -> Hashable:
        """See `Operator.kept`: also which Gram matrices are valid."""
        versions = zip(self._gram_versions, self._operator.work.versions, strict=True)
        return self._operator.kept(), tuple(mine == current for mine, current in versions)

    def resume(self, kept: Hashable) -> None:
        """See `Operator.resume`."""
        assert isinstance(kept, tuple)
        of_operator, valid = kept
        self._operator.resume(of_operator)
        versions = zip(valid, self._operator.work.versions, strict=True)
        self._gram_versions = [version if each else -1 for each, version in versions]

    def residual(self, mode: int, squares: float) -> float:
        """Return the sum of squared residuals, by computing each of them if the sum is small."""
        operator, norm = self._operator, self._operator.norm**2
        total = squares + norm - float(self._observed_squares[mode])
        if total > PRECISE_OF[operator.options.precision] * norm:
            return total
        operator.wait_comm()
        exact, comm = np.array([self._summed_squares()]), operator.machine.comm
        if comm.size > 1:
            comm.all_reduce(exact, "sum")
        return float(exact[0])

    def _summed_squares(self) -> float:
        """Return the sum of this rank's squared residuals."""
        operator, holes, xp = self._operator, self._missing, self._device.xp
        ranges = zip(operator.modes, operator.ranges, strict=True)
        first, *others = (operator.work.factors[m][each, : self._rank].astype(np.float64).T for m, each in ranges)
        lengths = [other.shape[1] for other in others]
        split = split_of(lengths) if len(others) > 1 else 0
        left = khatri_rao(others[:split]) if split else xp.ones((self._rank, 1))
        right = khatri_rao(others[split:])
        elements = math.prod(lengths)
        result: Array = 0.0
        for start, slab in operator.slabs():
            for part in blocks_of(len(slab), max(1, NUMBERS // max(1, elements))):
                begin, end = start + part.start, start + part.stop
                residuals = (khatri_rao([first[:, begin:end], left]).T @ right).reshape(-1)
                residuals -= slab[part].reshape(-1)
                residuals[holes.places[holes.ends[begin] : holes.ends[end]] - begin * elements] = 0
                result += residuals @ residuals
        return float(result)

    @staticmethod
    def suits(shape: Sequence[int], observed: int, device: Device, options: Options) -> bool:
        """Return whether this is supported, and faster than solving rows from their observed elements."""
        elements = math.prod(shape)
        if elements < LEAST or elements - observed > MISSING * elements:
            return False
        has_gaps = any(rows.method == "gaps" for rows in ROWPROBLEMS.providers(device))
        return has_gaps and options.kernel == "auto" and options.gather == "full"


class Tools(NamedTuple):
    """The kernel for shards of elements, and what solves their rows."""

    kernel: Kernel
    gaps: GapRowsProvider
    observed: RowProblemsProvider[RowTerms]


def tools(device: Device, mode: ModePlan) -> Tools:
    """Return what solves the rows of a mode on a device."""
    gaps = cast(GapRowsProvider, ROWPROBLEMS.require(device, lambda rows: rows.method == "gaps"))
    observed = ROWPROBLEMS.require(device, lambda rows: rows.method == "als")
    share = share_of(mode, ElementList(np.empty((0, 0), np.int32), np.empty(0)))
    return Tools(MTTKRP.require(device, lambda kernel: observed.suits(kernel, share)), gaps, observed)


def share_of(mode: ModePlan, elements: ElementList) -> Share:
    """Return the properties of elements of a mode's owned rows."""
    nnz = elements.columns.shape[1]
    values = ValueRange(0.0, 0.0, 0.0)
    return Share(mode.share.lengths, mode.owned, nnz, mode.share.stride, mode.share.dtype, values)


class _Needs(NamedTuple):
    """What the elements of a mode need on a device."""

    elements: ElementList
    kernel: KernelBytes
    solving: RowBytes


def _needs(modes: Sequence[ModePlan], gaps: Sequence[ModeGaps], device: Device) -> Iterator[_Needs]:
    """Yield the needs of the missing elements of each mode, and of the observed ones."""
    for mode, each in zip(modes, gaps, strict=True):
        chosen = tools(device, mode)
        for elements, provider in ((each.missing, chosen.gaps), (each.observed, chosen.observed)):
            share = share_of(mode, elements)
            kernel, solving = chosen.kernel.bytes(share, share.nnz), provider.bytes(chosen.kernel, share, share.nnz)
            yield _Needs(elements, kernel, solving)


def most_scratch(modes: Sequence[ModePlan], gaps: Sequence[ModeGaps], device: Device) -> int:
    """Return the device memory in which the rows of a mode are solved."""
    return max((each.solving.running for each in _needs(modes, gaps, device)), default=0)


def gap_bytes(modes: Sequence[ModePlan], gaps: Sequence[ModeGaps], device: Device) -> int:
    """Return the device memory of the elements, and for solving their rows."""
    rank, needs = modes[0].rank, list(_needs(modes, gaps, device))
    grams = 8 * (len(modes) + 1) * rank**2
    kept = grams + most_scratch(modes, gaps, device) + sum(each.kernel.shard + each.solving.kept for each in needs)
    kept += sum(tools(device, m).gaps.common_bytes(m.owned.stop - m.owned.start, rank) for m in modes)
    if device.on_host:
        kept += sum(each.elements.columns.nbytes + each.elements.values.nbytes for each in needs)
    longest = max(int(mode.cut.rows[-1]) for mode in modes)
    return kept + max(gram_bytes(device, longest, rank), *(each.kernel.making for each in needs))
