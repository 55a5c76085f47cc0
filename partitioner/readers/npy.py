"""Dense tensors in ``.npy`` files, which are mapped: elements are read where they are used."""

from __future__ import annotations

import math
import os
from os import PathLike

import numpy as np

from ..checked import open_regular
from ..dense import DenseTensor, check_elements
from ..errors import InputError
from .headers import read_header
from .npz import DAMAGED
from .pieces import naming


def read_dense(path: str | PathLike[str]) -> DenseTensor:
    """Return the tensor in an ``.npy`` file, which stays there until it is used; raise `InputError` if it is none."""
    with naming(path), open_regular(path) as file:
        try:
            shape, fortran, dtype = read_header(file)
        except DAMAGED as error:
            cause = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"damaged header of an .npy file: {cause}") from None
        check_elements(shape, dtype)
        begin, size = file.tell(), os.fstat(file.fileno()).st_size
        need = math.prod(shape) * dtype.itemsize
        if size - begin < need:
            raise InputError(f"truncated: its header promises {need:,} bytes of elements, {size - begin:,} are there")
        mapped = np.memmap(file, dtype, "r", begin, shape, "F" if fortran else "C")
        return DenseTensor(mapped, path)
