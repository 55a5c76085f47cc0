"""Multiple starts of a method, of which the best is kept, as alternating methods end in local optima."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..models.history import M_co
from .driver import Method, MethodState, never


class Restartable(Method, Protocol):
    """A method that can be restarted."""

    def merit(self) -> float:
        """Return the quality of the decomposition: larger is better; minus infinity before the first iteration."""

    def restart(self, state: MethodState | None = None) -> None:
        """Discard the last run; the caller then sets other factor matrices, which belong to `state` if given."""


class Decomposition(Restartable, Protocol[M_co]):
    """A restartable method with a known type of model."""

    def model(self) -> M_co:
        """See `Method`."""


def best_of(
    method: Restartable,
    count: int,
    begin: Callable[[int], None],
    go: Callable[[], None],
    stop: Callable[[], bool] = never,
) -> tuple[int, list[float]]:
    """Run a method from `count` starts and restore the best; return its number and all merits. Collective.

    `begin` sets the factor matrices of a start, `go` runs the method from there, and `stop`, called after each start,
    ends the loop if it returns True.
    """
    merits, kept = list[float](), None
    for number in range(count):
        if number:
            method.restart()
        begin(number)
        go()
        merits.append(method.operator.machine.everyone.bcast(method.merit()))
        if count == 1:
            return 0, merits
        if merits[-1] > max(merits[:-1], default=-float("inf")) or kept is None:
            kept = number, method.state.copy(), [method.factor(mode) for mode in range(method.order)]
        if stop():
            break
    assert kept is not None
    best, state, factors = kept
    method.restart(state)
    for mode, factor in enumerate(factors):
        method.operator.set_factor(mode, factor)
    return best, merits
