"""Projection of new data on the components of a model: its method `transform`, on all ranks under ``mpirun``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.readers import PLAIN as READ_PLAIN
from partitioner.readers import is_table, open_store
from partitioner.tensors.interop import AnyTensor
from partitioner.tensors.labels import mode_names, mode_number
from partitioner.tensors.observed import NAN, STORED
from partitioner.tensors.relabel import same_labels

from ..backend.exchange import Machine
from ..backend.losses import Loss
from ..errors import InputError
from ..methods import gcp
from ..methods.constraints import ConstraintParams
from ..methods.core_rows import core_equations, core_rows
from ..methods.driver import StopRule, run
from ..methods.poisson import MOST_INNER, Poisson, PoissonMethod
from ..models.align import check_unknown, matched, observed_or_all, observes_zeros, other_shape, tensor_for
from ..models.evaluation import COVERED
from ..models.history import AnyModel
from ..models.kruskal import KruskalTensor
from ..models.tucker import TuckerTensor
from ..operators.products import Ttmc
from ..operators.sources.protocols import DescribedSource
from ..operators.sparse.tuning import Budget
from ..options import OptionNames, Options, with_options
from ..parallel.calls import PLAIN, collective
from ..parallel.mpi import on_root, share, world
from ..runs.assembly import Tensor, begin, counts, decomposition
from ..runs.compression import core_operator
from ..runs.gcp import generalised
from ..runs.loss_elements import LossRun, LossWork
from ..runs.observed_runs import observe, observed_decomposition
from ..runs.observing import Mask, ObservedParams, ObservedSource
from ..runs.session import opened
from .arguments import ARGUMENTS, BOOLEAN, DEVICE, LOSS, OutputName, argument_options, optional

PROJECTION_ARGUMENTS = {
    **ARGUMENTS,
    "loss": LOSS,
    "model": PLAIN._replace(of_root=True),
    "nonnegative": optional(BOOLEAN),
}

KKT_TOLERANCE = {"fp32": 1e-6, "fp64": 1e-10}
"""Largest KKT violation of a solved row, by precision."""
MAX_NEWTON_RANK = 128  # the Hessians of more components may not fit on a device: steps are quasi-Newton


@collective(PROJECTION_ARGUMENTS, argument_options)
@with_options
def project(
    model: KruskalTensor | None,
    X: Tensor,
    mode: int,
    *,
    loss: str | Loss = "gaussian",
    nonnegative: bool = False,
    ridge: float = 0.0,
    mask: Mask | None = None,
    deadline: float | None = None,
    output: OutputName = "host",
    **options: Unpack[OptionNames],
) -> Floats:
    """See `KruskalTensor.transform`. Under ``mpirun`` rank 0's `model` is used. Collective."""
    comm = world()
    chosen, observed = Options(**options), ObservedParams(mask)  # type: ignore[arg-type]
    with opened(X, comm, chosen, deadline, observed.form(READ_PLAIN, comm)) as (machine, source):
        lengths, rank = comm.bcast((model.shape, model.rank) if model is not None else ((), 0))
        _check_shape(source.shape, lengths, mode)
        factors = list(model.host_factors) if model is not None else []
        params = ProjectionParams(mode, nonnegative, ridge, deadline)
        elements = observe(source, observed, machine, chosen)
        assert isinstance(loss, Loss)
        if loss.name not in COVERED or (elements is not None and loss.name != "gaussian"):
            if model is not None:
                start = model.weights * model.host_factors[mode].mean(axis=0, dtype=np.float64)
                factors[mode] = np.broadcast_to(start, (source.shape[mode], rank))
            return _output(_loss_rows(source, elements, rank, machine, chosen, factors, params, loss), machine, output)
        if factors:  # the start of the projected mode is a view of one number
            factors[mode] = np.broadcast_to(np.ones(1), (source.shape[mode], rank))
        if elements is not None:
            return _output(_observed_rows(elements, rank, machine, chosen, factors, params), machine, output)
        rows = _poisson_rows if loss.name == "poisson" else _least_squares_rows
        return _output(rows(source, rank, machine, chosen, factors, params), machine, output)


