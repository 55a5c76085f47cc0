"""New data on known components: `transform` of models. The same call under ``mpirun`` uses all ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from partitioner.readers import is_table, open_store
from partitioner.tensors.relabel import same_labels

from ..backend.exchange import Machine
from ..errors import InputError
from ..methods.constraints import ConstraintParams
from ..methods.driver import StopRule, run
from ..methods.poisson import MOST_INNER, Poisson, PoissonMethod
from ..models.align import matched, tensor_for
from ..models.history import AnyModel
from ..models.kruskal import KruskalTensor
from ..models.tucker import TuckerTensor
from ..operators.products import Ttmc
from ..operators.sources.protocols import DescribedSource
from ..operators.sparse.tuning import Budget
from ..options import OptionNames, Options, with_options
from ..parallel.calls import PLAIN, Argument, collective
from ..parallel.mpi import on_root, share, world
from ..runs.assembly import Tensor, begin, counts, decomposition
from ..runs.compression import core_operator
from ..runs.scanning import LOSSES
from ..runs.session import opened
from .arguments import ARGUMENTS, argument_options


def _loss(name: str, given: Any) -> Any:
    if given not in LOSSES:
        raise InputError(f"{name} is {given!r}: expected {' or '.join(map(repr, LOSSES))}")
    return given


PROJECTED = {
    **ARGUMENTS,
    "model": PLAIN._replace(of_root=True),
    "loss": Argument(_loss),
    "nonnegative": Argument(lambda name, given: bool(given)),
}
"""How its arguments are taken, but for options."""

PRECISE = {"fp32": 1e-6, "fp64": 1e-10}
"""KKT violations at which a row of counts is solved."""
MOST_NEWTON = 128  # components whose Hessians any device holds; above, steps are quasi-Newton


@collective(PROJECTED, argument_options)
@with_options
def project(
    model: KruskalTensor | None,
    X: Tensor,
    mode: int,
    *,
    loss: str = "gaussian",
    nonnegative: bool = False,
    ridge: float = 0.0,
    deadline: float | None = None,
    **options: Unpack[OptionNames],
) -> NDArray[Any]:
    """See `KruskalTensor.transform`; under ``mpirun`` rank 0's `model` counts."""
    comm = world()
    chosen = Options(**options)
    with opened(X, comm, chosen, deadline) as (machine, source):
        lengths, rank = comm.bcast((model.shape, model.rank) if model is not None else ((), 0))
        _check_shape(source.shape, lengths, mode)
        given = list(model.factors) if model is not None else []
        if given:  # a start that takes no memory
            given[mode] = np.broadcast_to(np.ones(1), (source.shape[mode], rank))
        how = ProjectedRows(mode, nonnegative, ridge, deadline)
        return (_poisson_rows if loss == "poisson" else _nearest_rows)(source, rank, machine, chosen, given, how)


class ProjectedRows(NamedTuple):
    """Which rows a projection computes, and how they are constrained."""

    mode: int
    nonnegative: bool
    ridge: float
    deadline: float | None


def _nearest_rows(
    source: DescribedSource,
    rank: int,
    machine: Machine,
    options: Options,
    given: list[NDArray[Any]],
    how: ProjectedRows,
) -> NDArray[Any]:
    """Return the rows of a mode by least squares; `given` are the matrices of all modes on rank 0. Collective."""
    order, mode = len(source.shape), how.mode
    others = tuple(m for m in range(order) if m != mode)
    constraints = ConstraintParams((mode,) if how.nonnegative else False, how.ridge, others).of(order)
    method = decomposition(source, rank, machine, options, Budget(1), constraints)
    begin(method, source, init=given)
    run(method, StopRule(1, tol=0, deadline=how.deadline))
    norms = [np.linalg.norm(given[m].astype(np.float64), axis=0) for m in others] if given else []
    arrays = method.state.arrays
    scales = arrays["scales"][mode] * arrays["weights"]
    return _scaled(method.factor(mode), scales, machine.comm.bcast(np.prod(norms, axis=0)), options)


def _poisson_rows(
    source: DescribedSource,
    rank: int,
    machine: Machine,
    options: Options,
    given: list[NDArray[Any]],
    how: ProjectedRows,
) -> NDArray[Any]:
    """Return the rows of a mode of the largest Poisson likelihood, by Newton steps (PDNR or PQNR). Collective."""
    if how.ridge:
        raise InputError("ridge goes with loss 'gaussian'")
    method: PoissonMethod = "pdnr" if rank <= MOST_NEWTON else "pqnr"
    asked = Poisson(PRECISE[options.precision], MOST_INNER, method=method, mu_iters=0)
    apr = counts(source, rank, machine, options, asked, Budget(1))
    begin(apr, source, init=given)
    apr.solve(how.mode)
    sums = [each.sum(axis=0, dtype=np.float64) for m, each in enumerate(given) if m != how.mode]
    norms = machine.comm.bcast(np.prod(sums, axis=0))
    return _scaled(apr.factor(how.mode), apr.state.arrays["weights"], norms, options)


def _scaled(
    rows: NDArray[Any], scales: NDArray[np.float64], norms: NDArray[np.float64], options: Options
) -> NDArray[Any]:
    """Return rows that go with the other modes' columns as they were given, which had these `norms`."""
    found: NDArray[Any] = rows * (scales / np.where(norms > 0, norms, np.inf))
    return found.astype(options.dtype, copy=False)


