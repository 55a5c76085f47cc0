"""The elements over which a loss is summed: a tensor, or its observed elements, ready to be placed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.dense import DenseTensor

from ..backend.exchange import Machine
from ..backend.known_losses import loss_of
from ..backend.losses import Loss
from ..backend.ops.loss_tiles import LOSS_TILES, LossForm
from ..backend.ops.mapped import MAPPED
from ..backend.ops.sampled import StepMethod
from ..backend.ops.solve import SolverBytes
from ..errors import InputError
from ..methods.constraints import NONE, Constraints
from ..methods.gcp import STOCHASTIC
from ..methods.initial import Init, start_bytes
from ..methods.newton_rows import row_systems, step_bytes
from ..methods.observed_apr import poisson_systems
from ..methods.poisson import Poisson
from ..methods.quasi_newton import MORE_ON_GPU, VECTORS
from ..methods.stochastic import Stochastic
from ..models.align import with_absent
from ..operators.base import Gradient
from ..operators.dense.direct import DirectDense
from ..operators.dense.gradient import DenseGradient, gradient_bytes, loss_form
from ..operators.dense.observed import MaskedArray
from ..operators.dense.operator import DenseOperator
from ..operators.kept_rows import Compaction, ZeroOfEmpty
from ..operators.modes import Product
from ..operators.placement import Setting, constantly
from ..operators.products import LossOnly, Mapped, RowSystems
from ..operators.sources.dense import DenseSource, of_array
from ..operators.sources.grid import Grid
from ..operators.sources.protocols import DescribedSource, SparseSource
from ..operators.sparse.gradient import MappedSums, SparseGradient, SystemSums
from ..operators.sparse.tuning import Budget
from ..options import Options
from ..parallel.mpi import on_root
from .assembly import on_host, setting_for
from .compiling import SYSTEMS, Work, chosen, uncompiled
from .holding_out import all_observed
from .kinds import DENSE, SPARSE, kind_of
from .observing import ObservedSource, observed_source
from .planning import PlannedRun
from .stochastic import MOST_ELEMENTS, SampledWork

LISTS = "newton", "mu", "pdnr"  # methods that need a list of the elements that count
SPARSE_BELOW = 0.1  # fraction of observed elements below which a list of them is evaluated, not an array


class LossWork(NamedTuple):
    """The evaluations of a loss.

    Attributes
    ----------
    loss : Loss
    rank : int
        Number of components.
    evaluations : int
        An upper bound.
    init : Init, optional
        The start, which may need memory.
    method : str
        One of `GENERAL`, or "mu" or "pdnr".
    poisson : Poisson, optional
        The parameters of CP-APR over observed elements, by "mu" or "pdnr".
    stochastic : Stochastic, optional
        The parameters of a stochastic method.
    """

    loss: Loss
    rank: int
    evaluations: int
    init: Init | None = None
    method: str = "lbfgs"
    poisson: Poisson | None = None
    stochastic: Stochastic | None = None

    @classmethod
    def of_counts(cls, poisson: Poisson, rank: int, evaluations: int, init: Init | None = None) -> LossWork:
        """Return the evaluations of CP-APR over observed elements."""
        return cls(loss_of("poisson"), rank, evaluations, init, poisson.method, poisson)

    @property
    def lists(self) -> bool:
        """Whether the method needs a list of all elements that count."""
        return self.method in LISTS

    @property
    def sampled(self) -> SampledWork | None:
        """The work of a stochastic method; None for other methods."""
        if self.method not in STOCHASTIC:
            return None
        params = self.stochastic or Stochastic(cast(StepMethod, self.method), epochs=self.evaluations)
        return SampledWork(self.loss, self.rank, self.init, params)


class LossRun(NamedTuple):
    """A decomposition for a loss, before it is placed.

    Attributes
    ----------
    source : DescribedSource
    observed : ObservedSource, optional
        The elements of `source` that count; None: all.
    machine : Machine
    options : Options
    work : LossWork
    constraints : Constraints
    """

    source: DescribedSource
    observed: ObservedSource | None
    machine: Machine
    options: Options
    work: LossWork
    constraints: Constraints = NONE

    @property
    def counted(self) -> DescribedSource:
        """The elements that count."""
        return self.source if self.observed is None else self.observed.source

    @property
    def facts(self) -> dict[str, object]:
        """How the observed elements were chosen."""
        return {} if self.observed is None else dict(self.observed.terms.facts)

    @property
    def compaction(self) -> Compaction:
        """How hypersparse modes are compacted: fixed modes keep all rows."""
        return Compaction(ZeroOfEmpty(), self.constraints.fixed)

    def elements(self) -> LossElements:
        """Return the elements to be placed. Collective.

        Hypersparse modes are compacted if zero is best for empty rows. See `loss_elements` for errors.
        """
        elements, work = loss_elements(self), self.work
        if elements.source.kind != "sparse" or work.poisson or not (self.observed is not None or work.loss.fits_zeros):
            return elements
        return elements._replace(setting=elements.setting._replace(compaction=self.compaction))


class LossElements(NamedTuple):
    """The elements over which a loss is summed, ready to be placed or planned.

    Attributes
    ----------
    source : DescribedSource
        A dense tensor, or a sparse one.
    machine : Machine
    setting : Setting
    work : LossWork
    zeros : bool
        Whether absent elements of a sparse tensor are zeros. Otherwise they do not count.
    weights : DenseSource, optional
        A weight per element of a dense tensor.
    scales : (K,) array, optional
        The weights of the indices of an additional last mode of a sparse tensor; see `Maps.weighted`.
    needs : callable, optional
        The device memory for evaluating a dense tensor, by the number of ranks.
    """

    source: Any
    machine: Machine
    setting: Setting
    work: LossWork
    zeros: bool = True
    weights: DenseSource | None = None
    scales: NDArray[np.float64] | None = None
    needs: Callable[[int], SolverBytes] | None = None

    def gradient(self) -> Gradient:
        """Place the elements for the gradient of the loss. Collective."""
        if self.source.kind != "sparse":
            return self._dense_gradient()
        operator = SPARSE.place(self.source, self.machine, self.setting, Budget(self.work.evaluations))
        maps = self.work.loss.maps(absent_are_zero=self.zeros)
        sums = MappedSums if isinstance(self.setting.product, Mapped) else SystemSums
        return SparseGradient(operator, sums(operator, maps), self.work.loss, self.zeros)

    def _dense_gradient(self) -> DenseGradient:
        operator = self._dense_operator()
        grid = Grid.of(self.source.lengths, self.machine.comm.size)
        shares = None if self.weights is None else np.asarray(self.weights.block(grid))
        return DenseGradient(operator, self.work.loss, shares)

    def _dense_operator(self) -> DirectDense | DenseOperator:
        source, machine, setting, rank = self.source, self.machine, self.setting, self.work.rank
        if DirectDense.suits(source, machine, rank):
            return DirectDense(source, rank, machine, setting.options, lambda: setting)
        return DENSE.place(source, machine, setting, None)

    def with_memory(self, memory: int | None) -> LossElements:
        """Return the same elements for devices with `memory` bytes; None: those free."""
        return self if memory is None else self._replace(setting=self.setting._replace(memory=memory))

    def plan(self, ranks: int) -> PlannedRun:
        """Plan the run on `ranks` ranks. Collective."""
        setting = self.setting
        if self.needs is not None:
            setting = setting._replace(solving=constantly(self.needs(ranks)))
        return kind_of(self.source).plan(self.source, self.machine, setting, ranks)


def loss_elements(run: LossRun) -> LossElements:
    """Return the elements of a tensor, or its observed elements, for a loss. Collective.

    Raises
    ------
    InputError
        If the sum over the absent elements of a large sparse tensor has no closed form, or a large tensor has weights.
    """
    source, observed, loss = run.source, run.observed, run.work.loss
    count = math.prod(map(float, source.shape))
    if run.work.lists:
        return _list(run)
    if observed is not None:
        weighted = observed.terms.scales is not None
        if count > MOST_ELEMENTS and weighted:
            raise InputError(f"weights: with loss {loss.name!r} at most {MOST_ELEMENTS:,} elements")
        if not weighted and (observed.source.nnz < SPARSE_BELOW * count or count > MOST_ELEMENTS):
            return _sparse(run, observed.source, False)
        array, comm = _masked(observed, run.machine), run.machine.comm
        weights = of_array(array and DenseTensor(array.weights), comm)
        return _dense(run, of_array(array and DenseTensor(array.values), comm), weights)
    if source.kind == "dense":
        return _dense(run, cast(DenseSource, source))
    if loss.at_zero is not None:
        return _sparse(run, source, True)
    return _dense(run, _with_zeros(source, run.machine, loss))


def _with_zeros(source: DescribedSource, machine: Machine, loss: Loss) -> DenseSource:
    """Return a sparse tensor as an array; raise `InputError` if it has too many elements. Collective."""
    count = math.prod(map(float, source.shape))
    if count > MOST_ELEMENTS:
        raise InputError(
            f"loss {loss.name!r}: the sum over {count:.3g} elements has no closed form: use method 'adam'; or use "
            "mask 'stored' if absent elements are unknown",
            path=source.path,
        )
    tensor: Any = source.tensor()
    cast(SparseSource, source).leave_device()
    dense: Any = on_root(machine.comm, lambda: None if tensor is None else with_absent(tensor))
    return of_array(dense, machine.comm)


def _list(run: LossRun) -> LossElements:
    """Return the elements as a list, for row systems. Collective."""
    source, observed, work, comm = run.source, run.observed, run.work, run.machine.comm
    loss = work.loss
    if not loss.compiled:
        raise InputError("method 'newton': the formulas of the loss must be text")
    zeros = observed is None and source.kind == "sparse" and loss.at_zero is not None
    if observed is None and not zeros:
        source = _with_zeros(source, run.machine, loss) if source.kind == "sparse" else source
        observed = observed_source(source, all_observed(source, comm), comm, None)
    elements: DescribedSource = source if observed is None else observed.weighted(comm)
    scales = None if observed is None else observed.terms.scales
    weighted = scales is not None
    if weighted or work.poisson:
        run = _on_host(run, elements)
    product = poisson_systems(work.poisson, weighted) if work.poisson else row_systems(loss, zeros, weighted)
    if work.method == "mu" and not weighted:
        run = _chosen(run, elements)
    placed = LossElements(elements, run.machine, _setting(run, elements, product, weighted), work, zeros)
    return placed if scales is None else placed._replace(scales=np.square(scales))


def _masked(observed: ObservedSource, machine: Machine) -> MaskedArray | None:
    """Return the observed elements as an array, on rank 0. Collective."""
    for source in (observed.source, observed.placed):
        source.leave_device()
    tensor = observed.placed.tensor()
    return on_root(machine.comm, lambda: None if tensor is None else observed.array_of(tensor))


def _sparse(run: LossRun, source: DescribedSource, zeros: bool) -> LossElements:
    work = run.work
    run = _chosen(run, source) if work.loss.compiled else _uncompiled(run, source)
    maps = work.loss.maps(absent_are_zero=zeros)
    # A mapped MTTKRP leaves out zeros that are stored, which is right where absent elements are zeros, too.
    values, rounded = source.value_range, run.options.dtype.type
    whole = zeros or rounded(values.low) > 0 or rounded(values.high) < 0
    product = Mapped(maps) if whole and MAPPED.providers(run.machine.device) else RowSystems(maps)
    return LossElements(source, run.machine, _setting(run, source, product), work, zeros)


def _dense(run: LossRun, source: DenseSource, weights: DenseSource | None = None) -> LossElements:
    """Return the elements of a dense tensor, on a CPU if the device cannot evaluate the loss. Collective."""
    loss, rank, weighted = run.work.loss, run.work.rank, weights is not None
    if LOSS_TILES.first(run.machine.device, lambda provider: provider.suits(loss)) is None:
        run = _uncompiled(run, source)
    provider = LOSS_TILES.require(run.machine.device, lambda provider: provider.suits(loss))

    def form_of(ranks: int) -> LossForm:
        return loss_form(Grid.of(source.lengths, ranks).shape(0), rank, run.options.dtype, weighted)

    def needs(ranks: int) -> SolverBytes:
        form = form_of(ranks)
        kept = 8 * math.prod(form.shape) if weighted else 0
        return SolverBytes(kept, provider.bytes(form) + gradient_bytes(source.shape, rank))

    ranks = run.machine.comm.size
    provider.prepare(loss, form_of(ranks))
    setting = _setting(run, source, LossOnly())._replace(solving=constantly(needs(ranks)))
    return LossElements(source, run.machine, setting, run.work, weights=weights, needs=needs)


def _chosen(run: LossRun, elements: Any) -> LossRun:
    """Return the run on a machine with or without compiled code, whichever is faster."""
    work = Work(run.work.rank, run.work.evaluations, SYSTEMS)
    return run._replace(machine=chosen(run.machine, elements, run.options, work))


def _uncompiled(run: LossRun, elements: Any) -> LossRun:
    """Return the run on a CPU without compiled code. Collective."""
    run = _on_host(run, elements)
    return run._replace(machine=uncompiled(run.machine))


def _on_host(run: LossRun, elements: Any) -> LossRun:
    """Return the run on a CPU, for elements that only a CPU supports; see `on_host`. Collective."""
    reason = f"loss {run.work.loss.name!r}, method {run.work.method!r}, of such elements"
    host = on_host(run.machine, run.options, reason)
    if host is not run.machine and elements.kind == "sparse":
        elements.leave_device()
    return run._replace(machine=host)


def _setting(
    run: LossRun,
    source: DescribedSource,
    product: Product[Any],
    weighted: bool = False,
) -> Setting:
    """Return the setting, with the memory for Newton steps or the vectors of L-BFGS. Collective."""
    work, rank, comm = run.work, run.work.rank, run.machine.comm
    longest = max(source.shape[: len(source.shape) - weighted])

    def solving(rows: int, columns: int) -> SolverBytes:
        return step_bytes(min(rows, longest), rank) if work.lists else SolverBytes()

    setting = setting_for(source, rank, run.machine, run.options, solving)
    memory = start_bytes(source, rank, comm, work.init)
    if not work.lists:
        setting = setting._replace(vectors=VECTORS + (0 if run.machine.device.on_host else MORE_ON_GPU))
    return setting._replace(product=product, pipelined=False, overlaps=False, root_bytes=memory)
