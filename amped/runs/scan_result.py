"""The parameters and the result of a scan."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from partitioner.validate import whole

from ..backend.known_losses import loss_of
from ..backend.losses import Loss
from ..errors import InputError
from ..methods.gcp import GENERAL, MAX_ITERS, STOCHASTIC, tolerance_of
from ..methods.poisson import Poisson, PoissonMethod
from ..models.dataframe import dataframe
from ..models.kruskal import KruskalTensor
from ..models.scanned import ScannedRank, Suggestion
from ..operators.placement import MAX_DENSE_RANK
from ..report.notebook import scan_columns, scan_html
from ..report.scan_picture import draw
from ..report.scan_text import table as scan_table
from .gcp import APR_METHODS, LossTraits, check_method, default_method

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from pandas import DataFrame

LIMITS = 200, 1e-6  # iterations and tolerance of a start, unless its method is one of `GENERAL`
LOSS_LIMITS = 300, 1e-7  # of "lbfgs" and "newton": with too many components they would take all 1000


def ranks_of(name: str, value: str | int | Iterable[Any]) -> tuple[int, ...]:
    """Return numbers of components from text such as "1-4,6", a number, or a sequence of numbers."""
    if isinstance(value, str):
        ranks: list[Any] = [rank for part in value.split(",") for rank in _ranks_in(name, value, part)]
    else:
        ranks = list(value) if isinstance(value, Iterable) else [value]
    if not ranks:
        raise InputError(f"{name} {value!r}: expected at least one number")
    return tuple(dict.fromkeys(whole(name, rank, 1, MAX_DENSE_RANK) for rank in ranks))


def _ranks_in(name: str, text: str, part: str) -> range:
    """Return the numbers of a part of a text, such as "1-4" or "6"."""
    first, dash, last = part.strip().partition("-")
    try:
        low, high = int(first), int(last if dash else first)
    except ValueError:
        raise InputError(f"{name} {text!r}: expected numbers such as 1-8 or 2,4,8") from None
    if low > high:
        raise InputError(f"{name} {text!r}: {low} is above {high}")
    return range(low, min(high, max(low, MAX_DENSE_RANK + 1)) + 1)


class ScanParams(NamedTuple):
    """The parameters of a scan; see `amped.scan`."""

    ranks: tuple[int, ...]
    starts: int = 5
    seed: int = 0
    loss: Loss = loss_of("gaussian")
    method: str | None = None  # by default that of the loss
    nonnegative: bool = False
    max_iters: int | None = None
    tol: float | None = None
    halves: bool = True  # whether to compare halves of the tensor
    split: int | str | None = None  # the mode whose even and odd indices are the halves; by default the longest
    holdout: float | None = None  # fraction of the observed elements that are held out

    def resolved(self, masked: bool) -> ScanParams:
        """Return the parameters with the defaults of the loss and the method; `masked`: whether there is a mask.

        Raises
        ------
        InputError
            If the method does not apply.
        """
        traits = LossTraits(masked, self.holdout is not None)
        method = self.method or default_method(self.loss.name, traits)
        check_method(self.loss.name, method, traits)
        limits = LOSS_LIMITS if method in GENERAL else LIMITS
        max_iters, tol = (MAX_ITERS, tolerance_of(method)) if method in STOCHASTIC else limits
        max_iters, tol = self.max_iters or max_iters, tol if self.tol is None else self.tol
        return self._replace(method=method, max_iters=max_iters, tol=tol)

    @property
    def rule(self) -> tuple[int, float]:
        """The maximum number of iterations, and the tolerance."""
        assert self.max_iters is not None
        assert self.tol is not None
        return self.max_iters, self.tol

    @property
    def poisson(self) -> Poisson | None:
        """The parameters of CP-APR, if that is the method."""
        return Poisson(self.rule[1], method=cast(PoissonMethod, self.method)) if self.method in APR_METHODS else None

    @property
    def least_squares(self) -> bool:
        """Whether the loss is Gaussian."""
        return self.loss.name == "gaussian"


class Scan(NamedTuple):
    """The result of a scan: the figures for each number of components, and the suggested number.

    Attributes
    ----------
    tried : tuple of ScannedRank
        One for each number of components, in the requested order.
    models : tuple of KruskalTensor
        The best model for each number of components.
    suggestion : Suggestion
        The suggested `rank`, or None, and the `reason`.
    seconds : dict
        Seconds by kind of work: `runs`, `halves`, `diagnostics` and, if elements were held out, `holdout`.

    Examples
    --------
    >>> found = amped.scan(np.random.default_rng(0).random((4, 4, 4)), "1-2", starts=2, max_iters=20)
    >>> found.to_frame()["rank"].tolist(), len(found.plot(panels=["explained"]).axes)
    ([1, 2], 1)
    """

    tried: tuple[ScannedRank, ...]
    models: tuple[KruskalTensor, ...]
    suggestion: Suggestion
    seconds: dict[str, float]

    def to_frame(self) -> DataFrame:
        """Return the figures as a pandas DataFrame: one row for each number of components.

        Returns
        -------
        pandas.DataFrame
            ``rank``, ``explained`` by the best start, ``reached`` and ``starts``, ``match``, ``halves``,
            ``consistency``, ``holdout`` and ``holdout_error`` if elements were held out, ``iterations``, ``seconds``
            and ``suggested``; see ``tried``.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        return dataframe(scan_columns(self.tried, self.suggestion))

    def __str__(self) -> str:
        return scan_table(self.tried, self.suggestion)

    def _repr_html_(self) -> str:
        return scan_html(self.tried, self.suggestion)

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        panels: Sequence[str] | None = None,
        ax: Axes | NDArray[np.object_] | None = None,
    ) -> Figure:
        """Draw how much each number of components explains, and how stable it is.

        Parameters
        ----------
        path : path, optional
            ``.png``, ``.svg`` or ``.pdf``. Notebooks display the returned figure.
        panels : sequence of {"explained", "match", "consistency", "holdout"}, optional
            The panels, from top to bottom: R squared or explained deviance of each start; the match of the components
            between starts and between halves; the core consistency; the error on held-out elements. By default all that
            were computed.
        ax : Axes or sequence of Axes, optional
            Where to draw, one per panel.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which notebooks display.

        Raises
        ------
        InputError
            If an argument is invalid, Matplotlib is not installed, or the file cannot be written.
        """
        return draw(self.tried, self.suggestion, path, panels, ax)
