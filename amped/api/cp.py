"""CP decompositions, in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from partitioner.readers import PLAIN

from ..backend.device import Device
from ..errors import InputError, warn
from ..methods import als, apr
from ..methods.constraints import ConstraintParams
from ..methods.initial import Init
from ..methods.poisson import Poisson, PoissonMethod
from ..methods.proximal.terms import ModeConstraints
from ..methods.starts import Decomposition
from ..methods.stopping import MAX_ITERS, expected_iterations
from ..models.kruskal import KruskalTensor
from ..operators.sparse.tuning import Budget
from ..options import OptionNames, Options, with_options
from ..parallel.calls import collective
from ..parallel.mpi import world
from ..report.text import low_fit
from ..runs.assembly import Tensor, counts, decomposition
from ..runs.callback import RunCallback
from ..runs.compression import cp_start
from ..runs.distributing import local_models
from ..runs.gcp import LossTraits, check_method, generalised
from ..runs.holding_out import HoldoutParams
from ..runs.loss_elements import LossRun, LossWork
from ..runs.observed_runs import observed_decomposition
from ..runs.observing import Mask, ObservedParams
from ..runs.run import RunParams
from ..runs.starting import AlsRequest, choose
from .arguments import ARGUMENTS, DEVICE, OutputName, argument_options, optional
from .sessions import SideOutputs, session

ALS_ARGUMENTS = ARGUMENTS | {name: optional(ARGUMENTS[name]) for name in ("max_iters", "tol", "seed")}


@collective(ALS_ARGUMENTS, argument_options)
@with_options
def cp_als(
    X: Tensor,
    rank: int,
    *,
    max_iters: int | None = None,
    tol: float | None = None,
    seed: int | None = None,
    init: Init | None = None,
    starts: int = 1,
    nonnegative: bool | Sequence[int | str] = False,
    ridge: float | Sequence[float] = 0.0,
    fixed_modes: Sequence[int | str] = (),
    fixed: Mapping[int | str, NDArray[np.bool_]] | None = None,
    constraints: Mapping[int | str, ModeConstraints] | None = None,
    mask: Mask | None = None,
    weights: Tensor = None,
    holdout: float | Tensor = None,
    holdout_seed: int = 0,
    patience: int | None = None,
    accelerate: bool | None = None,
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
    """Compute a CP decomposition by alternating least squares (Kolda and Bader 2009, Figure 3.3). Collective.

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        The tensor, or its file or store. An array is a dense tensor. Under ``mpirun`` the tensor of rank 0 is used;
        other ranks may pass None.
    rank : int
        Number of components: 1 to 1024, for dense tensors to 4096.
    max_iters : int, optional
        Maximum number of iterations; 50 if only `tol` is given. By default iterations are accelerated, and as many as
        are needed: up to 500 if they are cheap, else 50. See the notes.
    tol : float, optional
        Stop when the fit changes by less than this, four times in a row if iterations are accelerated; 0 disables the
        test. 1e-5 if only `max_iters` is given.
    seed : int, optional
        Seed of a random start, 0 if `max_iters` or `tol` is given. By default the best of short runs is the start of a
        small tensor. See the notes.
    init : path, "nvecs", "tucker" or sequence of (I_n, R) arrays, optional
        Start instead of random matrices: a file with ``factor_0 ...``, the leading eigenvectors of each mode
        ("nvecs"), the CP decomposition of a Tucker core ("tucker"), or matrices. The rows of a model with labels are
        matched by label; those of labels that it lacks begin with the mean of the others. A model of another rank loses
        its last components, or gets random ones. Rank 0's value is used.
    starts : int
        Number of random starts, with seeds ``seed`` (0 by default), ``seed + 1``, ... The model with the best fit is
        returned. Not available with `init` or `checkpoint`.
    nonnegative : bool or sequence of int or str
        Constrain all factor matrices, or those of the listed modes, to be non-negative (HALS, Cichocki and Phan 2009).
        Modes are counted from 0; those of a tensor with labels also have names. The tensor may have negative values.
    ridge : float or sequence of float
        Number added to the diagonal of the Gram matrix in each mode's equations: one number for all modes, or one per
        mode. The other modes' columns have unit 2-norm there, so that one number ``c`` penalises the lengths of the
        components: no iteration increases ``||X - M||**2 + c * sum(length**2)``. With different numbers each mode
        has a different objective.
    fixed_modes : sequence of int or str
        Modes whose matrices keep the values of `init`, except for the norms of their columns. See also
        `KruskalTensor.transform`.
    fixed : mapping of int or str to bool array, optional
        Elements of modes that keep the values of `init`: masks of shape (I_n, R), or (I_n, 1) for rows and (1, R) for
        columns. Others are solved by ADMM, as with `constraints`, where "fixed:rows:0-4" and "fixed:columns:0,2" mean
        the same. With a constraint that relates rows only whole columns can be fixed, with "simplex:rows" whole rows,
        and with "orthonormal" or a function nothing.
    constraints : mapping of int or str to str, list of str or callable, optional
        Further constraints of modes, such as ``{1: "unimodal", 0: ["nonnegative", "l1:0.1"]}``, by AO-ADMM (Huang,
        Sidiropoulos and Liavas 2016). Names: "nonnegative", "bounds:LOW:HIGH", "l1:X", "l2:X",
        "smooth:X" and "smooth:X:2" (first and second differences), "unimodal", "monotone", "monotone:decreasing",
        "simplex" (columns), "simplex:rows", "orthonormal", "sparse:K" (nonzeros of a column), "ball" (columns of a
        2-norm of at most 1). No iteration increases ``||X - M||**2 / 2`` plus the penalties ``X |U|_1``,
        ``X |U|_F**2 / 2`` and ``X |D U|_F**2 / 2``; with any of these, modes without a penalty or bounds are in the
        ball, as otherwise their size would make the penalty vanish. A function ``prox(matrix, step)`` is a proximal
        operator, on GPUs of CuPy arrays; its attribute ``penalty``, a function of the matrix, returns the penalty (by
        default 0, as of a set). Not with `ridge`.
    mask : {"nan", "stored"}, array, tensor or path, optional
        The observed elements; others are missing and do not count (by default all are observed). "nan": all but NaN,
        of a dense tensor. "stored": the stored elements of a sparse tensor, including explicit zeros that it keeps.
        Otherwise those where the mask is True; elements of a sparse tensor that are observed but not stored are zeros.
        Masked entries of a NumPy array, and NaN in an xarray object, are missing without a mask.
    weights : array, tensor or path, optional
        A weight per element, at least 0; those of weight 0 are missing.
    holdout : float, array, tensor or path, optional
        Hold out observed elements, on which the model is evaluated after each iteration: a random fraction of them, or
        those where a mask is not zero. The model of the iteration with the lowest RMSE on them is returned.
        For a sparse tensor this needs a `mask`; all elements of a dense tensor without one are observed.
    holdout_seed : int
        Seed of the random draw of `holdout`. Whether an element is drawn depends only on the seed, the fraction and its
        indices.
    patience : int, optional
        With `holdout`: stop when the RMSE on held-out elements has not fallen by 0.01 % in this many iterations (20).
        The test of `tol` applies, too.
    accelerate : bool, optional
        Whether iterations begin at extrapolated factor matrices; see the notes. By default, if there is neither
        `max_iters`, `tol` nor `checkpoint`.
    callback : callable, optional
        Called after each iteration with its number, the fit and, if it requires a third argument, a `ModelView`, whose
        method ``model()`` returns the model so far. If it returns True, the run stops, and the model so far is
        returned. If it raises an exception, the attribute ``model`` of the exception is the model so far.
    verbose : bool or int
        Print the report of the command line on rank 0: the tensor, each iteration, and where the time went. A terminal
        also shows the progress of loading and the components of the model; Jupyter shows a progress bar.
    deadline : float, optional
        Time limit, in seconds, for a single step of the run. If a step exceeds it, each rank reports where it was, and
        the job ends with exit code 1. By default only runs under ``mpirun`` have a limit: an hour for the first
        iteration, then a limit based on the duration of earlier iterations.
    checkpoint : path, optional
        Folder for checkpoints, which rank 0 writes; the last two are kept. Not available with several `starts`. If the
        folder already has checkpoints, `resume` is required.
    every : int, optional
        Iterations between checkpoints. Each is complete when the next iteration ends; on a slow disk, the run waits. By
        default an iteration is saved unless an earlier checkpoint is still being written. The last one is always saved.
    resume : bool
        Continue from the newest checkpoint in the folder, if it has one, up to a total of `max_iters` iterations. The
        tensor, `rank` and start must be those of the interrupted run.
    metrics : path, optional
        File to which rank 0 writes the time and fit of each iteration as JSON lines. It must not exist; a resumed run
        appends to its own file.
    report : path, optional
        HTML file for the report of the model, which rank 0 writes at the end; see `KruskalTensor.report`. An existing
        file is replaced. If it cannot be written after the run, a warning is issued.
    output : {"host", "device"}
        "device" leaves the factor matrices on the GPU that computed them: CuPy arrays, which PyTorch and JAX take over
        by ``from_dlpack`` without a copy. The methods of the model copy them to the host when they need them. With
        `holdout`, on a grid of ranks, and where the GPU lacks the method, the matrices are made on the host and copied
        to the GPU. On a CPU they are NumPy arrays either way.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
        See `amped.Options`.

    Returns
    -------
    KruskalTensor
        Columns have unit 2-norm, or unit 1-norm if any mode is `nonnegative`; weights descend, except with fixed
        elements, whose components stay in the order of the start. In modes with bounds, a simplex, orthonormal columns
        or a function, columns stay as they were solved. ``fits`` and ``converged`` describe the run. The same on every
        rank. If elements are missing, fits refer to the observed ones, and ``series`` has ``objective``,
        ``sum w (x - m)**2 + sum_n ridge_n |U_n|**2`` with the matrices as they were solved, and ``rmse`` after each
        iteration; with `holdout` also ``holdout_rmse``, and ``run`` has the number ``best_iteration`` of the returned
        model. With `constraints`, ``series`` has ``objective``.

    Raises
    ------
    InputError
        If an argument or the file is invalid.

    Warns
    -----
    UserWarning
        If the fit at convergence is so low that a small change of it means little; or, for a small tensor with the
        default limits, if it is lower than that of a short run from another start.

    Notes
    -----
    With neither `max_iters` nor `tol`, without constraints, missing elements and `checkpoint`:

    - The run stops when the last 14 iterations together raised the fit by less than 1e-5, and the decay of their gains
      forecasts no more, or when the fit is within 1e-5 of 1.
    - Without `seed`, `init` and `starts`, a tensor of up to 262,144 elements starts from the best of ten short runs on
      its Tucker core, if their forecast cost is small; one of them begins at a solution in closed form, which is exact
      for tensors of that rank. Others start as with ``seed=0``.

    With `max_iters` or `tol`, the start is random.

    Accelerated iterations begin at factor matrices that are extrapolated from the last two, and are repeated without
    that if they lower the fit (Mitchell, Ye and De Sterck 2020; non-negative: Ang, Cohen, Gillis and Hien 2021). On
    GPUs, with `constraints` or `holdout`, and if the factor matrices have more than 8 million numbers, iterations are
    plain.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.einsum("ir,jr,kr->ijk", *np.random.default_rng(0).random((3, 4, 2)))  # a (4, 4, 4) array of rank 2
    >>> model = cp_als(X, rank=2, precision="fp64", max_iters=200, tol=0)
    >>> model.shape, bool(model.fits[-1] > 0.99)
    ((4, 4, 4), True)
    >>> weights, factors = model
    """
    limit, chosen = max_iters or MAX_ITERS, Options(**options)
    budget = Budget(limit * starts, expected=expected_iterations(limit, tol) * starts)
    params = ObservedParams(mask, weights)  # type: ignore[arg-type]
    held = HoldoutParams(holdout, holdout_seed, patience)  # type: ignore[arg-type]
    side = SideOutputs(checkpoint, every, resume, metrics, report)  # type: ignore[arg-type]  # paths are text by now

    def prepare(device: Device) -> None:
        if not constraints and all(each is None for each in (mask, weights, holdout)):
            als.prepare(device, rank, chosen.dtype, bool(nonnegative))

    with session(X, chosen, deadline, verbose, side, rank, starts, params.form(PLAIN, world()), prepare) as call:
        split = call.hold_out(params, held) if held.given(call.comm) else None
        observed = split.fitted if split else call.observe(params)
        comm, machine, source = call.comm, call.machine, call.source
        if any(comm.allgather(callback is not None)):
            chosen = local_models(chosen)
        constraint_params = ConstraintParams(nonnegative, ridge, fixed_modes, constraints, fixed)  # type: ignore[arg-type]
        chosen_constraints = constraint_params.of(len(source.shape), source.labels)
        usual = observed is None and not chosen_constraints
        guess = comm.bcast(init is not None) or starts > 1
        request = AlsRequest(max_iters, tol, seed, guess, checkpoint is not None, accelerate)
        choice = choose(source, rank, request, usual, comm)
        if comm.bcast(isinstance(init, str) and init == "tucker"):
            if nonnegative:
                raise InputError("init 'tucker' yields negative entries: use another init, or no constraint")
            init = cp_start(source, machine, chosen, rank, seed or 0)
        with call.reporter.loading():
            method: Decomposition[KruskalTensor] = (
                decomposition(source, rank, machine, chosen, budget, chosen_constraints, init, request.accelerates)
                if observed is None
                else observed_decomposition(
                    observed,
                    rank,
                    machine,
                    chosen,
                    budget,
                    chosen_constraints,
                    init,
                    split.held_out if split else None,
                    request.accelerates,
                )
            )
        run = RunParams(0, 0, seed or 0, init, starts, deadline, patience=held.iterations if split else None)
        run = run._replace(on_device=output == DEVICE)
        model = call.decomposed(method, choice.begun(run), callback, budget)
    if comm.rank == 0:
        low, exceeded = low_fit(model.converged, model.fits, choice.limits.tol), choice.exceeded(model)
        for warning in filter(None, (low, exceeded)):
            warn(warning, UserWarning)
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
    mask: Mask | None = None,
    weights: Tensor = None,
    inner_iters: int = 10,
    mu_iters: int = 3,
    kappa: float = 1e-2,
    kappa_tol: float = 1e-10,
    eps: float = 1e-10,
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
    """Compute a CP decomposition of counts with a Poisson model: CP-APR. Collective.

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        See `cp_als`. Values must not be negative. Absent elements of a sparse tensor are counts of 0.
    rank : int
        Number of components, 1 to 1024.
    max_iters : int
        Maximum number of outer iterations; each updates all modes.
    tol : float
        Limit of the KKT violation, ``max |min(B, 1 - Phi)|``: an outer iteration skips modes (or rows, for "pdnr" and
        "pqnr") whose violation is at most this. The run has converged when it skips all of them; 0 runs all iterations.
    seed : int
        Seed of the random start.
    init : path, "nvecs" or sequence of (I_n, R) arrays, optional
        See `cp_als`. Entries must not be negative; eigenvectors are replaced by their absolute values.
    starts : int
        See `cp_als`; the model with the largest log-likelihood is returned.
    method : {"mu", "pdnr", "pqnr"}
        "mu" updates a whole mode by multiplication (Chi and Kolda 2012). "pdnr" and "pqnr" solve each row of a mode
        separately, by damped Newton or quasi-Newton steps (Hansen, Plantenga and Kolda 2015).
    mask, weights : optional
        The observed elements, and a weight per element; see `cp_als`. The model is summed over the observed elements
        only. Not for "pqnr".
    inner_iters : int
        Maximum number of updates of a mode, or of a row, per outer iteration.
    mu_iters : int
        For "pdnr" and "pqnr": number of initial outer iterations that use "mu". With 0, more starts end at a poor
        optimum, because rows that are solved against random matrices become sparse by chance.
    kappa, kappa_tol : float
        For "mu": `kappa` is added to entries below `kappa_tol` whose Phi exceeds 1, so that they can grow again.
    eps : float
        Lower bound of divisors.
    callback : callable, optional
        Called after each iteration with its number, the log-likelihood and, if it requires a third argument, a
        `ModelView`; see `cp_als`.
    verbose : bool or int
        See `cp_als`.
    deadline, checkpoint, every, resume, metrics, report : optional
        See `cp_als`.
    output : {"host", "device"}
        See `cp_als`.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
        See `amped.Options`.

    Returns
    -------
    KruskalTensor
        Columns have unit sum and are float32 or float64 according to the option `precision`; weights descend.
        ``series`` has ``loglikelihood``, ``kkt`` and ``inner_iterations`` after each outer iteration. The same on every
        rank.

    Raises
    ------
    InputError
        If an argument or the file is invalid, or a value is negative.

    Examples
    --------
    >>> import numpy as np
    >>> counts = np.random.default_rng(0).poisson(2.0, (4, 3, 2))
    >>> model = cp_apr(counts, rank=2, max_iters=10)
    >>> bool(np.isclose(model.weights.sum(), counts.sum(), rtol=1e-3))  # the model preserves the sum
    True
    """
    budget, chosen = Budget(max_iters * inner_iters * starts), Options(**options)
    poisson = Poisson(tol, inner_iters, kappa, kappa_tol, eps, method, mu_iters)
    side = SideOutputs(checkpoint, every, resume, metrics, report)  # type: ignore[arg-type]
    observing, comm = ObservedParams(mask, weights), world()  # type: ignore[arg-type]
    check_method("poisson", method, LossTraits(observing.given(comm)))

    def prepare(device: Device) -> None:
        if mask is None and weights is None:
            apr.prepare(device, chosen.dtype)

    with session(X, chosen, deadline, verbose, side, rank, starts, observing.form(PLAIN, comm), prepare) as call:
        observed = call.observe(observing)
        work = LossWork.of_counts(poisson, rank, max_iters * inner_iters * starts, init)
        with call.reporter.loading():
            placed: Decomposition[KruskalTensor] = (
                counts(call.source, rank, call.machine, chosen, poisson, budget, init)
                if observed is None
                else generalised(LossRun(call.source, observed, call.machine, chosen, work))
            )
        params = RunParams(max_iters, tol, seed, init, starts, deadline, on_device=output == DEVICE)
        model = call.decomposed(placed, params, callback, budget)
    return model
