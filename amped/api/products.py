"""Products of a tensor and matrices, in Python: MTTKRP and SpTTM."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from partitioner.array_types import Floats
from partitioner.host.memory import available_memory
from partitioner.tensors.device_arrays import on_host
from partitioner.tensors.ingest import refuse_masked
from partitioner.tensors.interop import AnyTensor
from partitioner.wording import parameter

from ..backend.exchange import Machine
from ..errors import InputError
from ..methods.initial import checked_matrix
from ..models.align import tensor_or_path
from ..models.semisparse import SemiSparseTensor
from ..operators.limits import check_result
from ..operators.sources.protocols import ProductSource
from ..operators.sources.semisparse import SemiSparseProduct
from ..operators.sparse.tuning import Budget
from ..operators.ttm.plan import TtmSetting, result_bytes
from ..options import OptionNames, Options, with_options
from ..parallel.calls import Argument, collective
from ..parallel.mpi import Comm, on_root, share, together, world
from ..runs.assembly import Tensor, bring_up, open_tensor, place, start, watched
from ..runs.compiling import Work
from ..runs.compiling import chosen as machine_for
from ..runs.products import (
    Product,
    Shape,
    machine_for_product,
    open_semisparse,
    place_product,
    product_setting,
    write_product,
)
from ..runs.session import opened
from .arguments import ARGUMENTS, PATH, argument_options, check_matrices, optional

Operand = AnyTensor | SemiSparseTensor | str


def _operand(name: str, value: object) -> Operand:
    return value if isinstance(value, SemiSparseTensor) else tensor_or_path(name, value)


def _matrix(name: str, value: object) -> Floats:
    try:
        refuse_masked(value, name)
        return on_host(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected a matrix: {error}") from None


TTM_ARGUMENTS = {
    **ARGUMENTS,
    "X": optional(ARGUMENTS["X"]._replace(convert=_operand)),
    "matrix": optional(Argument(_matrix, lambda matrix: f"a matrix of shape {np.shape(matrix)}", of_root=True)),
    "output": PATH,
}


@collective(TTM_ARGUMENTS, argument_options)
@with_options
def ttm(
    X: Tensor | SemiSparseTensor,
    matrix: Floats,
    mode: int,
    *,
    output: str | os.PathLike[str] | None = None,
    deadline: float | None = None,
    **options: Unpack[OptionNames],
) -> SemiSparseTensor | str:
    """Multiply a sparse tensor by a matrix in one mode: ``sum_i X[..., i, ...] matrix[i, r]`` (SpTTM). Collective.

    See Li, Ma, Yan and Vuduc 2016, section III.

    Parameters
    ----------
    X : SparseTensor, SemiSparseTensor, array or path
        The tensor. A semi-sparse result can be multiplied again, in any mode. Under ``mpirun`` the tensor of rank 0 is
        used; other ranks may pass None.
    matrix : (I_mode, R) array
        R is at most 1024. Under ``mpirun`` rank 0's is used.
    mode : int
        Counted from 0.
    output : path, optional
        ``.npz`` file to which rank 0 writes the result in pieces, for results larger than memory. An existing file is
        replaced.
    deadline : float, optional
        See `cp_als`.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
        See `amped.Options`.

    Returns
    -------
    SemiSparseTensor or str
        The product, in which `mode` is dense and has the length R; the same on every rank. After several products the
        dense modes are in the order of the products. With `output`: the path of the file.

    Raises
    ------
    InputError
        If an argument or the file is invalid, or the result exceeds the memory or the range of the precision.

    Examples
    --------
    >>> import numpy as np
    >>> X = SparseTensor([[0, 1, 2], [3, 0, 1]], [1.0, 2.0], shape=(4, 3, 5))
    >>> Y = ttm(X, np.ones((5, 2)), 2)
    >>> Y.shape, Y.modes
    ((4, 3, 2), (2,))
    >>> ttm(Y, np.ones((4, 3)), 0).shape
    (3, 3, 2)
    """
    comm, chosen = world(), Options(**options)
    with watched(comm, deadline) as aborts:
        machine = bring_up(chosen, comm)
        aborts.append(machine.exchange.abort)
        source = _opened(X, machine, chosen)
        rank = comm.bcast(np.shape(matrix)[1] if comm.rank == 0 and np.ndim(matrix) == 2 else 0)
        if not rank:
            raise InputError(f"matrix of shape {comm.bcast(np.shape(matrix))}: expected (I_mode, R)")
        machine = machine_for_product(source, rank, machine, chosen)
        setting = product_setting(source, mode, rank, machine, chosen)
        expected = source.shape[mode], rank
        operand = on_root(comm, lambda: checked_matrix(np.asarray(matrix), "matrix", expected, chosen.dtype))
        product, shape = place_product(source, machine, setting), Shape(source, setting)
        product.set_matrix(share(comm, operand))
        if output is None:
            return _result(product, shape, setting)
        write_product(output, product, shape)
        return os.fspath(output)


def _opened(X: Any, machine: Machine, options: Options) -> ProductSource:
    """Return the source of the nonzeros of a tensor. Collective."""
    comm = machine.comm
    if comm.bcast(getattr(X, "kind", None)) == SemiSparseTensor.kind:
        return SemiSparseProduct(X, comm)
    path = comm.bcast(X if isinstance(X, str) else None)
    if path is not None and (semisparse := open_semisparse(path, comm)) is not None:
        return semisparse
    return open_tensor(X, machine, options).product()


def _result(product: Product, shape: Shape, setting: TtmSetting) -> SemiSparseTensor:
    """Gather the result of a product on every rank. Collective."""
    comm, rows = product.machine.comm, product.rows
    total, begin = int(rows[-1]), int(rows[comm.rank])
    together(comm, lambda: _check_memory(setting, total, comm))
    indices = np.empty((total, shape.sparse), np.int32)
    values = np.empty((total, int(np.prod(shape.lengths))), setting.options.dtype)

    def fill() -> None:
        at = begin
        for part in parts:
            indices[at : at + len(part.values)], values[at : at + len(part.values)] = part
            at += len(part.values)

    parts = product.parts()
    together(comm, fill)
    if comm.size > 1:
        if shape.sparse:
            comm.all_gather_rows(indices, rows[:-1], rows[1:])
        comm.all_gather_rows(values, rows[:-1], rows[1:])
    blocks = values.reshape(total, *shape.lengths)
    return SemiSparseTensor.of_result(indices, blocks, shape.modes, shape.shape, shape.labels)


def _check_memory(setting: TtmSetting, fibres: int, comm: Comm) -> None:
    needed, free = result_bytes(setting, fibres), available_memory() // comm.local_size
    if needed > free:
        raise InputError(
            f"the result, {fibres:,} fibres of {setting.width * setting.rank} numbers, needs {needed:,} bytes of host "
            f"memory, but {free:,} are free: {parameter('output FILE.npz', 'output=FILE.npz')} writes it in pieces"
        )


def _matrices_without(factors: Sequence[Floats], shape: Sequence[int], mode: int) -> list[Floats]:
    """Return factor matrices, with zeros as that of `mode`, which does not count."""
    check_matrices(factors, len(shape), mode)
    # A view of one number: a whole matrix could exceed memory.
    zeros = np.broadcast_to(np.zeros(1), (shape[mode], factors[0 if mode else 1].shape[1]))
    return [zeros if m == mode else factor for m, factor in enumerate(factors)]


@collective(ARGUMENTS, argument_options)
@with_options
def mttkrp(
    X: Tensor,
    factors: Sequence[Floats],
    mode: int,
    *,
    deadline: float | None = None,
    **options: Unpack[OptionNames],
) -> Floats:
    """Compute the matricized tensor times Khatri-Rao product, ``X_(mode) (U_N kr ... kr U_0)`` without ``U_mode``.

    See Kolda and Bader 2009, section 3.4; for several GPUs, AMPED (Wijeratne, Kannan and Prasanna 2025). Collective.

    Parameters
    ----------
    X : SparseTensor, DenseTensor, array or path
        See `cp_als`.
    factors : sequence of (I_n, R) arrays
        One per mode; the one of `mode` is ignored. Under ``mpirun`` rank 0's are used.
    mode : int
        Counted from 0.
    deadline : float, optional
        See `cp_als`.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
        See `amped.Options`.

    Returns
    -------
    (I_mode, R) array
        float32 or float64 according to the option `precision`; the same on every rank.

    Raises
    ------
    InputError
        If an argument or the file is invalid, or the result exceeds the range of the precision.

    Examples
    --------
    >>> import numpy as np
    >>> X, factors = np.ones((4, 3, 2)), [np.ones((length, 3)) for length in (4, 3, 2)]
    >>> mttkrp(X, factors, 0).shape
    (4, 3)
    """
    comm, budget = world(), Budget(1)
    chosen = Options(**options)
    with opened(X, comm, chosen, deadline) as (machine, source):
        if mode >= len(source.shape):
            raise InputError(f"mode {mode} is outside 0..{len(source.shape) - 1}")
        matrices = on_root(comm, lambda: _matrices_without(list(factors or ()), source.shape, mode)) or []
        rank = comm.bcast(matrices[mode].shape[1] if matrices else 1)
        machine = machine_for(machine, source, chosen, Work(rank, 1))
        operator = place(source, rank, machine, chosen, budget=budget, late=True)
        start(operator, source, init=matrices)
        result = operator.machine.agreed(operator.gathered(mode, operator.mttkrp(mode)))
        together(comm, lambda: check_result(operator, mode, result, source.value_range))
        return result
