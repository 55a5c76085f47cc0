"""Models of any library: weights or a core, and factor matrices. None of these libraries is imported for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from ..errors import InputError
from .sparse import refuse_masked

Parts = tuple[NDArray[Any] | None, list[NDArray[Any]]]
"""Weights (R,), a core of as many modes as there are matrices, or None; and the matrices."""


def on_host(given: Any) -> NDArray[Any]:
    """Return an array of NumPy's; of one that PyTorch or CuPy holds, a copy in the host's memory."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
    found: NDArray[Any] = np.asarray(given.get() if hasattr(given, "__cuda_array_interface__") else given)
    return found


def parts_of(given: Any) -> Parts | None:
    """Return what a model of any library is made of; None if it is none.

    A model is an object with `weights` or `core`, and `factors` (amped, TensorLy) or `factor_matrices` (pyttb); or a
    pair of such, as TensorLy has it: weights or a core, or None, and a list of matrices.
    """
    factors = getattr(given, "factors", getattr(given, "factor_matrices", None))
    if factors is not None and hasattr(given, "weights"):
        return _parts(given.weights, factors)
    if factors is not None and hasattr(given, "core"):
        return _parts(_core(given.core), factors)
    pair = isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[1], (tuple, list))
    if pair and len(given[1]) > 1 and all(np.ndim(each) == 2 for each in given[1]):
        return _parts(*given)
    return None


def _core(core: Any) -> Any:
    """Return the elements of a core: pyttb has tensors of its own."""
    return (core.full() if hasattr(core, "subs") else core).data if hasattr(core, "mttkrp") else core


def _parts(head: Any, factors: Any) -> Parts:
    for number, each in enumerate(factors):
        refuse_masked(each, f"factor matrix {number}")
    matrices = [on_host(each) for each in factors]
    found = None if head is None else on_host(head)
    if found is not None:
        columns = [each.shape[1] for each in matrices if each.ndim == 2]
        if found.shape not in (tuple(columns), tuple(columns[:1])):
            shapes = [each.shape for each in matrices]
            raise InputError(f"matrices of shapes {shapes} do not go with {_kind(found)} of shape {found.shape}")
    return found, matrices


def _kind(head: NDArray[Any]) -> str:
    return "weights" if head.ndim == 1 else "a core"


def factors_of(given: Any) -> list[NDArray[Any]] | None:
    """Return the factor matrices of a model of any library, its weights in the first one; None if it is none."""
    parts = parts_of(given)
    if parts is None:
        return None
    head, matrices = parts
    if head is not None and head.ndim == 1 and matrices:
        matrices[0] = matrices[0] * head
    return matrices


def full(head: NDArray[Any] | None, matrices: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return the dense tensor that a model stands for; refuse one that memory has no room for."""
    shape, columns = tuple(len(each) for each in matrices), matrices[0].shape[1]
    last = int(np.argmax(shape))
    need = 8 * math.prod(shape) * (1 + columns / shape[last])
    if need > (room := psutil.virtual_memory().available):
        told = f"as a dense tensor, this model of {' x '.join(map(str, shape))}"
        raise InputError(f"{told} needs {need:,.0f} bytes of host memory, {room:,} are there")
    wide = [each.astype(np.float64, copy=False) for each in matrices]
    if head is not None and head.ndim > 1:
        found: NDArray[np.float64] = head.astype(np.float64, copy=False)
        for each in wide:
            found = np.tensordot(found, each, (0, 1))  # the next mode comes first
        return found
    rows = np.ones((1, columns)) if head is None else head[None, :].astype(np.float64)
    for mode, each in enumerate(wide):
        if mode != last:
            rows = (rows[:, None, :] * each[None, :, :]).reshape(-1, columns)
    others = [length for mode, length in enumerate(shape) if mode != last]
    return np.moveaxis((rows @ wide[last].T).reshape(*others, shape[last]), -1, last)
