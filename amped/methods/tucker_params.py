"""Parameters of Tucker decompositions: method, ranks or error, start, and constraints."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np

from partitioner.tensors.labels import Labels, mode_names, mode_number
from partitioner.wording import parameter

from ..errors import InputError
from ..operators.placement import MAX_RANK
from .initial import Init

METHODS = ("hooi", "hosvd", "sthosvd")
WHOLE = "all"  # rank of a mode that stays uncompressed, on the command line


@dataclass(frozen=True)
class Compression:
    """Parameters of a Tucker decomposition.

    Attributes
    ----------
    method : {"hooi", "hosvd", "sthosvd"}
    ranks : tuple of int or None, optional
        Columns of each mode's factor matrix. None leaves a mode as it is; see `of_shape`.
    error : float, optional
        Relative error, instead of ranks. The ranks are the smallest for which HOSVD (also for "hooi") or ST-HOSVD has
        at most this error.
    init : path, "nvecs", matrices, optional
        Start of "hooi"; by default random matrices or, if `error` is given, those of HOSVD.
    nonnegative : bool
        Whether the core and all factor matrices are non-negative; then "hooi" stands for HALS.
    fixed : tuple of int
        Modes whose factor matrices are those of the start.
    uncompressed : tuple of int
        Modes whose factor matrix is the identity.
    accelerate : bool
        Whether iterations of HALS begin at extrapolated matrices; see `extrapolation`.

    Raises
    ------
    InputError
        If the parameters contradict each other or are out of range.
    """

    method: str = "hooi"
    ranks: tuple[int | None, ...] | None = None
    error: float | None = None
    init: Init | None = None
    nonnegative: bool = False
    fixed: tuple[int, ...] = ()
    uncompressed: tuple[int, ...] = ()
    accelerate: bool = True

    def __post_init__(self) -> None:
        if self.method != "hooi" and (self.nonnegative or self.fixed):
            what = "fixed_modes" if self.fixed else "nonnegative"
            raise InputError(f"{what} requires method 'hooi': {self.method!r} computes its factor matrices itself")
        if self.nonnegative and self.error is not None:
            raise InputError("nonnegative requires rank instead of error")
        if self.fixed and self.from_spectra:
            raise InputError(f"fixed_modes {list(self.fixed)}: pass rank, and the fixed matrices as init")
        if self.error is not None and not 0 < self.error < 1:
            raise InputError(f"error {self.error:g}: expected a number between 0 and 1")
        if self.method != "hooi" and self.init is not None:
            raise InputError(f"init requires method 'hooi': {self.method!r} computes its factor matrices itself")
        columns = [rank for mode, rank in enumerate(self.ranks or ()) if mode not in self.uncompressed]
        if not all(1 <= rank <= MAX_RANK for rank in columns if rank is not None):
            raise InputError(f"rank {shown(self.ranks or ())}: expected numbers from 1 to {MAX_RANK}")

    def of_shape(self, shape: Sequence[int], most: int = MAX_RANK) -> Compression:
        """Return the parameters for a tensor of this shape, whose uncompressed modes have at most `most` indices.

        Raises
        ------
        InputError
            If the tensor cannot have these ranks, or a fixed mode does not exist.
        """
        if outside := [mode for mode in self.fixed if mode >= len(shape)]:
            wrong = f"{parameter('fixed_modes')}: there is no mode {outside[0]}"
            raise InputError(f"{wrong}; the tensor has modes 0 to {len(shape) - 1}")
        if self.ranks is None:
            return self
        if len(self.ranks) != len(shape):
            raise InputError(f"rank {shown(self.ranks)}: {len(self.ranks)} numbers for a tensor of {len(shape)} modes")
        whole = tuple(mode for mode, rank in enumerate(self.ranks) if rank is None)
        ranks = tuple(n if rank is None else rank for n, rank in zip(shape, self.ranks, strict=True))
        if both := sorted({*whole} & {*self.fixed}):
            raise InputError(f"fixed_modes: mode {both[0]} stays uncompressed, so it has no matrix to fix")
        if len({*whole, *self.fixed}) == len(shape):
            raise InputError("rank, fixed_modes: no mode is left to solve")
        if too_long := [mode for mode in whole if shape[mode] > most]:
            cause = f"mode {too_long[0]} has {shape[too_long[0]]:,} indices; at most {most:,} can stay uncompressed"
            raise InputError(f"rank {shown(self.ranks)}: {cause}")
        check_ranks(shape, ranks, range(0) if self.nonnegative else self._solved(len(shape), whole))
        return replace(self, ranks=ranks, uncompressed=whole)

    def with_fixed(self, modes: Sequence[int | str], labels: Labels | None, order: int) -> Compression:
        """Return the parameters with these fixed modes, by number or by the name that labels have."""
        names = mode_names(labels, order)
        numbers = {
            mode_number(names, mode, parameter("fixed_modes")) if isinstance(mode, str) else mode for mode in modes
        }
        return replace(self, fixed=tuple(sorted(numbers)))

    def _solved(self, order: int, whole: Sequence[int]) -> list[int]:
        return [mode for mode in range(order) if mode not in whole and mode not in self.fixed]

    def solved(self, order: int) -> list[int]:
        """Return the modes whose factor matrices are computed."""
        return self._solved(order, self.uncompressed)

    @property
    def columns(self) -> tuple[int, ...] | None:
        """The ranks, after `of_shape`; None if the error determines them."""
        return None if self.ranks is None else tuple(rank for rank in self.ranks if rank is not None)

    @property
    def known_ranks(self) -> tuple[int, ...] | None:
        """The ranks, if they are known without the tensor."""
        return None if self.ranks is None or None in self.ranks else self.columns

    @property
    def facts(self) -> dict[str, object]:
        """The constraints that apply, as stored in records and checkpoints."""
        order = len(self.ranks or ())
        facts = {
            "nonnegative": list(range(order)) if self.nonnegative else [],
            "fixed_modes": list(self.fixed),
            "uncompressed_modes": list(self.uncompressed),
        }
        return {name: modes for name, modes in facts.items() if modes}

    @property
    def from_spectra(self) -> bool:
        """Whether the initial or final factor matrices come from spectra."""
        named = isinstance(self.init, str) and self.init == "nvecs"
        return self.method != "hooi" or self.error is not None or named

    @property
    def sequential(self) -> bool:
        """Whether each spectrum is that of the tensor already compressed in the preceding modes."""
        return self.method == "sthosvd"


def check_ranks(shape: Sequence[int], ranks: Sequence[int], solved: Container[int] | None = None) -> None:
    """Raise `InputError` if a tensor of this shape cannot have these ranks.

    Modes in `solved`, by default all, have orthonormal columns in the space of a product with the other matrices.
    """
    for mode, (length, rank) in enumerate(zip(shape, ranks, strict=True)):
        others = int(np.prod([float(r) for m, r in enumerate(ranks) if m != mode]))
        if rank > length:
            raise InputError(f"rank {shown(ranks)}: mode {mode} has length {length:,}, so at most {length:,} columns")
        if rank > others and (solved is None or mode in solved):
            cause = f"at most {others:,} columns, the product of the other modes' ranks"
            raise InputError(f"rank {shown(ranks)}: mode {mode}: {cause}")


def shown(ranks: Sequence[int | None]) -> str:
    """Return ranks in the form of the command line."""
    return ",".join(WHOLE if rank is None else str(rank) for rank in ranks)
