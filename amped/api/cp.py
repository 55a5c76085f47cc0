"""CP decompositions and MTTKRP, in Python."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..methods.constraints import ConstraintParams
from ..methods.initial import Init
from ..methods.poisson import Poisson, PoissonMethod
from ..models.kruskal import KruskalTensor
from ..operators.limits import check_result
from ..operators.sparse.tuning import Budget
from ..options import OptionNames, Options, with_options
from ..parallel.calls import collective
from ..parallel.mpi import together, world
from ..report.text import low_fit
from ..runs.assembly import Tensor, counts, decomposition, place, start
from ..runs.compression import cp_start
from ..runs.run import RunParams
from ..runs.session import opened
from .arguments import ARGUMENTS, argument_options
from .sessions import SideOutputs, session


@collective(ARGUMENTS, argument_options)
@with_options
def cp_als(
    X: Tensor,
    rank: int,
    *,
    max_iters: int = 50,
    tol: float = 1e-5,
    seed: int = 0,
    init: Init | None = None,
    starts: int = 1,
    nonnegative: bool | Sequence[int] = False,
    ridge: float | Sequence[float] = 0.0,
    fixed_modes: Sequence[int] = (),
    callback: Callable[[int, float], None] | None = None,
    verbose: bool | int = 0,
    deadline: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 1,
    resume: bool = False,
    metrics: str | os.PathLike[str] | None = None,
    **options: Unpack[OptionNames],
) -> KruskalTensor:
    """Compute a CP decomposition by alternating least squares (Kolda and Bader 2009, Figure 3.3).

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        The tensor, or the file or store it is in; an array is a dense one. Under ``mpirun``, rank 0's
        tensor counts; others may pass None.
    rank : int
        Components, 1 to 1024, of dense tensors to 4096.
    max_iters : int
        Iterations at most.
    tol : float
        Stop when the fit changes by less; 0 runs all iterations.
    seed : int
        Of the random start.
    init : path, "nvecs", "tucker" or sequence of (I_n, R) arrays, optional
        Another start: a file with ``factor_0 ...``, leading eigenvectors, components of a Tucker decomposition's core,
        or matrices. Rank 0's count.
    starts : int
        Random starts, with seeds ``seed``, ``seed + 1``, ...: the best one's model is returned. Not with `init`.
    nonnegative : bool or sequence of int
        Whether no factor matrix may have negative numbers, or the modes whose matrices may not (HALS, Cichocki and Phan
        2009). The tensor may have negative values. A mode's rows begin as they were before.
    ridge : float or sequence of float
        Added to the diagonal of the Gram matrix that a mode is solved with; one for all modes, or one a mode. The other
        modes' columns have unit 2-norm then. So one number ``c`` penalises the components' lengths: no iteration makes
        ``||X - M||**2 + c * sum(length**2)`` larger. With several numbers each mode has its own objective.
    fixed_modes : sequence of int
        Modes whose matrices stay as `init` gives them, up to their columns' norms. See `KruskalTensor.transform`.
    callback : callable, optional
        Called with the iteration's number and its fit.
    verbose : bool or int
        Whether the lines that the command line shows are printed, on rank 0: what the tensor is, each iteration, where
        the time went; and on a terminal how far reading is, that kernels are chosen, and the components.
    deadline : float, optional
        Seconds after which a call that does not go on ends its process, and with it the job, with exit code 1; each
        rank says where it was. By default under ``mpirun`` alone: from the second iteration on by what they have
        taken, an hour before that.
    checkpoint : path, optional
        A folder to write checkpoints to, on rank 0; the last two are kept. Not with several `starts`. If it has
        checkpoints already, `resume` is needed.
    every : int
        Iterations between checkpoints. The last iteration has one in any case.
    resume : bool
        Continue from the newest checkpoint in that folder, if there is one, up to `max_iters` iterations in all. The
        tensor, `rank` and start must be those of its run.
    metrics : path, optional
        A file to write the times and fits of iterations to, as JSON lines, on rank 0. It must not exist yet; a run that
        resumes adds to its own.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, workspace : optional
        See `amped.Options`.

    Returns
    -------
    KruskalTensor
        Unit 2-norm columns, or unit 1-norm if any mode is `nonnegative`, weights descending, with ``fits`` and
        ``converged``; the same on every rank. Factors are float32 or float64 by the option `precision`. A warning says
        where it has converged at a fit so low that its small change says little.

    Raises
    ------
    InputError
        If an argument or the file is at fault.

    Examples
    --------
    >>> model = cp_als(read("nell-2.tns"), rank=32)  # doctest: +SKIP
    """
    budget, chosen = Budget(max_iters), Options(**options)
    side = SideOutputs(checkpoint, every, resume, metrics)  # type: ignore[arg-type]  # which are text by now
    with session(X, chosen, deadline, verbose, side, rank, starts) as call:
        comm, machine, source = call.comm, call.machine, call.source
        wanted = ConstraintParams(nonnegative, ridge, fixed_modes)  # type: ignore[arg-type]
        constraints = wanted.of(len(source.shape))
        if comm.bcast(isinstance(init, str) and init == "tucker"):
            if nonnegative:
                raise InputError("init 'tucker': its matrices have negative numbers, which this model has not")
            init = cp_start(source, machine, chosen, rank, seed)
        with call.reporter.loading():
            method = decomposition(source, rank, machine, chosen, budget, constraints, init)
        params = RunParams(max_iters, tol, seed, init, starts, deadline)
        model = call.decomposed(method, params, callback, budget)
    if comm.rank == 0 and (warning := low_fit(model.converged, model.fits, tol)) is not None:
        warnings.warn(warning, stacklevel=5)  # the line of the call, not of our wrappers
    return model


@collective(ARGUMENTS, argument_options)
@with_options
def cp_apr(
    X: Tensor,
    rank: int,
    *,
    max_iters: int = 50,
    tol: float = 1e-4,
    seed: int = 0,
    init: Init | None = None,
    starts: int = 1,
    method: PoissonMethod = "mu",
    inner_iters: int = 10,
    mu_iters: int = 3,
    kappa: float = 1e-2,
    kappa_tol: float = 1e-10,
    eps: float = 1e-10,
    callback: Callable[[int, float], None] | None = None,
    verbose: bool | int = 0,
    deadline: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 1,
    resume: bool = False,
    metrics: str | os.PathLike[str] | None = None,
    **options: Unpack[OptionNames],
) -> KruskalTensor:
    """Compute a CP decomposition of counts, with a Poisson model: CP-APR.

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        See `cp_als`. Its values are not negative; what a sparse tensor lacks, and a zero of a dense one, is a count of
        0.
    rank : int
        Components, 1 to 1024.
    max_iters : int
        Outer iterations at most; each updates all modes.
    tol : float
        The largest KKT violation, ``max |min(B, 1 - Phi)|``, with which a mode is not updated again in an outer
        iteration, or a row. It has converged when nothing is updated; 0 runs all iterations.
    seed : int
        Of the random start.
    init : path, "nvecs" or sequence of (I_n, R) arrays, optional
        See `cp_als`; entries are not negative. Of eigenvectors the magnitudes are taken.
    starts : int
        See `cp_als`; the largest log-likelihood is kept.
    method : str
        "mu": multiplicative updates of a mode (Chi and Kolda 2012). "pdnr", "pqnr": each row of a mode is solved for
        itself, by damped Newton or quasi-Newton steps (Hansen, Plantenga and Kolda 2015).
    inner_iters : int
        Updates of a mode in an outer iteration, or of a row, at most.
    mu_iters : int
        Of "pdnr" and "pqnr": the first outer iterations, which are those of "mu". Without any, more starts end at a
        poorer optimum, as rows that are solved against random matrices become sparse by chance.
    kappa, kappa_tol : float
        Of "mu": what is added to entries that are below `kappa_tol` and should not be zero.
    eps : float
        The least that values are divided by.
    callback : callable, optional
        Called with the iteration's number and its log-likelihood.
    verbose : bool or int
        See `cp_als`.
    deadline, checkpoint, every, resume, metrics : optional
        See `cp_als`.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, workspace : optional
        See `amped.Options`.

    Returns
    -------
    KruskalTensor
        Columns of unit sum, float32 or float64 by the option `precision`, weights descending; ``series`` has
        ``loglikelihood``, ``kkt`` and ``inner_iterations`` after each outer iteration. The same on every rank.

    Raises
    ------
    InputError
        If an argument or the file is at fault, or a value is negative.

    Examples
    --------
    >>> model = cp_apr(read("pickups.tns"), rank=10)  # doctest: +SKIP
    """
    budget, chosen = Budget(max_iters * inner_iters), Options(**options)
    asked = Poisson(tol, inner_iters, kappa, kappa_tol, eps, method, mu_iters)
    side = SideOutputs(checkpoint, every, resume, metrics)  # type: ignore[arg-type]
    with session(X, chosen, deadline, verbose, side, rank, starts) as call:
        with call.reporter.loading():
            apr = counts(call.source, rank, call.machine, chosen, asked, budget, init)
        params = RunParams(max_iters, tol, seed, init, starts, deadline)
        model = call.decomposed(apr, params, callback, budget)
    return model


@collective(ARGUMENTS, argument_options)
@with_options
def mttkrp(
    X: Tensor,
    factors: Sequence[NDArray[Any]],
    mode: int,
    *,
    deadline: float | None = None,
    **options: Unpack[OptionNames],
) -> NDArray[Any]:
    """Compute the matricized tensor times Khatri-Rao product, ``X_(mode) (U_N kr ... kr U_0)`` without ``U_mode``.

    See Kolda and Bader 2009, section 3.4; on several GPUs as AMPED does (Wijeratne, Kannan and Prasanna 2025).

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        See `cp_als`.
    factors : sequence of (I_n, R) arrays
        One for each mode; that of `mode` is not looked at. Under ``mpirun`` rank 0's count.
    mode : int
        Counted from 0.
    deadline : float, optional
        See `cp_als`.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, workspace : optional
        See `amped.Options`.

    Returns
    -------
    (I_mode, R) array
        float32 or float64 by the option `precision`; the same on every rank.

    Raises
    ------
    InputError
        If an argument or the file is at fault, or the result is beyond the precision.
    """
    comm, budget = world(), Budget(1)
    chosen = Options(**options)
    with opened(X, comm, chosen, deadline) as (machine, source):
        if mode >= len(source.shape):
            raise InputError(f"mode {mode} is outside 0..{len(source.shape) - 1}")
        given = list(factors or ()) if comm.rank == 0 else []
        if len(given) == len(source.shape):  # or `start` says what is wrong
            ranks = [np.shape(f)[1] for f in (*given[:mode], *given[mode + 1 :], given[mode]) if np.ndim(f) == 2]
            # No matrix, which could be too large, but one number that looks like it.
            given[mode] = np.broadcast_to(np.zeros(1), (source.shape[mode], ranks[0] if ranks else 0))
        rank = comm.bcast(int(np.shape(given[mode])[-1]) if mode < len(given) else 1)
        operator = place(source, rank, machine, chosen, budget=budget, late=True)
        start(operator, source, init=given)
        whole = operator.gathered(mode, operator.mttkrp(mode))
        together(comm, lambda: check_result(operator, mode, whole, source.value_range))
        return whole
