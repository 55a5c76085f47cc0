"""The result of a CP decomposition: weights and factor matrices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, Integers
from partitioner.tensors.lowrank import full
from partitioner.validate import whole

from ..backend.losses import Loss
from ..errors import InputError
from ..files import factors_in
from ..options import OptionNames, with_options
from .columns import arrange_components, flip_columns
from .dataframe import dataframe
from .explained import Components, components, shares, values_at
from .factor_model import FactorModel
from .record import MODEL as MODEL
from .updatable import Updatable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame


class KruskalTensor(Updatable):
    """A CP model: a sum of rank-one tensors, ``sum_r weights[r] * factors[0][:, r] o factors[1][:, r] o ...``.

    ``weights, factors = model`` unpacks a model. The notation is that of Kolda and Bader 2009.

    Parameters
    ----------
    weights : (R,) array
        Weights of the components; stored in float64.
    factors : sequence of (I_n, R) arrays
        One factor matrix per mode: one row per index, one column per component.
    fits : sequence of float
        Fit after each iteration of the decomposition that made the model.
    converged : bool
        Whether the stopping test was met before the iterations ran out.
    series : mapping of str to sequences of float, optional
        Other metrics recorded after each iteration, by name.

    Attributes
    ----------
    labels : tuple of (I_n,) arrays, or None
        Labels of the rows of the factor matrices, if the tensor had labels. Strings use NumPy's StringDType.
    run : dict
        The record of the run that made the model, as in ``run.json``; empty if unknown.

    Examples
    --------
    >>> model = KruskalTensor(np.array([2.0, 1.0]), [np.eye(3, 2), np.eye(4, 2)])
    >>> model.shape, model.rank, model.full()[:2, :2].tolist(), model.shares().tolist()
    ((3, 4), 2, [[2.0, 0.0], [0.0, 1.0]], [0.6666666666666666, 0.3333333333333333])
    """

    def __init__(
        self,
        weights: Floats,
        factors: Sequence[Floats],
        fits: Sequence[float] = (),
        converged: bool = False,
        series: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        FactorModel.__init__(self, factors, fits, converged, series)
        self.weights = np.asarray(weights, np.float64)
        if any(f.ndim != 2 or f.shape[1] != self.weights.size for f in self.factors):
            raise InputError(
                f"factor matrices of shapes {[f.shape for f in self.factors]} for {self.weights.size} weights"
            )

    @property
    def rank(self) -> int:
        """The number of components."""
        return int(self.weights.size)

    @property
    def terms(self) -> int:
        """See `FactorModel`: one for each component."""
        return self.rank

    def arranged(self, norm: int = 2) -> KruskalTensor:
        """Return a copy with columns of unit norm and the components sorted by descending weight.

        Parameters
        ----------
        norm : {2, 1}
            The norm of the columns that becomes 1.

        Returns
        -------
        KruskalTensor
            A copy; integer factor matrices become float64.
        """
        factors = [f.astype(f.dtype if f.dtype.kind == "f" else np.float64) for f in self.host_factors]
        copy = KruskalTensor(self.weights, factors, self.fits, self.converged, self.series)
        copy.run, copy.slice_weights = dict(self.run), self.slice_weights
        return copy.labelled(self.labels).arrange(norm=norm)

    def arrange(
        self,
        scales: NDArray[np.float64] | float = 1.0,
        norm: int = 2,
        kept: Sequence[int] = (),
        sort: bool = True,
    ) -> KruskalTensor:
        """Normalise the columns to unit 2-norm or 1-norm and `sort` the components by descending weight, in place.

        The columns are first multiplied by `scales`, (order, R), which must not be negative. Columns of the modes
        `kept` are not normalised.
        """
        self.factors = self.host_factors
        self.weights = arrange_components(self.weights, self.factors, scales, norm, kept, sort)
        return self

    @with_options
    def transform(
        self,
        X: object,
        mode: int | str,
        *,
        loss: str | Loss | None = None,
        nonnegative: bool | None = None,
        ridge: float = 0.0,
        mask: object = None,
        value: str | None = None,
        where: str | None = None,
        unknown: str = "drop",
        deadline: float | None = None,
        output: str = "host",
        **options: Unpack[OptionNames],
    ) -> Floats:
        """Fit the rows of one mode to new data, with the other factor matrices fixed. Collective.

        The rows minimise the loss that the model was fitted with, so that for least squares and counts ``X`` is
        approximately ``KruskalTensor(ones, factors)`` with the returned rows in place of ``factors[mode]``: the rows
        include the weights.

        Parameters
        ----------
        X : tensor, array, table or path
            New data. Its length in `mode` is free. In the other modes its labels are matched to the model's labels;
            nonzeros whose labels the model lacks are dropped, with a warning. If either has no labels, the lengths must
            be equal. A table (a frame, or the file of one) must have the model's key columns. Under ``mpirun`` the data
            of rank 0 is used.
        mode : int or str
            Counted from 0, or its name.
        loss : str or Loss, optional
            See `cp`. By default the loss that the model was fitted with: "poisson" after `cp_apr`.
        nonnegative : bool, optional
            Whether the rows must be non-negative. By default they must if the model was fitted so in this mode. With
            the Poisson loss they always are.
        ridge : float
            Added to the diagonal of the Gram matrix of the other modes' unit-norm columns; for other losses than least
            squares a penalty on the squared entries. Not for counts without a mask.
        mask : {"nan", "stored"}, array, tensor or path, optional
            The observed elements, see `cp_als`. By default, if the model was fitted to
            observed elements, the stored elements of a sparse tensor, or those of a dense tensor that are not NaN.
        value, where : str, optional
            Of a table: the expression to sum and the filter of the rows; see `from_frame`. The defaults are those of
            the table that the model was fitted to; ``where="true"`` reads all rows, ``value="count(*)"`` counts them.
        unknown : {"drop", "error"}
            What happens to nonzeros whose labels the model lacks, except in `mode`.
        deadline : float, optional
            In seconds; see `cp_als`.
        output : {"host", "device"}
            Whether the rows are copied to the GPU that computed them; see `cp_als`.
        device, precision, placement, kernel, deterministic, device_memory, threads, gather, grid, workspace : optional
            See `amped.Options`.

        Returns
        -------
        (I_mode, R) array
            float32 or float64 according to the option `precision`; the same on every rank. Rows without nonzeros are
            zero, and so is the column of a component that is zero in another mode. Rows are in the order of the labels
            of `X`; for a table, in the order that `from_frame` gives them.

        Raises
        ------
        InputError
            If an argument is invalid or the shape of `X` does not match.

        Examples
        --------
        >>> X = np.einsum("ir,jr,kr->ijk", *np.random.default_rng(0).random((3, 4, 2)))
        >>> cp_als(X[:3], rank=2).transform(X[3:], 0).shape
        (1, 2)
        """
        arguments = {"loss": loss, "nonnegative": nonnegative, "ridge": ridge, "mask": mask, **options}
        arguments |= {"deadline": deadline, "output": output}
        from ..api.projection import transformed

        return transformed(self, X, mode, value, where, unknown, arguments)

    @property
    def nonnegative_modes(self) -> tuple[int, ...]:
        """The modes whose factor matrices were constrained to be non-negative by the fit."""
        modes = range(len(self.factors))
        if self.loss == "poisson":
            return tuple(modes)
        known = self.run.get("nonnegative")
        return tuple(mode for mode in modes if mode in known) if isinstance(known, list) else ()

    def signed(self) -> KruskalTensor:
        """Flip the signs of columns, in place, so that they are mostly positive; the components do not change.

        Returns
        -------
        KruskalTensor
            This model. Factor matrices on a GPU are moved to host memory.
        """
        self.factors = self.host_factors
        flip_columns(self.factors)
        return self

    def shares(self) -> NDArray[np.float64]:
        """Return each component's share of the model.

        Returns
        -------
        (R,) float64 array
            The shares add up to 1. They are shares of the model's sum if no number is negative, otherwise of its
            squared norm.
        """
        return shares(self.weights, self.host_factors)

    def top(self, count: int = 5) -> Components:
        """Return the components with their top labels.

        Parameters
        ----------
        count : int
            Maximum number of labels per mode.

        Returns
        -------
        Components
            A list of `Component`, which notebooks show as a table: `number`, `weight`, `share` of the model, and `top`:
            for each mode the pairs (label, entry in the column), the largest magnitude first. Without labels, indices
            take their place. Zero entries are left out.

        Examples
        --------
        >>> KruskalTensor(np.ones(1), [np.ones((1, 1)), np.array([[0.2], [0.8]])]).top()[0].top[1]
        ((1, 0.8), (0, 0.2))
        """
        return components(self.weights, self.host_factors, self.labels, whole("count", count, 1))

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        top: int = 6,
        *,
        ax: Axes | NDArray[np.object_] | None = None,
        modes: Sequence[int | str] | None = None,
        components: Sequence[int] | None = None,
        labels: Mapping[int | str, Any] | None = None,
        titles: Mapping[int | str, str] | None = None,
        overlay: Mapping[str, KruskalTensor] | None = None,
    ) -> Figure:
        """Draw the components, one panel per component and mode: curves for ordered labels, bars for others.

        Numbers, dates, times and indices are ordered. Bars show the top labels; days of the week and months are shown
        completely, in their order.

        Parameters
        ----------
        path : path, optional
            ``.png``, ``.svg`` or ``.pdf``. Notebooks display the returned figure.
        top : int
            Maximum number of bars.
        ax : Axes or array of Axes, optional
            Where to draw: an array of the shape (components, modes), or for one of them a sequence. A single Axes takes
            all components of one mode over each other.
        modes : sequence of int or str, optional
            Numbers or names of the modes to draw.
        components : sequence of int, optional
            Numbers of the components, counted from 0; by default the first 32.
        labels : mapping, optional
            Labels to draw instead of the model's, by the number or name of a mode.
        titles : mapping, optional
            Titles of modes, by number or name. By default the name, with the unit of durations and of the coordinates
            of an xarray object (their attribute ``units``).
        overlay : mapping of str to KruskalTensor, optional
            Other models, by their names in the legend. Matching components (see `compare`) are drawn over this model's,
            with its norm and sign.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which notebooks display.

        Raises
        ------
        InputError
            If an argument is invalid, the file cannot be written, or Matplotlib is not installed.

        Examples
        --------
        >>> model = KruskalTensor(np.ones(2), [np.eye(4, 2), np.eye(5, 2)])
        >>> len(model.plot(modes=[1], components=[0, 1]).axes)
        2
        """
        from ..report.pictures import draw

        options: dict[str, Any] = {"ax": ax, "modes": modes, "components": components, "labels": labels}
        options["titles"] = titles
        return draw(self, path, whole("top", top, 1), **options, overlay=overlay)

    def predict_at(self, columns: Sequence[Integers]) -> NDArray[np.float64]:
        """Return the model's values at the given indices (one array per mode), (n,); multithreaded."""
        return values_at(self.weights, self.host_factors, columns)

    def _part(self, rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        return full(self.weights, rows)

    @classmethod
    def of_arrays(cls, arrays: dict[str, NDArray[Any]], path: str | os.PathLike[str]) -> Self:
        """Return the model in a file's arrays; raise `InputError` if they are invalid."""
        if "core" in arrays:
            raise InputError("is a Tucker model: use amped.load or TuckerTensor.load", path=path)
        factors = factors_in(arrays, path)
        weights = arrays.get("weights", np.ones(factors[0].shape[1]))
        if weights.ndim != 1 or weights.dtype.kind not in "fiu":
            raise InputError(f"weights are {weights.dtype} of shape {weights.shape}", path=path)
        return cls._of_file(path, arrays, lambda: cls(weights, factors))._with_slice_weights(arrays, path)

    def __iter__(self) -> Iterator[Any]:
        """Yield the weights, then the list of factor matrices, as TensorLy does: ``weights, factors = model``."""
        yield self.weights
        yield self.factors

    def to_frame(self, count: int = 5) -> DataFrame:
        """Return a summary as a pandas DataFrame; see also `frame`, for a factor matrix, and `top`.

        Parameters
        ----------
        count : int
            Maximum number of labels per mode.

        Returns
        -------
        pandas.DataFrame
            One row per component: ``component`` (its number, from 0), ``weight``, ``share``, and for each mode its top
            labels as text.

        Raises
        ------
        InputError
            If pandas is not installed.

        Examples
        --------
        >>> model = KruskalTensor(np.ones(1), [np.ones((1, 1)), np.array([[0.2], [0.8]])])
        >>> model.to_frame()["mode 1"].tolist()
        ['1 80%, 0 20%']
        """
        from ..report.notebook import component_columns

        return dataframe(component_columns(self.top(count)))

    def _repr_html_(self) -> str:
        from ..report.notebook import model_table

        return model_table(self)

    def __repr__(self) -> str:
        return f"KruskalTensor(shape={self.shape}, rank={self.rank})"
