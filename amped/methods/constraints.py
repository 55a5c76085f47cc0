"""What factor matrices have to be, beside the best: non-negative, short, or as they are given.

Under constraints all columns have unit 2-norm when the next mode is solved. Its rows begin as they are, with the
weights in them: so no solve makes the objective larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.validate import real, whole

from ..backend.ops.equations import ConstraintBounds
from ..errors import InputError
from ..operators.placement import MAX_RANK as MOST_MODES  # far more than any tensor has

Modes = tuple[int, ...]
SWEEPS = 5  # over the columns, each time that a mode is solved; 1 to 10 end at like fits (docs/design/constraints.md)
UNTIL_SETTLED = 2000  # where no iteration comes after: a row ends when a sweep no longer changes it


class ConstraintParams(NamedTuple):
    """What was asked for, before the tensor's order is known."""

    nonnegative: bool | Modes = False
    ridge: float | tuple[float, ...] = 0.0
    fixed_modes: Modes = ()

    def of(self, order: int) -> Constraints:
        """Return the constraints of a tensor of so many modes; raise `InputError` if it has no such modes."""
        modes = tuple(range(order))
        nonnegative = self.nonnegative if isinstance(self.nonnegative, tuple) else modes if self.nonnegative else ()
        for name, chosen in (("nonnegative", nonnegative), ("fixed_modes", self.fixed_modes)):
            for mode in chosen:
                if mode >= order:
                    raise InputError(f"{name}: there is no mode {mode}; the tensor's are 0 to {order - 1}")
        ridge = self.ridge if isinstance(self.ridge, tuple) else (self.ridge,) * order
        if len(ridge) != order:
            raise InputError(f"ridge: {len(ridge)} numbers for a tensor of order {order}: expected one, or one a mode")
        if set(self.fixed_modes) == set(modes):
            raise InputError("fixed_modes: all modes are fixed: none is left to be solved")
        result = Constraints(nonnegative, ridge, self.fixed_modes)
        return result if any((nonnegative, any(ridge), self.fixed_modes)) else NONE


@dataclass(frozen=True)
class Constraints:
    """What the factor matrices of a tensor have to be."""

    nonnegative: Modes = ()
    ridge: tuple[float, ...] = ()  # for each mode what is added to the diagonal of the Gram matrix of the others
    fixed: Modes = ()

    def __bool__(self) -> bool:
        return self != NONE

    @property
    def norm(self) -> int:
        """Which norm of the model's columns is 1: 1 or 2."""
        return 1 if self.nonnegative else 2

    def solved(self, order: int) -> list[int]:
        """Return the modes that are solved."""
        return [mode for mode in range(order) if mode not in self.fixed]

    def bounds(self, order: int) -> ConstraintBounds:
        """Return what equations of so many modes need to know of the constraints."""
        if not self:
            return ConstraintBounds.none(order)
        solved = self.solved(order)
        sweeps = SWEEPS if len(solved) > 1 else UNTIL_SETTLED
        return ConstraintBounds(self.ridge, self.nonnegative, solved[-1], sweeps)

    def objective(self, fit: float, squares: float, norm: float) -> float:
        """Return the squared distance to the tensor, relative to its `norm`, and the penalty of a ridge of all modes.

        `squares`: see `EquationsStatus`.
        """
        return (1 - fit) ** 2 + (self.common_ridge or 0.0) * squares / norm**2

    @property
    def common_ridge(self) -> float | None:
        """The number for all modes that are solved; None if there is none, or they have different ones."""
        result = {number for mode, number in enumerate(self.ridge) if mode not in self.fixed}
        return (result.pop() or None) if len(result) == 1 else None

    @property
    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of those that there are."""
        ridge = self.ridge if any(self.ridge) else ()
        facts = {"nonnegative": self.nonnegative, "ridge": ridge, "fixed_modes": self.fixed}
        return {name: list(numbers) for name, numbers in facts.items() if numbers}

    def check_start(self, factors: Sequence[NDArray[Any]], init: str | None) -> None:
        """Raise `InputError` unless a decomposition can start from these matrices, of a kind of start.

        Those of "nvecs" are made fit for it, in place: of eigenvectors magnitudes are taken.
        """
        if self.fixed and init is None:
            raise InputError(f"fixed_modes {list(self.fixed)}: the start is random; give their matrices with init")
        for mode in self.nonnegative:
            if init == "nvecs":
                np.abs(factors[mode], out=factors[mode])
            elif factors[mode].min() < 0:
                raise InputError(f"factor_{mode} of the start has negative entries; mode {mode} is to be non-negative")


NONE = Constraints()


def modes_of(name: str, given: Any) -> Modes:
    """Return modes, counted from 0, ascending; raise `InputError` if something else is given."""
    try:
        listed = list(given)
    except TypeError:
        raise InputError(f"{name} {given!r}: expected modes, counted from 0, such as (0, 2)") from None
    return tuple(sorted({whole(f"{name}: mode", mode, 0, MOST_MODES) for mode in listed}))


def nonnegative_of(name: str, given: Any) -> bool | Modes:
    """Return True, False, or modes; raise `InputError` if something else is given."""
    return bool(given) if isinstance(given, (bool, np.bool_)) else modes_of(name, given)


def ridge_of(name: str, given: Any) -> float | tuple[float, ...]:
    """Return a number or several; raise `InputError` if one of them is negative, or something else is given."""
    wanted = "a number of at least 0"
    if isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, (str, bytes)):
        return tuple(real(name, number, wanted) for number in given)
    return real(name, given, wanted)
