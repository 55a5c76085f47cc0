"""Tucker decompositions over all ranks: HOOI, and the core tensor of factor matrices that are found otherwise.

HOOI (De Lathauwer, De Moor and Vandewalle, SIMAX 21(4), 2000) replaces each factor matrix in turn by the leading left
singular vectors of the tensor times all the others. Each rank computes the rows of that product that it owns; ranks add
up small Gram matrices and all-gather new rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backend.base import Array
from ..backend.exchange import Machine
from ..backend.solve import Takes
from ..errors import InputError
from ..models.tucker import TuckerTensor
from ..operators.base import CoreOperator, in_turn
from ..operators.placement import Solving
from .driver import State
from .leading_rows import LeadingRows, finding_bytes
from .updates import DivergedError


class Tucker:
    """See `Method`.

    The state has an array and a series:

    core : (R_0, R_1, ...)
        The tensor times the transposed factor matrices.
    fit
        ``1 - sqrt(||X||**2 - ||core||**2) / ||X||`` after each iteration.

    Parameters
    ----------
    operator : CoreOperator
        Holds the factor matrices to start from. Their columns are made orthonormal before the first iteration.
    name : {"hooi", "hosvd", "sthosvd"}
        Of the last two factor matrices stay as they are: one iteration computes the core.
    found : sequence of (I_n, R_n) arrays, optional
        To start from, or to keep.
    """

    norm = 2

    def __init__(self, operator: CoreOperator, name: str = "hooi", found: Sequence[NDArray[Any]] | None = None) -> None:
        self.operator, self.name, self.found = operator, name, found
        self._leading = LeadingRows(operator)
        self.restart()

    def restart(self, state: State | None = None) -> None:
        """See `Restartable`."""
        self.state = state or State({"core": np.zeros(self.operator.ranks)}, {"fit": []})

    @property
    def rank(self) -> list[int]:
        """See `Method`."""
        return list(self.operator.ranks)

    @property
    def facts(self) -> dict[str, Any]:
        """See `Method`."""
        return {}

    def started(self, factors: Sequence[NDArray[Any]], how: str | None) -> Sequence[NDArray[Any]]:
        """See `Method`: any; their columns are made orthonormal."""
        return factors

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        operator, state, order = self.operator, self.state, self.operator.order
        first = state.mode
        if not state.iterations and not first:
            self._begin()
        modes = range(first, order) if self.name == "hooi" else range(order - 1, order)
        for mode in modes:
            if mode > first and stop() and self.name == "hooi":
                state.mode = mode
                return False
            found = operator.ttmc(mode, in_turn(mode, order))
            if self.name == "hooi":
                with operator.span("solve", mode):
                    self._leading.find(mode, found)
                operator.publish(mode)
        self._finish(found)
        return True

    def _begin(self) -> None:
        """Make the columns of all factor matrices orthonormal."""
        for mode, rank in enumerate(self.operator.ranks):
            with self.operator.span("solve", mode):
                held = self._leading.room(mode, rank)
                held[...] = self.operator.owned(mode)
                self._leading.orthonormalise(mode, held)
                self.operator.owned(mode)[...] = held
            self.operator.publish(mode)

    def _finish(self, found: Array) -> None:
        """Compute core and fit from the last mode's rows."""
        operator, state, last = self.operator, self.state, self.operator.order - 1
        with operator.span("solve", last):
            whole = core_of(operator, found, self._leading.room(last, operator.ranks[last]))
        if not np.all(np.isfinite(whole)):
            raise DivergedError(f"iteration {state.iterations + 1}: the core tensor is not finite")
        state.arrays["core"] = whole
        lost = max(0.0, operator.norm**2 - float(np.sum(np.square(whole))))
        state.series["fit"].append(1 - float(np.sqrt(lost)) / operator.norm)
        state.mode = 0
        state.iterations += 1

    def change(self) -> float | None:
        """See `Method`: of the fit."""
        fits = self.state.series["fit"]
        return fits[-1] - fits[-2] if len(fits) > 1 else None

    def settled(self, tol: float) -> bool:
        """See `Method`: the fit has changed by less; without iterations, there is a core."""
        if self.name != "hooi":
            return self.state.iterations > 0
        change = self.change()
        return change is not None and abs(change) < tol

    def merit(self) -> float:
        """See `Restartable`: the fit."""
        fits = self.state.series["fit"]
        return fits[-1] if fits else -np.inf

    def factor(self, mode: int) -> NDArray[Any]:
        """See `Method`."""
        return self.operator.factor(mode)

    def model(self) -> TuckerTensor:
        """See `Method`: each column's largest entry is positive."""
        state, factors = self.state, [self.factor(mode) for mode in range(self.operator.order)]
        return TuckerTensor(state.arrays["core"], factors, state.series["fit"], state.converged).arrange()


def core_of(operator: CoreOperator, found: Array, room: Array) -> NDArray[np.float64]:
    """Return the tensor times all transposed factor matrices, from the last mode's TTMc. Collective.

    `room` is for the last factor matrix's owned rows, in double precision.
    """
    device, last = operator.machine.device, operator.order - 1
    operator.join()
    room[...] = operator.owned(last)
    core = device.xp.ascontiguousarray(device.xp.matmul(found.T, room))
    operator.reduce(core, "sum", last)
    whole = operator.machine.comm.bcast(device.to_host(core)).reshape(operator.ranks)
    return np.array(whole, np.float64)


def consistency(core: NDArray[np.float64]) -> float:
    """Return how near a core is to that of a CP decomposition, ones on its superdiagonal, in percent."""
    rank = core.shape[0]
    wanted = np.zeros(core.shape)
    wanted[(np.arange(rank),) * core.ndim] = 1
    off = float(np.sum(np.square(core - wanted)))
    return 100 * (1 - off / float(rank))


def check_ranks(shape: Sequence[int], ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the columns of each mode's factor matrix; raise `InputError` if a tensor cannot have so many."""
    if len(ranks) != len(shape):
        raise InputError(f"rank {shown(ranks)}: {len(ranks)} numbers for a tensor of {len(shape)} modes")
    for mode, (length, rank) in enumerate(zip(shape, ranks, strict=True)):
        others = int(np.prod([float(r) for m, r in enumerate(ranks) if m != mode]))
        if rank > length:
            raise InputError(
                f"rank {shown(ranks)}: mode {mode} has length {length:,}, and so at most {length:,} columns"
            )
        if rank > others:
            cause = f"the other modes' ranks leave at most {others:,} columns that count"
            raise InputError(f"rank {shown(ranks)}: mode {mode}: {cause}")
    return tuple(ranks)


def shown(ranks: Sequence[int]) -> str:
    """Return ranks as they are given."""
    return ",".join(map(str, ranks))


def solving_bytes(machine: Machine, ranks: Sequence[int], shape: Sequence[int]) -> Solving:
    """Return how many bytes a Tucker decomposition takes on a device beside TTMc."""
    every = int(np.prod([float(rank) for rank in ranks]))

    def takes(count: int, rank: int) -> Takes:
        return finding_bytes(machine, count, rank, every // rank, shape)

    return takes
