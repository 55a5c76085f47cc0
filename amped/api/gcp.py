"""CP decompositions with any loss, and losses at given factor matrices, in Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, Unpack, cast, get_args

import numpy as np

from partitioner.array_types import Floats
from partitioner.readers import PLAIN

from ..backend.losses import Loss
from ..errors import InputError
from ..methods.constraints import ConstraintParams
from ..methods.gcp import GENERAL, MAX_ITERS, Gcp, prepare, tolerance_of
from ..methods.initial import Init
from ..methods.poisson import PoissonMethod
from ..methods.stochastic import MOST_SAMPLES, SAMPLINGS, SamplingName
from ..models.kruskal import KruskalTensor
from ..models.labelled_matrices import in_own_order, places_in
from ..operators.sparse.tuning import Budget
from ..options import OptionNames, Options, PrecisionName, with_options
from ..parallel.calls import collective
from ..parallel.mpi import on_root, world
from ..runs.assembly import Tensor, start
from ..runs.callback import RunCallback
from ..runs.gcp import LossTraits, check_method, default_method, generalised
from ..runs.holding_out import HoldoutParams
from ..runs.loss_elements import LossRun, LossWork, loss_elements
from ..runs.observed_runs import observe
from ..runs.observing import Mask, ObservedParams
from ..runs.run import RunParams
from ..runs.session import opened
from ..runs.stochastic import check_stochastic, full_gradient_note, stochastic_of
from .arguments import (
    ARGUMENTS,
    DEVICE,
    Matrices,
    OutputName,
    argument_options,
    check_matrices,
    integer,
    one_of,
    optional,
    positive,
)
from .cp import cp_als, cp_apr
from .sessions import SideOutputs, session

MethodName = Literal["als", "mu", "pdnr", "pqnr", "lbfgs", "newton", "adam", "adagrad", "sgd"]


LOSS_ARGUMENTS = ARGUMENTS | {
    "method": optional(one_of(*get_args(MethodName))),
    "max_iters": optional(ARGUMENTS["max_iters"]),
    "tol": optional(ARGUMENTS["tol"]),
    "seed": optional(ARGUMENTS["seed"]),
    "sampling": optional(one_of(*SAMPLINGS)),
    "samples": optional(integer(1, MOST_SAMPLES)),
    "steps": optional(integer(1)),
    "rate": optional(positive("a number above 0")),
}


@collective(LOSS_ARGUMENTS, argument_options)
@with_options
def cp(
    X: Tensor,
    rank: int,
    *,
    loss: str | Loss = "gaussian",
    method: MethodName | None = None,
    max_iters: int | None = None,
    tol: float | None = None,
    seed: int | None = None,
    init: Init | None = None,
    starts: int = 1,
    nonnegative: bool | Sequence[int | str] = False,
    ridge: float | Sequence[float] = 0.0,
    fixed_modes: Sequence[int | str] = (),
    mask: Mask | None = None,
    weights: Tensor = None,
    holdout: float | Tensor = None,
    holdout_seed: int = 0,
    patience: int | None = None,
    sampling: SamplingName | None = None,
    samples: int | None = None,
    steps: int | None = None,
    rate: float | None = None,
    callback: RunCallback | None = None,
    verbose: bool | int = 0,
    deadline: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    resume: bool = False,
    metrics: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    output: OutputName = "host",
    **options: Unpack[OptionNames],
) -> KruskalTensor:
    """Compute a CP decomposition with any loss. Collective.

    Minimises ``sum f(x, m)`` over the elements x, where m is the model's value (generalised CP: Hong, Kolda and
    Duersch 2020).

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        See `cp_als`. Absent elements of a sparse tensor are zeros, unless there is a `mask`.
    rank : int
        Number of components.
    loss : str or Loss
        A name, with a parameter after a colon if it has one, or your own `amped.Loss`:

        ========================== ================================ =========== =====================================
        name                       f(x, m)                          m           data
        ========================== ================================ =========== =====================================
        gaussian                   (x - m)^2                        any         any numbers
        huber:d                    (x - m)^2 if abs(x - m) < d,     any         numbers with outliers
                                   else 2 d abs(x - m) - d^2
        bernoulli-logit            log(1 + e^m) - x m               any         0 and 1; m is the log-odds
        bernoulli-odds             log(1 + m) - x log m             at least 0  0 and 1; m is the odds
        poisson                    m - x log m                      at least 0  counts
        poisson-log                e^m - x m                        any         counts; m is their logarithm
        zero-truncated-poisson     m - x log m + log(1 - e^-m)      at least 0  counts of at least 1
        negative-binomial:r        (r + x) log(1 + m) - x log m     at least 0  counts that vary more
        gamma                      x / m + log m                    at least 0  durations, amounts
        rayleigh                   2 log m + pi/4 (x / m)^2         at least 0  lengths of vectors
        beta:b                     m^b / b - x m^(b-1) / (b - 1)    at least 0  amounts, between poisson and gamma
        ========================== ================================ =========== =====================================

        ``1e-10`` is added to m in logarithms and quotients. A lower bound of 0 makes all factor matrices non-negative.
        Without a mask, large sparse tensors need a loss whose sum over zeros has a closed form, gaussian or poisson, or
        method "adam", "adagrad" or "sgd".
    method : {"als", "mu", "pdnr", "pqnr", "lbfgs", "newton", "adam", "adagrad", "sgd"}, optional
        "als": `cp_als`, for the Gaussian loss. "mu", "pdnr", "pqnr": `cp_apr`, for Poisson. "lbfgs": quasi-Newton steps
        with the full gradient, for any loss. "newton": Newton steps for the rows of one mode after the other, for
        any loss with second derivatives. "adam", "adagrad", "sgd": stochastic steps with gradients estimated from
        samples, for any loss and sparse tensors of any size (Kolda and Hong 2020). By default "als" for the Gaussian
        loss, "mu" for Poisson counts without mask, weights, holdout, ridge and fixed modes, and otherwise "lbfgs".
    max_iters : int, optional
        Maximum number of iterations: by default 1000 for methods of any loss, 50 for "mu", "pdnr" and "pqnr". An
        iteration of "adam", "adagrad" and "sgd" is an epoch. For "als" see `cp_als`.
    tol : float, optional
        For "lbfgs" and "newton": stop when an iteration decreases the objective by less than this part of it, by
        default 1e-9. For "adam", "adagrad" and "sgd" the same with the estimated objective, by default 1e-5; they also
        stop after two failed epochs. For other methods see `cp_als` and `cp_apr`.
    seed, init, starts : optional
        See `cp_als`. The model with the lowest objective is returned.
    nonnegative : bool or sequence of int
        Constrain all factor matrices, or those of the listed modes, to be non-negative.
    ridge : float or sequence of float
        For methods of any loss the penalty ``sum_n ridge_n ||U_n||**2``; for "als" see `cp_als`.
    fixed_modes : sequence of int
        Modes whose matrices keep the values of `init`.
    mask, weights : optional
        The observed elements, and a weight per element; see `cp_als`.
    holdout, holdout_seed, patience : optional
        Hold out observed elements and keep the iteration that predicts them best; see `cp_als`. For losses other than
        Gaussian that is the iteration with the lowest mean deviance on them. Not for "mu", "pdnr" and "pqnr".
    sampling : {"stratified", "semi-stratified", "uniform", "nonzeros"}, optional
        The samples of a step of "adam", "adagrad" and "sgd" from a sparse tensor: nonzeros and zeros (the default);
        nonzeros and any elements as if they were zeros, which needs no search; any elements; or all nonzeros and some
        zeros. With a mask, and for dense tensors, samples are observed elements.
    samples : int, optional
        The number of nonzeros, and of zeros, per step: by default 1000, or 3 / `max_iters` of the nonzeros. If it is
        at least the number of nonzeros, all of them are used.
    steps : int, optional
        Steps per epoch, by default 1000. After an epoch the objective is estimated from samples that stay the same. If
        it has not decreased, the epoch has failed: the model before it is restored, and the rate divided by 10.
    rate : float, optional
        The size of a step: by default 0.001 for "adam" and "sgd", 0.01 for "adagrad".
    callback, verbose, deadline, checkpoint, every, resume, metrics, report : optional
        See `cp_als`. The callback gets the objective. A resumed run of "lbfgs" may take other steps than an
        uninterrupted one, as checkpoints do not contain its estimate of the curvature.
    output : {"host", "device"}
        See `cp_als`.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
        See `amped.Options`.

    Returns
    -------
    KruskalTensor
        Columns have unit 2-norm, or unit 1-norm if any mode is non-negative; weights descend. After "lbfgs", ``series``
        has ``objective``, ``gradient`` (the largest entry that may change) and ``evaluations`` of each iteration; after
        "adam", "adagrad" and "sgd" the estimated ``objective`` and the ``rate`` of each epoch. With `holdout` it has
        ``holdout_deviance``, twice the mean difference between the loss of held-out elements and the lowest possible
        one, and their mean loss ``holdout_loss``; for the Gaussian loss ``holdout_rmse``.

    Raises
    ------
    InputError
        If an argument or the file is invalid, or a value is outside the domain of the loss.

    Examples
    --------
    >>> import numpy as np
    >>> hits = np.random.default_rng(0).random((6, 5, 4)) < 0.3
    >>> model = cp(hits, rank=2, loss="bernoulli-logit", max_iters=5)
    >>> model.run["loss"], model.series["objective"][-1] < model.series["objective"][0]
    ('bernoulli-logit', True)
    """
    assert isinstance(loss, Loss)
    comm = world()
    elements: dict[str, Any] = {"mask": mask, "weights": weights}
    params, held = ObservedParams(**elements), HoldoutParams(holdout, holdout_seed, patience)  # type: ignore[arg-type]
    special = bool(np.any(ridge)) or bool(fixed_modes) or held.given(comm)
    traits = LossTraits(params.given(comm), special)
    chosen_method = method or default_method(loss.name, traits)
    check_method(loss.name, chosen_method, traits)
    stochastic: dict[str, Any] = {"sampling": sampling, "samples": samples, "steps": steps, "rate": rate}
    check_stochastic(chosen_method, stochastic)
    common: dict[str, Any] = {
        "seed": seed, "init": init, "starts": starts, "callback": callback, "verbose": verbose, "deadline": deadline,
        "checkpoint": checkpoint, "every": every, "resume": resume, "metrics": metrics, "report": report,
        "output": output, **options,
    }  # fmt: skip
    common |= {name: each for name, each in (("max_iters", max_iters), ("tol", tol)) if each is not None}
    constraints: dict[str, Any] = {"nonnegative": nonnegative, "ridge": ridge, "fixed_modes": fixed_modes}
    if chosen_method == "als":
        elements |= {"holdout": holdout, "holdout_seed": holdout_seed, "patience": patience}
        return cp_als(X, rank, **common, **constraints, **elements)
    common["seed"] = seed = seed or 0
    if chosen_method not in GENERAL:
        return cp_apr(X, rank, method=cast(PoissonMethod, chosen_method), **common, **elements)
    limits = MAX_ITERS if max_iters is None else max_iters, tolerance_of(chosen_method) if tol is None else tol
    chosen = Options(**options)
    side = SideOutputs(checkpoint, every, resume, metrics, report)  # type: ignore[arg-type]
    compiling = prepare if chosen_method == Gcp.name else None
    with session(X, chosen, deadline, verbose, side, rank, starts, params.form(PLAIN, comm), compiling) as call:
        split = call.hold_out(params, held) if held.given(comm) else None
        observed = split.fitted if split else call.observe(params)
        requested = ConstraintParams(loss.nonnegative or nonnegative, ridge, fixed_modes)  # type: ignore[arg-type]
        terms = requested.of(len(call.source.shape), call.source.labels)
        how = stochastic_of(chosen_method, stochastic, seed, limits[0])
        work = LossWork(loss, rank, limits[0] * starts, init, chosen_method, stochastic=how)
        if how and (note := full_gradient_note(call.source, loss, chosen_method)):
            call.display.note(note)
        with call.reporter.loading():
            held_out = split.held_out if split else None
            fit = generalised(LossRun(call.source, observed, call.machine, chosen, work, terms), held_out)
        run = RunParams(*limits, seed, init, starts, deadline, patience=held.iterations if split else None)
        run = run._replace(on_device=output == DEVICE)
        return call.decomposed(fit, run, callback, Budget())


@collective(LOSS_ARGUMENTS, argument_options)
@with_options
def objective(
    X: Tensor,
    factors: Sequence[Floats],
    *,
    loss: str | Loss = "gaussian",
    mask: Mask | None = None,
    weights: Tensor = None,
    gradient: bool = True,
    precision: PrecisionName = "fp64",
    deadline: float | None = None,
    **options: Any,
) -> tuple[float, list[Floats]] | float:
    """Return a loss at given factor matrices, and its gradient; for your own optimiser. Collective.

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        See `cp`. Values may be outside the domain of the loss.
    factors : sequence of (I_n, R) arrays, or model
        Not negative if the loss requires non-negative models. The rows of a model with the labels of the tensor are
        matched by label. Rank 0's matrices are used.
    loss, mask, weights : optional
        See `cp`.
    gradient : bool
        Whether to return the gradient, too.
    precision : {"fp32", "fp64"}
        Precision of values and factor matrices; sums are in double precision.
    deadline, device, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
        See `cp_als`.

    Returns
    -------
    value : float
        ``sum f(x, m)``, the same on every rank.
    gradients : list of (I_n, R) arrays
        The gradient with respect to each of `factors`, in `precision`. Only with `gradient`.

    Raises
    ------
    InputError
        If an argument is invalid.

    Examples
    --------
    >>> import numpy as np
    >>> X, factors = np.ones((3, 2)), [np.ones((3, 1)), np.zeros((2, 1))]
    >>> value, gradients = objective(X, factors)
    >>> value, gradients[1].tolist()
    (6.0, [[-6.0], [-6.0]])
    """
    assert isinstance(loss, Loss)
    comm, params = world(), ObservedParams(mask, weights)  # type: ignore[arg-type]
    chosen = Options(precision=precision, **options)
    on_root(comm, lambda: _check_start(loss, factors))
    with opened(X, comm, chosen, deadline, params.form(PLAIN, comm)) as (machine, source):
        on_root(comm, lambda: check_matrices(factors or (), len(source.shape)))
        observed = observe(source, params, machine, chosen)
        rank = comm.bcast(factors[0].shape[1] if factors else 1)
        placed = loss_elements(LossRun(source, observed, machine, chosen, LossWork(loss, rank, 1))).gradient()
        start(placed.operator, source, init=factors)
        value, gradients, _ = placed.evaluate()
        if not gradient:
            return value
        found = comm.bcast(places_in(factors, source.labels))
        return value, in_own_order([placed.operator.gathered(m, rows) for m, rows in enumerate(gradients)], found)


def _check_start(loss: Loss, factors: Matrices | None) -> None:
    for mode, matrix in enumerate(factors or ()):
        if loss.nonnegative and matrix.size and matrix.min() < 0:
            raise InputError(f"factors[{mode}] has a negative entry: loss {loss.name!r} requires m >= {loss.lower:g}")
