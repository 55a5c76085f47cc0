"""Elements of a dense tensor that are in a GPU's memory already: they stay there."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from .statistics import ElementStatistics

LOOKED_AT = 1 << 26  # elements among which one that is not finite is looked for at a time
REDUCED = 1 << 16  # elements that a block of threads reduces: CuPy has one block for each result


class GpuElements:
    """An array on the current GPU, without gaps; parts of it are copied to the host, as those of a file.

    Parameters
    ----------
    array : cupy.ndarray
        With modes in memory order.
    """

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, np.dtype(array.dtype)

    def __getitem__(self, place: Any) -> NDArray[Any]:
        found: NDArray[Any] = cupy.asnumpy(self.array[place])
        return found

    def facts(self) -> ElementStatistics:
        """Return what is known of all elements."""
        flat = self.array.reshape(-1)
        low, high = _reduced(cupy.min, cupy.min, flat), _reduced(cupy.max, cupy.max, flat)  # NaN, if there is one
        largest = max(abs(low), abs(high))
        if not math.isfinite(low + high):
            for begin in range(0, flat.size, LOOKED_AT):
                finite = cupy.isfinite(flat[begin : begin + LOOKED_AT])
                if not bool(finite.all()):
                    return ElementStatistics(0.0, 0.0, 0.0, 0.0, 0, begin + int(finite.argmin()))
        if not largest:
            return ElementStatistics(low, high, 0.0, 0.0, 0, -1)
        squares, single, nonzeros = (_reduced(each, cupy.sum, flat, largest) for each in _sums())
        return ElementStatistics(low, high, squares, single, int(nonzeros), -1)


def on_gpu(array: Any) -> Any:
    """Return an array of any library on a GPU as CuPy's, where it is."""
    return cupy.asarray(array.detach() if hasattr(array, "detach") else array)


def without_gaps(array: Any) -> Any:
    """Return an array whose last mode varies fastest: a copy, if it is not like that."""
    return cupy.ascontiguousarray(array)


def _reduced(each: Any, together: Any, flat: Any, *given: float) -> float:
    """Return what a reduction makes of all elements, from what it makes of parts of them."""
    whole = flat.size // REDUCED * REDUCED
    parts = [each(flat[:whole].reshape(-1, REDUCED), *given, axis=1)] if whole else []
    parts += [each(flat[whole:].reshape(1, -1), *given, axis=1)] if whole < flat.size else []
    return float(together(cupy.concatenate(parts)).get())


@cache
def _sums() -> tuple[Any, ...]:
    """Return what adds up squares of elements and of rounded ones, over the largest, and counts what is not 0."""
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
