"""The one way in which host kernels are compiled: no Python objects, no GIL, cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` with Numba so that threads run it side by side and later runs start at once."""
    compiled: Callable[..., Any] = numba.njit(nogil=True, cache=True)(function)
    return compiled


@jit
def _nothing() -> None:
    return


def load_compiler() -> None:
    """Load what every compiled kernel needs, so that memory measured after it is the data's own."""
    _nothing()
