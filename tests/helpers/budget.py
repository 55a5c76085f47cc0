"""A pytest plugin that counts the variants of host kernels that a run compiles or loads, and fails above a budget.

A variant is a compiled form, for one set of argument types, of a kernel that takes `lanes`, the vectors of a row. These
kernels are compiled for each order, precision, rank and kind of sums, which takes about three seconds. Forms loaded
from the cache on disk count as well, so the number does not depend on the cache. Workers of xdist send their variants;
a variant that several workers compile counts once. Under mpirun each rank counts separately. Variants of subprocesses
do not count.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest

from partitioner.host.jit import Compiled

BUDGET = 70
WITH_SHARED = 76
"""Where tensors that are not redistributed are present: tests load them at further orders and ranks."""
KEY = "variants"


def variants() -> set[str]:
    """Return the variants that this process has compiled or loaded: names of kernels, with types."""
    values = [
        value for module in list(sys.modules.values()) for value in list(getattr(module, "__dict__", {}).values())
    ]
    kernels = {id(value): value for value in values if isinstance(value, Compiled) and value._dispatcher is not None}
    kernels = {k: kernel for k, kernel in kernels.items() if "lanes" in inspect.signature(kernel._function).parameters}
    names = {k: f"{kernel._function.__module__}.{kernel._function.__qualname__}" for k, kernel in kernels.items()}
    return {f"{names[k]}{types}" for k, kernel in kernels.items() for types in kernel.dispatcher.signatures}


class Budget:
    """The plugin's hooks, with the variants of all workers."""

    def __init__(self, most: float = BUDGET) -> None:
        self._most, self._variants = most, set[str]()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the variants of a worker of xdist."""
        self._variants |= set(getattr(node, "workeroutput", {}).get(KEY, ()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail if there are too many variants; a worker sends its own."""
        self._variants |= variants()
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[KEY] = sorted(self._variants)
        elif len(self._variants) > self._most and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the number of variants, and their names if there are too many."""
        if not self._variants:
            return
        over = len(self._variants) > self._most
        terminalreporter.section("variants of host kernels", sep="=", red=over)
        for variant in sorted(self._variants) if over else ():
            terminalreporter.line(variant)
        verdict = "FAILED variants of host kernels: " if over else ""
        terminalreporter.line(f"{verdict}{len(self._variants)} compiled or loaded, of at most {self._most}")
