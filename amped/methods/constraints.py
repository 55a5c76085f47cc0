"""Constraints on factor matrices: non-negative, penalised by a ridge, fixed, or with proximal operators.

Under the first three all columns have unit 2-norm when the next mode is solved, and the weights are multiplied into the
rows from which that solve starts. Therefore no solve increases the objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from partitioner.array_types import Floats
from partitioner.tensors.ingest import MAX_ORDER
from partitioner.tensors.labels import Labels, mode_names, mode_number
from partitioner.validate import real, whole
from partitioner.wording import parameter

from ..backend.ops.equations import ConstraintBounds
from ..errors import InputError
from .proximal.fixed import FixedMask
from .proximal.terms import ModeTerms, with_masks, with_nonnegative

Modes = tuple[int, ...]
NamedModes = tuple[int | str, ...]
"""Modes by number or name."""
SWEEPS = 5  # over the columns per solve of a mode; 1 to 10 give similar fits (docs/design/constraints.md)
UNTIL_SETTLED = 2000  # sweeps at most if only one mode is solved; a row stops when a sweep no longer changes it


class ConstraintParams(NamedTuple):
    """Constraints as requested, before the tensor's order is known."""

    nonnegative: bool | NamedModes = False
    ridge: float | tuple[float, ...] = 0.0
    fixed_modes: NamedModes = ()
    terms: tuple[tuple[int | str, ModeTerms], ...] = ()
    masks: tuple[FixedMask, ...] = ()

    def of(self, order: int, labels: Labels | None = None) -> Constraints:
        """Return the constraints for a tensor of this order; raise `InputError` if a mode does not exist.

        `labels` have the names of the modes.
        """
        names = mode_names(labels, order)

        def numbers(given: str, modes: NamedModes) -> Modes:
            found = [mode_number(names, mode, given) if isinstance(mode, str) else mode for mode in modes]
            for mode in found:
                if mode >= order:
                    raise InputError(f"{given}: there is no mode {mode}; the tensor has modes 0 to {order - 1}")
            return tuple(found)

        constraint = parameter("constraint", "constraints")
        fixed = tuple(sorted(set(numbers(parameter("fixed_modes"), self.fixed_modes))))
        bounded = self.nonnegative if isinstance(self.nonnegative, tuple) else range(order) if self.nonnegative else ()
        nonnegative = tuple(sorted(set(numbers(parameter("nonnegative_modes", "nonnegative"), tuple(bounded)))))
        given = numbers(constraint, tuple(mode for mode, _ in self.terms))
        if len(set(given)) < len(given):
            raise InputError(f"{constraint}: a mode is given by its name and by its number")
        terms = tuple(zip(given, (each for _, each in self.terms), strict=True))
        masked = numbers(parameter("constraint", "fixed"), tuple(mask.mode for mask in self.masks))
        terms = with_masks(terms, [mask._replace(mode=mode) for mask, mode in zip(self.masks, masked, strict=True)])
        ridge = self.ridge if isinstance(self.ridge, tuple) else (self.ridge,) * order
        if len(ridge) != order:
            raise InputError(
                f"{parameter('ridge')}: {len(ridge)} numbers for a tensor of order {order}: give one, or one per mode"
            )
        if len(fixed) == order:
            raise InputError(f"{parameter('fixed_modes')}: all modes are fixed; leave at least one to solve")
        result = Constraints(nonnegative, ridge, fixed, terms)
        if terms:
            return result.by_admm(order)
        return result if any((nonnegative, any(ridge), fixed)) else NONE


