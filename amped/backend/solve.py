"""The family that solves rows of a factor matrix."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from .base import Array

FAMILY = "solve"


class Sums(NamedTuple):
    """What is added up of a factor matrix while its rows are solved; device arrays in double precision.

    Attributes
    ----------
    gram : (R, R) array
        The Gram matrix of the rows as they are stored.
    largest : (R,) array
        The largest magnitude of each column, before it is rounded to the stored type.
    dots : (R,) array or None
        Inner products of the MTTKRP's columns with those of the factor matrix.
    """

    gram: Array
    largest: Array
    dots: Array | None = None


class Solver(Protocol):
    """One way to solve rows on a device: a provider of the family.

    Attributes
    ----------
    name : str
    """

    name: str

    def suits(self, rank: int, dtype: np.dtype[Any]) -> bool:
        """Tell whether it solves rows of so many columns, stored as `dtype`."""

    def bytes(self, rows: int, rank: int) -> int:
        """Return the device memory that solving so many rows takes, small matrices included."""

    def make(self, rows: int, rank: int, dtype: np.dtype[Any]) -> Any:
        """Return what `run` needs for up to so many rows: scratch memory and compiled code."""

    def run(self, made: Any, source: Array, inverse: Array, target: Array, sums: Sums) -> None:
        """Queue ``target = source @ inverse``, and add to `sums`.

        Parameters
        ----------
        made : object
            From `make`.
        source : (rows, R) float64 array
        inverse : (R, R) float64 array
        target : (rows, R) array
        sums : Sums
        """
