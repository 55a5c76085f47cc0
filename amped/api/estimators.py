"""Decompositions as scikit-learn has its estimators; that library is not needed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..models.kruskal import KruskalTensor
from ..models.tucker import TuckerTensor
from ..options import Options
from .cp import cp_als, cp_apr
from .frames import Container
from .projection import projected_score
from .tucker import tucker


class Estimator(Container):
    """What estimators of tensors have in common: samples are the indices of one mode, parameters those of the class."""

    mode: int
    options: Mapping[str, Any] | None
    model_: Any
    n_features_in_: int

    def _take(self, model: KruskalTensor | TuckerTensor) -> Self:
        """Keep what was fitted."""
        lengths = model.shape
        if self.mode not in range(len(lengths)):
            raise InputError(f"mode {self.mode!r} is outside 0..{len(lengths) - 1}")
        self.model_ = model
        self.n_features_in_ = int(np.prod([float(n) for m, n in enumerate(lengths) if m != self.mode]))
        return self

    def score(self, X: Any, y: object = None) -> float:
        """Return how well the components explain samples: ``1 - ||X - M|| / ||X||``, M with the rows of `transform`.

        So new samples are compared with their own rows. `model_.score` compares a tensor with the rows of the fit.

        Parameters
        ----------
        X : tensor, array or path
            Of any length in the mode of the samples, and as long as what was fitted in the others.
        y : object
            Ignored.

        Returns
        -------
        float
            At most 1; the same on every rank.
        """
        return projected_score(self._fitted, X, self.mode, self._how)

    @property
    def _fitted(self) -> Any:
        if not hasattr(self, "model_"):
            raise InputError(f"this {type(self).__name__} is not fitted yet: call fit(X) first")
        return self.model_

    @property
    def _how(self) -> dict[str, Any]:
        """Of `options`, those that a projection takes, too."""
        known = {"deadline", *(field.name for field in fields(Options))}
        return {name: each for name, each in (self.options or {}).items() if name in known}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool
            Not looked at: no parameter is an estimator.

        Returns
        -------
        dict
            All that the class takes.
        """
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name.

        Parameters
        ----------
        **params : object
            `InputError` says if there is no such one.

        Returns
        -------
        the estimator
            This one.
        """
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(f"{type(self).__name__} has no parameter {name!r}: it has {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Say, to scikit-learn alone, what this takes: tensors of any order, sparse ones among them."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        taken = InputTags(one_d_array=False, two_d_array=True, three_d_array=True, sparse=True)
        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=taken,
        )

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value != defaults[name].default]
        return f"{type(self).__name__}({', '.join(changed)})"


class CP(Estimator):
    """The canonical polyadic decomposition as an estimator: samples are the indices of one mode.

    Parameters
    ----------
    rank : int
        The number of components.
    mode : int
        The mode of the samples, counted from 0.
    loss : {"gaussian", "poisson"}
        Least squares (`cp_als`), or counts (`cp_apr`).
    nonnegative : bool
        Whether no number may be negative; with "poisson" none is.
    max_iters : int
        Iterations at most.
    tol : float, optional
        By default that of `cp_als` or `cp_apr`.
    starts, seed : int
        See `cp_als`.
    options : mapping, optional
        Other arguments of these functions, and those of `amped.Options`.

    Attributes
    ----------
    model_ : KruskalTensor
        After `fit`.
    n_features_in_ : int
        The number of coordinates of a sample.

    Examples
    --------
    >>> rows = CP(rank=10, nonnegative=True).fit_transform(X)  # doctest: +SKIP
    """

    model_: KruskalTensor
    n_features_in_: int

    def __init__(
        self,
        rank: int = 10,
        *,
        mode: int = 0,
        loss: str = "gaussian",
        nonnegative: bool = False,
        max_iters: int = 50,
        tol: float | None = None,
        starts: int = 1,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.rank, self.mode, self.loss, self.nonnegative = rank, mode, loss, nonnegative
        self.max_iters, self.tol, self.starts, self.seed, self.options = max_iters, tol, starts, seed, options

    def fit(self, X: Any, y: object = None) -> Self:
        """Decompose a tensor.

        Parameters
        ----------
        X : SparseTensor, DenseTensor, array or path
            See `cp_als`. `InputError` says if it is none of these, or a parameter is at fault.
        y : object
            Not looked at.

        Returns
        -------
        CP
            This estimator.
        """
        how: dict[str, Any] = {"max_iters": self.max_iters, "starts": self.starts, "seed": self.seed}
        how |= ({} if self.tol is None else {"tol": self.tol}) | dict(self.options or {})
        if self.loss == "poisson":
            model = cp_apr(X, self.rank, **how)
        elif self.loss == "gaussian":
            model = cp_als(X, self.rank, nonnegative=self.nonnegative, **how)
        else:
            raise InputError(f"loss {self.loss!r}: expected 'gaussian' or 'poisson'")
        return self._take(model)

    def fit_transform(self, X: Any, y: object = None) -> Any:
        """Decompose a tensor; return what its samples have of the components.

        Parameters
        ----------
        X, y : object
            See `fit`.

        Returns
        -------
        (samples, rank) float32 or float64 array, or frame if `set_output` says so
            The weights are in it.
        """
        model = self.fit(X, y).model_
        rows: NDArray[Any] = model.factors[self.mode] * model.weights
        return self._contained(rows.astype(model.factors[self.mode].dtype), X)

    def transform(self, X: Any) -> Any:
        """Return what new samples have of the components, by the loss of the fit; see `KruskalTensor.transform`.

        Parameters
        ----------
        X : tensor, array, table or path
            Of any length in the mode of the samples, and as long as what was fitted in the others.

        Returns
        -------
        (samples, rank) float32 or float64 array, or frame if `set_output` says so
            The weights are in it.
        """
        rows: NDArray[Any] = self._fitted.transform(X, self.mode, **self._how)
        return self._contained(rows, X)


class Tucker(Estimator):
    """The Tucker decomposition as an estimator: samples are the indices of one mode.

    Parameters
    ----------
    rank : sequence of int, optional
        Columns of each mode's factor matrix.
    error : float, optional
        Instead of `rank`; see `tucker`.
    mode : int
        The mode of the samples, counted from 0.
    method : {"hooi", "hosvd", "sthosvd"}
        See `tucker`.
    max_iters, tol, seed : int, float, int
        See `tucker`.
    options : mapping, optional
        Other arguments of `tucker`, and those of `amped.Options`.

    Attributes
    ----------
    model_ : TuckerTensor
        After `fit`.
    n_features_in_ : int
        The number of coordinates of a sample.

    Examples
    --------
    >>> rows = Tucker(rank=(8, 4, 4)).fit_transform(X)  # doctest: +SKIP
    """

    model_: TuckerTensor

    def __init__(
        self,
        rank: Sequence[int] | None = None,
        *,
        error: float | None = None,
        mode: int = 0,
        method: str = "hooi",
        max_iters: int = 50,
        tol: float = 1e-5,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.rank, self.error, self.mode, self.method = rank, error, mode, method
        self.max_iters, self.tol, self.seed, self.options = max_iters, tol, seed, options

    def fit(self, X: Any, y: object = None) -> Self:
        """Decompose a tensor.

        Parameters
        ----------
        X : SparseTensor, DenseTensor, array or path
            See `cp_als`. `InputError` says if it is none of these, or a parameter is at fault.
        y : object
            Not looked at.

        Returns
        -------
        Tucker
            This estimator.
        """
        how: dict[str, Any] = {"error": self.error, "method": self.method, "max_iters": self.max_iters}
        how |= {"tol": self.tol, "seed": self.seed, **(self.options or {})}
        return self._take(tucker(X, self.rank, **how))

    def fit_transform(self, X: Any, y: object = None) -> Any:
        """Decompose a tensor; return what its samples have of the columns.

        Parameters
        ----------
        X, y : object
            See `fit`.

        Returns
        -------
        (samples, columns) float32 or float64 array, or frame if `set_output` says so
            Columns are orthonormal.
        """
        rows: NDArray[Any] = self.fit(X, y).model_.factors[self.mode]
        return self._contained(rows, X)

    def transform(self, X: Any) -> Any:
        """Return what new samples have of the columns; see `TuckerTensor.transform`.

        Parameters
        ----------
        X : tensor, array, table or path
            Of any length in the mode of the samples, and as long as what was fitted in the others.

        Returns
        -------
        (samples, columns) float32 or float64 array, or frame if `set_output` says so
            One row a sample.
        """
        rows: NDArray[Any] = self._fitted.transform(X, self.mode, **self._how)
        return self._contained(rows, X)
