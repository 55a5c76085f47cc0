"""Assembly of losses: from a tensor, or its observed elements, to the gradient of a loss, and its decomposition."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.dense import DenseTensor
from partitioner.wording import alternatives

from ..backend.exchange import Machine
from ..backend.known_losses import loss_of
from ..backend.losses import Loss
from ..backend.ops.sampled import StepMethod
from ..backend.ops.solve import SolverBytes
from ..errors import InputError
from ..methods.constraints import Constraints
from ..methods.gcp import GENERAL, STOCHASTIC, Gcp, LossMethod
from ..methods.held_out import HeldOut, HeldOutGcp, HeldOutNewton
from ..methods.initial import Init, start_bytes
from ..methods.newton_rows import NewtonRows, row_systems, step_bytes
from ..methods.observed_apr import ObservedApr, poisson_systems
from ..methods.poisson import Poisson
from ..methods.quasi_newton import VECTORS
from ..methods.stochastic import Stochastic
from ..models.align import with_absent
from ..operators.base import Gradient
from ..operators.dense.direct import DirectDense
from ..operators.dense.gradient import DenseGradient
from ..operators.dense.observed import MaskedArray
from ..operators.dense.operator import DenseOperator
from ..operators.kept_rows import Compaction, ZeroOfEmpty
from ..operators.modes import Product
from ..operators.placement import Setting
from ..operators.products import Mttkrp, RowSystems
from ..operators.sources.compact import used_indices
from ..operators.sources.dense import DenseSource, of_array
from ..operators.sources.grid import Grid
from ..operators.sources.protocols import DescribedSource
from ..operators.sparse.gradient import SparseGradient
from ..options import Options
from ..parallel.mpi import Comm, on_root
from .assembly import on_host, setting_for
from .compiling import SYSTEMS, Work, chosen, uncompiled
from .holding_out import all_observed
from .kinds import DENSE, SPARSE, kind_of
from .observing import ObservedSource, observed_source
from .planning import PlannedRun
from .stochastic import MOST_ELEMENTS, SampledElements, SampledWork, sampled_elements, stochastic_gcp

METHODS = {"gaussian": ("als", *GENERAL), "poisson": ("mu", "pdnr", "pqnr", *GENERAL)}
"""The methods of losses, the default first; those in `GENERAL` minimise any other loss."""
APR_METHODS = tuple(method for method in METHODS["poisson"] if method not in GENERAL)  # of CP-APR
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


def check_domain(source: DescribedSource, loss: Loss, sparse_zeros: bool, comm: Comm) -> None:
    """Raise `InputError` if a value is outside the domain of a loss. Collective.

    `sparse_zeros`: absent elements of a sparse tensor are zeros, which must be inside, too.
    """
    domain = loss.domain
    if sparse_zeros and domain.outside(np.zeros(1)) is not None:
        raise InputError(f"loss {loss.name!r} expects {domain}, but absent elements are 0", path=source.path)
    values = source.value_range
    if values.low >= domain.low and values.high <= domain.high and (values.grain >= 1 or not domain.whole):
        return
    tensor = source.tensor()

    def check() -> None:
        assert tensor is not None
        if (at := domain.outside(elements := tensor.elements)) is not None:
            line = source.line_where(lambda value: domain.outside(np.array([value])) is not None)
            cause = f"a value is {elements[at]:g}: loss {loss.name!r} expects {domain}"
            raise InputError(cause, path=source.path, line=line)

    on_root(comm, check)


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
    """

    source: Any
    machine: Machine
    setting: Setting
    work: LossWork
    zeros: bool = True
    weights: DenseSource | None = None
    scales: NDArray[np.float64] | None = None

    def gradient(self) -> Gradient:
        """Place the elements for the gradient of the loss. Collective."""
        if self.source.kind != "sparse":
            return self._dense_gradient()
        loss, maps = self.work.loss, self.work.loss.maps(absent_are_zero=self.zeros)
        return SparseGradient(SPARSE.place(self.source, self.machine, self.setting, None), loss, maps, self.zeros)

    def _dense_gradient(self) -> DenseGradient:
        operator = self._dense_operator()
        grid = Grid.of(self.source.lengths, 1) if isinstance(operator, DirectDense) else operator.plan.grid
        shares = None if self.weights is None else np.asarray(self.weights.block(grid))
        threads = self.machine.device.cores
        return DenseGradient(operator, self.work.loss, threads, shares)

    def _dense_operator(self) -> DirectDense | DenseOperator:
        source, machine, setting, rank = self.source, self.machine, self.setting, self.work.rank
        if DirectDense.suits(source, machine, rank):
            return DirectDense(source, rank, machine, setting.options, lambda: setting)
        return DENSE.place(source, machine, setting, None)

    def with_memory(self, memory: int | None) -> LossElements:
        """Return the same elements for devices with `memory` bytes; None: those free."""
        return self if memory is None else self._replace(setting=self.setting._replace(memory=memory))

    def compacted(self, constraints: Constraints, masked: bool) -> LossElements:
        """Return the elements for a decomposition whose hypersparse modes are compacted if zero is best for empty rows.

        `masked`: whether only observed elements count.
        """
        if self.source.kind != "sparse" or self.work.poisson or not (masked or self.work.loss.fits_zeros):
            return self
        return self._replace(setting=self.setting._replace(compaction=_compaction(constraints)))

    def plan(self, ranks: int) -> PlannedRun:
        """Plan the run on `ranks` ranks. Collective."""
        return kind_of(self.source).plan(self.source, self.machine, self.setting, ranks)


