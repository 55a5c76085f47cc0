"""How the rows of a factor matrix follow from their MTTKRP and the Gram matrices of the other modes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..backend import rows
from ..backend.device import Array, Device
from ..backend.ops.equations import (
    NEAR,
    NOISY,
    NOT_FINITE,
    RANGE,
    SINGULAR,
    Equations,
    EquationsStatus,
    Terms,
    equations_of,
)
from ..backend.ops.solve import solver
from ..operators.base import Operator, Solve, in_turn
from ..operators.limits import far
from ..options import Options

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


def alone(operator: Operator, passes: Passes[T]) -> T:
    """Compute what is asked for, one pass after the other; return what comes of it."""
    try:
        wanted = next(passes)
        while True:
            try:
                found = operator.mttkrp(*wanted)
            except DivergedError as error:
                wanted = passes.throw(error)
            else:
                wanted = passes.send(found)
    except StopIteration as end:
        found = end.value
        return found  # type: ignore[no-any-return]


class LeastSquares:
    """Solves rows by the (pseudo-)inverse of the product of the other modes' Gram matrices (Kolda and Bader 2009).

    Rows are rounded once, when they are stored, and the Gram matrix is made of what is stored: so factors in single
    precision follow the path of those in double precision. Norms come after, and are kept beside the matrix.

    Each method queues work; those named `checked` wait for it, and do what the host has to decide. MTTKRPs are asked
    for; see `Passes`.
    """

    def __init__(self, operator: Operator, modes: Sequence[int] | None = None) -> None:
        """`modes` are solved; all of them, unless others are given."""
        self.modes = range(operator.order) if modes is None else modes
        self._operator, rank = operator, operator.ranks[0]
        device, dtype = operator.machine.device, operator.options.dtype
        count = max(len(operator.owned(mode)) for mode in range(operator.order))
        self._solver = solver(device, rank, dtype)
        self._made = self._solver.make(count, rank, dtype)
        self.equations = self._made_equations(device, terms_of(operator, rank), dtype)
        self._in_double = dict[int, int]()  # by mode, how many MTTKRPs are still in double precision at once
        self._at_once = 0 if operator.options.deterministic else AT_ONCE  # a run that is resumed knows of none

    def _made_equations(self, device: Device, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        return equations_of(device, terms.rank).make(terms, dtype)

    @property
    def goes_ahead(self) -> bool:
        """Whether iterations can be queued ahead of the host: all is on this device, with room for a second copy."""
        exchange, alone = self._operator.machine.exchange, self._operator.machine.comm.size == 1
        queued = self.equations.memory is not None and not self._solver.allocates and (alone or exchange.overlaps)
        return self._operator.plan.ahead and queued

    def load(self, told: EquationsStatus, best: float, weights: NDArray[np.float64] | None) -> None:
        """Go on from the operator's factor matrices; the best fit so far is `best`. Collective.

        `weights` were taken out of the mode that was solved last; None at a start.
        """
        operator, equations, device = self._operator, self.equations, self._operator.machine.device
        equations.load(told, best)
        self._in_double.clear()  # another run's
        for mode in range(operator.order):
            equations.totals.fill(0)
            equations.sums(mode).gram[...] = device.to_device(gram_of(operator, mode))
            operator.reduce(equations.totals, "sum", mode)
            equations.hold(mode)

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
                    flags = equations.told().flags
                    if flags & NOT_FINITE:
                        raise DivergedError("the Gram matrices of the other modes are not finite")
                    if flags & SINGULAR:
                        equations.invert(mode, double)
            device.wait_side()
            with operator.span("solve", mode):
                self._solve(mode, source, target)

        solved = yield Pass(mode, solve, self._then(mode), double, equations.totals)
        self._finish(mode)
        return solved

    def _then(self, mode: int) -> Sequence[int]:
        """Return the modes whose MTTKRPs follow."""
        return in_turn(mode, self._operator.order, self.modes)

    def _solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        """Queue the solving of rows from those of an MTTKRP; `again`: they are to be divided by other numbers."""
        self._solver.run(self._made, source, self.equations.inverse, target, self.equations.sums(mode))

    def _finish(self, mode: int, again: bool = False) -> None:
        machine = self._operator.machine
        with machine.device.side_stream():
            machine.exchange.wait_comm(forget=False)
            self.equations.finish(mode, again)

    def checked(self, mode: int) -> Passes[EquationsStatus]:
        """Do what `queue` does, and what only the host can.

        Where columns of the other modes nearly depend on each other, a small rounding error of the MTTKRP becomes a
        large error of the solution. Where it may be too large, the MTTKRP is computed again in double precision; of
        that mode the next ones are so at once.
        """
        at_once = self._in_double.get(mode, 0) > 0
        solved = yield from self.queue(mode, double=at_once, checked=True)
        told = self.told()
        if at_once:
            self._in_double[mode] -= 1
        elif told.flags & NOISY:
            self._in_double[mode] = self._at_once
            solved = yield from self.queue(mode, double=True, checked=True)
            told = self.told()
        if told.flags & RANGE:  # products could overflow
            device, operator = self._operator.machine.device, self._operator
            self.equations.widen()
            self._solve(mode, solved, operator.owned(mode), again=True)
            device.wait_side()
            operator.publish(mode, self.equations.totals)
            self._finish(mode, True)
            told = self.told()
        if told.flags & NOT_FINITE:
            raise DivergedError("the factor matrix is not finite")
        return told

    def iteration(self, exact: bool) -> None:
        """Solve the modes and compute the fit, perhaps with an `exact` pass."""
        for mode in self.modes:
            alone(self._operator, self.queue(mode))
        self.fit()
        if exact:
            alone(self._operator, self.refit())

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
        told = self.told()
        near = any(comm.allgather(bool(told.flags & NEAR)))  # ranks' arithmetic may differ in the last bit
        if near:
            yield from self.refit()
            told = self.told()
        return told._replace(fit=comm.bcast(told.fit)), near

    def told(self) -> EquationsStatus:
        """Wait for what is queued; return what it told."""
        self._operator.machine.device.wait_side()
        return self.equations.told()


def terms_of(operator: Operator, rank: int) -> Terms:
    """Return what the equations of a decomposition into so many components have in common."""
    comm, order = operator.machine.comm, operator.order
    return Terms(order, rank, comm.size, comm.rank, operator.norm, far(order), gains(operator.options))


def gram_of(operator: Operator, mode: int) -> NDArray[np.float64]:
    """Return the Gram matrix of the rows of a factor matrix that this rank owns, in host memory.

    Of a small one the host computes it: a device would load libraries for matrix products, which small matrices need
    nowhere else.
    """
    device, rank = operator.machine.device, operator.ranks[0]
    found = np.zeros((rank, rank))
    if device.on_host or operator.shape[mode] * rank <= FEW:
        rows.add_gram(np, operator.factor(mode)[operator.plan.modes[mode].owned], found)
        return found
    total = device.zeros((rank, rank), np.float64)
    rows.add_gram(device.xp, operator.owned(mode), total)
    return device.to_host(total)


def gains(options: Options) -> bool:
    """Return whether an operator computes better products if it is asked for double precision."""
    return options.precision == "fp32" and options.gather == "full"
