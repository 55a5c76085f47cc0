"""Dense tensors in ``.npy`` files; elements are read on demand."""

from __future__ import annotations

import math
import os
from os import PathLike

from ...errors import InputError
from ...host.checksums import open_regular
from ...tensors.dense import DenseTensor, check_elements
from ...tensors.npy_file import FileElements
from ...tensors.stored import Stored
from ..pieces import cause_of, naming
from .members import read_header
from .npz import DAMAGED


def read_dense(path: str | PathLike[str]) -> DenseTensor:
    """Open the tensor in an ``.npy`` file, reading only its header; raise `InputError` if it is invalid."""
    with naming(path), open_regular(path) as file:
        try:
            shape, fortran, dtype = read_header(file)
        except DAMAGED as error:
            if not os.fstat(file.fileno()).st_size:
                raise InputError("the file is empty") from None
            raise InputError(f"damaged header of an .npy file: {cause_of(error)}") from None
        check_elements(shape, dtype)
        begin, size = file.tell(), os.fstat(file.fileno()).st_size
        needed = math.prod(shape) * dtype.itemsize
        if size - begin < needed:
            raise InputError(f"truncated: {size - begin:,} bytes of elements, expected {needed:,}")
        elements = FileElements(file, begin, shape[::-1] if fortran else shape, dtype, path)
        modes = range(len(shape))
        return DenseTensor(Stored(elements, tuple(reversed(modes) if fortran else modes)), path)