def _compaction(constraints: Constraints) -> Compaction:
    """Return how hypersparse modes are compacted: fixed modes keep all rows."""
    return Compaction(ZeroOfEmpty(), constraints.fixed)


def loss_elements(
    source: DescribedSource, observed: ObservedSource | None, machine: Machine, options: Options, work: LossWork
) -> LossElements:
    """Return the elements of a tensor, or its observed elements, for a loss. Collective.

    Raises
    ------
    InputError
        If the sum over the absent elements of a large sparse tensor has no closed form, or a large tensor has weights.
    """
    loss, count = work.loss, math.prod(map(float, source.shape))
    if work.lists:
        return _list(source, observed, machine, options, work)
    if observed is not None:
        weighted = observed.terms.scales is not None
        if count > MOST_ELEMENTS and weighted:
            raise InputError(f"weights: with loss {loss.name!r} at most {MOST_ELEMENTS:,} elements")
        if not weighted and (observed.source.nnz < SPARSE_BELOW * count or count > MOST_ELEMENTS):
            return _sparse(observed.source, False, machine, options, work)
        machine = _host(observed.placed, machine, options, work)
        array = _masked(observed, machine)
        weights = of_array(array and DenseTensor(array.weights), machine.comm)
        values = of_array(array and DenseTensor(array.values), machine.comm)
        return _dense(values, machine, options, work)._replace(weights=weights)
    if source.kind == "dense":
        return _dense(source, machine, options, work)
    if loss.at_zero is not None:
        return _sparse(source, True, machine, options, work)
    return _dense(_with_zeros(source, machine, loss), machine, options, work)


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
    dense: Any = on_root(machine.comm, lambda: None if tensor is None else with_absent(tensor))
    return of_array(dense, machine.comm)


def _list(
    source: DescribedSource, observed: ObservedSource | None, machine: Machine, options: Options, work: LossWork
) -> LossElements:
    """Return the elements as a list, for row systems. Collective."""
    comm, loss = machine.comm, work.loss
    if not loss.compiled:
        raise InputError("method 'newton': the formulas of the loss must be text")
    zeros = observed is None and source.kind == "sparse" and loss.at_zero is not None
    if observed is None and not zeros:
        source = _with_zeros(source, machine, loss) if source.kind == "sparse" else source
        observed = observed_source(source, all_observed(source, comm), comm, None)
    elements: DescribedSource = source if observed is None else observed.weighted(comm)
    scales = None if observed is None else observed.terms.scales
    weighted = scales is not None
    if weighted or work.poisson:
        machine = _host(elements, machine, options, work)
    product = poisson_systems(work.poisson, weighted) if work.poisson else row_systems(loss, zeros, weighted)
    if work.method == "mu" and not weighted:
        machine = chosen(machine, elements, options, Work(work.rank, work.evaluations, SYSTEMS))
    placed = LossElements(elements, machine, _setting(elements, machine, options, work, product, weighted), work, zeros)
    return placed if scales is None else placed._replace(scales=np.square(scales))


def _masked(observed: ObservedSource, machine: Machine) -> MaskedArray | None:
    """Return the observed elements as an array, on rank 0. Collective."""
    tensor = observed.placed.tensor()
    return on_root(machine.comm, lambda: None if tensor is None else observed.array_of(tensor))


def _sparse(source: DescribedSource, zeros: bool, machine: Machine, options: Options, work: LossWork) -> LossElements:
    if work.loss.compiled:
        machine = chosen(machine, source, options, Work(work.rank, work.evaluations, SYSTEMS))
    else:
        machine = uncompiled(_host(source, machine, options, work))
    product = RowSystems(work.loss.maps(absent_are_zero=zeros))
    return LossElements(source, machine, _setting(source, machine, options, work, product), work, zeros)


def _dense(source: DescribedSource, machine: Machine, options: Options, work: LossWork) -> LossElements:
    machine = uncompiled(_host(source, machine, options, work))
    return LossElements(source, machine, _setting(source, machine, options, work, Mttkrp()), work)


