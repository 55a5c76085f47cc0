"""Numba dispatchers of host kernels, with their own cache on disk. Importing this module imports Numba; see `jit`.

Numba's own cache has three faults: it lies beside the source, so each environment compiles again; it detects changes
only in a function's own file; and ranks that write its index at the same time corrupt it. Here the name of a cache
entry contains a digest of everything it depends on (see `cache`).

Numba serialises compiled code as pickles, which can run any code when they are loaded. Therefore entries are only read
from private files in a private folder.
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
from numba.core.entrypoints import init_all
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.extending import typeof_impl

from ..errors import InputError
from .cache import Reservation, load_entry, save_entry
from .stages import COMPILATIONS, STAGES

_IMPORTS = re.compile(r"^from (\S+) import (.+)", re.MULTILINE)


def dispatcher(function: FunctionType, no_cpython_wrapper: bool, reorders: bool = False) -> Any:
    """Return a Numba dispatcher, which compiles `function` for each argument type or loads it from the cache."""
    if numba.config.DISABLE_JIT:
        raise InputError("NUMBA_DISABLE_JIT is set: amped's kernels run only where Numba compiles them; unset it")
    fast = {"reassoc", "nsz", "contract", "nnan"} if reorders else False
    compile_function = numba.njit(
        nogil=True, no_cfunc_wrapper=True, no_cpython_wrapper=no_cpython_wrapper, fastmath=fast
    )
    compiled = compile_function(function)
    compiled._cache = _Cache(function)
    return compiled


def initialise(kind: type) -> None:
    """Initialise Numba's runtime; let compiled code call instances of a class through their attribute `dispatcher`."""
    init_all()  # extensions of Numba that other packages have, which the first function would load
    cpu_target.target_context.codegen()  # the engine that runs compiled code
    rtsys.initialize(cpu_target.target_context)  # the runtime only: the compiler takes another 0.4 s
    typeof_impl.register(kind)(lambda value, context: typeof_impl(value.dispatcher, context))


class _Cache(NullCache):  # type: ignore[misc]
    """Numba's cache interface for one function: one cache entry per signature.

    If several processes need the same missing entry, as ranks do at the start, only one compiles it.
    """

    def __init__(self, function: FunctionType) -> None:
        self._function, self._reservations = function, dict[str, Reservation]()

    def load_overload(self, types: Any, context: Any) -> Any:
        """Return the compiled code for these types and this CPU, or None."""
        with STAGES.of("compile"):
            stored = self._stored(self._name(types, context.codegen()))
            return None if stored is None else CompileResult._rebuild(context, *pickle.loads(stored))

    def _stored(self, name: str) -> bytes | None:
        """Return the cached data. If it is missing, reserve the entry until it is saved.

        An entry that this process has reserved already belongs to a compilation that was interrupted.
        """
        if (stored := load_entry(name)) is None and name not in self._reservations:
            reservation = Reservation(name)
            if (stored := load_entry(name)) is None:
                self._reservations[name] = reservation
            else:
                reservation.release()
        return stored

    def save_overload(self, types: Any, compiled: Any) -> None:
        """Cache compiled code. Ignore errors of the disk."""
        name = self._name(types, compiled.codegen)
        if not (compiled.lifted or compiled.library.has_dynamic_globals):
            save_entry(name, dumps(compiled._reduce()))
        if reservation := self._reservations.pop(name, None):
            reservation.release()

    def _name(self, types: Any, codegen: Any) -> str:
        function = self._function
        versions = numba.__version__, llvmlite.__version__, sys.implementation.cache_tag
        place = function.__module__, function.__qualname__, function.__code__.co_firstlineno
        dependencies = versions, codegen.magic_tuple(), _sources(function.__module__), place, str(types)
        digest = sha256(repr(dependencies).encode()).hexdigest()
        return f"{function.__module__}.{function.__qualname__}-{digest[:40]}.nbc"


class _CompileTimer(event.Listener):  # type: ignore[misc]
    """Counts the time of Numba compilations as a stage of the compiling thread."""

    def __init__(self) -> None:
        self._mine = threading.local()

    def on_start(self, event: object) -> None:
        COMPILATIONS.begin()
        stage = STAGES.of("compile")
        stage.__enter__()
        self._mine.__dict__.setdefault("stages", []).append(stage)

    def on_end(self, event: object) -> None:
        self._mine.stages.pop().__exit__(None, None, None)
        COMPILATIONS.end()


event.register("numba:compile", _CompileTimer())


@cache
def _sources(name: str) -> str:
    """Return a digest of the sources of a module, of this one, and of their imports from both packages."""
    packages = name.partition(".")[0], __name__.partition(".")[0]
    sources, pending = dict[str, str](), [name, __name__]
    while pending:
        module = sys.modules[pending.pop()]
        assert module.__file__ is not None
        assert module.__package__ is not None
        sources[module.__name__] = source = Path(module.__file__).read_text("utf-8")
        for origin, names in _IMPORTS.findall(source):
            base = resolve_name(origin, module.__package__)
            if base.partition(".")[0] in packages:
                imported = {base, *(f"{base}.{each.strip()}" for each in names.split(","))}
                pending += imported & sys.modules.keys() - sources.keys()
    return sha256(repr(sorted(sources.items())).encode()).hexdigest()
