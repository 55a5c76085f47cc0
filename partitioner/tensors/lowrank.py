"""CP and Tucker models of any library: weights or a core, and factor matrices. No other library is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..array_types import Floats
from ..errors import InputError
from ..host.memory import available_memory
from .device_arrays import on_host
from .ingest import refuse_masked

BLOCK = 1 << 22  # numbers in a block of products of rows
Parts = tuple[Floats | None, list[Floats]]
"""Weights (R,), or a core with one mode per matrix, or None; and the factor matrices."""


def parts_of(model: Any) -> Parts | None:
    """Return the parts of a model of any library, or None if the object is not a model.

    A model is an object with `weights` or `core`, and `factors` (amped, TensorLy) or `factor_matrices` (pyttb); or, as
    in TensorLy, a pair of weights, a core or None, and a list of matrices.
    """
    factors = getattr(model, "factors", getattr(model, "factor_matrices", None))
    factors = getattr(model, "host_factors", factors)  # of amped, which copies them only once
    if factors is not None and hasattr(model, "weights"):
        return _parts(model.weights, factors)
    if factors is not None and hasattr(model, "core"):
        return _parts(_core(model.core), factors)
    pair = isinstance(model, (tuple, list)) and len(model) == 2 and isinstance(model[1], (tuple, list))
    if pair and len(model[1]) > 1 and all(np.ndim(each) == 2 for each in model[1]):
        return _parts(*model)
    return None


def _core(core: Any) -> Any:
    """Return the elements of a core, which in pyttb is a tensor object."""
    return (core.full() if hasattr(core, "subs") else core).data if hasattr(core, "mttkrp") else core


def _parts(head: Any, factors: Any) -> Parts:
    for number, each in enumerate(factors):
        refuse_masked(each, f"factor matrix {number}")
    matrices = [on_host(each) for each in factors]
    weights = None if head is None else on_host(head)
    if weights is not None:
        columns = [each.shape[1] for each in matrices if each.ndim == 2]
        if weights.shape not in (tuple(columns), tuple(columns[:1])):
            shapes = [each.shape for each in matrices]
            raise InputError(f"matrices of shapes {shapes} do not match {_kind(weights)} of shape {weights.shape}")
    return weights, matrices


def _kind(head: Floats) -> str:
    return "weights" if head.ndim == 1 else "a core"


def factors_of(model: object) -> list[Floats] | None:
    """Return the factor matrices of a model of any library, the first one weighted; None if it is not a model."""
    parts = parts_of(model)
    if parts is None:
        return None
    head, matrices = parts
    if head is not None and head.ndim == 1 and matrices:
        matrices[0] = matrices[0] * head
    return matrices


def full(head: Floats | None, matrices: Sequence[Floats]) -> NDArray[np.float64]:
    """Return the dense tensor of a model; raise `InputError` if memory is insufficient."""
    shape = tuple(len(each) for each in matrices)
    check_memory(shape, "this model")
    wide = [each.astype(np.float64, copy=False) for each in matrices]
    if head is not None and head.ndim > 1:
        tensor: NDArray[np.float64] = head.astype(np.float64, copy=False)
        for each in wide:
            tensor = np.tensordot(tensor, each, (0, 1))  # moves the next mode to the front
        return tensor
    return _sum_of_products(np.ones(wide[0].shape[1]) if head is None else head.astype(np.float64), wide)


def check_memory(shape: Sequence[int], what: str) -> None:
    """Raise `InputError` if a dense tensor in double precision exceeds the available memory."""
    needed = 8 * math.prod(shape)
    if needed > (available := available_memory()):
        model = f"as a dense tensor, {what} of {' x '.join(map(str, shape))}"
        raise InputError(f"{model} needs {needed:,} bytes of host memory, {available:,} are available")


def _sum_of_products(weights: NDArray[np.float64], matrices: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the dense tensor of a CP model.

    It is computed in blocks of bounded size, whose columns are the longest mode.
    """
    shape = [len(each) for each in matrices]
    last = int(np.argmax(shape))
    others = [mode for mode in range(len(shape)) if mode != last]
    lengths = [shape[mode] for mode in others]
    result = np.empty((math.prod(lengths), shape[last]))
    step = max(1, BLOCK // max(1, weights.size))
    for begin in range(0, len(result), step):
        part = np.arange(begin, min(begin + step, len(result)))
        rows = np.repeat(weights[None], part.size, axis=0)
        for mode, at in zip(others, np.unravel_index(part, lengths) if others else (), strict=True):
            rows *= matrices[mode][at]
        np.matmul(rows, matrices[last].T, out=result[begin : begin + step])
    return np.moveaxis(result.reshape(*lengths, shape[last]), -1, last)