@dataclass(frozen=True)
class Constraints:
    """Constraints on the factor matrices of a tensor."""

    nonnegative: Modes = ()
    ridge: tuple[float, ...] = ()  # per mode, added to the diagonal of the other modes' Gram product
    fixed: Modes = ()
    terms: tuple[tuple[int, ModeTerms], ...] = ()  # by mode; if there are any, ADMM solves all modes

    def __bool__(self) -> bool:
        return self != NONE

    def by_admm(self, order: int) -> Constraints:
        """Return these constraints, which include `terms`, as they are solved by ADMM in all modes."""
        if any(self.ridge):
            raise InputError("ridge: together with constraints, write it as the constraint 'l2:X' of each mode")
        terms = dict(self.terms)
        if both := [mode for mode in terms if mode in self.fixed]:
            raise InputError(f"constraints: mode {both[0]} is fixed")
        for mode in set(self.nonnegative) - set(self.fixed):
            terms[mode] = with_nonnegative(terms.get(mode, ModeTerms()))
        solved = self.solved(order)
        if any(each.penalised for each in terms.values()):
            for mode in solved:
                if (each := terms.get(mode, ModeTerms())).scalable and not each.penalised:
                    terms[mode] = each.in_ball()
        if all(mode in terms and terms[mode].fixes_scale for mode in range(order)):
            names = ", ".join(terms[mode].names[0] for mode in solved)
            raise InputError(f"constraints {names}: all modes have a fixed size; leave one for the tensor's size")
        nonnegative = tuple(sorted({*self.nonnegative, *(mode for mode, each in terms.items() if each.nonnegative)}))
        return Constraints(nonnegative, self.ridge, self.fixed, tuple(sorted(terms.items(), key=lambda m: m[0])))

    @property
    def norm(self) -> int:
        """The p of the p-norm by which the model's columns are normalised: 1 or 2."""
        return 1 if self.nonnegative else 2

    def solved(self, order: int) -> list[int]:
        """Return the modes that are solved."""
        return [mode for mode in range(order) if mode not in self.fixed]

    def bounds(self, order: int) -> ConstraintBounds:
        """Return the constraints in the form that equations of this order take."""
        if not self:
            return ConstraintBounds.none(order)
        solved = self.solved(order)
        sweeps = SWEEPS if len(solved) > 1 else UNTIL_SETTLED
        return ConstraintBounds(self.ridge, self.nonnegative, solved[-1], sweeps)

    def objective(self, fit: float, squares: float, norm: float) -> float:
        """Return the squared residual plus the penalty of a common ridge, relative to the squared `norm` of the tensor.

        `squares`: see `EquationsStatus`.
        """
        return (1 - fit) ** 2 + (self.common_ridge or 0.0) * squares / norm**2

    @property
    def common_ridge(self) -> float | None:
        """The ridge of all modes that are solved; None if it is zero or differs between modes."""
        result = {number for mode, number in enumerate(self.ridge) if mode not in self.fixed}
        return (result.pop() or None) if len(result) == 1 else None

    @property
    def facts(self) -> dict[str, object]:
        """The active constraints, as stored in a checkpoint."""
        ridge = self.ridge if any(self.ridge) else ()
        facts = {"nonnegative": self.nonnegative, "ridge": ridge, "fixed_modes": self.fixed}
        terms = {"constraints": {str(mode): list(each.names) for mode, each in self.terms}} if self.terms else {}
        return {**{name: list(numbers) for name, numbers in facts.items() if numbers}, **terms}

    def check_sizes(self, shape: Sequence[int], rank: int) -> None:
        """Raise `InputError` if a mode is too short for `rank` orthonormal columns."""
        for mode, each in self.terms:
            if each.shape == "orthonormal" and shape[mode] < rank:
                cause = f"{rank} columns of {shape[mode]} rows cannot be orthonormal"
                raise InputError(f"constraints: mode {mode}: {cause}; use a smaller rank")

    def check_start(self, factors: Sequence[Floats], init: str | None) -> None:
        """Raise `InputError` unless a decomposition can start from these matrices.

        With `init` "nvecs", eigenvectors of non-negative modes are replaced in place by their magnitudes.
        """
        if self.fixed and init is None:
            cause = f"the start is random; pass the fixed matrices as {parameter('init')}"
            raise InputError(f"{parameter('fixed_modes')} {', '.join(map(str, self.fixed))}: {cause}")
        if init is None and (modes := [mode for mode, each in self.terms if each.fixed is not None]):
            cause = f"the start is random; pass matrices with their values as {parameter('init')}"
            raise InputError(f"fixed elements of mode {', '.join(map(str, modes))}: {cause}")
        for mode in self.nonnegative:
            if init == "nvecs":
                np.abs(factors[mode], out=factors[mode])
            elif not self.terms and factors[mode].min() < 0:  # otherwise the start is projected
                raise InputError(f"factor_{mode} of the start has negative entries, but mode {mode} is non-negative")


NONE = Constraints()


def modes_of(name: str, value: Any) -> NamedModes:
    """Return modes, numbers from 0 or names; raise `InputError` for anything else."""
    try:
        listed = [value] if isinstance(value, str) else list(value)
    except TypeError:
        raise InputError(f"{name} {value!r}: expected modes, counted from 0, such as (0, 2)") from None
    return tuple(
        mode if isinstance(mode, str) else whole(f"{name}: mode", mode, 0, MAX_ORDER - 1)
        for mode in dict.fromkeys(listed)
    )


def nonnegative_of(name: str, value: object) -> bool | NamedModes:
    """Return a bool or modes; raise `InputError` for anything else."""
    return bool(value) if isinstance(value, (bool, np.bool_)) else modes_of(name, value)


def ridge_of(name: str, value: object) -> float | tuple[float, ...]:
    """Return one number or a tuple of numbers; raise `InputError` for negative numbers or anything else."""
    expected = "a number of at least 0"
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes)):
        return tuple(real(name, number, expected) for number in value)
    return real(name, value, expected)
