"""Least-squares updates of CP-ALS: factor rows from their MTTKRP and the other modes' Gram matrices."""

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
    Equations,
    EquationsCase,
    EquationsStatus,
    RunStart,
    Terms,
    equations_of,
)
from ..backend.ops.gram import gram
from ..operators.base import Operator, Solve, in_turn
from ..operators.limits import far
from ..options import Options
from .constraints import NONE, Constraints

T = TypeVar("T")

AT_ONCE = 16  # MTTKRPs of a mode that use double precision from the start after single precision did not suffice


class DivergedError(ArithmeticError):
    """A result is not finite."""


class Pass(NamedTuple):
    """An MTTKRP that a method requests; see `Operator.mttkrp`."""

    mode: int
    solve: Solve | None = None
    then: Sequence[int] = ()
    double: bool = False
    sums: Array | None = None


Passes = Generator[Pass, Array, T]
"""A computation that yields each MTTKRP that it needs and receives the resulting rows. The caller may compute an MTTKRP
for several methods at once."""


def run_passes(operator: Operator, passes: Passes[T]) -> T:
    """Compute the requested MTTKRPs one after the other; return the result of `passes`."""
    try:
        request = next(passes)
        while True:
            try:
                rows = operator.mttkrp(*request)
            except DivergedError as error:
                request = passes.throw(error)
            else:
                request = passes.send(rows)
    except StopIteration as end:
        result = end.value
        return result  # type: ignore[no-any-return]


class LeastSquares:
    """Solves rows by the (pseudo-)inverse of the product of the other modes' Gram matrices (Kolda and Bader 2009).

    Rows are rounded once, when they are stored, and the Gram matrix is computed from the stored rows. Therefore factors
    in single precision follow the path of those in double precision. Column norms are computed afterwards and stored
    separately. Rows of non-negative modes are solved by sweeps over the columns instead.

    Methods queue work for a single run or a batch of runs. `checked` and `checked_fit` also wait for it and handle the
    cases that the host must decide for a single run. MTTKRPs are requested from the caller; see `Passes`.

    Parameters
    ----------
    operator : Operator
    modes : sequence of int
        Modes to solve.
    equations : Equations
        Normal equations of a single run, or of several runs that share the operator's factor matrices.
    """

    def __init__(self, operator: Operator, modes: Sequence[int], equations: Equations) -> None:
        self._operator, self.modes, self.equations = operator, modes, equations
        self._in_double = dict[int, int]()  # by mode, how many of the next MTTKRPs use double precision from the start
        self._at_once = 0 if operator.options.deterministic else AT_ONCE  # a checkpoint does not include `_in_double`

    @classmethod
    def of_run(cls, operator: Operator, constraints: Constraints = NONE) -> LeastSquares:
        """Return the solver for a single run."""
        rank = operator.ranks[0]
        equations = equations_of(operator.machine.device, rank).make(case_of(operator, rank, constraints))
        return cls(operator, constraints.solved(operator.order), equations)

    @property
    def can_pipeline(self) -> bool:
        """Whether iterations can be queued ahead of the host: all state is on the device, with memory for a copy."""
        exchange, single = self._operator.machine.exchange, self._operator.machine.comm.size == 1
        queued = self.equations.memory is not None and not self.equations.allocates and (single or exchange.overlaps)
        return self._operator.plan.pipelined and queued

    def load(self, status: EquationsStatus, best: float, weights: NDArray[np.float64] | None) -> None:
        """Continue a single run from the operator's factor matrices; the best fit so far is `best`. Collective.

        `weights` are the norms of the mode that was solved last; None before any solve.
        """
        self._in_double.clear()  # belongs to the last run
        self.reload(status, best, weights)

    def reload(self, status: EquationsStatus, best: float, weights: NDArray[np.float64] | None) -> None:
        """Continue the same run from other factor matrices; see `load`. Collective."""
        columns = slice(0, self._operator.ranks[0])
        self.equations.put(0, columns, RunStart(status, best, grams_of(self._operator), weights))

    def queue(self, mode: int, double: bool = False, checked: bool = False) -> Passes[Array]:
        """Compute, solve, normalise and publish the owned rows of a mode; return the MTTKRP's rows."""
        operator, equations, device = self._operator, self.equations, self._operator.machine.device
        unchecked = checked
        with device.side_stream():
            equations.prepare(mode, double)

        def solve(source: Array, target: Array) -> None:
            nonlocal unchecked
            if unchecked:  # while the device computes the MTTKRP
                unchecked = False
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
        """Return the modes whose MTTKRPs come next."""
        return in_turn(mode, self._operator.order, self.modes)

    def _finish(self, mode: int, again: bool = False) -> None:
        machine = self._operator.machine
        with machine.device.side_stream():
            machine.exchange.wait_comm(forget=False)
            self.equations.finish(mode, again)

    def queue_again(self, mode: int, solved: Array) -> None:
        """Solve again the rows of runs that are out of `RANGE`, from the rows of the MTTKRP."""
        operator, device = self._operator, self._operator.machine.device
        device.wait_side()
        self.equations.widen(mode)
        self.equations.solve(mode, solved, operator.owned(mode), again=True)
        device.wait_side()
        operator.publish(mode, self.equations.totals)
        self._finish(mode, True)

    def checked(self, mode: int) -> Passes[EquationsStatus]:
        """Do what `queue` does, and handle flags on the host.

        If columns of the other modes are nearly dependent, a small rounding error of the MTTKRP becomes a large error
        of the solution. If it may be too large, the MTTKRP is computed again in double precision, and that mode's next
        MTTKRPs use double precision from the start.
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
        """Solve all modes and compute the fit; `exact`: also with a pass in double precision."""
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
        """Recompute a fit near 1 from inner products in double precision.

        This uses mode 0, which is computed next and so copied first to a device that streams it.
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
        """Compute the fit; return the status with rank 0's fit, and whether the fit was near 1. Collective."""
        comm = self._operator.machine.everyone
        self.equations.measure(self._operator.norm)  # may be known only after elements were read
        self.fit()
        status = self.status()
        near = any(comm.allgather(bool(status.flags & NEAR)))  # ranks' arithmetic may differ in the last bit
        if near:
            yield from self.refit()
            status = self.status()
        return status._replace(fit=comm.bcast(status.fit)), near

    def status(self) -> EquationsStatus:
        """Wait for queued work; return the status of a single run."""
        return self.statuses()[0]

    def statuses(self) -> list[EquationsStatus]:
        """Wait for queued work; return the status of all runs."""
        self._operator.machine.device.wait_side()
        return self.equations.status()


