"""Numba's dispatchers of host kernels, with a cache on disk. Loading this module loads Numba; see `jit`.

Numba's own cache has three faults: it lies beside the source, so each environment compiles anew; it notices changes
only in a function's own file; and ranks that write its index at the same time corrupt it. Here the name of a cache
file is a digest of everything its content depends on, so a file that is found is valid and never changes.

Numba gives compiled forms as pickles, which can run any code when they are read: they are only read from a folder, and
a file, that nobody else can write to (`private`).
"""

from __future__ import annotations

import pickle
import re
import sys
import threading
from functools import cache
from hashlib import sha256
from importlib.util import resolve_name
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite
import numba
from numba.core import event
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.extending import typeof_impl

from ..errors import InputError
from .cache import Reservation, keep, kept
from .stages import STAGES

_IMPORTS = re.compile(r"^from (\S+) import (.+)", re.MULTILINE)


def dispatcher(function: FunctionType, no_cpython_wrapper: bool, reorders: bool = False) -> Any:
    """Return what compiles a function for the types that it is called with, or finds its compiled forms on disk."""
    if numba.config.DISABLE_JIT:
        raise InputError("NUMBA_DISABLE_JIT is set: amped's kernels run only where Numba compiles them; unset it")
    fast = {"reassoc", "nsz", "contract", "nnan"} if reorders else False
    make = numba.njit(nogil=True, no_cfunc_wrapper=True, no_cpython_wrapper=no_cpython_wrapper, fastmath=fast)
    made = make(function)
    made._cache = _Cache(function)
    return made


@cache
def let_call(kind: type) -> None:
    """Let compiled code call objects of a class, by their attribute `dispatcher`."""
    typeof_impl.register(kind)(lambda value, context: typeof_impl(value.dispatcher, context))


class _Cache(NullCache):  # type: ignore[misc]
    """The cache that Numba asks for a function's compiled forms: one file per signature.

    Of processes that lack the same form at once, as ranks do that start together, one compiles it.
    """

    def __init__(self, function: FunctionType) -> None:
        self._function, self._reservations = function, dict[str, Reservation]()

    def load_overload(self, types: Any, context: Any) -> Any:
        """Return the compiled form for these types and this CPU type, or None."""
        with STAGES.of("compile"):
            rtsys.initialize(context)  # the runtime of compiled code; loading the whole compiler takes another 0.4 s
            stored = self._stored(self._name(types, context.codegen()))
            return None if stored is None else CompileResult._rebuild(context, *pickle.loads(stored))

    def _stored(self, name: str) -> bytes | None:
        """Return what is on disk; if it is missing, reserve its name until it is saved.

        A name that this process has reserved already is that of a compilation which was interrupted.
        """
        if (stored := kept(name)) is None and name not in self._reservations:
            reservation = Reservation(name)
            if (stored := kept(name)) is None:
                self._reservations[name] = reservation
            else:
                reservation.release()
        return stored

    def save_overload(self, types: Any, compiled: Any) -> None:
        """Cache a compiled form; ignore a disk that refuses it."""
        name = self._name(types, compiled.codegen)
        if not (compiled.lifted or compiled.library.has_dynamic_globals):
            keep(name, dumps(compiled._reduce()))
        if reservation := self._reservations.pop(name, None):
            reservation.release()

    def _name(self, types: Any, codegen: Any) -> str:
        function = self._function
        versions = numba.__version__, llvmlite.__version__, sys.implementation.cache_tag
        place = function.__module__, function.__qualname__, function.__code__.co_firstlineno
        facts = versions, codegen.magic_tuple(), _sources(function.__module__), place, str(types)
        digest = sha256(repr(facts).encode()).hexdigest()
        return f"{function.__module__}.{function.__qualname__}-{digest[:40]}.nbc"


class _Counted(event.Listener):  # type: ignore[misc]
    """Counts what Numba compiles as a stage of the thread that asks for it."""

    def __init__(self) -> None:
        self._mine = threading.local()

    def on_start(self, event: Any) -> None:
        stage = STAGES.of("compile")
        stage.__enter__()
        self._mine.__dict__.setdefault("stages", []).append(stage)

    def on_end(self, event: Any) -> None:
        self._mine.stages.pop().__exit__(None, None, None)


event.register("numba:compile", _Counted())


@cache
def _sources(name: str) -> str:
    """Return a digest of the sources of a module, of this one, and of what they import from both packages."""
    packages = name.partition(".")[0], __name__.partition(".")[0]
    found, left = dict[str, str](), [name, __name__]
    while left:
        module = sys.modules[left.pop()]
        assert module.__file__ is not None
        assert module.__package__ is not None
        found[module.__name__] = source = Path(module.__file__).read_text("utf-8")
        for origin, names in _IMPORTS.findall(source):
            base = resolve_name(origin, module.__package__)
            if base.partition(".")[0] in packages:
                imported = {base, *(f"{base}.{each.strip()}" for each in names.split(","))}
                left += imported & sys.modules.keys() - found.keys()
    return sha256(repr(sorted(found.items())).encode()).hexdigest()
