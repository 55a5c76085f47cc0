"""How the rows of a factor matrix follow from their MTTKRP and the Gram matrices of the other modes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..backend import rows
from ..backend.device import Array
from ..backend.ops.equations import (
    NEAR,
    NOISY,
    NOT_FINITE,
    RANGE,
    SINGULAR,
    Case,
    Equations,
    EquationsStatus,
    RunStart,
    Terms,
    equations_of,
)
from ..operators.base import Operator, Solve, in_turn
from ..operators.limits import far
from ..options import Options
from .constraints import NONE, Constraints

T = TypeVar("T")

AT_ONCE = 16  # MTTKRPs in double precision, after one in single precision that did not suffice

FEW = 1 << 20  # numbers of a factor matrix that the host multiplies before a device has loaded what it needs for it


class DivergedError(ArithmeticError):
    """A result is no longer a number."""


class Pass(NamedTuple):
    """An MTTKRP that a method asks for; see `Operator.mttkrp`."""

    mode: int
    solve: Solve | None = None
    then: Sequence[int] = ()
    double: bool = False
    sums: Array | None = None


Passes = Generator[Pass, Array, T]
"""What a method does, but for MTTKRPs: it yields each one that it needs, and is sent the rows that come of it. Whoever
computes them may do so for several methods at once."""


def run_passes(operator: Operator, passes: Passes[T]) -> T:
    """Compute what is asked for, one pass after the other; return what comes of it."""
    try:
        wanted = next(passes)
        while True:
            try:
                result = operator.mttkrp(*wanted)
            except DivergedError as error:
                wanted = passes.throw(error)
            else:
                wanted = passes.send(result)
    except StopIteration as end:
        result = end.value
        return result  # type: ignore[no-any-return]


class LeastSquares:
    """Solves rows by the (pseudo-)inverse of the product of the other modes' Gram matrices (Kolda and Bader 2009).

    Rows are rounded once, when they are stored, and the Gram matrix is made of what is stored: so factors in single
    precision follow the path of those in double precision. Norms come after, and are kept beside the matrix. Rows of
    non-negative modes are solved by sweeps over the columns instead.

    Each method queues work, for a single run or for a batch; those named `checked` wait for it, and do what the host
    has to decide for a single run. MTTKRPs are asked for; see `Passes`.

    Parameters
    ----------
    operator : Operator
    modes : sequence of int
        Those that are solved.
    equations : Equations
        Of a single run, or of several that have columns of the operator's factor matrices.
    """

    def __init__(self, operator: Operator, modes: Sequence[int], equations: Equations) -> None:
        self._operator, self.modes, self.equations = operator, modes, equations
        self._in_double = dict[int, int]()  # by mode, how many MTTKRPs are still in double precision at once
        self._at_once = 0 if operator.options.deterministic else AT_ONCE  # a run that is resumed knows of none

    @classmethod
    def of_run(cls, operator: Operator, constraints: Constraints = NONE) -> LeastSquares:
        """Return what solves the rows of a single run."""
        rank = operator.ranks[0]
        equations = equations_of(operator.machine.device, rank).make(case_of(operator, rank, constraints))
        return cls(operator, constraints.solved(operator.order), equations)

    @property
    def can_pipeline(self) -> bool:
        """Whether iterations can be queued ahead of the host: all is on this device, with room for a second copy."""
        exchange, single = self._operator.machine.exchange, self._operator.machine.comm.size == 1
        queued = self.equations.memory is not None and not self.equations.allocates and (single or exchange.overlaps)
        return self._operator.plan.ahead and queued

    def load(self, status: EquationsStatus, best: float, weights: NDArray[np.float64] | None) -> None:
        """Let a single run go on from the operator's factor matrices; the best fit so far is `best`. Collective.

        `weights` were taken out of the mode that was solved last; None at a start.
        """
        self._in_double.clear()  # another run's
        columns = slice(0, self._operator.ranks[0])
        self.equations.put(0, columns, RunStart(status, best, grams_of(self._operator), weights))

    def queue(self, mode: int, double: bool = False, checked: bool = False) -> Passes[Array]:
        """Compute, solve and publish the owned rows of a mode, and take the norms out; return the MTTKRP's rows."""
        operator, equations, device = self._operator, self.equations, self._operator.machine.device
        inexact = checked
        with device.side_stream():
            equations.prepare(mode, double)

        def solve(source: Array, target: Array) -> None:
            nonlocal inexact
            if inexact:  # while the device computes the MTTKRP
                inexact = False
                with device.side_stream():
                    flags = equations.status()[0].flags
                    if flags & NOT_FINITE:
                        raise DivergedError("the Gram matrices of the other modes are not finite")
                    if flags & SINGULAR:
                        equations.invert(mode, double)
            device.wait_side()
            with operator.span("solve", mode):
                equations.solve(mode, source, target)

        solved = yield Pass(mode, solve, self._then(mode), double, equations.totals)
        self._finish(mode)
        return solved

    def _then(self, mode: int) -> Sequence[int]:
        """Return the modes whose MTTKRPs follow."""
        return in_turn(mode, self._operator.order, self.modes)

    def _finish(self, mode: int, again: bool = False) -> None:
        machine = self._operator.machine
        with machine.device.side_stream():
            machine.exchange.wait_comm(forget=False)
            self.equations.finish(mode, again)

    def queue_again(self, mode: int, solved: Array) -> None:
        """Solve the rows of runs that are out of `RANGE` once more, from those of the MTTKRP."""
        operator, device = self._operator, self._operator.machine.device
        device.wait_side()
        self.equations.widen(mode)
        self.equations.solve(mode, solved, operator.owned(mode), again=True)
        device.wait_side()
        operator.publish(mode, self.equations.totals)
        self._finish(mode, True)

    def checked(self, mode: int) -> Passes[EquationsStatus]:
        """Do what `queue` does, and what only the host can.

        Where columns of the other modes nearly depend on each other, a small rounding error of the MTTKRP becomes a
        large error of the solution. Where it may be too large, the MTTKRP is computed again in double precision; of
        that mode the next ones are so at once.
        """
        at_once = self._in_double.get(mode, 0) > 0
        solved = yield from self.queue(mode, double=at_once, checked=True)
        status = self.status()
        if at_once:
            self._in_double[mode] -= 1
        elif status.flags & NOISY:
            self._in_double[mode] = self._at_once
            solved = yield from self.queue(mode, double=True, checked=True)
            status = self.status()
        if status.flags & RANGE:  # products could overflow
            self.queue_again(mode, solved)
            status = self.status()
        if status.flags & NOT_FINITE:
            raise DivergedError("the factor matrix is not finite")
        return status

    def iteration(self, exact: bool) -> None:
        """Solve the modes and compute the fit, perhaps with an `exact` pass."""
        for mode in self.modes:
            run_passes(self._operator, self.queue(mode))
        self.fit()
        if exact:
            run_passes(self._operator, self.refit())

    def fit(self) -> None:
        """Compute the fit after the last mode."""
        with self._operator.machine.device.side_stream():
            self.equations.fit()

    def refit(self) -> Passes[None]:
        """Compute a fit that is near 1 once more, from inner products in double precision.

        Mode 0 is the one that is computed next, and the first to be copied to a device that does not hold it.
        """
        operator, equations, device = self._operator, self.equations, self._operator.machine.device
        source = yield Pass(0, then=self._then(self.modes[-1]), double=True)
        device.wait_side()
        with operator.span("solve", 0):
            equations.multiply(source, operator.owned(0))
        with device.side_stream():
            operator.reduce(equations.dots, "sum", 0)
            equations.fit(exact=True)

    def checked_fit(self) -> Passes[tuple[EquationsStatus, bool]]:
        """Return what was told after the fit, rank 0's fit, and whether it was near 1. Collective."""
        comm = self._operator.machine.comm
        self.equations.measure(self._operator.norm)  # perhaps only known since elements were read
        self.fit()
        status = self.status()
        near = any(comm.allgather(bool(status.flags & NEAR)))  # ranks' arithmetic may differ in the last bit
        if near:
            yield from self.refit()
            status = self.status()
        return status._replace(fit=comm.bcast(status.fit)), near

    def status(self) -> EquationsStatus:
        """Wait for what is queued; return the state of a single run."""
        return self.statuses()[0]

    def statuses(self) -> list[EquationsStatus]:
        """Wait for what is queued; return the states of all runs."""
        self._operator.machine.device.wait_side()
        return self.equations.status()


