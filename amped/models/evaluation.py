"""How well a CP model fits a tensor, where it fits worst, and how it differs from another model."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from partitioner.tensors.interop import AnyTensor
from partitioner.tensors.observed import STORED
from partitioner.validate import whole

from ..backend.known_losses import loss_of
from ..backend.losses import Loss
from ..errors import InputError
from .align import aligned, observed_or_all, observes_zeros, tensor_for, with_absent
from .comparison import Comparable, Comparison, compared
from .deviance import LossStandard, explained_loss
from .elements import Residual, Standard
from .explained import fit_at, fit_of, inner_product
from .interop import Conversions
from .residuals import KINDS, Residuals, residuals

COVERED = "gaussian", "poisson"  # losses of `Standard`


class Evaluation(Conversions):
    """Mixin with the evaluation of a CP model. The subclass provides weights, factor matrices and the constructor."""

    @property
    def loss(self) -> str:
        """The name of the loss that the model was fitted with: "poisson" after `cp_apr`, "gaussian" after `cp_als`."""
        if "loglikelihood" in {*self.series, *self.run}:
            return "poisson"
        return str(self.run.get("loss") or "gaussian")

    @property
    def known_loss(self) -> Loss | None:
        """The loss; None for least squares and counts.

        Raises
        ------
        InputError
            If it is your own and made of NumPy functions, which models do not contain.
        """
        if self.loss in COVERED:
            return None
        formulas = self.run.get("formulas")
        try:
            return loss_of(self.loss) if formulas is None else Loss.of_formulas(formulas)
        except InputError:
            cause = "the model does not contain its formulas; write them as text"
            raise InputError(f"loss {self.loss!r} is your own: {cause}") from None

    def residual_kind(self, pearson: bool = False) -> Residual:
        """Return how residuals are standardised for the loss of this model.

        Parameters
        ----------
        pearson : bool
            See `residuals`.

        Returns
        -------
        Residual
            The deviance residuals of its loss, or Pearson residuals of counts.
        """
        loss = self.known_loss
        return Standard(self.loss == "poisson", pearson) if loss is None else LossStandard(loss)

    def score(
        self,
        X: object,
        *,
        mask: object = None,
        value: str | None = None,
        where: str | None = None,
        unknown: str = "error",
    ) -> float:
        """Return the fit of this model to a tensor, ``1 - ||X - M|| / ||X||``; absent elements count as 0.

        If elements are missing, only the observed ones count. For losses other than "gaussian" and "poisson" it is the
        explained deviance: 0 for the best constant, 1 for a model that fits each element by itself.

        Parameters
        ----------
        X : tensor, array, table or path
            Has the model's shape, or its labels in any order; a table has its key columns. Runs on the host in fp64.
        mask : {"nan", "stored"}, array, tensor or path, optional
            The observed elements, see `cp_als`. By default, if the model was fitted to observed elements, the stored
            elements of a sparse tensor, or those of a dense tensor that are not NaN.
        value, where : str, optional
            Query of a table; see `transform`.
        unknown : {"error", "drop"}
            What happens to nonzeros whose labels the model lacks: they are an error, or they are dropped, and a warning
            counts them.

        Returns
        -------
        float
            1 if the model equals the tensor.

        Raises
        ------
        InputError
            If the shapes differ, or `X` has only zeros.

        Examples
        --------
        >>> model = KruskalTensor(np.ones(1), [np.ones((2, 1)), np.ones((2, 1))])
        >>> model.score(np.array([[1.0, 1.0], [1.0, np.nan]]), mask="nan")
        1.0
        """
        tensor, partial = self._elements(X, mask, value, where, unknown)
        if (loss := self.known_loss) is not None:
            return explained_loss(loss, self.weights, self.host_factors, tensor if partial else with_absent(tensor))
        if partial:
            return fit_at(self.weights, self.host_factors, tensor)
        return fit_of(tensor, self.norm(), inner_product(self.weights, self.host_factors, tensor))

    def residuals(
        self,
        X: object,
        count: int = 10,
        *,
        mask: object = None,
        value: str | None = None,
        where: str | None = None,
        unknown: str = "error",
        kind: str = "deviance",
    ) -> Residuals:
        """Return where the model fits a tensor worst: elements, absent elements, slices, and groups of these.

        Parameters
        ----------
        X : tensor, array, table or path
            See `score`.
        count : int
            Maximum number of entries, of absent elements, of findings, and of labels per mode.
        mask : optional
            See `score`. Missing elements are not examined.
        value, where : str, optional
            Query of a table; see `transform`.
        unknown : {"error", "drop"}
            See `score`.
        kind : {"deviance", "pearson"}
            Residuals of a Poisson model. Pearson residuals of elements where the model expects nearly 0 are huge.

        Returns
        -------
        Residuals
            ``print`` shows the findings, `to_frame` returns the elements, and `plot` draws the slices of a mode.

        Examples
        --------
        >>> model = KruskalTensor(np.array([6.0]), [np.full((3, 1), 1 / 3), np.full((2, 1), 0.5)])
        >>> X = SparseTensor([[0, 0], [0, 1], [1, 0], [2, 0], [2, 1]], [1.0, 1, 1, 1, 9], (3, 2))
        >>> found = model.residuals(X)
        >>> found.entries[0].labels, found.absent[0].labels
        ((2, 1), (1, 1))
        """
        tensor, partial = self._elements(X, mask, value, where, unknown)
        if kind not in KINDS:
            raise InputError(f"kind is {kind!r}: expected 'deviance' or 'pearson'")
        if self.known_loss is not None and not partial:
            tensor, partial = with_absent(tensor), True
        standard = self.residual_kind(kind == "pearson")
        return residuals(
            self.weights, self.host_factors, tensor, self.labels, whole("count", count, 1), standard, partial
        )

    def _elements(
        self, X: object, mask: object, value: str | None, where: str | None, unknown: str = "error"
    ) -> tuple[AnyTensor, bool]:
        """Return the elements of a tensor in the order of the labels, and whether other elements are missing."""
        fitted = self.run.get("mask")
        tensor = tensor_for(X, self.labels, value, where, observes_zeros(mask, fitted))
        tensor, partial = observed_or_all(tensor, mask, fitted)
        return aligned(tensor, self.shape, self.labels, unknown=unknown), partial

    def compare(self, other: object, count: int = 5) -> Comparison:
        """Compare this model with another one: which components match, and which labels gained or lost.

        Components are matched one to one so that the sum of their congruences is largest. Modes are matched by name,
        rows by label. A label that only one model has counts as 0 in the other; modes without a label in common, such
        as the days of two months, are skipped.

        Parameters
        ----------
        other : KruskalTensor or CP model of another library
            The second model.
        count : int
            Maximum number of labels per mode and pair.

        Returns
        -------
        Comparison
            ``print`` shows it, `to_frame` and `changes_to_frame` return tables, and `plot` draws it.

        Raises
        ------
        InputError
            If `other` is not a CP model, or no mode can be compared.

        Examples
        --------
        >>> model = KruskalTensor(np.array([2.0, 1.0]), [np.eye(3, 2), np.eye(4, 2)])
        >>> other = KruskalTensor(np.array([5.0, 1.0]), [np.eye(3)[:, [1, 0]], np.eye(4)[:, [1, 3]]])
        >>> [(pair.first, pair.second, pair.status) for pair in model.compare(other).pairs]
        [(0, 1, 'changed'), (1, 0, 'same')]
        """
        second = other if isinstance(other, Evaluation) else self.from_tensorly(other)
        mine, theirs = (Comparable(each.weights, each.host_factors, each.labels) for each in (self, second))
        return compared(mine, theirs, whole("count", count, 1))

    def report(
        self,
        path: str | os.PathLike[str],
        X: object = None,
        *,
        mask: object = None,
        value: str | None = None,
        where: str | None = None,
        title: str | None = None,
        other: object = None,
    ) -> None:
        """Write a self-contained HTML report: the components in words and pictures, and the fit.

        Parameters
        ----------
        path : path
            An existing file is replaced.
        X : tensor, array, table or path, optional
            The data of the fit; see `score`. The report then includes the fit to it and the largest residuals.
        mask : optional
            See `score`.
        value, where, title : str, optional
            Query of a table; see `transform`. By default the title is the name of the tensor's file.
        other : KruskalTensor, optional
            Another model: the report then says what changed from this model to that one; see `compare`.

        Raises
        ------
        InputError
            If Jinja2 or Matplotlib is not installed, the shapes differ, the models cannot be compared, or the file
            cannot be written.

        Examples
        --------
        >>> model = KruskalTensor(np.ones(2), [np.eye(4, 2), np.eye(5, 2)])
        >>> later = KruskalTensor(np.ones(2), [np.eye(4, 2), np.eye(5, 2)[::-1]])
        >>> model.report("changes.html", other=later)
        """
        from ..report.page import write_report

        tensor, partial = (None, False) if X is None else self._elements(X, mask, value, where)
        model: Any = self
        write_report(model, path, tensor, STORED if partial else None, title, other)

    def norm(self) -> float:
        """Return the Frobenius norm of the tensor without forming it."""
        grams = [f.astype(np.float64, copy=False) for f in self.host_factors]
        product = np.prod([g.T @ g for g in grams], axis=0)
        return float(np.sqrt(max(0.0, self.weights @ product @ self.weights)))
