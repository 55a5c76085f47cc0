"""Tucker decompositions in Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from partitioner.tensors.interop import factors_of
from partitioner.tensors.lowrank import parts_of
from partitioner.validate import real, whole

from ..errors import InputError
from ..methods.hosvd import METHODS, Compression
from ..methods.initial import Init
from ..methods.tucker import RANDOM
from ..models.kruskal import KruskalTensor
from ..models.tucker import TuckerTensor
from ..operators.placement import MAX_RANK
from ..operators.sparse.tuning import Budget
from ..options import OptionNames, Options, with_options
from ..parallel.calls import Argument, collective
from ..parallel.mpi import world
from ..runs.assembly import Tensor
from ..runs.compression import compressed, consistent
from ..runs.run import RunParams
from ..runs.session import opened
from .arguments import ARGUMENTS, argument_options
from .sessions import SideOutputs, session


def _ranks(name: str, given: Any) -> Any:
    if given is None:
        return None
    try:
        return tuple(whole(name, each, 1, MAX_RANK) for each in given)
    except TypeError:
        raise InputError(f"{name} is {given!r}: expected a number for each mode") from None


def _error(name: str, given: Any) -> Any:
    return None if given is None else real(name, given, "a number between 0 and 1", above=True)


def _method(name: str, given: Any) -> Any:
    if given not in METHODS:
        raise InputError(f"{name} is {given!r}: expected {', '.join(map(repr, METHODS))}")
    return given


ARGUMENTS_HERE = {"rank": Argument(_ranks), "error": Argument(_error), "method": Argument(_method)}


@collective(ARGUMENTS | ARGUMENTS_HERE, argument_options)
@with_options
def tucker(
    X: Tensor,
    rank: Sequence[int] | None = None,
    *,
    error: float | None = None,
    method: str = "hooi",
    max_iters: int = 50,
    tol: float = 1e-5,
    seed: int = 0,
    init: Init | None = None,
    callback: Callable[[int, float], None] | None = None,
    verbose: bool | int = 0,
    deadline: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 1,
    resume: bool = False,
    metrics: str | os.PathLike[str] | None = None,
    **options: Unpack[OptionNames],
) -> TuckerTensor:
    """Compute a Tucker decomposition: a core tensor, and a factor matrix with orthonormal columns for each mode.

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        See `cp_als`.
    rank : sequence of int, optional
        Columns of each mode's factor matrix: at most the mode's length, and the product of the others.
    error : float, optional
        Instead of `rank`: ranks are as small as leaves out at most this part of the tensor's norm.
    method : str
        "hooi": higher-order orthogonal iteration (De Lathauwer, De Moor and Vandewalle 2000), with `error` from where
        "hosvd" ends. "hosvd", "sthosvd": the (sequentially truncated) higher-order singular value decomposition.
    max_iters : int
        Iterations at most, of "hooi".
    tol : float
        Stop when the fit changes by less; 0 runs all iterations.
    seed : int
        Of the random start, and of randomised singular value decompositions.
    init : path, "nvecs" or sequence of (I_n, R_n) arrays, optional
        Another start of "hooi": a file with ``factor_0 ...``, what "hosvd" finds, or matrices. Columns are made
        orthonormal. Rank 0's count.
    callback : callable, optional
        Called with the iteration's number and its fit.
    verbose : bool or int
        See `cp_als`.
    deadline, checkpoint, every, resume, metrics : optional
        See `cp_als`. Checkpoints are of "hooi".
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, workspace : optional
        See `amped.Options`.

    Returns
    -------
    TuckerTensor
        ``core, factors = model``; each column's largest entry is positive. The core is float64, factors are float32 or
        float64 by the option `precision`. With ``fits`` and ``converged``; the same on every rank.

    Raises
    ------
    InputError
        If an argument or the file is at fault.

    Examples
    --------
    >>> core, factors = tucker(read("nell-2.tns"), rank=(16, 16, 16))  # doctest: +SKIP
    """
    if (rank is None) == (error is None):
        raise InputError("rank or error: one of them is needed, and not both")
    chosen, random = Options(**options), isinstance(init, str) and init == RANDOM
    asked = Compression(method, None if rank is None else tuple(rank), error, None if random else init)
    side = SideOutputs(checkpoint, every, resume, metrics)  # type: ignore[arg-type]
    with session(X, chosen, deadline, verbose, side, asked.ranks) as call:
        with call.reporter.loading():
            found = compressed(call.source, call.machine, chosen, asked, seed)
        params = RunParams(
            max_iters if method == "hooi" else 1, tol, seed, asked.init, deadline=deadline, random=RANDOM
        )
        model = call.decomposed(found, params, callback, Budget())
    return model


def _cp_model(name: str, given: Any) -> Any:
    if given is None or isinstance(given, KruskalTensor):
        return given
    if parts_of(given) is None:
        raise InputError(f"{name} is of type {type(given).__name__}: expected a CP model, such as a KruskalTensor")
    return KruskalTensor.from_tensorly(given)


@collective(ARGUMENTS | {"model": Argument(_cp_model, repr, of_root=True)}, argument_options)
@with_options
def core_consistency(
    X: Tensor, model: KruskalTensor | None, *, deadline: float | None = None, **options: Unpack[OptionNames]
) -> float:
    """Tell whether a CP decomposition has too many components: its core consistency (Bro and Kiers 2003).

    The model's factor matrices are kept, and a Tucker core is fitted to the tensor. If components are those of the
    data, it has ones on its superdiagonal and zeros elsewhere: 100 percent. Near or below zero there are too many.

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        See `cp_als`.
    model : KruskalTensor
        Or a CP model of another library. Under ``mpirun`` rank 0's counts.
    deadline : float, optional
        See `cp_als`.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, workspace : optional
        See `amped.Options`.

    Returns
    -------
    float
        Percent, at most 100; the same on every rank.

    Raises
    ------
    InputError
        If an argument or the file is at fault, or the model is of another shape.

    Examples
    --------
    >>> core_consistency(X, cp_als(X, rank=3))  # doctest: +SKIP
    """
    comm, chosen = world(), Options(**options)
    with opened(X, comm, chosen, deadline) as (machine, source):
        factors = comm.bcast(factors_of(model))
        if factors is None or tuple(len(factor) for factor in factors) != source.shape:
            raise InputError(f"model of another shape than the tensor's, {source.shape}")
        return consistent(source, machine, chosen, factors)
