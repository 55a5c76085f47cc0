"""Compile host kernels with Numba: nopython mode, without the GIL, cached on disk.

Numba is loaded when the first of them is called: that takes as long as all else that a run without kernels does.

Compiled functions may take many parameters: each array is one, as nopython mode knows no objects of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from threading import Lock
from types import FunctionType
from typing import Any

from .stages import STAGES

_making = Lock()


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a module-level function without the GIL, cached on disk."""
    return Compiled(function, no_cpython_wrapper=False)


def inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` for calls from compiled code only: without Python wrappers, a tenth of the compile time."""
    return Compiled(function, no_cpython_wrapper=True)


def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile as `jit` does a function that may add up in any order, and whose result counts only without NaN."""
    return Compiled(function, no_cpython_wrapper=False, reorders=True)


class Compiled:
    """A function that is compiled when it is first called, from Python or from compiled code."""

    def __init__(self, function: Callable[..., Any], *, no_cpython_wrapper: bool, reorders: bool = False) -> None:
        assert isinstance(function, FunctionType)
        assert function.__closure__ is None  # captured values are not in the cache file's name
        self._function, self._inner, self._reorders, self._made = function, no_cpython_wrapper, reorders, None
        update_wrapper(self, function)

    @property
    def dispatcher(self) -> Any:
        """What Numba compiles and calls."""
        if self._made is None:
            with _making, STAGES.of("import"):
                from .numba_code import dispatcher, let_call

                let_call(Compiled)
                self._made = self._made or dispatcher(self._function, self._inner, self._reorders)
        return self._made

    def __call__(self, *arguments: Any) -> Any:
        return self.dispatcher(*arguments)


@jit
def _nothing() -> None:
    return


def load_compiler() -> None:
    """Load Numba and its runtime, so that memory measured afterwards is the data's own."""
    _nothing()
