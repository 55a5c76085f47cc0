"""Compile host kernels with Numba: nopython mode, without the GIL, cached on disk.

Numba is imported at the first call of a kernel, as importing it takes as long as a whole run without kernels.

Compiled functions may have many parameters, as nopython mode cannot take our objects: each array is a parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from threading import Lock
from types import FunctionType
from typing import Any

from .memory import resident_memory
from .quiet import quieten, without_colours
from .stages import STAGES

_dispatcher_lock, _loading = Lock(), Lock()


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a module-level function without the GIL, cached on disk."""
    return Compiled(function, no_cpython_wrapper=False)


def inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` for calls from compiled code only, which takes a tenth of the compile time of `jit`."""
    return Compiled(function, no_cpython_wrapper=True)


def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile like `jit`, allowing sums in any order and assuming that no NaN occurs."""
    return Compiled(function, no_cpython_wrapper=False, reorders=True)


class Compiled:
    """A function compiled at its first call, from Python or from compiled code."""

    def __init__(self, function: Callable[..., Any], *, no_cpython_wrapper: bool, reorders: bool = False) -> None:
        assert isinstance(function, FunctionType)
        assert function.__closure__ is None  # the name of the cache file does not depend on captured values
        self._function, self._inner, self._reorders, self._dispatcher = function, no_cpython_wrapper, reorders, None
        update_wrapper(self, function)

    @property
    def dispatcher(self) -> Any:
        """The Numba dispatcher of the function."""
        if self._dispatcher is None:
            load_compiler()
            from .numba_code import dispatcher

            with _dispatcher_lock:
                self._dispatcher = self._dispatcher or dispatcher(self._function, self._inner, self._reorders)
        return self._dispatcher

    def __call__(self, *arguments: object) -> Any:
        return self.dispatcher(*arguments)


_compiler_bytes: int | None = None


def load_compiler() -> None:
    """Import Numba and initialise its runtime, once, and measure the memory that this takes."""
    global _compiler_bytes
    with _loading:
        if _compiler_bytes is not None:
            return
        with STAGES.of("import"):
            quieten("numba")  # at level DEBUG it logs each instruction
            before = resident_memory()
            with without_colours():
                from .numba_code import initialise

            initialise(Compiled)
            _compiler_bytes = max(0, resident_memory() - before)


def compiler_bytes() -> int:
    """Return by how much loading the compiler increased the resident memory of this process; 0 before it is loaded."""
    return _compiler_bytes or 0
