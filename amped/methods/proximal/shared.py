"""Constraints that relate rows of several ranks: rank 0 applies their proximal operators to whole matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...backend.device import Array
from ...backend.exchange import Machine
from ...parallel.mpi import on_root
from .operators import Block, Proximal


class SharedRows:
    """The rows of a mode, of which each rank owns some. All methods are collective.

    Parameters
    ----------
    machine : Machine
    bounds : (ranks + 1,) int64 array
        Rank ``r`` owns rows ``bounds[r]`` to ``bounds[r + 1]``.
    """

    def __init__(self, machine: Machine, bounds: NDArray[np.int64]) -> None:
        self._machine, self._bounds = machine, bounds
        self.mine = slice(int(bounds[machine.comm.rank]), int(bounds[machine.comm.rank + 1]))

    def gather(self, matrix: Array) -> None:
        """Fill in the rows that other ranks own."""
        self._machine.exchange.gather_rows(matrix, self._bounds[:-1], self._bounds[1:])

    def whole(self, rows: Array) -> Array:
        """Return the matrix of all ranks' rows."""
        result = self._machine.device.empty((int(self._bounds[-1]), rows.shape[1]), np.float64)
        result[self.mine] = rows
        self.gather(result)
        return result

    def of_root(self, compute: Callable[[], Array], whole: Array) -> Array:
        """Return this rank's rows of a matrix that rank 0 computes; `whole` is of its shape, and is overwritten."""
        found = on_root(self._machine.comm, compute)
        if found is not None:
            whole[...] = found
        begin, end = np.zeros_like(self._bounds[:-1]), np.full_like(self._bounds[:-1], self._bounds[-1])
        begin[1:] = self._bounds[-1]
        self._machine.exchange.gather_rows(whole, begin, end)
        return whole[self.mine]

    def number_of_root(self, compute: Callable[[], Any]) -> Any:
        """Return a number that rank 0 computes, and 0 on other ranks."""
        return on_root(self._machine.comm, compute) or 0.0


class SharedColumns:
    """A `Proximal` of whole matrices, for ranks that own rows; see `admm.Constrained`. Collective."""

    def __init__(self, proximal: Proximal, rows: SharedRows) -> None:
        self._proximal, self._rows, self.terms, self.fixed = proximal, rows, proximal.terms, None
        self.blocks = [self._shared(block) for block in proximal.blocks]

    def _shared(self, block: Block) -> Block:
        def apply(matrix: Array, step: Any) -> Array:
            whole = self._rows.whole(matrix)
            return self._rows.of_root(lambda: block(whole, step), whole)

        return apply

    def entries(self, step: Any) -> None:
        """None: the first proximal operator needs the rows of all ranks."""

    def hold(self, matrix: Array) -> None:
        if self.terms.fixed is not None:
            self._proximal.hold(self._rows.whole(matrix))

    def penalty(self, matrix: Array) -> Any:
        if not self.terms.penalised and getattr(self.terms.function, "penalty", None) is None:
            return 0.0
        whole = self._rows.whole(matrix)
        return self._rows.number_of_root(lambda: self._proximal.penalty(whole))

    @property
    def curvature(self) -> float:
        return self._proximal.curvature

    def gradient(self, matrix: Array) -> Array | float:
        if not self.terms.smooth:
            return 0.0
        found = self._proximal.gradient(self._rows.whole(matrix))
        return found if isinstance(found, float) else found[self._rows.mine]

    def primary(self, matrix: Array, step: Any) -> Array:
        return self._shared(self._proximal.primary)(matrix, step)