def _output(rows: Floats, machine: Machine, output: OutputName) -> Floats:
    """Return rows in host memory, or a copy in that of the device."""
    if output != DEVICE:
        return rows
    copied: Floats = machine.device.to_device(rows)
    machine.device.synchronize()  # the caller may use another stream
    return copied


class ProjectionParams(NamedTuple):
    """The mode whose rows are computed, and their constraints."""

    mode: int
    nonnegative: bool
    ridge: float
    deadline: float | None


def _least_squares_rows(
    source: DescribedSource,
    rank: int,
    machine: Machine,
    options: Options,
    factors: list[Floats],
    params: ProjectionParams,
) -> Floats:
    """Return the least-squares rows of a mode; rank 0 has the factor matrices of all modes. Collective."""
    order, mode = len(source.shape), params.mode
    others = tuple(m for m in range(order) if m != mode)
    constraints = ConstraintParams((mode,) if params.nonnegative else False, params.ridge, others).of(order)
    method = decomposition(source, rank, machine, options, Budget(1), constraints)
    begin(method, source, init=factors)
    run(method, StopRule(1, tol=0, deadline=params.deadline))
    norms = [np.linalg.norm(factors[m].astype(np.float64), axis=0) for m in others] if factors else []
    arrays = method.state.arrays
    scales = arrays["scales"][mode] * arrays["weights"]
    return _scaled(method.factor(mode), scales, machine.comm.bcast(np.prod(norms, axis=0)), options)


def _observed_rows(
    observed: ObservedSource,
    rank: int,
    machine: Machine,
    options: Options,
    factors: list[Floats],
    params: ProjectionParams,
) -> Floats:
    """Return the least-squares rows of a mode over observed elements. Collective.

    The columns of the other modes have unit norm, to which the ridge refers.
    """
    source, mode = observed.source, params.mode
    others = [m for m in range(len(source.shape)) if m != mode]
    constraints = ConstraintParams((mode,) if params.nonnegative else False, params.ridge, tuple(others))
    method = observed_decomposition(observed, rank, machine, options, Budget(1), constraints.of(len(source.shape)))
    norms = np.ones(rank)
    for m in others if factors else ():
        wide = factors[m].astype(np.float64)
        lengths = np.linalg.norm(wide, axis=0)
        factors[m], norms = wide / np.where(lengths > 0, lengths, 1), norms * lengths
    begin(method, source, init=factors)
    run(method, StopRule(1, tol=0, deadline=params.deadline))
    return _scaled(method.factor(mode), np.ones(rank), machine.comm.bcast(norms), options)


def _poisson_rows(
    source: DescribedSource,
    rank: int,
    machine: Machine,
    options: Options,
    factors: list[Floats],
    params: ProjectionParams,
) -> Floats:
    """Return the rows of a mode with the largest Poisson likelihood, by Newton steps (PDNR or PQNR). Collective."""
    if params.ridge:
        raise InputError("ridge requires loss 'gaussian'")
    method: PoissonMethod = "pdnr" if rank <= MAX_NEWTON_RANK else "pqnr"
    poisson = Poisson(KKT_TOLERANCE[options.precision], MOST_INNER, method=method, mu_iters=0)
    apr = counts(source, rank, machine, options, poisson, Budget(1))
    begin(apr, source, init=factors)
    apr.solve(params.mode)
    sums = [factor.sum(axis=0, dtype=np.float64) for m, factor in enumerate(factors) if m != params.mode]
    norms = machine.comm.bcast(np.prod(sums, axis=0))
    return _scaled(apr.factor(params.mode), apr.state.arrays["weights"], norms, options)


