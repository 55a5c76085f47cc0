"""The one way in which host kernels are compiled: no Python objects, no GIL, cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` with Numba so that threads run it side by side and later runs start at once."""
    compiled: Callable[..., Any] = numba.njit(nogil=True, cache=True)(function)
    return compiled
