"""The Python interface. The same calls under ``mpirun`` use all ranks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.coo import SparseTensor

from .decomp import als
from .decomp.initial import Init, initial_factors
from .errors import InputError
from .models.kruskal import KruskalTensor
from .operators.source import Source, TensorSource, open_source
from .operators.sparse import Engine, Options
from .parallel.mpi import Comm, world
from .parallel.pace import paced
from .parallel.recorder import HERE, LOADING_SECONDS
from .parallel.watchdog import Watchdog

Tensor = SparseTensor | str | os.PathLike[str] | None


def _source(tensor: Tensor, comm: Comm) -> Source:
    if tensor is None or isinstance(tensor, SparseTensor):
        return TensorSource(tensor, comm)
    return open_source(tensor, comm)


@contextmanager
def _watched(comm: Comm, deadline: float | None) -> Iterator[list[Callable[[], object]]]:
    """End the job if what is within does not go on; give the list of what to call then. Collective."""
    if deadline is not None and not 0 < deadline < math.inf:
        raise InputError(f"deadline {deadline}: expected seconds above 0")
    if comm.size == 1 and deadline is None:  # nobody to wait for, and perhaps a notebook that is not to be ended
        yield []
    else:
        with HERE.limited(deadline or LOADING_SECONDS), Watchdog(comm, deadline) as watchdog:
            yield watchdog.aborts


def cp_als(
    X: Tensor,
    rank: int,
    *,
    max_iters: int = 50,
    tol: float = 1e-5,
    seed: int = 0,
    init: Init | None = None,
    callback: Callable[[int, float], None] | None = None,
    deadline: float | None = None,
    **options: Any,
) -> KruskalTensor:
    """Compute a CP decomposition by alternating least squares (Kolda and Bader 2009, Figure 3.3).

    Parameters
    ----------
    X : SparseTensor or path
        The tensor, or the file or store it is in. Under ``mpirun``, rank 0's tensor counts; others may pass None.
    rank : int
        Components, 1 to 1024.
    max_iters : int
        Iterations at most.
    tol : float
        Stop when the fit changes by less; 0 runs all iterations.
    seed : int
        Of the random start.
    init : path, "nvecs" or sequence of (I_n, R) arrays, optional
        Another start: a file with ``factor_0 ...``, leading eigenvectors, or matrices. Rank 0's count.
    callback : callable, optional
        Called with the iteration's number and its fit.
    deadline : float, optional
        Seconds after which a call that does not go on ends its process, and with it the job, with exit code 1; each
        rank says where it was. By default under ``mpirun`` alone: from the second iteration on by what they have
        taken, an hour before that.
    **options
        Fields of `amped.Options`: device, precision, placement, kernel, deterministic, device_memory, threads,
        gather.

    Returns
    -------
    KruskalTensor
        Unit 2-norm columns, weights descending, with ``fits`` and ``converged``; the same on every rank.

    Raises
    ------
    InputError
        If an argument or the file is at fault.

    Examples
    --------
    >>> model = cp_als(read("nell-2.tns"), rank=32)  # doctest: +SKIP
    """
    if max_iters < 1 or not tol >= 0:
        raise InputError(f"max_iters {max_iters} and tol {tol}: expected at least 1 and 0")
    comm = world()
    with _watched(comm, deadline) as aborts:
        source = _source(X, comm)
        engine = Engine(source, rank, comm, Options(**options))
        aborts.append(getattr(engine.exchange, "abort", bool))
        for mode, factor in enumerate(initial_factors(source, rank, comm, engine.plan.dtype, seed, init)):
            engine.set_factor(mode, factor)
        state = als.State(np.ones(rank))
        for _ in paced(als.iterate(engine, state, max_iters, tol), 0, LOADING_SECONDS, deadline):
            engine.clock.collect()
            if callback is not None:
                callback(len(state.fits), state.fits[-1])
        return als.model(engine, state)


def mttkrp(
    X: Tensor, factors: Sequence[NDArray[Any]], mode: int, *, deadline: float | None = None, **options: Any
) -> NDArray[Any]:
    """Compute the matricized tensor times Khatri-Rao product, ``X_(mode) (U_N kr ... kr U_0)`` without ``U_mode``.

    Parameters
    ----------
    X : SparseTensor or path
        See `cp_als`.
    factors : sequence of (I_n, R) arrays
        One for each mode; that of `mode` is not looked at. Under ``mpirun`` rank 0's count.
    mode : int
        Counted from 0.
    deadline : float, optional
        See `cp_als`.
    **options
        Fields of `amped.Options`.

    Returns
    -------
    (I_mode, R) array
        float32 or float64 by the option `precision`; the same on every rank.

    Raises
    ------
    InputError
        If an argument or the file is at fault.
    """
    comm = world()
    with _watched(comm, deadline) as aborts:
        source = _source(X, comm)
        if not 0 <= mode < len(source.shape):
            raise InputError(f"mode {mode} is outside 0..{len(source.shape) - 1}")
        given = list(factors) if comm.rank == 0 else []
        if len(given) == len(source.shape):  # or `initial_factors` says what is wrong
            ranks = [np.shape(f)[1] for f in (*given[:mode], *given[mode + 1 :], given[mode]) if np.ndim(f) == 2]
            given[mode] = np.zeros((source.shape[mode], ranks[0] if ranks else 0))
        rank = comm.bcast(int(np.shape(given[mode])[-1]) if mode < len(given) else 1)
        engine = Engine(source, rank, comm, Options(**options))
        aborts.append(getattr(engine.exchange, "abort", bool))
        for n, factor in enumerate(initial_factors(source, rank, comm, engine.plan.dtype, init=given)):
            engine.set_factor(n, factor)
        return engine.gathered(mode, engine.mttkrp(mode))
