"""The Python interface. The same calls under ``mpirun`` use all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from .assembly import Tensor, bring_up, decomposition, open_tensor, place, start, watched
from .decomp.driver import Method, Rule, Spans, run
from .decomp.initial import Init
from .errors import InputError
from .models.kruskal import KruskalTensor
from .options import OptionNames, Options, with_options
from .parallel.mpi import world


@with_options
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
    **options: Unpack[OptionNames],
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
    device, precision, placement, kernel, deterministic, device_memory, threads, gather : optional
        See `amped.Options`.

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
    with watched(comm, deadline) as aborts:
        source, chosen = open_tensor(X, comm), Options(**options)
        machine = bring_up(chosen, comm)
        aborts.append(machine.exchange.abort)
        method = decomposition(source, rank, machine, chosen)
        start(method.operator, source, seed, init)

        def tell(method: Method, spans: Spans, seconds: float) -> None:
            if callback is not None:
                callback(method.state.iterations, method.state.series["fit"][-1])

        run(method, Rule(max_iters, tol, deadline=deadline), [tell])
        return method.model().labelled(source.labels)


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
    device, precision, placement, kernel, deterministic, device_memory, threads, gather : optional
        See `amped.Options`.

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
    with watched(comm, deadline) as aborts:
        source, chosen = open_tensor(X, comm), Options(**options)
        if not 0 <= mode < len(source.shape):
            raise InputError(f"mode {mode} is outside 0..{len(source.shape) - 1}")
        given = list(factors) if comm.rank == 0 else []
        if len(given) == len(source.shape):  # or `start` says what is wrong
            ranks = [np.shape(f)[1] for f in (*given[:mode], *given[mode + 1 :], given[mode]) if np.ndim(f) == 2]
            # No matrix, which could be too large, but one number that looks like it.
            given[mode] = np.broadcast_to(np.zeros(1), (source.shape[mode], ranks[0] if ranks else 0))
        rank = comm.bcast(int(np.shape(given[mode])[-1]) if mode < len(given) else 1)
        machine = bring_up(chosen, comm)
        aborts.append(machine.exchange.abort)
        operator = place(source, rank, machine, chosen)
        start(operator, source, init=given)
        return operator.gathered(mode, operator.mttkrp(mode))
