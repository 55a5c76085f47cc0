"""Elements of a dense tensor that are already in GPU memory, where they stay."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import cupy
import numpy as np

from ..array_types import HostArray
from .statistics import ElementStatistics

SCANNED = 1 << 26  # elements scanned at a time for non-finite ones
REDUCED = 1 << 16  # elements reduced by a thread block, as CuPy uses one block per result


class GpuElements:
    """A contiguous array on the current GPU, of which parts can be copied to the host as from a file.

    Parameters
    ----------
    array : cupy.ndarray
        The array, with modes in memory order.
    """

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, np.dtype(array.dtype)

    def __getitem__(self, place: Any) -> HostArray:
        elements: HostArray = cupy.asnumpy(self.array[place])
        return elements

    def facts(self) -> ElementStatistics:
        """Return statistics of all elements."""
        flat = self.array.reshape(-1)
        low, high = _reduced(cupy.min, cupy.min, flat), _reduced(cupy.max, cupy.max, flat)  # NaN if any element is NaN
        largest = max(abs(low), abs(high))
        if not math.isfinite(low + high):
            for begin in range(0, flat.size, SCANNED):
                finite = cupy.isfinite(flat[begin : begin + SCANNED])
                if not bool(finite.all()):
                    return ElementStatistics(0.0, 0.0, 0.0, 0.0, 0, begin + int(finite.argmin()))
        if not largest:
            return ElementStatistics(low, high, 0.0, 0.0, 0, -1)
        squares, single, nonzeros = (_reduced(each, cupy.sum, flat, largest) for each in _sums())
        return ElementStatistics(low, high, squares, single, int(nonzeros), -1)


def on_gpu(array: Any) -> Any:
    """Return an array on a GPU of any library as a CuPy array without copying it."""
    array = array.detach() if hasattr(array, "detach") else array
    if isinstance(array, cupy.ndarray) or not hasattr(array, "__dlpack__"):
        return cupy.asarray(array)
    try:
        return cupy.from_dlpack(array)  # waits for the stream on which PyTorch or JAX computes the array
    except (BufferError, RuntimeError, TypeError):  # an element type that DLPack lacks
        return cupy.asarray(array)


def without_gaps(array: object) -> Any:
    """Return a C-contiguous array, copied if necessary."""
    return cupy.ascontiguousarray(array)


def _reduced(each: Any, together: Any, flat: Any, *arguments: float) -> float:
    """Return the reduction of all elements: `each` reduces parts, and `together` their results."""
    aligned = flat.size // REDUCED * REDUCED
    parts = [each(flat[:aligned].reshape(-1, REDUCED), *arguments, axis=1)] if aligned else []
    parts += [each(flat[aligned:].reshape(1, -1), *arguments, axis=1)] if aligned < flat.size else []
    return float(together(cupy.concatenate(parts)).get())


@cache
def _sums() -> tuple[object, ...]:
    """Return kernels for the scaled sums of squares of elements and of rounded elements, and the number of nonzeros."""
    exact, rounded = "(double)x / largest", "(double)(float)x / largest"
    terms = {
        "squares": f"({exact}) * ({exact})",
        "single": f"({rounded}) * ({rounded})",
        "nonzeros": "x != T(0) ? 1.0 : 0.0",
    }
    return tuple(
        cupy.ReductionKernel("T x, float64 largest", "float64 y", term, "a + b", "y = a", "0", f"amped_{name}")
        for name, term in terms.items()
    )