def _loss_rows(
    source: DescribedSource,
    observed: ObservedSource | None,
    rank: int,
    machine: Machine,
    options: Options,
    factors: list[Floats],
    params: ProjectionParams,
    loss: Loss,
) -> Floats:
    """Return the rows of a mode with the lowest loss; `factors` of that mode are their start. Collective."""
    elements = source if observed is None else observed.source
    others = tuple(m for m in range(len(elements.shape)) if m != params.mode)
    signs = loss.nonnegative or ((params.mode,) if params.nonnegative else False)
    constraints = ConstraintParams(signs, params.ridge, others).of(len(elements.shape))
    work = LossWork(loss, rank, gcp.MAX_ITERS)
    method = generalised(LossRun(elements, observed, machine, options, work, constraints))
    begin(method, elements, init=factors)
    run(method, StopRule(gcp.MAX_ITERS, gcp.TOL, deadline=params.deadline))
    return method.factor(params.mode)


def _scaled(rows: Floats, scales: NDArray[np.float64], norms: NDArray[np.float64], options: Options) -> Floats:
    """Rescale rows from normalised columns of the other modes to their original columns, which have these `norms`."""
    scaled: Floats = rows * (scales / np.where(norms > 0, norms, np.inf))
    return scaled.astype(options.dtype, copy=False)


@collective(PROJECTION_ARGUMENTS, argument_options)
@with_options
def project_on_core(
    model: TuckerTensor | None,
    X: Tensor,
    mode: int,
    *,
    nonnegative: bool = False,
    deadline: float | None = None,
    output: OutputName = "host",
    **options: Unpack[OptionNames],
) -> Floats:
    """See `TuckerTensor.transform`. Under ``mpirun`` rank 0's `model` is used. Collective."""
    comm = world()
    chosen = Options(**options)
    with opened(X, comm, chosen, deadline) as (machine, source):
        lengths, ranks = comm.bcast((model.shape, model.ranks) if model is not None else ((), ()))
        _check_shape(source.shape, lengths, mode)
        operator = core_operator(source, ranks, machine, chosen)
        for m, (length, rank) in enumerate(zip(source.shape, ranks, strict=True)):
            factor = np.zeros((length, rank)) if model is None or m == mode else model.host_factors[m]
            operator.set_factor(m, share(comm, np.asarray(factor, chosen.dtype) if comm.rank == 0 else None))
        equations = comm.bcast(None if model is None else core_equations(model.core, model.host_factors, mode))
        assert equations is not None
        operator.owned(mode)[...] = core_rows(operator.compute(Ttmc(), mode), equations, machine.device, nonnegative)
        operator.publish(mode)
        operator.wait_comm()
        return _output(operator.factor(mode), machine, output)


def transformed(
    model: AnyModel,
    X: object,
    mode: int | str,
    value: str | None,
    where: str | None,
    unknown: str,
    arguments: Mapping[str, Any],
) -> Floats:
    """See `KruskalTensor.transform`: rank 0 reads tables and matches labels. Collective."""
    mode = mode_number(mode_names(model.labels, len(model.shape)), mode) if isinstance(mode, str) else mode
    keep_zeros, mask = observes_zeros(arguments.get("mask"), model.run.get("mask")), arguments.get("mask")

    def prepared() -> tuple[Any, Any]:
        check_unknown(unknown)
        tensor = _labelled_tensor(model, X, mode, value, where, keep_zeros)
        if tensor is None:
            return X, mask
        if tensor.labels is None or mask is None or (isinstance(mask, str) and mask in (NAN, STORED)):
            return matched(tensor, model.labels, mode, unknown == "error"), mask
        # A mask refers to the indices of X before they are matched with the model's.
        observed = observed_or_all(tensor, mask, None)[0]
        return matched(observed, model.labels, mode, unknown == "error"), STORED

    tensor, mask = on_root(world(), prepared) or (None, None)
    return projected(model, tensor, mode, {**arguments, "mask": mask} if "mask" in arguments else arguments)


@singledispatch
def projected(model: AnyModel, X: object, mode: int, arguments: Mapping[str, Any]) -> Floats:
    """Return the rows of a mode for a tensor whose indices match the model's labels; see `KruskalTensor.transform`.

    By default the loss and the sign constraint are those of rank 0's model. Collective.
    """
    raise InputError(f"a {type(model).__name__} has no projection")