@collective(PROJECTED, argument_options)
@with_options
def project_on_core(
    model: TuckerTensor | None,
    X: Tensor,
    mode: int,
    *,
    deadline: float | None = None,
    **options: Unpack[OptionNames],
) -> NDArray[Any]:
    """See `TuckerTensor.transform`; under ``mpirun`` rank 0's `model` counts."""
    comm = world()
    chosen = Options(**options)
    with opened(X, comm, chosen, deadline) as (machine, source):
        lengths, ranks = comm.bcast((model.shape, model.ranks) if model is not None else ((), ()))
        _check_shape(source.shape, lengths, mode)
        operator = core_operator(source, ranks, machine, chosen)
        for m, (length, rank) in enumerate(zip(source.shape, ranks, strict=True)):
            given = np.zeros((length, rank)) if model is None or m == mode else model.factors[m]
            operator.set_factor(m, share(comm, np.asarray(given, chosen.dtype) if comm.rank == 0 else None))
        matrix: NDArray[np.float64] = share(comm, None if model is None else _of_core(model, mode))
        operator.owned(mode)[...] = machine.device.xp.matmul(
            operator.compute(Ttmc(), mode), machine.device.to_device(matrix)
        )
        operator.publish(mode)
        operator.wait_comm()
        return operator.factor(mode)


def _of_core(model: TuckerTensor, mode: int) -> NDArray[np.float64]:
    """Return what the tensor times the other modes' transposed matrices is multiplied with: rows by least squares."""

    def unfolded(core: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.moveaxis(core, mode, 0).reshape(core.shape[mode], -1)

    squared = model.core
    for m, factor in enumerate(model.factors):
        if m != mode:
            wide = factor.astype(np.float64, copy=False)
            squared = np.moveaxis(np.tensordot(squared, wide.T @ wide, (m, 0)), -1, m)
    own = unfolded(model.core)
    found: NDArray[np.float64] = own.T @ np.linalg.pinv(own @ unfolded(squared).T, hermitian=True)
    return found


def transformed(
    model: AnyModel, X: Any, mode: int, value: str | None, where: str | None, how: Mapping[str, Any]
) -> NDArray[Any]:
    """See `KruskalTensor.transform`: rank 0 reads tables, and matches labels. Collective."""
    ready = on_root(world(), lambda: _ready(model, X, mode, value, where))
    return projected(model, ready, mode, how)


@singledispatch
def projected(model: AnyModel, X: Any, mode: int, how: Mapping[str, Any]) -> NDArray[Any]:
    """Return rows of a mode for a tensor in the order of the model's labels; see `KruskalTensor.transform`.

    The loss and the sign of the rows are by default those of rank 0's model. Collective.
    """
    raise InputError(f"a {type(model).__name__} has no projection")


@projected.register
def _(model: TuckerTensor, X: Any, mode: int, how: Mapping[str, Any]) -> NDArray[Any]:
    return project_on_core(model, X, mode, **how)


@projected.register
def _(model: KruskalTensor, X: Any, mode: int, how: Mapping[str, Any]) -> NDArray[Any]:
    loss, modes = world().bcast((model.loss, model.nonnegative_modes))
    known: dict[str, Any] = {"loss": loss, "nonnegative": mode in modes}
    return project(model, X, mode, **known | {name: each for name, each in how.items() if each is not None})


@singledispatch
def _of_factors(model: AnyModel, factors: Sequence[NDArray[Any]]) -> AnyModel:
    """Return a model of the same kind with these factor matrices, of which one was projected: it holds the weights."""
    raise InputError(f"a {type(model).__name__} has no projection")


@_of_factors.register
def _(model: TuckerTensor, factors: Sequence[NDArray[Any]]) -> AnyModel:
    return TuckerTensor(model.core, factors)


@_of_factors.register
def _(model: KruskalTensor, factors: Sequence[NDArray[Any]]) -> AnyModel:
    return KruskalTensor(np.ones(model.rank), factors)


def projected_score(model: AnyModel, X: Any, mode: int, how: Mapping[str, Any]) -> float:
    """Return the fit, ``1 - ||X - M|| / ||X||``, of a model whose rows of a mode are those for `X`. Collective.

    Unlike the score of the model itself it compares new samples with their own rows. Rank 0's `X` counts.
    """
    comm = world()
    tensor = on_root(comm, lambda: matched(tensor_for(X, model.labels), model.labels, leave=mode))
    rows = projected(model, tensor, mode, how)
    factors = [rows if m == mode else factor for m, factor in enumerate(model.factors)]
    score = comm.bcast(on_root(comm, lambda: _of_factors(model, factors).score(tensor)))
    assert score is not None
    return score


def _ready(model: AnyModel, X: Any, mode: int, value: str | None, where: str | None) -> Any:
    """Return what a caller gave as a tensor with the model's labels; a path where ranks can read it as it is."""
    asked = value is not None or where is not None
    if X is None or not isinstance(mode, int):
        return X  # or `project` says what is wrong
    if isinstance(X, (str, os.PathLike)) and not asked and not is_table(X):
        known = open_store(X, verify=False).labels() if model.labels is not None and os.path.isdir(X) else None
        pairs = enumerate(zip(known or (), model.labels or (), strict=False))
        if known is None or all(same_labels(*both) for m, both in pairs if m != mode):
            return X
    return matched(tensor_for(X, model.labels, value, where), model.labels, leave=mode)


def _check_shape(shape: Sequence[int], lengths: Sequence[int], mode: int) -> None:
    """Raise `InputError` unless a tensor of a shape goes with a model of these mode lengths, `mode` apart."""
    if not lengths:
        raise InputError("no model on rank 0")
    if mode >= len(lengths):
        raise InputError(f"mode {mode} is outside 0..{len(lengths) - 1}")
    wanted = (*lengths[:mode], shape[mode] if mode < len(shape) else 0, *lengths[mode + 1 :])
    if tuple(shape) != wanted:
        shown = " x ".join("any" if m == mode else str(length) for m, length in enumerate(lengths))
        raise InputError(f"X is {' x '.join(map(str, shape))}: this model's other modes make it {shown}")
