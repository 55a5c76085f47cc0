"""Tucker decompositions in Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from partitioner.readers import PLAIN
from partitioner.tensors.interop import factors_of
from partitioner.tensors.lowrank import parts_of
from partitioner.validate import whole

from ..errors import InputError
from ..methods.constraints import modes_of
from ..methods.initial import Init
from ..methods.tucker import RANDOM
from ..methods.tucker_params import METHODS, Compression
from ..models.kruskal import KruskalTensor
from ..models.labelled_matrices import LabelledMatrices, in_order_of
from ..models.tucker import TuckerTensor
from ..operators.placement import MAX_RANK
from ..operators.sparse.tuning import Budget
from ..options import OptionNames, Options, with_options
from ..parallel.calls import Argument, collective
from ..parallel.mpi import world
from ..runs.assembly import Tensor
from ..runs.callback import RunCallback
from ..runs.compression import compressed, consistent, consistent_with_gaps
from ..runs.observed_runs import observe
from ..runs.observing import Mask, ObservedParams
from ..runs.run import RunParams
from ..runs.session import opened
from .arguments import ARGUMENTS, BOOLEAN, DEVICE, OutputName, argument_options, one_of, optional, positive
from .sessions import SideOutputs, session


def _ranks(name: str, value: Any) -> tuple[int | None, ...]:
    try:
        return tuple(None if rank is None else whole(name, rank, 1, MAX_RANK) for rank in value)
    except TypeError:
        raise InputError(f"{name} is {value!r}: expected a number for each mode") from None


TUCKER_ARGUMENTS = ARGUMENTS | {
    "rank": optional(Argument(_ranks)),
    "error": optional(positive("a number between 0 and 1")),
    "method": one_of(*METHODS),
    "nonnegative": BOOLEAN,
    "fixed_modes": Argument(modes_of),
}


@collective(TUCKER_ARGUMENTS, argument_options)
@with_options
def tucker(
    X: Tensor,
    rank: Sequence[int | None] | None = None,
    *,
    error: float | None = None,
    method: str = "hooi",
    nonnegative: bool = False,
    fixed_modes: Sequence[int | str] = (),
    max_iters: int = 50,
    tol: float = 1e-5,
    seed: int = 0,
    init: Init | None = None,
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
) -> TuckerTensor:
    """Compute a Tucker decomposition: a core tensor, and per mode a factor matrix with orthonormal columns. Collective.

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        See `cp_als`.
    rank : sequence of int or None, optional
        Number of columns of each mode's factor matrix: at most the mode's length and the product of the other ranks.
        None leaves a mode uncompressed, with the identity as its factor matrix.
    error : float, optional
        Instead of `rank`: use the smallest ranks whose truncation error, relative to the tensor's norm, is at most
        this.
    method : {"hooi", "hosvd", "sthosvd"}
        "hooi" is the higher-order orthogonal iteration (De Lathauwer, De Moor and Vandewalle 2000). With `error` it
        starts from the result of "hosvd" and drops columns that the error does not require (Xiao and Yang 2021). The
        others are the higher-order singular value decomposition, and the sequentially truncated one; they do not
        iterate.
    nonnegative : bool
        Whether the core and all factor matrices are non-negative: by HALS (Phan and Cichocki 2011) and accelerated
        projected gradients instead of "hooi".
    fixed_modes : sequence of int or str
        Modes, by number or name, whose factor matrices stay those of `init`. They need not be orthonormal.
    max_iters : int
        Maximum number of iterations of "hooi".
    tol : float
        Stop when the fit changes by less than this; 0 disables the test.
    seed : int
        Seed of the random start and of randomised singular value decompositions.
    init : path, "nvecs", "random" or sequence of (I_n, R_n) arrays, optional
        Start of "hooi": a file with ``factor_0 ...``, the result of "hosvd" ("nvecs"), random matrices, or matrices,
        whose columns are orthonormalised. Rank 0's value is used.
    accelerate : bool, optional
        Whether iterations of non-negative models begin at extrapolated matrices (Ang, Cohen, Gillis and Hien 2021); an
        iteration that lowers the fit is repeated without. By default they do, unless there is a `checkpoint`, which has
        one iterate only.
    callback : callable, optional
        Called after each iteration with its number, the fit and, if it requires a third argument, a `ModelView`; see
        `cp_als`.
    verbose : bool or int
        See `cp_als`.
    deadline, checkpoint, every, resume, metrics, report : optional
        See `cp_als`. Only "hooi" writes checkpoints.
    output : {"host", "device"}
        See `cp_als`.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
        See `amped.Options`.

    Returns
    -------
    TuckerTensor
        The core is float64; factors are float32 or float64 according to the option `precision`. The entry of largest
        magnitude in each column is positive, except of fixed modes; columns of non-negative models have unit sum.
        ``fits`` and ``converged`` describe the run. The same on every rank.

    Raises
    ------
    InputError
        If an argument or the file is invalid.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).random((4, 3, 2))
    >>> core, factors = tucker(X, rank=(2, 2, 2))
    >>> core.shape, factors[0].shape
    ((2, 2, 2), (4, 2))
    >>> tucker(X, rank=(2, None, 2), nonnegative=True).core.shape
    (2, 3, 2)
    """
    if (rank is None) == (error is None):
        raise InputError("pass rank or error" if rank is None else "pass either rank or error, not both")
    chosen, random = Options(**options), isinstance(init, str) and init == RANDOM
    compression = Compression(method, None if rank is None else tuple(rank), error, None if random else init)
    extrapolates = checkpoint is None if accelerate is None else accelerate
    compression = replace(compression, nonnegative=nonnegative, accelerate=extrapolates)
    side = SideOutputs(checkpoint, every, resume, metrics, report)  # type: ignore[arg-type]
    with session(X, chosen, deadline, verbose, side, compression.known_ranks) as call:
        with call.reporter.loading():
            compression = compression.with_fixed(fixed_modes, call.source.labels, len(call.source.shape))
            iterations = max_iters if method == "hooi" else 1
            decomposition = compressed(call.source, call.machine, chosen, compression, seed, iterations)
        params = RunParams(iterations, tol, seed, compression.init, deadline=deadline, random=RANDOM)
        params = params._replace(on_device=output == DEVICE)
        model = call.decomposed(decomposition, params, callback, Budget())
    return model


def _cp_model(name: str, value: object) -> KruskalTensor | None:
    if value is None or isinstance(value, KruskalTensor):
        return value
    if parts_of(value) is None:
        raise InputError(f"{name} is of type {type(value).__name__}: expected a CP model, such as a KruskalTensor")
    return KruskalTensor.from_tensorly(value)


@collective(ARGUMENTS | {"model": Argument(_cp_model, repr, of_root=True)}, argument_options)
@with_options
def core_consistency(
    X: Tensor,
    model: KruskalTensor | None,
    *,
    mask: Mask | None = None,
    deadline: float | None = None,
    **options: Unpack[OptionNames],
) -> float:
    """Return the core consistency of a CP model, which shows whether it has too many components. Collective.

    A Tucker core is fitted to the tensor with the model's factor matrices (Bro and Kiers 2003). With the right number
    of components it has ones on its superdiagonal and zeros elsewhere: 100 percent. A value near or below zero means
    too many components.

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        See `cp_als`.
    model : KruskalTensor
        A CP model, also of another library. Under ``mpirun`` rank 0's is used.
    mask : {"nan", "stored"}, array, tensor or path, optional
        The observed elements; see `cp_als`. Others are those of the model.
    deadline : float, optional
        See `cp_als`.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
        See `amped.Options`.

    Returns
    -------
    float
        Percent, at most 100; the same on every rank.

    Raises
    ------
    InputError
        If an argument or the file is invalid, or the shapes of model and tensor differ.

    Examples
    --------
    >>> import numpy as np
    >>> model = KruskalTensor(np.ones(2), [np.eye(length, 2) for length in (4, 3, 2)])
    >>> round(core_consistency(model.full(), model), 6)
    100.0
    """
    comm, chosen, params = world(), Options(**options), ObservedParams(mask)  # type: ignore[arg-type]
    with opened(X, comm, chosen, deadline, params.form(PLAIN, comm)) as (machine, source):
        observed = observe(source, params, machine, chosen)
        factors = comm.bcast(factors_of(model))
        labels = comm.bcast(getattr(model, "labels", None))
        factors = None if factors is None else in_order_of(LabelledMatrices(factors, labels), source.labels)
        if factors is None or tuple(len(factor) for factor in factors) != source.shape:
            raise InputError(f"the model's shape differs from the tensor's, {source.shape}")
        if observed is not None:
            return consistent_with_gaps(observed.source, machine, chosen, factors)
        return consistent(source, machine, chosen, factors)
