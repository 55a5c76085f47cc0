"""The result of a CP decomposition: weights and factor matrices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.labels import find, named
from partitioner.tensors.lowrank import full
from partitioner.tensors.sparse import SparseTensor
from partitioner.validate import whole

from ..errors import InputError
from ..files import factors_in, faults_of, read_npz, write_npz
from .align import aligned
from .columns import arrange_columns, column_norms, column_sums, scale_columns
from .explained import Component, Residuals, components, fit_of, inner_product, readable_signs, residuals, shares
from .history import history_arrays, take_history
from .interop import Forms
from .record import MODEL as MODEL


class KruskalTensor(Forms):
    """A sum of rank-one tensors, ``sum_r weights[r] * factors[0][:, r] o factors[1][:, r] o ...``.

    Parameters
    ----------
    weights : (R,) array
        The lengths of the components; kept in float64.
    factors : sequence of (I_n, R) arrays
        One for each mode: a row for each index, a column for each component.
    fits : sequence of float
        Fit after each iteration of the decomposition that made it, if any.
    converged : bool
        Whether the fit changed less than the tolerance before the iterations ran out.
    series : mapping of str to sequences of float, optional
        What else was noted after each iteration, by name.

    Attributes
    ----------
    labels : tuple of (I_n,) arrays, or None
        What the rows of the factor matrices stand for, where the tensor had labels. Strings are in NumPy's StringDType.

    run : dict
        What is known of the run that made it, as ``run.json`` has it; empty where nothing is.

    Notes
    -----
    The notation is that of Kolda and Bader, Tensor Decompositions and Applications, SIAM Review 51(3), 2009.
    """

    def __init__(
        self,
        weights: NDArray[np.floating],
        factors: Sequence[NDArray[np.floating]],
        fits: Sequence[float] = (),
        converged: bool = False,
        series: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.weights = np.asarray(weights, np.float64)
        self.factors = [np.asarray(f) for f in factors]
        self.fits = tuple(fits)
        self.converged = converged
        self.series = {name: tuple(numbers) for name, numbers in (series or {}).items()}
        self.run: dict[str, Any] = {}
        if any(f.ndim != 2 or f.shape[1] != self.weights.size for f in self.factors):
            raise InputError(
                f"factor matrices of shapes {[f.shape for f in self.factors]} for {self.weights.size} weights"
            )

    @property
    def rank(self) -> int:
        """The number of components."""
        return int(self.weights.size)

    @property
    def shape(self) -> tuple[int, ...]:
        """The mode lengths."""
        return tuple(f.shape[0] for f in self.factors)

    def arranged(self, norm: int = 2) -> KruskalTensor:
        """Return the same tensor with columns of unit norm, and weights descending.

        Parameters
        ----------
        norm : {2, 1}
            Which norm of a column becomes 1.

        Returns
        -------
        KruskalTensor
            A copy: factors of integers become float64.
        """
        factors = [f.astype(f.dtype if f.dtype.kind == "f" else np.float64) for f in self.factors]
        found = KruskalTensor(self.weights, factors, self.fits, self.converged, self.series)
        found.run = dict(self.run)
        return found.labelled(self.labels).arrange(norm=norm)

    def arrange(self, scales: NDArray[np.float64] | float = 1.0, norm: int = 2) -> KruskalTensor:
        """Give this tensor, in place, columns of unit 2-norm, or 1-norm, and weights descending.

        Columns are taken to be multiplied with `scales`, (order, R), which are not negative.
        """
        norms = [column_norms(f, norm) for f in self.factors]
        weights = self.weights * np.prod(np.multiply(norms, scales), axis=0)
        order = np.argsort(-weights, kind="stable")
        for factor, length in zip(self.factors, norms, strict=True):
            divisor = np.where(length > 0, length, 1)[order].astype(factor.dtype)
            arrange_columns(factor, order, divisor)
        self.weights = weights[order]
        return self

    def transform(
        self,
        X: Any,
        mode: int,
        *,
        loss: str | None = None,
        nonnegative: bool | None = None,
        ridge: float = 0.0,
        value: str | None = None,
        where: str | None = None,
        deadline: float | None = None,
        **options: Any,
    ) -> NDArray[Any]:
        """Return rows of a mode for new data: what its indices have of the components. Collective.

        The other modes' columns stay as they are. The rows minimise the loss that the model was fitted with: least
        squares, or the Poisson deviance. They hold the weights: ``X`` is about ``KruskalTensor(ones, factors)`` with
        these rows in the place of ``factors[mode]``.

        Parameters
        ----------
        X : tensor, array, table or path
            Of any length in `mode`. In the other modes its labels are matched to this model's: nonzeros with labels
            that the model does not know are left out, and told of. Where either has no labels it is as long as this
            tensor there. A table (a frame, or a file of one) has this model's keys. Under ``mpirun`` rank 0's counts.
        mode : int
            Counted from 0.
        loss : {"gaussian", "poisson"}, optional
            By default the loss of the model: "poisson" after `cp_apr`.
        nonnegative : bool, optional
            Whether rows are non-negative. By default they are if the model was fitted so in this mode, and always with
            the Poisson loss.
        ridge : float
            Added to the diagonal of the Gram matrix of the other modes' columns, taken to be of unit 2-norm. Not with
            the Poisson loss.
        value, where : str, optional
            Of a table: what is summed, and which rows are read; see `from_frame`. By default as for the table that the
            model was fitted to; ``where="true"`` reads all rows, ``value="count(*)"`` counts them.
        deadline : float, optional
            Seconds; see `cp_als`.
        **options : optional
            Those of `amped.Options`, such as `device` and `precision`.

        Returns
        -------
        (I_mode, R) array
            float32 or float64 by the option `precision`; the same on every rank. A row without nonzeros is zero, and so
            is the column of a component that is zero in another mode. Rows are in the order of the labels of `X`; of a
            table that is `from_frame`'s.

        Raises
        ------
        InputError
            If an argument is at fault, or the shape of `X`.

        Examples
        --------
        >>> model = cp_als(january, rank=16, nonnegative=True)  # doctest: +SKIP
        >>> rows = model.transform(february, 0, nonnegative=True)  # doctest: +SKIP
        """
        how = {"loss": loss, "nonnegative": nonnegative, "ridge": ridge, "deadline": deadline, **options}
        from ..api.projection import transformed

        return transformed(self, X, mode, value, where, how)

    @property
    def loss(self) -> str:
        """The loss that the model was fitted with: "poisson" after `cp_apr`, otherwise "gaussian"."""
        return "poisson" if "loglikelihood" in {*self.series, *self.run} else "gaussian"

    @property
    def nonnegative_modes(self) -> tuple[int, ...]:
        """The modes whose factor matrices were constrained to be non-negative by the fit."""
        modes = range(len(self.factors))
        if self.loss == "poisson":
            return tuple(modes)
        known = self.run.get("nonnegative")
        return tuple(mode for mode in modes if mode in known) if isinstance(known, list) else ()

    def signed(self) -> KruskalTensor:
        """Give columns, in place, signs that make their bulk positive; components stay as they are."""
        bulk = [column_sums(lambda rows: rows * np.abs(rows), f) for f in self.factors]
        sizes = [np.where((size := column_norms(f, 2)) > 0, size, 1) for f in self.factors]
        for factor, signs in zip(self.factors, readable_signs(np.divide(bulk, np.square(sizes))), strict=True):
            if (signs < 0).any():
                scale_columns(factor, signs.astype(factor.dtype))
        return self

    def shares(self) -> NDArray[np.float64]:
        """Return each component's share of the model.

        Returns
        -------
        (R,) float64 array
            They add up to 1: of the model's sum, where no number is negative; otherwise of its squared norm.
        """
        return shares(self.weights, self.factors)

    def top(self, count: int = 5) -> list[Component]:
        """Return the components, each with the labels that have most of it.

        Parameters
        ----------
        count : int
            Labels of each mode, at most.

        Returns
        -------
        list of Component
            `number`, `weight`, `share` of the model, and `top`: for each mode (label, number in the column), the
            largest magnitude first. Without labels indices stand in their place; zeros are left out.

        Examples
        --------
        >>> for label, number in model.top(5)[0].top[1]: print(label, number)  # doctest: +SKIP
        """
        return components(self.weights, self.factors, self.labels, whole("count", count, 1))

    def plot(self, path: str | os.PathLike[str], top: int = 6) -> None:
        """Draw the components by modes: curves of ordered labels, bars of others.

        Parameters
        ----------
        path : path
            ``.png``, ``.svg`` or ``.pdf``. `InputError` says why it cannot be written, or that Matplotlib is missing.
        top : int
            How many labels have bars.
        """
        from ..report.pictures import draw

        draw(self, path, whole("top", top, 1))

    def report(
        self, path: str | os.PathLike[str], X: Any = None, *, value: str | None = None, where: str | None = None
    ) -> None:
        """Write a report, an HTML file that needs nothing else: how well it fits, and the components with pictures.

        Parameters
        ----------
        path : path
            A file that is there is replaced.
        X : tensor, array, table or path, optional
            What this is a model of; see `score`. The report then has its fit to this, and the values that it expects
            least.
        value, where : str, optional
            Of a table; see `transform`.

        Raises
        ------
        InputError
            If Jinja2 or Matplotlib is not installed, the shapes differ, or the file cannot be written.
        """
        from ..report.page import write_report

        write_report(self, path, None if X is None else self._aligned(X, value, where))

    def score(self, X: Any, *, value: str | None = None, where: str | None = None) -> float:
        """Return the fit of this model to a tensor, ``1 - ||X - M|| / ||X||``; what a sparse one lacks counts as 0.

        Parameters
        ----------
        X : tensor, array, table or path
            Of this model's shape, or with this model's labels in any order; a table has this model's keys. The fit is
            computed on this process's host, in double precision.
        value, where : str, optional
            Of a table; see `transform`.

        Returns
        -------
        float
            1 where the model equals the tensor.

        Raises
        ------
        InputError
            If the shapes differ, or `X` is all zeros.
        """
        tensor = self._aligned(X, value, where)
        return fit_of(tensor, self.norm(), inner_product(self.weights, self.factors, tensor))

    def residuals(self, X: Any, count: int = 10, *, value: str | None = None, where: str | None = None) -> Residuals:
        """Return where this model explains a tensor least: values that it does not expect, and their labels.

        Parameters
        ----------
        X : tensor, array, table or path
            See `score`. Of a sparse tensor only the nonzeros are looked at: not what is absent, but expected.
        count : int
            How many values, and labels of each mode, are returned at most.
        value, where : str, optional
            Of a table; see `transform`.

        Returns
        -------
        Residuals
            `entries`: (labels, value, expected), the farthest first; `labels`: of each mode (label, share of all
            squared distances); `squared`: their sum.
        """
        tensor = self._aligned(X, value, where)
        return residuals(self.weights, self.factors, tensor, self.labels, whole("count", count, 1))

    def _aligned(self, X: Any, value: str | None, where: str | None) -> SparseTensor | DenseTensor:
        return aligned(X, self.shape, self.labels, value, where)

    def norm(self) -> float:
        """Return the Frobenius norm of the tensor, without forming it."""
        grams = [f.astype(np.float64, copy=False) for f in self.factors]
        product = np.prod([g.T @ g for g in grams], axis=0)
        return float(np.sqrt(max(0.0, self.weights @ product @ self.weights)))

    def full(self) -> NDArray[np.float64]:
        """Return the dense tensor: for small shapes. Raise `InputError` if memory has no room for it."""
        return full(self.weights, self.factors)

    def save(self, path: str | os.PathLike[str], *, replace: bool = True) -> None:
        """Write weights, factor matrices, labels, and how the model was made, to an ``.npz`` file.

        Its arrays are ``weights``, ``factor_0 ...``, and, where known, ``labels_0 ...``, ``fits``, ``converged``,
        ``series_NAME`` and ``run`` (the record as JSON).

        Parameters
        ----------
        path : path
            `InputError` says why it cannot be written, also if the ending is that of another format.
        replace : bool
            Whether a file that is there is replaced, or refused.
        """
        factors = {f"factor_{n}": f for n, f in enumerate(self.factors)}
        arrays = {"weights": self.weights, **factors, **named(self.labels), **history_arrays(self)}
        write_npz(path, arrays, replace)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KruskalTensor:
        """Read what `save` wrote.

        Parameters
        ----------
        path : path
            `InputError` says what is wrong with it.
        """
        arrays = read_npz(path)
        factors = factors_in(arrays, path)
        weights = arrays.get("weights", np.ones(factors[0].shape[1]))
        if weights.ndim != 1 or weights.dtype.kind not in "fiu":
            raise InputError(f"weights are {weights.dtype} of shape {weights.shape}", path=path)
        with faults_of(path):
            model = cls(weights, factors).labelled(find(arrays, len(factors)))
        take_history(model, arrays)
        return model

    def __iter__(self) -> Iterator[Any]:
        """Yield the weights, then the list of factor matrices: ``weights, factors = model``, as TensorLy has it."""
        yield self.weights
        yield self.factors

    def __repr__(self) -> str:
        return f"KruskalTensor(shape={self.shape}, rank={self.rank})"
