"""Assembly of products of sparse tensors and matrices, for `amped.ttm` and its verb."""

from __future__ import annotations

import math
import os

import numpy as np

from partitioner.host.jit import load_compiler
from partitioner.readers import is_semisparse
from partitioner.tensors.labels import Labels

from ..backend.exchange import Machine
from ..errors import InputError
from ..models.semisparse import SemiSparseTensor, metadata_arrays
from ..models.semisparse_file import RankedRows, write_parts
from ..operators.placement import check_rank
from ..operators.sources.protocols import ProductSource
from ..operators.sources.semisparse import SemiSparseProduct
from ..operators.ttm.dense import DenseModeOperator
from ..operators.ttm.operator import TtmOperator
from ..operators.ttm.plan import TtmSetting, ttm_kernel
from ..options import Options
from ..parallel.mpi import Comm, on_root
from .compiling import Work, chosen

Product = TtmOperator | DenseModeOperator


def machine_for_product(source: ProductSource, rank: int, machine: Machine, options: Options) -> Machine:
    """Return the machine for a product with a matrix of `rank` columns: with compiled code or without. Collective."""
    width = math.prod(source.shape[m] for m in source.dense)
    return chosen(machine, source, options, Work(rank * width, 1, "ttm"))


def product_setting(source: ProductSource, mode: int, rank: int, machine: Machine, options: Options) -> TtmSetting:
    """Return the setting that the plans of a product share; raise `InputError` for an invalid mode or rank."""
    order, device = len(source.shape), machine.device
    if not 0 <= mode < order:
        raise InputError(f"mode {mode} is outside 0..{order - 1}")
    check_rank(rank)
    ttm_kernel(options, device)
    if device.code_bytes:
        load_compiler()  # before memory is measured
    width = int(np.prod([source.shape[m] for m in source.dense])) if source.dense else 1
    memory = options.device_memory or device.memory(machine.comm.local_size)
    sparse, length = len(source.sparse), source.shape[mode]
    return TtmSetting(mode, rank, sparse, width, length, source.nnz, options, device, memory)


def place_product(source: ProductSource, machine: Machine, setting: TtmSetting) -> Product:
    """Place a tensor for products with matrices in one mode. Collective."""
    if setting.mode in source.dense:
        assert isinstance(source, SemiSparseProduct)
        return DenseModeOperator(source, machine, setting)
    return TtmOperator(source, machine, setting)


def open_semisparse(path: str | os.PathLike[str], comm: Comm) -> SemiSparseProduct | None:
    """Open the semi-sparse tensor in a file; None if the file is of another kind. Collective."""
    if not comm.bcast(on_root(comm, lambda: is_semisparse(path))):
        return None
    return SemiSparseProduct(on_root(comm, lambda: SemiSparseTensor.load(path, mapped=True)), comm, path)


class Shape:
    """The shape, modes and labels of a product."""

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


def write_product(path: str | os.PathLike[str], product: Product, shape: Shape, replace: bool = True) -> None:
    """Write a product in pieces, on rank 0. Collective."""
    total, parts = int(product.rows[-1]), product.parts()
    arrays = [
        RankedRows("indices", (total, shape.sparse), np.dtype(np.int32), product.coordinates),
        RankedRows("values", (total, *shape.lengths), product.options.dtype, lambda: (part.values for part in parts)),
    ]
    write_parts(path, arrays, metadata_arrays(shape.modes, shape.shape, shape.labels), product.machine.comm, replace)
