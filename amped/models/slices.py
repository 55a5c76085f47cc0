"""Misfit and leverage of each slice of a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, HostArray

from .dataframe import dataframe
from .explained import label_of

if TYPE_CHECKING:
    from pandas import DataFrame

FEWEST = 5  # slices of a mode with z-scores
ROUNDING = 1e-24  # misfit over size that is a rounding error
LEAST_SCALE = 0.1  # least robust standard deviation of the logarithm of the misfit
WINDOW, ANCHORS = 15, 64  # least number of neighbours of a slice, and of sizes at which they are compared
SAMPLE = 100  # slices whose pairs determine a slope
MAD = 1.4826  # standard deviation of a normal distribution over its median absolute deviation


class SliceResiduals(NamedTuple):
    """The residuals of the slices of one mode.

    Attributes
    ----------
    name : str
        Name of the mode.
    labels : array or None
        Labels of the slices; None for indices.
    misfit : (I,) array
        Sum of the squared residuals over all elements of a slice, including absent ones; for a Poisson model its
        deviance.
    leverage : (I,) array
        Influence of each slice on the factor matrix: the diagonal of its projection matrix, 0 to 1.
    z : (I,) array
        How unusual the misfit is, as a robust z-score: its logarithm is compared with that of slices of similar size,
        by a local regression. The size is the sum of squares of the tensor and the model (Poisson: of the values). NaN
        for modes with fewer than five slices.
    value, expected : (I,) array
        Sums of the tensor and of the model over the slice.

    Examples
    --------
    >>> model = amped.KruskalTensor(np.array([4.0]), [np.full((2, 1), 0.5), np.full((2, 1), 0.5)])
    >>> model.residuals(np.array([[1.0, 1.0], [1.0, 4.0]])).slices[0].misfit.tolist()
    [0.0, 9.0]
    """

    name: str
    labels: HostArray | None
    misfit: NDArray[np.float64]
    leverage: NDArray[np.float64]
    z: NDArray[np.float64]
    value: NDArray[np.float64]
    expected: NDArray[np.float64]

    def to_frame(self) -> DataFrame:
        """Return the slices as a pandas DataFrame, in the order of the mode.

        Returns
        -------
        pandas.DataFrame
            ``label``, ``misfit``, ``leverage``, ``z``, ``value`` and ``expected``.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        return dataframe(self.columns())

    def columns(self) -> dict[str, Any]:
        """Return the columns of `to_frame`."""
        labels = [label_of(self.labels, row) for row in range(self.misfit.size)]
        names = "misfit", "leverage", "z", "value", "expected"
        return {"label": labels, **{name: getattr(self, name).tolist() for name in names}}

    def top(self) -> NDArray[np.intp]:
        """Return the slices with z-scores, the most unusual first."""
        order = np.argsort(-np.nan_to_num(self.z, nan=-math.inf), kind="stable")
        return order[: int(np.isfinite(self.z).sum())]

    def __repr__(self) -> str:
        return f"SliceResiduals({self.name!r}, {self.misfit.size} slices)"


class ModelSlices(NamedTuple):
    """The slices of one mode of a model: sums, sizes and leverages.

    The size of a slice is the sum of its squares, or for a Poisson model its sum.
    """

    expected: NDArray[np.float64]
    size: NDArray[np.float64]
    leverage: NDArray[np.float64]


def model_slices(weights: NDArray[np.float64], factors: Sequence[Floats], poisson: bool) -> Iterator[ModelSlices]:
    """Yield the slices of each mode of a model."""
    exact = [factor.astype(np.float64, copy=False) for factor in factors]
    sums, grams = [factor.sum(axis=0) for factor in exact], [factor.T @ factor for factor in exact]
    for mode, factor in enumerate(exact):
        size = expected = factor @ (weights * np.prod(np.delete(sums, mode, 0), axis=0))
        if not poisson:
            rows = factor * weights
            size = np.einsum("ir,ir->i", rows @ np.prod(np.delete(grams, mode, 0), axis=0), rows)
            size = np.maximum(0.0, size)
        part = np.einsum("ir,ir->i", factor @ np.linalg.pinv(grams[mode], hermitian=True), factor)
        yield ModelSlices(expected, size, np.clip(part, 0.0, 1.0))


def robust_z(
    misfit: NDArray[np.float64], size: NDArray[np.float64], counts: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return robust z-scores of the logarithm of a misfit, compared with similar sizes, and the usual misfit.

    `counts` are the numbers of elements: the fewer, the more the misfit varies by chance. Rounding errors do not count.
    """
    z, usual = np.full(misfit.size, np.nan), misfit.copy()
    usable = np.flatnonzero(misfit > ROUNDING * size)
    if usable.size < FEWEST:
        return z, usual
    x, y = np.log(size[usable]), np.log(misfit[usable])
    middle, spread = _baseline(x, y)
    rest = y - middle
    z[usable] = rest / np.sqrt(spread**2 + 2 / np.maximum(1, counts[usable]))
    usual[usable] = np.exp(middle)
    return z, usual


def _baseline(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the usual `y` for each `x`, and its robust standard deviation: from neighbours of similar `x`."""
    order = np.argsort(x, kind="stable")
    width = max(WINDOW, x.size // ANCHORS)
    centres = np.unique(np.linspace(0, x.size - 1, ANCHORS).astype(np.intp))
    anchors = np.empty((3, centres.size))
    for at, centre in enumerate(centres):
        begin = int(np.clip(centre - width // 2, 0, max(0, x.size - width)))
        near = order[begin : begin + width]
        place = x[order[centre]]
        rest = y[near] - _slope(x[near], y[near]) * (x[near] - place)
        middle = float(np.median(rest))
        anchors[:, at] = place, middle, max(LEAST_SCALE, MAD * float(np.median(np.abs(rest - middle))))
    return np.interp(x, anchors[0], anchors[1]), np.interp(x, anchors[0], anchors[2])


def _slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return the median slope between pairs of points (Theil-Sen), between 0 and 2."""
    step = -(-x.size // SAMPLE)
    x, y = x[::step], y[::step]
    run = x[:, None] - x
    pairs = np.triu(np.abs(run) > 1e-6, 1)
    if not pairs.any():
        return 0.0
    return float(np.clip(np.median((y[:, None] - y)[pairs] / run[pairs]), 0.0, 2.0))
