"""Assembly of losses: from a tensor, or its observed elements, to the gradient of a loss, and its decomposition."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from partitioner.readers import with_zeros
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from ..backend.exchange import Machine
from ..backend.losses import Loss
from ..errors import InputError
from ..methods.constraints import Constraints
from ..methods.gcp import Gcp
from ..methods.initial import Init, start_bytes
from ..operators.base import Gradient
from ..operators.dense.direct import DirectDense
from ..operators.dense.gradient import DenseBlocks, DenseGradient
from ..operators.dense.observed import MaskedArray
from ..operators.placement import Setting
from ..operators.products import RowSystems
from ..operators.sources.dense import DenseSource, of_array
from ..operators.sources.protocols import DescribedSource, SparseSource
from ..operators.sparse.gradient import SparseGradient
from ..options import Options
from ..parallel.mpi import Comm, on_root
from .assembly import on_host, setting_for
from .compiling import SYSTEMS, Work, chosen, uncompiled
from .kinds import DENSE, SPARSE
from .observing import ObservedSource

MOST_ELEMENTS = 1 << 27  # of a sparse tensor that is evaluated as a dense array
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
    """

    loss: Loss
    rank: int
    evaluations: int
    init: Init | None = None


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
        elements = tensor.values if isinstance(tensor, SparseTensor) else tensor.array().reshape(-1)
        if (at := domain.outside(elements)) is not None:
            line = source.line_where(lambda value: domain.outside(np.array([value])) is not None)
            cause = f"a value is {elements[at]:g}: loss {loss.name!r} expects {domain}"
            raise InputError(cause, path=source.path, line=line)

    on_root(comm, check)


def gradient_of(
    source: DescribedSource, observed: ObservedSource | None, machine: Machine, options: Options, work: LossWork
) -> Gradient:
    """Place a tensor, or its observed elements, for the gradient of a loss. Collective.

    Raises
    ------
    InputError
        If the sum over the absent elements of a large sparse tensor has no closed form, or a large tensor has weights.
    """
    loss, elements = work.loss, math.prod(map(float, source.shape))
    machine = on_host(machine, options, f"loss {loss.name!r} with its full gradient")
    if observed is not None:
        if observed.terms.scales is None and observed.source.nnz < SPARSE_BELOW * elements:
            return _sparse(observed.source, False, machine, options, work)
        if elements <= MOST_ELEMENTS:
            array = _masked(observed, machine)
            weights = of_array(array and DenseTensor(array.weights), machine.comm)
            return _dense(of_array(array and DenseTensor(array.values), machine.comm), machine, options, work, weights)
        if observed.terms.scales is not None:
            raise InputError(f"weights: with loss {loss.name!r} at most {MOST_ELEMENTS:,} elements")
        return _sparse(observed.source, False, machine, options, work)
    if isinstance(source, DenseSource):
        return _dense(source, machine, options, work)
    sparse: Any = source
    if loss.at_zero is not None:
        return _sparse(sparse, True, machine, options, work)
    if elements > MOST_ELEMENTS:
        raise InputError(
            f"loss {loss.name!r}: the sum over {elements:.3g} elements has no closed form: use mask 'stored' if absent "
            "elements are unknown, or loss 'gaussian' or 'poisson'",
            path=source.path,
        )
    tensor = source.tensor()
    dense = on_root(machine.comm, lambda: None if tensor is None else with_zeros(_unlabelled(tensor), source.path))
    return _dense(of_array(dense, machine.comm), machine, options, work)


def _unlabelled(tensor: Any) -> SparseTensor:
    """Return a tensor without its labels, which elements do not need."""
    return SparseTensor(tensor.indices, tensor.values, tensor.shape)


def _masked(observed: ObservedSource, machine: Machine) -> MaskedArray | None:
    """Return the observed elements as an array, on rank 0. Collective."""
    tensor = observed.placed.tensor()
    return on_root(machine.comm, lambda: None if tensor is None else observed.array_of(tensor))


def _sparse(source: SparseSource, zeros: bool, machine: Machine, options: Options, work: LossWork) -> SparseGradient:
    """Place a sparse tensor; absent elements are zeros, or do not count."""
    maps = work.loss.maps(absent_are_zero=zeros)
    if work.loss.compiled:
        machine = chosen(machine, source, options, Work(work.rank, work.evaluations, SYSTEMS))
    else:
        machine = uncompiled(machine)
    setting = _setting(source, machine, options, work)._replace(
        product=RowSystems(maps), pipelined=False, overlaps=False
    )
    return SparseGradient(SPARSE.place(source, machine, setting, None), work.loss, maps, zeros)


def _dense(
    source: DenseSource,
    machine: Machine,
    options: Options,
    work: LossWork,
    weights: DenseSource | None = None,
) -> DenseGradient:
    """Place a dense tensor, with a weight per element if given."""
    machine = uncompiled(machine)
    threads = machine.device.count  # type: ignore[attr-defined]
    operator: DenseBlocks
    if DirectDense.suits(source, machine, work.rank):
        operator = DirectDense(source, work.rank, machine, options, lambda: _setting(source, machine, options, work))
        shares = None if weights is None else np.asarray(weights.tensor().array())  # type: ignore[union-attr]
    else:
        placed = DENSE.place(source, machine, _setting(source, machine, options, work), None)
        operator = placed
        shares = None if weights is None else np.asarray(weights.block(placed.plan.grid))
    return DenseGradient(operator, work.loss, threads, shares)


def _setting(source: DescribedSource, machine: Machine, options: Options, work: LossWork) -> Setting:
    setting = setting_for(source, work.rank, machine, options)
    return setting._replace(root_bytes=start_bytes(source, work.rank, machine.comm, work.init))


def generalised(
    source: DescribedSource,
    observed: ObservedSource | None,
    machine: Machine,
    options: Options,
    work: LossWork,
    constraints: Constraints,
) -> Gcp:
    """Place a tensor, or its observed elements, and return the decomposition for any loss; see `gradient_of`."""
    counted = source if observed is None else observed.source
    check_domain(counted, work.loss, observed is None and counted.kind == "sparse", machine.comm)
    facts: dict[str, Any] = {} if observed is None else observed.terms.facts
    return Gcp(gradient_of(source, observed, machine, options, work), work.loss, constraints, facts)