def terms_of(operator: Operator, rank: int) -> Terms:
    """Return what the equations of a decomposition into so many components have in common."""
    comm, order = operator.machine.comm, operator.order
    return Terms(order, rank, comm.size, comm.rank, operator.norm, far(order), gains(operator.options))


def case_of(operator: Operator, rank: int, constraints: Constraints, places: int = 1) -> Case:
    """Return what equations are made for: of a run with so many columns, or of several with at most as many."""
    rows = tuple(len(operator.owned(mode)) for mode in range(operator.order))
    return Case(terms_of(operator, rank), operator.options.dtype, rows, constraints.bounds(operator.order), places)


def grams_of(operator: Operator) -> NDArray[np.float64]:
    """Return the Gram matrices of a run's factor matrices in host memory, (N, R, R). Collective."""
    comm, rank = operator.machine.comm, operator.ranks[0]
    # Sums have the size of those of an iteration, so that MPI adds up the ranks' numbers in the same order.
    sums = np.zeros((operator.order, rank + 2 + comm.size, rank))
    for mode, each in enumerate(sums):
        each[:rank] = gram_of(operator, mode)
        if comm.size > 1:
            comm.all_reduce(each, "sum")
    return sums[:, :rank]


def gram_of(operator: Operator, mode: int) -> NDArray[np.float64]:
    """Return the Gram matrix of the rows of a factor matrix that this rank owns, in host memory.

    Of a small one the host computes it: a device would load libraries for matrix products, which small matrices need
    nowhere else.
    """
    device, rank = operator.machine.device, operator.ranks[0]
    result = np.zeros((rank, rank))
    if device.on_host or operator.shape[mode] * rank <= FEW:
        rows.add_gram(np, operator.factor(mode)[operator.plan.modes[mode].owned], result)
        return result
    total = device.zeros((rank, rank), np.float64)
    rows.add_gram(device.xp, operator.owned(mode), total)
    return device.to_host(total)


def gains(options: Options) -> bool:
    """Return whether an operator computes better products if it is asked for double precision."""
    return options.precision == "fp32" and options.gather == "full"
