"""The decision whether to compile: code is not compiled where NumPy takes less time than the compiler.

Code with both paths calls `Compilable.compiles` before each piece of work. The time spent without compiled code is
summed, so that repeated work is compiled eventually. Markers on disk record what this version has compiled on this
machine; then compiled code only has to be loaded.

``AMPED_COMPILE=always`` forces the compiled path, ``AMPED_COMPILE=never`` the other one where there is one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ..errors import InputError
from .cache import load_entry, new_digest, save_entry

SETTING = "AMPED_COMPILE"
ALWAYS, NEVER, AUTO = "always", "never", ""
LOADING = 0.7  # seconds to load Numba and compiled code
PACKAGE = Path(__file__).parents[1]
CPU_FACTS = ("model name", "flags", "CPU part", "Features")


@dataclass
class Compilable:
    """Code with a compiled and a plain path.

    Parameters
    ----------
    name : str
    seconds : float
        Approximate compile time.
    folders : sequence of Path
        Folders of its source files.
    """

    name: str
    seconds: float
    folders: Sequence[Path]
    _spent: dict[str, float] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)

    def compiles(self, plain: float, form: str = "") -> bool:
        """Return whether to use compiled code for work that takes about `plain` seconds longer without it.

        `form` names the variant of the code, as variants are compiled separately.
        """
        wish = _wish()
        if wish == ALWAYS:
            self.use(form)
        if wish != AUTO:
            return wish == ALWAYS
        if plain <= 0:
            return False
        if form in self._used:
            return True
        spent = self._spent[form] = self._spent.get(form, 0.0) + plain
        if spent <= self.cost(form):
            return False
        self.use(form)
        return True

    def cost(self, form: str = "") -> float:
        """Return the seconds until compiled code is available."""
        loading = 0.0 if "numba" in sys.modules else LOADING
        return loading + (0.0 if form in self._used or self._known(form) else self.seconds)

    def use(self, form: str = "") -> None:
        """Record that compiled code is used from now on."""
        self._used.add(form)
        if not self._known(form):
            save_entry(self._file(form), b"")

    def _known(self, form: str) -> bool:
        return load_entry(self._file(form)) is not None

    def _file(self, form: str) -> str:
        facts = self.name, form, _sources(*self.folders, PACKAGE / "host"), _machine()
        return f"compiled-{self.name}-{new_digest(repr(facts).encode()).hexdigest()[:40]}"


def _wish() -> str:
    wish = os.environ.get(SETTING, AUTO)
    if wish not in (ALWAYS, NEVER, AUTO):
        raise InputError(f"{SETTING}={wish}: expected {ALWAYS} or {NEVER}")
    return wish


@cache
def _sources(*folders: Path) -> str:
    """Return a digest of all source files in folders."""
    found = new_digest()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


@cache
def _machine() -> tuple[object, ...]:
    """Return what compiled code depends on besides its sources: the compiler and the CPU model."""
    compiler = find_spec("numba")
    installed = 0 if compiler is None or compiler.origin is None else os.stat(compiler.origin).st_mtime_ns
    lines = list[str]()
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if not line.strip():
                    break  # the other cores are equal
                if line.startswith(CPU_FACTS):
                    lines.append(line)
    except OSError:
        pass
    return sys.implementation.cache_tag, installed, os.uname().machine, tuple(lines)
