"""Sparse tensors times matrices, in Python."""

from __future__ import annotations

import os
from typing import Any, Unpack

import numpy as np
import psutil
from numpy.typing import NDArray

from partitioner.tensors.lowrank import on_host
from partitioner.tensors.sparse import refuse_masked

from ..backend.exchange import Machine
from ..errors import InputError
from ..methods.initial import checked_matrix
from ..models.semisparse import SemiSparseTensor
from ..operators.sources.protocols import ProductSource
from ..operators.sources.semisparse import SemiSparseProduct
from ..operators.ttm.dense import DenseModeOperator
from ..operators.ttm.operator import TtmOperator
from ..operators.ttm.plan import TtmSetting, result_bytes
from ..options import OptionNames, Options, with_options
from ..parallel.calls import Argument, collective
from ..parallel.mpi import Comm, on_root, share, together, world
from ..runs.assembly import bring_up, open_tensor, watched
from ..runs.products import Shape, open_semisparse, place_product, product_setting, write_product
from .arguments import ARGUMENTS, argument_options

Product = TtmOperator | DenseModeOperator


def _operand(name: str, given: Any) -> Any:
    if given is None or isinstance(given, SemiSparseTensor):
        return given
    return ARGUMENTS["X"].convert(name, given)


def _matrix(name: str, given: Any) -> Any:
    if given is None:
        return None
    try:
        refuse_masked(given, name)
        return on_host(given)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected a matrix: {error}") from None


PRODUCTS = {
    **ARGUMENTS,
    "X": ARGUMENTS["X"]._replace(convert=_operand),
    "matrix": Argument(_matrix, lambda given: f"a matrix of shape {np.shape(given)}", of_root=True),
    "output": Argument(lambda _, given: None if given is None else os.fspath(given)),
}
"""How the arguments of `ttm` are taken, but for options."""


@collective(PRODUCTS, argument_options)
@with_options
def ttm(
    X: Any,
    matrix: NDArray[Any],
    mode: int,
    *,
    output: str | os.PathLike[str] | None = None,
    deadline: float | None = None,
    **options: Unpack[OptionNames],
) -> SemiSparseTensor | str:
    """Multiply a sparse tensor with a matrix in one mode: ``sum_i X[..., i, ...] matrix[i, r]`` (SpTTM).

    See Li, Ma, Yan and Vuduc 2016, section III.

    Parameters
    ----------
    X : SparseTensor, SemiSparseTensor, array or path
        The tensor. A semi-sparse one may be multiplied in any mode: so products are chained. Under ``mpirun`` rank 0's
        tensor counts; others may pass None.
    matrix : (I_mode, R) array
        R from 1 to 1024. Under ``mpirun`` rank 0's counts.
    mode : int
        Counted from 0.
    output : path, optional
        Write the result to this ``.npz`` file, in pieces, on rank 0: where it is larger than memory. A file that is
        there is replaced.
    deadline : float, optional
        See `cp_als`.
    device, precision, placement, kernel, deterministic, device_memory, threads, gather, workspace : optional
        See `amped.Options`.

    Returns
    -------
    SemiSparseTensor or str
        The same on every rank: I_mode is replaced by R, and `mode` is dense. Of a chain, its dense modes are in the
        order in which they were multiplied. With `output`, the path of the file.

    Raises
    ------
    InputError
        If an argument or the file is at fault, memory has no room for the result, or it is beyond the precision.

    Examples
    --------
    >>> y = ttm(X, U, 2)  # doctest: +SKIP
    >>> z = ttm(y, V, 0)  # doctest: +SKIP
    """
    comm, chosen = world(), Options(**options)
    with watched(comm, deadline) as aborts:
        machine = bring_up(chosen, comm)
        aborts.append(machine.exchange.abort)
        source = _opened(X, machine, chosen)
        rank = comm.bcast(np.shape(matrix)[1] if comm.rank == 0 and np.ndim(matrix) == 2 else 0)
        if not rank:
            raise InputError(f"matrix of shape {comm.bcast(np.shape(matrix))}: expected (I_mode, R)")
        setting = product_setting(source, mode, rank, machine, chosen)
        wanted = source.shape[mode], rank
        ready = on_root(comm, lambda: checked_matrix(np.asarray(matrix), "matrix", wanted, chosen.dtype))
        product, shape = place_product(source, machine, setting), Shape(source, setting)
        product.set_matrix(share(comm, ready))
        if output is None:
            return _result(product, shape, setting)
        write_product(output, product, shape)
        return os.fspath(output)


def _opened(X: Any, machine: Machine, options: Options) -> ProductSource:
    """Return where the nonzeros of what a caller gave come from. Collective."""
    comm = machine.comm
    if comm.bcast(getattr(X, "kind", None)) == SemiSparseTensor.kind:
        return SemiSparseProduct(X, comm)
    path = comm.bcast(X if isinstance(X, str) else None)
    if path is not None and (semisparse := open_semisparse(path, comm)) is not None:
        return semisparse
    return open_tensor(X, machine, options).product()


def _result(product: Product, shape: Shape, setting: TtmSetting) -> SemiSparseTensor:
    """Return a whole product on every rank. Collective."""
    comm, rows = product.machine.comm, product.rows
    total, begin = int(rows[-1]), int(rows[comm.rank])
    together(comm, lambda: _check_room(setting, total, comm))
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
    found = values.reshape(total, *shape.lengths)
    return SemiSparseTensor.of_result(indices, found, shape.modes, shape.shape, shape.labels)


def _check_room(setting: TtmSetting, fibres: int, comm: Comm) -> None:
    needed, free = result_bytes(setting, fibres), psutil.virtual_memory().available // comm.local_size
    if needed > free:
        raise InputError(
            f"the result, {fibres:,} fibres of {setting.width * setting.rank} numbers, needs {needed:,} bytes of host "
            f"memory, {free:,} are there: output=FILE.npz (--output) writes it in pieces"
        )