def terms_of(operator: Operator, rank: int) -> Terms:
    """Return the parameters of the equations of a decomposition into `rank` components."""
    comm, order = operator.machine.comm, operator.order
    return Terms(order, rank, comm.size, comm.rank, operator.norm, far(order), gains(operator.options))


def case_of(operator: Operator, rank: int, constraints: Constraints, places: int = 1) -> EquationsCase:
    """Return the case for which equations are created: `places` runs of at most `rank` columns."""
    rows = tuple(len(operator.owned(mode)) for mode in range(operator.order))
    return EquationsCase(
        terms_of(operator, rank), operator.options.dtype, rows, constraints.bounds(operator.order), places
    )


def grams_of(operator: Operator) -> NDArray[np.float64]:
    """Return the Gram matrices of a run's factor matrices in host memory, (N, R, R). Collective."""
    comm, rank = operator.machine.comm, operator.ranks[0]
    # The arrays have the size of those of an iteration, so that MPI sums the ranks' numbers in the same order.
    sums = np.zeros((operator.order, rank + 2 + comm.size, rank))
    for mode, each in enumerate(sums):
        each[:rank] = gram_of(operator, mode)
        if comm.size > 1:
            comm.all_reduce(each, "sum")
    return sums[:, :rank]


def gram_of(operator: Operator, mode: int) -> NDArray[np.float64]:
    """Return the Gram matrix of the owned rows of a factor matrix, in host memory."""
    device, rank = operator.machine.device, operator.ranks[0]
    if not device.on_host:
        return device.to_host(gram(device, operator.owned(mode)))
    result = np.zeros((rank, rank))
    rows.add_gram(np, np.ascontiguousarray(operator.owned(mode)), result)
    return result


def gains(options: Options) -> bool:
    """Return whether double precision improves the products of an operator with these options."""
    return options.precision == "fp32" and options.gather == "full"
