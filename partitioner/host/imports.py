"""Imports of SciPy, without parts of NumPy that take longer to load than it does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from threading import Lock
from typing import Any

import numpy as np

LAYER = "scipy._lib.array_api_compat.numpy"


_narrowing = Lock()


@cache
def scipy_module(name: str) -> Any:
    """Import a module of SciPy, such as ``sparse.linalg``; return it."""
    with _narrowing:  # of several threads the last one would restore what another one has shortened
        if LAYER in sys.modules:
            return import_module(f"scipy.{name}")
        with _only_loaded_names():
            return import_module(f"scipy.{name}")


@contextmanager
def _only_loaded_names() -> Iterator[None]:
    """Let NumPy list only the names that are loaded, while SciPy is imported.

    SciPy's array-API layer copies all names that NumPy lists, and so loads `numpy.f2py`, `numpy.testing` and other
    modules on the way: two thirds of the time that `scipy.sparse` takes. Names that the layer lacks are found in NumPy.
    """
    names = vars(np)
    listed: dict[str, Any] = {name: names[name] for name in ("__all__", "__dir__") if name in names}
    if len(listed) < 2:
        yield
        return
    loaded = [name for name in listed["__all__"] if name in names]
    names.update(__all__=loaded, __dir__=lambda: loaded)
    try:
        yield
    finally:
        names.update(listed)
        if LAYER in sys.modules:
            vars(sys.modules[LAYER]).setdefault("__getattr__", partial(getattr, np))
