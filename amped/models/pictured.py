"""Pictures of a CP model other than its columns: residuals over two modes, congruences, and shares."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.labels import mode_names, mode_number

from ..errors import InputError
from .align import with_absent
from .evaluation import Evaluation
from .explained import inner_product, shares
from .matching import congruences
from .residual_map import residual_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Pictured(Evaluation):
    """Mixin with pictures of a CP model; see `Evaluation`."""

    def plot_residuals(
        self,
        X: object,
        modes: Sequence[int | str] = (0, 1),
        path: str | os.PathLike[str] | None = None,
        *,
        mask: object = None,
        unknown: str = "error",
        ax: Axes | None = None,
    ) -> Figure:
        """Draw the residuals over two modes as a map, summed over the other modes, in standard deviations.

        Residuals are positive where the tensor exceeds the model. A mode whose labels have no order shows those with
        the largest residuals.

        Parameters
        ----------
        X : tensor, array, table or path
            See `score`.
        modes : sequence of int or str
            The modes of the rows and of the columns, by number or name.
        path : path, optional
            ``.png``, ``.svg`` or ``.pdf``.
        mask, unknown : optional
            See `score`.
        ax : Axes, optional
            Where to draw.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which notebooks display.

        Raises
        ------
        InputError
            If there are not two modes, the shapes differ, Matplotlib is not installed, or the file cannot be written.

        Examples
        --------
        >>> model = KruskalTensor(np.ones(1), [np.ones((3, 1)), np.ones((2, 1))])
        >>> model.plot_residuals(np.array([[1.0, 1.0], [1.0, 4.0], [1.0, 1.0]])).axes[0].get_ylabel()
        'mode 0'
        """
        from ..report.maps import draw_residuals

        names = mode_names(self.labels, len(self.factors))
        numbers = [mode_number(names, mode, "modes") for mode in modes]
        if len(numbers) != 2 or len(set(numbers)) != 2:
            raise InputError(f"modes: {list(modes)}: expected two different modes")
        tensor, partial = self._elements(X, mask, None, None, unknown)
        if self.known_loss is not None and not partial:
            tensor, partial = with_absent(tensor), True
        first, second = numbers
        cells = residual_map(self.weights, self.host_factors, tensor, (first, second), self.residual_kind(), partial)
        labels = (None, None) if self.labels is None else (self.labels[first], self.labels[second])
        return draw_residuals(cells, (names[first], names[second]), labels, path, ax)

    def plot_congruences(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        modes: Sequence[int | str] | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Draw the congruence of each pair of components as a map, which shows those that are similar or cancel.

        Parameters
        ----------
        path : path, optional
            ``.png``, ``.svg`` or ``.pdf``.
        modes : sequence of int or str, optional
            The modes over which cosines are multiplied, by number or name; by default all.
        ax : Axes, optional
            Where to draw.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which notebooks display.

        Raises
        ------
        InputError
            If a mode does not exist, Matplotlib is not installed, or the file cannot be written.

        Examples
        --------
        >>> model = KruskalTensor(np.ones(2), [np.eye(4, 2), np.ones((5, 2))])
        >>> np.round(model.plot_congruences(modes=[1]).axes[0].images[0].get_array(), 6).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
        """
        from ..report.maps import draw_congruences

        names = mode_names(self.labels, len(self.factors))
        numbers = range(len(names)) if modes is None else [mode_number(names, mode, "modes") for mode in modes]
        if not numbers:
            raise InputError("modes: expected at least one")
        return draw_congruences(congruences([self.host_factors[mode] for mode in numbers]), path, ax)

    def plot_shares(
        self, path: str | os.PathLike[str] | None = None, X: object = None, *, ax: Axes | None = None
    ) -> Figure:
        """Draw the share of each component, and with `X` the part of its squared norm that only this one explains.

        Parameters
        ----------
        path : path, optional
            ``.png``, ``.svg`` or ``.pdf``.
        X : tensor, array, table or path, optional
            The data of the fit; see `score`. The part is what R squared loses without the component, the others being
            as they are.
        ax : Axes, optional
            Where to draw.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which notebooks display.

        Raises
        ------
        InputError
            If elements of `X` are missing, the shapes differ, Matplotlib is not installed, or the file cannot be
            written.

        Examples
        --------
        >>> model = KruskalTensor(np.array([3.0, 1.0]), [np.eye(4, 2), np.eye(5, 2)])
        >>> [round(bar.get_height()) for bar in model.plot_shares().axes[0].patches]
        [75, 25]
        """
        from ..report.maps import draw_shares

        drawn = {"of the model": shares(self.weights, self.host_factors)}
        if X is not None:
            drawn["only it explains, of the tensor"] = self._unique(X)
        return draw_shares(drawn, path, ax)

    def _unique(self, X: object) -> NDArray[np.float64]:
        """Return by how much R squared is smaller without each component."""
        tensor, partial = self._elements(X, None, None, None)
        if partial:
            raise InputError("X: elements are missing, so that the parts of components are unknown")
        factors = [np.asarray(factor, np.float64) for factor in self.host_factors]
        products = np.outer(self.weights, self.weights) * np.prod([factor.T @ factor for factor in factors], axis=0)
        inner = np.array(
            [
                inner_product(self.weights[r : r + 1], [factor[:, r : r + 1] for factor in factors], tensor)
                for r in range(self.weights.size)
            ]
        )
        unique: NDArray[np.float64] = 2 * inner - 2 * products.sum(axis=0) + np.diag(products)
        return unique / (tensor.norm() ** 2 or 1.0)