@projected.register
def _(model: TuckerTensor, X: Any, mode: int, arguments: Mapping[str, Any]) -> Floats:
    nonnegative = world().bcast(model is not None and bool(model.run.get("nonnegative")))
    return project_on_core(model, X, mode, nonnegative=nonnegative, **arguments)


@projected.register
def _(model: KruskalTensor, X: Any, mode: int, arguments: Mapping[str, Any]) -> Floats:
    comm = world()
    given: dict[str, Any] = {name: each for name, each in arguments.items() if each is not None}
    fitted_loss = None if "loss" in given else model.known_loss or model.loss
    loss, modes, fitted = comm.bcast((fitted_loss, model.nonnegative_modes, model.run.get("mask")))
    if fitted is not None and not comm.bcast("mask" in given):
        X = on_root(comm, lambda: None if X is None else _observed_as_fitted(X, fitted))
        given["mask"] = STORED if comm.bcast(X is not None and X.own_mask == STORED) else None
    defaults: dict[str, Any] = {"loss": loss, "nonnegative": mode in modes}
    return project(model, X, mode, **defaults | given)


def _observed_as_fitted(X: object, fitted: str) -> AnyTensor:
    """Return the observed elements of new data for a model that was fitted to observed elements."""
    return observed_or_all(tensor_for(X, None, keep_zeros=True), None, fitted)[0]


@singledispatch
def _with_factors(model: AnyModel, factors: Sequence[Floats]) -> AnyModel:
    """Return a model of the same kind with other factor matrices, one of which includes the weights."""
    raise InputError(f"a {type(model).__name__} has no projection")


@_with_factors.register
def _(model: TuckerTensor, factors: Sequence[Floats]) -> AnyModel:
    return TuckerTensor(model.core, factors)


@_with_factors.register
def _(model: KruskalTensor, factors: Sequence[Floats]) -> AnyModel:
    result = KruskalTensor(np.ones(model.rank), factors)
    result.run = model.run
    return result


def projected_score(model: AnyModel, X: object, mode: int, arguments: Mapping[str, Any]) -> float:
    """Return the fit, ``1 - ||X - M|| / ||X||``, of a model M whose rows of a mode are projected from `X`. Collective.

    Rank 0's `X` is used.
    """
    comm, keep_zeros = world(), observes_zeros(None, model.run.get("mask"))
    tensor = on_root(
        comm, lambda: matched(tensor_for(X, model.labels, keep_zeros=keep_zeros), model.labels, leave=mode)
    )
    rows = projected(model, tensor, mode, arguments)
    factors = [rows if m == mode else factor for m, factor in enumerate(model.host_factors)]
    score = comm.bcast(on_root(comm, lambda: _with_factors(model, factors).score(tensor)))
    assert score is not None
    return score


def _labelled_tensor(
    model: AnyModel, X: object, mode: int, value: str | None, where: str | None, keep_zeros: bool
) -> AnyTensor | None:
    """Return a tensor with its labels; None if all ranks can use X as it is, such as a file with the model's labels."""
    has_query = value is not None or where is not None
    if X is None or not isinstance(mode, int):
        return None  # `project` raises the error
    if isinstance(X, (str, os.PathLike)) and not has_query and not is_table(X):
        known = open_store(X, verify=False).labels() if model.labels is not None and os.path.isdir(X) else None
        pairs = enumerate(zip(known or (), model.labels or (), strict=False))
        if known is None or all(same_labels(*both) for m, both in pairs if m != mode):
            return None
    return tensor_for(X, model.labels, value, where, keep_zeros)


def _check_shape(shape: Sequence[int], lengths: Sequence[int], mode: int) -> None:
    """Raise `InputError` unless the shape of a tensor equals the mode lengths of a model, except for `mode`."""
    if not lengths:
        raise InputError("no model on rank 0")
    if mode >= len(lengths):
        raise InputError(f"mode {mode} is outside 0..{len(lengths) - 1}")
    expected = (*lengths[:mode], shape[mode] if mode < len(shape) else 0, *lengths[mode + 1 :])
    if tuple(shape) != expected:
        raise other_shape(shape, lengths, mode)