def _host(elements: Any, machine: Machine, options: Options, work: LossWork) -> Machine:
    """Return the CPU as machine of elements that only a CPU supports; see `on_host`. Collective."""
    host = on_host(machine, options, f"loss {work.loss.name!r}, method {work.method!r}, of such elements")
    if host is not machine and elements.kind == "sparse":
        elements.leave_device()
    return host


def _setting(
    source: DescribedSource,
    machine: Machine,
    options: Options,
    work: LossWork,
    product: Product[Any],
    weighted: bool = False,
) -> Setting:
    """Return the setting, with the memory for the vectors of L-BFGS, or for Newton steps. Collective."""
    rank, longest = work.rank, max(source.shape[: len(source.shape) - weighted])
    rows = -(-sum(source.shape) // machine.comm.size)
    vectors = SolverBytes(8 * rank * (VECTORS * rows + sum(source.shape)))

    def solving(rows: int, columns: int) -> SolverBytes:
        return step_bytes(min(rows, longest), rank) if work.lists else vectors

    setting = setting_for(source, rank, machine, options, solving)
    memory = start_bytes(source, work.rank, machine.comm, work.init)
    return setting._replace(product=product, pipelined=False, overlaps=False, root_bytes=memory)


def generalised(
    source: DescribedSource,
    observed: ObservedSource | None,
    machine: Machine,
    options: Options,
    work: LossWork,
    constraints: Constraints,
    held_out: HeldOut | None = None,
) -> LossMethod:
    """Place a tensor, or its observed elements, and return its decomposition for any loss. Collective.

    With `held_out`, the method measures these elements after each iteration.
    """
    counted = source if observed is None else observed.source
    check_domain(counted, work.loss, observed is None and counted.kind == "sparse", machine.comm)
    zero = not counted.value_range.largest
    if zero and not work.loss.fits_zeros:
        raise InputError(f"every element is zero: loss {work.loss.name!r} has no minimum there", path=counted.path)
    method = _generalised(source, observed, machine, options, work, constraints, held_out)
    method.starts_at_zero = zero
    # Stochastic methods keep them: samples of absent elements would rarely meet rows that are not zero.
    if work.method not in STOCHASTIC and (observed is not None or work.loss.fits_zeros):
        method.used = used_indices(counted, _compaction(constraints))
    return method


def _generalised(
    source: DescribedSource,
    observed: ObservedSource | None,
    machine: Machine,
    options: Options,
    work: LossWork,
    constraints: Constraints,
    held_out: HeldOut | None,
) -> LossMethod:
    """Place the elements and return the method. Collective."""
    if (sampled := work.sampled) is not None:
        return stochastic_gcp(source, observed, machine, options, sampled, constraints, held_out)
    facts: dict[str, object] = {} if observed is None else dict(observed.terms.facts)
    elements = loss_elements(source, observed, machine, options, work).compacted(constraints, observed is not None)
    if work.lists:
        operator = SPARSE.place(elements.source, elements.machine, elements.setting, None)
        if work.poisson:
            return ObservedApr(operator, work.poisson, facts, elements.scales)
        newton = operator, work.loss, constraints, facts, elements.zeros, elements.scales
        return HeldOutNewton(held_out.by(work.loss), *newton) if held_out else NewtonRows(*newton)
    full = elements.gradient(), work.loss, constraints, facts
    return HeldOutGcp(held_out.by(work.loss), *full) if held_out else Gcp(*full)


def planned_loss(
    source: DescribedSource,
    observed: ObservedSource | None,
    machine: Machine,
    options: Options,
    work: LossWork,
    constraints: Constraints,
) -> LossElements | SampledElements:
    """Return the elements of a decomposition for any loss, to be planned. Collective."""
    if (sampled := work.sampled) is not None:
        return sampled_elements(source, observed, machine, options, sampled)
    return loss_elements(source, observed, machine, options, work).compacted(constraints, observed is not None)


class LossTraits(NamedTuple):
    """What is requested in addition to a loss, by which methods are chosen."""

    masked: bool = False  # missing elements or weights
    special: bool = False  # held-out elements, a ridge or fixed modes


def default_method(loss: str, traits: LossTraits) -> str:
    """Return the method that minimises a loss by default."""
    methods = METHODS.get(loss, GENERAL)
    return "lbfgs" if loss == "poisson" and any(traits) else methods[0]


def check_method(loss: str, method: str, traits: LossTraits) -> None:
    """Raise `InputError` if a method does not minimise a loss."""
    methods = METHODS.get(loss, GENERAL)
    if method not in methods:
        raise InputError(f"method {method!r} does not apply to loss {loss!r}: use {alternatives(map(repr, methods))}")
    if method not in APR_METHODS:
        return
    if traits.special:
        raise InputError(f"method {method!r} supports no holdout, ridge or fixed modes: use 'lbfgs'")
    if traits.masked and method not in LISTS:
        raise InputError(f"method {method!r} supports no mask or weights: use 'mu' or 'pdnr'")
