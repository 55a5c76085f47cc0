"""CP-ALS over the observed elements of a tensor: its machine, how its rows are solved, and its placement and plan."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType
from partitioner.tensors.value_range import ValueRange

from ..backend.device import Device
from ..backend.exchange import Machine
from ..backend.ops.mttkrp import MTTKRP, Share
from ..backend.ops.row_systems import ROW_SYSTEMS
from ..backend.ops.rowproblems import ROWPROBLEMS
from ..backend.ops.solve import SolverBytes
from ..methods import constrained_als, observed_als, observed_constrained
from ..methods.constraints import NONE, Constraints
from ..methods.extrapolation import suits
from ..methods.held_out import HeldOut, HeldOutAls, HeldOutConstrained
from ..methods.initial import Init, start_bytes
from ..methods.observed_als import ObservedAls, Rows
from ..methods.observed_constrained import ObservedConstrainedAls, systems
from ..operators.base import Placed
from ..operators.dense.gaps import GapRows, ModeGaps, RowElements, gap_bytes, gaps_of, mode_gaps
from ..operators.dense.observed import DirectObserved
from ..operators.dense.plan import mode_plans
from ..operators.kept_rows import Compaction, ZeroOfEmpty
from ..operators.limits import check_range
from ..operators.modes import ModePlan
from ..operators.placement import Setting, nonzero_bytes
from ..operators.products import NoProduct
from ..operators.sources.dense import DenseSource, of_array
from ..operators.sources.grid import Grid
from ..operators.sources.lengths import check_lengths
from ..operators.sources.present import PresentSource
from ..operators.sources.protocols import DescribedSource
from ..operators.sparse.row_solver import RowSolver
from ..operators.sparse.tuning import Budget
from ..options import Options
from .assembly import device_memory, on_host, setting_for
from .compiling import MATRICES, ROWS, Work, chosen
from .kinds import DENSE, SPARSE
from .observing import ObservedParams, ObservedSource, observed_source
from .planning import PlannedGapRun, PlannedRun, PlannedSparseRun


def observe(
    source: DescribedSource, params: ObservedParams, machine: Machine, options: Options
) -> ObservedSource | None:
    """Return the observed elements of a tensor; see `observed_source`. Collective."""
    return observed_source(source, params, machine.comm, device_memory(machine, options))


def solves_rows(device: Device, order: int, rank: int, dtype: FloatDType, constrained: bool = False) -> bool:
    """Return whether a device solves least-squares problems of rows of `rank` columns.

    `constrained`: by ADMM.
    """
    if device.on_host:  # its providers load the compiler, which a run may not need
        return True
    lengths, values = (1,) * (order - 1), ValueRange(0.0, 0.0, 0.0)
    share = Share(lengths, slice(0, 1), 1, device.stride(rank, dtype.itemsize), dtype, values)
    kernels = MTTKRP.providers(device)
    if constrained:
        return any(
            s.suits(k, share, observed_constrained.SQUARES) for k in kernels for s in ROW_SYSTEMS.providers(device)
        )
    solvers = [each for each in ROWPROBLEMS.providers(device) if each.method == observed_als.PROBLEMS.method]
    return any(each.suits(kernel, share) for kernel in kernels for each in solvers)


def row_machine(
    observed: ObservedSource, rank: int, machine: Machine, options: Options, constrained: bool = False
) -> Machine:
    """Return the machine that solves the rows: the CPU if a GPU has too little shared memory for them. Collective.

    `constrained`: see `solves_rows`.
    """
    placed = observed.placed
    if solves_rows(machine.device, len(placed.shape), rank, options.dtype, constrained):
        return machine
    placed.leave_device()
    return on_host(machine, options, f"missing elements at rank {rank}")


class ObservedRun(NamedTuple):
    """CP-ALS over observed elements, before it is placed."""

    observed: ObservedSource
    rank: int
    machine: Machine
    options: Options
    init: Init | None = None
    holds_out: bool = False  # whether the factor matrices of the best iteration are kept
    constraints: Constraints = NONE

    def start_bytes(self) -> int:
        """Return the memory that rank 0 needs for the start and the best factor matrices. Collective."""
        source = self.observed.source
        best = 8 * sum(source.shape) * self.rank if self.holds_out else 0
        return start_bytes(source, self.rank, self.machine.comm, self.init) + best

    def setting(self, source: DescribedSource) -> Setting:
        """Return the setting for placing the elements of `source`. Collective."""
        setting = setting_for(source, self.rank, self.machine, self.options, observed_als.solving_bytes)
        return setting._replace(pipelined=False, root_bytes=self.start_bytes())

    @property
    def has_few_gaps(self) -> bool:
        """Whether the rows are solved as those of a dense tensor, by subtraction; see `GapRows`."""
        source, weighted = self.observed.source, self.observed.terms.scales is not None
        return not weighted and GapRows.suits(source.shape, source.nnz, self.machine.device, self.options)


def observed_decomposition(
    observed: ObservedSource,
    rank: int,
    machine: Machine,
    options: Options,
    budget: Budget,
    constraints: Constraints = NONE,
    init: Init | None = None,
    held_out: HeldOut | None = None,
    accelerate: bool = False,
) -> ObservedAls | ObservedConstrainedAls:
    """Place the observed elements of a tensor and return their CP-ALS; see `decomposition`. Collective.

    With `held_out`, the method measures these elements after each iteration, which is plain.
    """
    if constraints.terms:
        run = ObservedRun(observed, rank, machine, options, init, held_out is not None, constraints)
        return _constrained(run, budget, held_out)
    shape, terms = observed.source.shape, observed.terms
    machine = row_machine(observed, rank, machine, options)
    direct = DirectObserved.fits(shape, rank, machine)
    work = Work(rank, budget.repeats, ROWS, math.prod(shape) if direct else 0)
    machine = chosen(machine, observed.placed, options, work)
    run = ObservedRun(observed, rank, machine, options, init, held_out is not None, constraints)
    if direct and machine.device.folder == "plain":
        operator, rows = _as_array(run)
        terms = terms._replace(scales=None)  # the array has the weights
    elif run.has_few_gaps:
        operator, rows = _with_gaps(run)
    else:
        operator, rows = _row_by_row(run)
    if held_out is not None:
        return HeldOutAls(held_out, operator, rows, constraints, terms)
    return ObservedAls(operator, rows, constraints, terms, accelerate and suits(machine.device, shape, rank))


def _constrained(run: ObservedRun, budget: Budget, held_out: HeldOut | None) -> ObservedConstrainedAls:
    """Place the observed elements and return their CP-ALS under constraints. Collective."""
    placed, terms, constraints = run.observed.placed, run.observed.terms, run.constraints
    constraints.check_sizes(run.observed.source.shape, run.rank)
    machine = row_machine(run.observed, run.rank, run.machine, run.options, constrained=True)
    work = Work(run.rank, budget.likely, MATRICES)
    run = run._replace(machine=chosen(machine, placed, run.options, work))
    operator = SPARSE.place(placed, run.machine, _systems_setting(run), None)
    if held_out is not None:
        return HeldOutConstrained(held_out, operator, constraints, terms)
    return ObservedConstrainedAls(operator, constraints, terms)


def _systems_setting(run: ObservedRun) -> Setting:
    """Return the setting for row systems of the elements. Collective."""
    setting, observed = run.setting(run.observed.placed), run.observed
    solving = observed_constrained.solving_bytes(observed.source.shape, run.rank, run.constraints, run.machine.device)
    product = systems(observed.terms.scales is not None)
    compaction = constrained_als.compaction(run.constraints)
    return setting._replace(product=product, overlaps=False, solving=solving, compaction=compaction)


def planned_observed(run: ObservedRun, ranks: int, memory: int | None) -> PlannedRun:
    """Plan CP-ALS over observed elements on `ranks` ranks with `memory` bytes each (None: those free). Collective."""
    comm = run.machine.comm
    constrained = bool(run.constraints.terms)
    run = run._replace(machine=row_machine(run.observed, run.rank, run.machine, run.options, constrained))
    if constrained or not run.has_few_gaps:
        setting = _with_memory(_systems_setting(run) if constrained else _row_setting(run), memory)
        check_lengths(run.observed.placed, setting, comm, elsewhere=True)
        return PlannedSparseRun(run.observed.placed, run.machine, setting, ranks)
    filled = _filled(run)
    setting = _with_memory(run.setting(filled.source), memory)
    check_lengths(filled.source, setting, comm, elsewhere=True)

    def setting_of(part: int) -> Setting:
        assert filled.observed is not None
        modes = _modes(filled.source, part, ranks, setting)
        gaps = [gaps_of(mode, filled.missing, filled.observed) for mode in modes]
        return _gap_setting(run, filled, modes, gaps, setting)

    return PlannedGapRun(filled.source, run.machine, setting_of, ranks)


def _with_memory(setting: Setting, memory: int | None) -> Setting:
    return setting if memory is None else setting._replace(memory=memory)


def _as_array(run: ObservedRun) -> tuple[Placed, Rows]:
    """Place a small tensor as an array with missing elements."""

    def setting() -> Setting:
        return run.setting(run.observed.source)

    rows = DirectObserved(run.observed.masked_array(), run.rank, run.machine, run.options, setting)
    return rows, rows


def _row_setting(run: ObservedRun) -> Setting:
    """Return the setting for rows that are solved from their elements. Collective."""
    setting = run.setting(run.observed.placed)
    compaction = Compaction(ZeroOfEmpty(), run.constraints.fixed)
    extras = (observed_als.PROBLEMS,)
    return setting._replace(product=NoProduct(), extras=extras, overlaps=False, compaction=compaction)


def _row_by_row(run: ObservedRun) -> tuple[Placed, Rows]:
    """Place the elements as a sparse tensor. Collective."""
    operator = SPARSE.place(run.observed.placed, run.machine, _row_setting(run), None)
    return operator, RowSolver(operator, observed_als.PROBLEMS)


class _Filled(NamedTuple):
    """A dense tensor, zero where elements are missing; these, on all ranks; and the observed ones, on rank 0."""

    source: DenseSource
    missing: NDArray[np.int32]
    observed: RowElements | None


def _filled(run: ObservedRun) -> _Filled:
    """Return the elements as a dense tensor. Collective."""
    source, options, comm = run.observed.source, run.options, run.machine.comm
    check_range(source.value_range, options.dtype, source.path)
    split = run.observed.filled(options.dtype, comm)
    missing = comm.bcast(split.missing if split else None)
    assert missing is not None
    return _Filled(of_array(split.tensor if split else None, comm), missing, split.observed if split else None)


def _modes(source: DenseSource, part: int, ranks: int, setting: Setting) -> list[ModePlan]:
    """Return the plans of the modes of rank `part`."""
    return mode_plans(source, Grid.of(source.lengths, ranks), part, setting)


def _gap_setting(
    run: ObservedRun, filled: _Filled, modes: list[ModePlan], gaps: list[ModeGaps], setting: Setting
) -> Setting:
    """Return the setting with the memory for a rank's gaps."""
    order, missing = len(filled.source.shape), filled.missing
    kept = gap_bytes(modes, gaps, run.machine.device) + missing.nbytes + setting.solving(0, run.rank).kept
    # The list of the observed elements, if there is one, and what it takes to find those that are missing.
    listed = 0 if isinstance(run.observed.source, PresentSource) else run.observed.source.nnz
    root = listed * (8 + nonzero_bytes(order, np.dtype(np.float64))) + filled.source.nnz + 8 * missing.size
    return setting._replace(solving=lambda rows, rank: SolverBytes(kept), root_bytes=setting.root_bytes + root)


def _with_gaps(run: ObservedRun) -> tuple[Placed, Rows]:
    """Place the elements as a dense tensor with few missing elements. Collective."""
    run.observed.placed.leave_device()
    machine, filled = run.machine, _filled(run)
    comm, setting = machine.comm, run.setting(filled.source)
    modes = _modes(filled.source, comm.rank, comm.size, setting)
    gaps = mode_gaps(filled.missing, filled.observed, modes, comm)
    setting = _gap_setting(run, filled, modes, gaps, setting)
    operator = DENSE.place(filled.source, machine, setting, None)
    return operator, GapRows(operator, gaps, filled.missing)
