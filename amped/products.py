"""Sparse tensors times matrices: `amped.ttm`, and what its verb does alike."""

from __future__ import annotations

import os
from typing import Any, Unpack

import numpy as np
import psutil
from numpy.typing import NDArray

from partitioner.coo import refuse_masked
from partitioner.labels import Labels
from partitioner.readers import is_semisparse

from .api import ARGUMENTS, argument_options
from .assembly import bring_up, open_tensor, watched
from .backend.exchange import Machine
from .decomp.initial import checked_matrix
from .errors import InputError
from .models.semisparse import SemiSparseTensor, facts_of
from .models.semisparse_file import Rows, write_parts
from .operators.dense_source import DenseSource
from .operators.placement import check_rank
from .operators.semisparse import ProductSource, SemiSparseProduct, SparseProduct
from .operators.ttm import TtmOperator
from .operators.ttm_dense import DenseModeOperator
from .operators.ttm_plan import TtmSetting, result_bytes, ttm_kernel
from .options import OptionNames, Options, with_options
from .parallel.calls import Argument, collective
from .parallel.mpi import Comm, on_root, share, together, world

Product = TtmOperator | DenseModeOperator


def product_setting(source: ProductSource, mode: int, rank: int, machine: Machine, options: Options) -> TtmSetting:
    """Return what the plans of a product have in common; raise `InputError` if there is no such mode or rank."""
    order, device = len(source.shape), machine.device
    if not 0 <= mode < order:
        raise InputError(f"mode {mode} is outside 0..{order - 1}")
    check_rank(rank)
    ttm_kernel(options, device)
    width = int(np.prod([source.shape[m] for m in source.dense])) if source.dense else 1
    memory = options.device_memory or device.memory(machine.comm.local_size)
    sparse, length = len(source.sparse), source.shape[mode]
    return TtmSetting(mode, rank, sparse, width, length, source.nnz, options, device, memory)


def place_product(source: ProductSource, machine: Machine, setting: TtmSetting) -> Product:
    """Place a tensor to be multiplied with matrices in one mode. Collective."""
    if setting.mode in source.dense:
        assert isinstance(source, SemiSparseProduct)
        return DenseModeOperator(source, machine, setting)
    return TtmOperator(source, machine, setting)


def product_source(source: Any) -> SparseProduct:
    """Return a sparse tensor as what is multiplied; raise `InputError` if it is dense."""
    if isinstance(source, DenseSource):
        raise InputError("a dense tensor: ttm takes sparse and semi-sparse ones", path=source.path)
    return SparseProduct(source)


def open_semisparse(path: str | os.PathLike[str], comm: Comm) -> SemiSparseProduct | None:
    """Open the semi-sparse tensor in a file; None if it is no such file. Collective."""
    if not comm.bcast(on_root(comm, lambda: is_semisparse(path))):
        return None
    return SemiSparseProduct(on_root(comm, lambda: SemiSparseTensor.load(path)), comm, path)


class Shape:
    """What a product is, but for its fibres."""

    def __init__(self, source: ProductSource, setting: TtmSetting) -> None:
        mode, dense = setting.mode, source.dense
        self.modes = dense if mode in dense else (*dense, mode)
        self.shape = tuple(setting.rank if m == mode else n for m, n in enumerate(source.shape))
        self.lengths = tuple(self.shape[m] for m in self.modes)
        self.sparse = len(self.shape) - len(self.modes)
        self.labels: Labels | None = None
        if source.labels is not None:
            numbers = np.arange(setting.rank, dtype=np.int64)
            known = (numbers if m == mode else each for m, each in enumerate(source.labels))
            self.labels = Labels(known, source.labels.names)


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


def write_product(path: str | os.PathLike[str], product: Product, shape: Shape, replace: bool = True) -> None:
    """Write a product in pieces, on rank 0. Collective."""
    total, parts = int(product.rows[-1]), product.parts()
    arrays = [
        Rows("indices", (total, shape.sparse), np.dtype(np.int32), product.coordinates),
        Rows("values", (total, *shape.lengths), product.options.dtype, lambda: (part.values for part in parts)),
    ]
    write_parts(path, arrays, facts_of(shape.modes, shape.shape, shape.labels), product.machine.comm, replace)


def _operand(name: str, given: Any) -> Any:
    if given is None or isinstance(given, SemiSparseTensor):
        return given
    return ARGUMENTS["X"].convert(name, given)


def _shown_operand(tensor: Any) -> str:
    if isinstance(tensor, SemiSparseTensor):
        return repr(tensor)
    shown = ARGUMENTS["X"].shown
    assert shown is not None
    return shown(tensor)


def _matrix(name: str, given: Any) -> Any:
    if given is None:
        return None
    try:
        refuse_masked(given, name)
        return np.asarray(given)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected a matrix: {error}") from None


PRODUCTS = {
    **ARGUMENTS,
    "X": Argument(_operand, _shown_operand, of_root=True),
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
    if comm.bcast(isinstance(X, SemiSparseTensor)):
        return SemiSparseProduct(X if isinstance(X, SemiSparseTensor) else None, comm)
    path = comm.bcast(X if isinstance(X, str) else None)
    if path is not None and (semisparse := open_semisparse(path, comm)) is not None:
        return semisparse
    return product_source(open_tensor(X, machine, options))
