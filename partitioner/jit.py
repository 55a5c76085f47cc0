"""The one way in which host kernels are compiled: no Python objects, no GIL, cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile `function` with Numba so that threads run it side by side and later runs start at once."""
    compiled: F = numba.njit(nogil=True, cache=True)(function)
    return compiled
