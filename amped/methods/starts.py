"""Several starts of one method, of which the best is kept: alternating methods end in a local optimum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..models.history import M_co
from .driver import Method, MethodState, never


class Restartable(Method, Protocol):
    """A method that can start again."""

    def merit(self) -> float:
        """Return how good the decomposition is so far: larger is better; minus infinity before the first iteration."""

    def restart(self, state: MethodState | None = None) -> None:
        """Forget the last run; the operator is given other factor matrices, and these go on from a state, if any."""


class Decomposition(Restartable, Protocol[M_co]):
    """A method whose model is of one kind."""

    def model(self) -> M_co:
        """See `Method`."""


def best_of(
    method: Restartable,
    count: int,
    begin: Callable[[int], None],
    go: Callable[[], None],
    stop: Callable[[], bool] = never,
) -> tuple[int, list[float]]:
    """Run a method from `count` starts; leave it as it was after the best; return its number, and all merits.

    `begin` puts the factor matrices of a start in place, `go` runs the method from there; `stop` may end it after each.
    Collective.
    """
    merits, kept = list[float](), None
    for number in range(count):
        if number:
            method.restart()
        begin(number)
        go()
        merits.append(method.operator.machine.comm.bcast(method.merit()))
        if count == 1:
            return 0, merits
        if merits[-1] > max(merits[:-1], default=-float("inf")) or kept is None:
            order = method.operator.order
            kept = number, method.state.copy(), [method.factor(mode) for mode in range(order)]
        if stop():
            break
    assert kept is not None
    best, state, factors = kept
    method.restart(state)
    for mode, factor in enumerate(factors):
        method.operator.set_factor(mode, factor)
    return best, merits
