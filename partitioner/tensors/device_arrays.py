"""Arrays of any library that may be in a GPU's memory. No other library is imported."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

CUDA = 2, 13  # types of DLPack devices: CUDA memory, and managed CUDA memory


def is_on_gpu(array: Any) -> bool:
    """Return whether an array is in a GPU's memory."""
    if isinstance(array, np.ndarray):
        return False
    array = array.detach() if hasattr(array, "detach") else array  # otherwise PyTorch exports nothing
    if hasattr(array, "__cuda_array_interface__"):
        return True
    return is_exported(array) and int(array.__dlpack_device__()[0]) in CUDA


def is_exported(array: Any) -> bool:
    """Return whether an array of another library is accessible by DLPack only."""
    return hasattr(array, "__dlpack_device__") and not hasattr(array, "__array__")


def on_host(array: Any) -> NDArray[Any]:
    """Return an array as a NumPy array, copied to host memory if another library holds it on a GPU."""
    if hasattr(array, "detach"):  # PyTorch
        array = array.detach().cpu()
    elif is_on_gpu(array):
        if not hasattr(array, "get") and not hasattr(array, "__array__"):  # it only exports its memory
            from .gpu_elements import on_gpu

            array = on_gpu(array)
        array = array.get() if hasattr(array, "get") else array  # JAX copies in `__array__`
    return np.from_dlpack(array) if is_exported(array) else np.asarray(array)
