"""Iterations in which a device solves all modes row by row, without the host; see `backend.ops.row_admm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...backend.device import Array
from ...backend.ops.row_admm import ROW_ADMM, RowAdmm, RowAdmmCase, RowTerms
from ...operators.base import Operator, in_turn
from ..captured import CapturedIterations
from .terms import ModeTerms


class OwnRows(NamedTuple):
    """The rows of a mode that this rank owns: their duals and fixed elements, (rows, R), or None."""

    dual: Array
    fixed: Array


def row_terms(terms: ModeTerms) -> RowTerms | None:
    """Return the constraints of a row; None if constraints relate rows."""
    if terms.columnwise:
        return None
    return RowTerms(terms.low, terms.high, terms.l1, terms.l2, terms.shape == "simplex", terms.free)


class RowQueue:
    """Queues iterations.

    Parameters
    ----------
    operator : Operator
    rows : mapping of int to OwnRows
        By mode that is solved.
    solver : RowAdmm
    """

    def __init__(self, operator: Operator, rows: Mapping[int, OwnRows], solver: RowAdmm) -> None:
        self._operator, self._rows, self.solver = operator, rows, solver
        self._modes = sorted(rows)

    def iteration(self, double: bool) -> None:
        """Queue an iteration; `double`: with MTTKRPs in double precision. Collective."""
        for mode in self._modes:
            self._solve(mode, double)
        self._operator.wait_comm()

    def _solve(self, mode: int, double: bool) -> None:
        operator, solver, place, done = self._operator, self.solver, self._rows[mode], 0
        device = operator.machine.device
        with device.side_stream():
            operator.machine.exchange.wait_comm(forget=False)
            solver.prepare(mode)

        def solve(source: Array, target: Array) -> None:
            nonlocal done
            rows = slice(done, done + len(source))
            done = rows.stop
            device.wait_side()
            with operator.span("solve", mode):
                dual, fixed = (None if each is None else each[rows] for each in place)
                solver.solve(mode, source, target, dual, fixed)

        then = in_turn(mode, operator.order, self._modes)
        operator.mttkrp(mode, solve, then, double, solver.totals[mode])


class DeviceIterations:
    """Runs iterations, as captured work where the device permits it.

    Parameters
    ----------
    queue : RowQueue
    captures : bool
        Whether iterations may be captured. Equal on all ranks.
    """

    def __init__(self, operator: Operator, queue: RowQueue, captures: bool) -> None:
        self._operator, self._queue, self._captures = operator, queue, captures
        self._warm = set[bool]()  # kinds of iterations of which all code is loaded
        self._captured = CapturedIterations(operator, operator, queue.solver.totals.reshape(-1).view(np.uint8))

    def load(self, grams: Sequence[NDArray[np.float64]]) -> None:
        """Continue from the operator's factor matrices, whose Gram matrices are `grams`."""
        totals = np.zeros(self._queue.solver.totals.shape)
        for mode, gram in enumerate(grams):
            totals[mode, :-2] = gram.reshape(-1)
        self._queue.solver.totals[...] = self._operator.machine.device.to_device(totals)

    def iteration(self, double: bool) -> NDArray[np.float64]:
        """Return the parts of the objective of each mode, (N, 2), after an iteration. Collective."""
        totals, device = self._queue.solver.totals, self._operator.machine.device
        if self._captures and double in self._warm:
            read = self._captured.launch(partial(self._queue.iteration, double), double)
            numbers = read.view(np.float64).reshape(totals.shape)
        else:
            self._queue.iteration(double)
            self._warm.add(double)
            numbers = device.to_host(totals)
        return np.array(numbers[:, -2:])


def make_row_by_row(
    operator: Operator, terms: Mapping[int, ModeTerms], rows: Mapping[int, OwnRows]
) -> DeviceIterations | None:
    """Return the iterations of a run; None if the device or the constraints do not permit them. Collective.

    `terms` are those of the modes that are solved.
    """
    machine, rank = operator.machine, operator.ranks[0]
    provider = ROW_ADMM.first(machine.device, lambda each: each.suits(rank))
    free = RowTerms(-np.inf, np.inf, 0.0, 0.0, False, True)
    found = [row_terms(terms[mode]) if mode in terms else free for mode in range(operator.order)]
    each = [one for one in found if one is not None]
    if not all(machine.comm.allgather(provider is not None and len(each) == len(found))):
        return None
    assert provider is not None
    most = max(len(operator.owned(mode)) for mode in terms)
    solver = provider.make(RowAdmmCase(rank, operator.options.dtype, most, each))
    captures = operator.plan.pipelined and (machine.comm.size == 1 or machine.exchange.overlaps)
    captures = captures and machine.device.queues
    return DeviceIterations(operator, RowQueue(operator, rows, solver), all(machine.comm.allgather(captures)))
