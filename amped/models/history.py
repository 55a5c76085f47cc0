"""The history of a run in a model's file: the metrics of each iteration, and the record of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from partitioner.array_types import Floats, HostArray
from partitioner.tensors.labels import Labels

from .record import sound

FITS, CONVERGED, SERIES, RUN = "fits", "converged", "series_", "run"


class AnyModel(Protocol):
    """A decomposition of any kind, with the history of the run that made it."""

    factors: list[Any]
    fits: tuple[float, ...]
    converged: bool
    series: dict[str, tuple[float, ...]]
    run: dict[str, Any]

    @property
    def host_factors(self) -> list[Floats]:
        """The factor matrices as NumPy arrays."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The mode lengths."""

    @property
    def terms(self) -> int:
        """The number of products of columns of which the model is the sum."""

    @property
    def labels(self) -> Labels | None:
        """Labels of the rows of each factor matrix, or None."""

    def labelled(self, labels: Iterable[ArrayLike] | Mapping[str, ArrayLike] | None) -> Self:
        """Label the rows of the factor matrices, in place."""

    def save(self, path: str | os.PathLike[str], *, replace: bool = True) -> None:
        """Write the model with its labels and history to an ``.npz`` file."""

    def score(self, X: object, *, value: str | None = None, where: str | None = None, unknown: str = "error") -> float:
        """Return the fit to a tensor, ``1 - ||X - M|| / ||X||``."""


M = TypeVar("M", bound=AnyModel)
M_co = TypeVar("M_co", bound=AnyModel, covariant=True)


def history_arrays(model: AnyModel) -> dict[str, HostArray]:
    """Return a model's history as plain arrays, keyed by their names in the model's file; empty without a history."""
    arrays: dict[str, HostArray] = {f"{SERIES}{name}": np.array(each) for name, each in model.series.items()}
    if model.fits:
        arrays[FITS] = np.array(model.fits)
    if arrays:
        arrays[CONVERGED] = np.array(model.converged)
    if model.run:
        arrays[RUN] = np.frombuffer(json.dumps(model.run, default=str).encode(), np.uint8)
    return arrays


def take_history(model: AnyModel, arrays: Mapping[str, HostArray]) -> None:
    """Set a model's history from the arrays of its file; arrays of these names but of another type are ignored."""
    model.fits = _numbers(arrays.get(FITS))
    names = [name for name in arrays if name.startswith(SERIES)]
    model.series = {name.removeprefix(SERIES): each for name in names if (each := _numbers(arrays[name]))}
    converged = arrays.get(CONVERGED)
    model.converged = converged is not None and converged.shape == () and bool(converged)
    model.run = _record(arrays.get(RUN))


def _numbers(array: HostArray | None) -> tuple[float, ...]:
    usable = array is not None and array.ndim == 1 and array.dtype.kind == "f"
    return tuple(array.tolist()) if array is not None and usable else ()


def _record(array: HostArray | None) -> dict[str, Any]:
    if array is None or array.dtype != np.uint8:
        return {}
    try:
        record = json.loads(array.tobytes())
    except (ValueError, RecursionError):
        return {}
    return sound(record) if isinstance(record, dict) else {}
