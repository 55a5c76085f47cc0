"""Decompositions as estimators in the style of scikit-learn, which need not be installed."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
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


class Estimator(Container, ABC):
    """Base class of estimators of tensors, whose samples are the indices of one mode."""

    mode: int
    options: Mapping[str, Any] | None
    model_: Any
    n_features_in_: int

    def _set_model(self, model: KruskalTensor | TuckerTensor) -> Self:
        """Set the fitted attributes; raise `InputError` if the model has no such mode."""
        lengths = model.shape
        if self.mode not in range(len(lengths)):
            raise InputError(f"mode {self.mode!r} is outside 0..{len(lengths) - 1}")
        self.model_ = model
        self.n_features_in_ = int(np.prod([float(n) for m, n in enumerate(lengths) if m != self.mode]))
        return self

    def score(self, X: Any, y: object = None) -> float:
        """Return the fit to samples, ``1 - ||X - M|| / ||X||``, where the model M has the rows of ``transform(X)``.

        By contrast, `model_.score` uses the rows of the fitted tensor.

        Parameters
        ----------
        X : tensor, array or path
            Its length is free in the mode of the samples; the other modes must have the lengths of the fitted tensor.
        y : object
            Ignored.

        Returns
        -------
        float
            At most 1; the same on every rank.
        """
        return projected_score(self._fitted, X, self.mode, self._projection_options)

    def fit_transform(self, X: Any, y: object = None) -> Any:
        """Decompose a tensor and return the rows of its samples.

        Parameters
        ----------
        X, y : object
            See `fit`.

        Returns
        -------
        (samples, components) float32 or float64 array, or frame if `set_output` selects one
            One row per sample. Rows of `CP` include the weights; the columns of `Tucker` are orthonormal.
        """
        self.fit(X, y)
        return self._contained(self._fitted_rows(), X)

    def transform(self, X: Any) -> Any:
        """Fit the rows of new samples to the model; see `KruskalTensor.transform` and `TuckerTensor.transform`.

        Parameters
        ----------
        X : tensor, array, table or path
            Its length is free in the mode of the samples; the other modes must have the lengths of the fitted tensor.

        Returns
        -------
        (samples, components) float32 or float64 array, or frame if `set_output` selects one
            One row per sample. Rows of `CP` include the weights.
        """
        return self._contained(self._fitted.transform(X, self.mode, **self._projection_options), X)

    def fit(self, X: Any, y: object = None) -> Self:
        """Decompose a tensor.

        Parameters
        ----------
        X : SparseTensor, DenseTensor, array or path
            See `cp_als`.
        y : object
            Ignored.

        Returns
        -------
        Self
            This estimator.

        Raises
        ------
        InputError
            If `X` or a parameter is invalid.
        """
        return self._set_model(self._decompose(X))

    @abstractmethod
    def _decompose(self, X: Any) -> KruskalTensor | TuckerTensor:
        """Return the model of a tensor."""

    @abstractmethod
    def _fitted_rows(self) -> NDArray[Any]:
        """Return the rows of the samples of the fitted tensor."""

    @property
    def _fitted(self) -> Any:
        if not hasattr(self, "model_"):
            raise InputError(f"this {type(self).__name__} is not fitted yet: call fit(X) first")
        return self.model_

    @property
    def _projection_options(self) -> dict[str, Any]:
        """Those of `options` that also apply to `transform` and `score`."""
        known = {"deadline", *(field.name for field in fields(Options))}
        return {name: value for name, value in (self.options or {}).items() if name in known}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the estimator.

        Parameters
        ----------
        deep : bool
            Ignored: no parameter is an estimator.

        Returns
        -------
        dict
            The arguments of the class, by name.
        """
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the estimator.

        Parameters
        ----------
        **params : object
            Values by name.

        Returns
        -------
        Self
            This estimator.

        Raises
        ------
        InputError
            If a parameter does not exist.
        """
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(f"{type(self).__name__} has no parameter {name!r}: it has {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's description of the valid inputs: dense or sparse tensors of any order."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        tags = InputTags(one_d_array=False, two_d_array=True, three_d_array=True, sparse=True)
        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=tags,
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
        Number of components.
    mode : int
        The mode of the samples, counted from 0.
    loss : {"gaussian", "poisson"}
        Least squares (`cp_als`), or counts (`cp_apr`).
    nonnegative : bool
        Constrain all factor matrices to be non-negative. With the Poisson loss they always are.
    max_iters : int
        Maximum number of iterations.
    tol : float, optional
        By default that of `cp_als` or `cp_apr`.
    starts, seed : int
        See `cp_als`.
    options : mapping, optional
        Further arguments of these functions, including the fields of `amped.Options`.

    Attributes
    ----------
    model_ : KruskalTensor
        Set by `fit`.
    n_features_in_ : int
        Number of elements per sample: the product of the other modes' lengths.

    Examples
    --------
    >>> X = np.random.default_rng(0).random((5, 3, 2))
    >>> estimator = CP(rank=2)
    >>> estimator.fit_transform(X).shape, estimator.transform(X[:1]).shape
    ((5, 2), (1, 2))
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

    def _decompose(self, X: Any) -> KruskalTensor:
        arguments: dict[str, Any] = {"max_iters": self.max_iters, "starts": self.starts, "seed": self.seed}
        arguments |= ({} if self.tol is None else {"tol": self.tol}) | dict(self.options or {})
        if self.loss == "poisson":
            return cp_apr(X, self.rank, **arguments)
        if self.loss == "gaussian":
            return cp_als(X, self.rank, nonnegative=self.nonnegative, **arguments)
        raise InputError(f"loss {self.loss!r}: expected 'gaussian' or 'poisson'")

    def _fitted_rows(self) -> NDArray[Any]:
        factor = self.model_.factors[self.mode]
        rows: NDArray[Any] = (factor * self.model_.weights).astype(factor.dtype)
        return rows


class Tucker(Estimator):
    """The Tucker decomposition as an estimator: samples are the indices of one mode.

    Parameters
    ----------
    rank : sequence of int, optional
        Columns of each mode's factor matrix.
    error : float, optional
        Relative truncation error, instead of `rank`; see `tucker`.
    mode : int
        The mode of the samples, counted from 0.
    method : {"hooi", "hosvd", "sthosvd"}
        See `tucker`.
    max_iters, tol, seed : int, float, int
        See `tucker`.
    options : mapping, optional
        Further arguments of `tucker`, including the fields of `amped.Options`.

    Attributes
    ----------
    model_ : TuckerTensor
        Set by `fit`.
    n_features_in_ : int
        Number of elements per sample: the product of the other modes' lengths.

    Examples
    --------
    >>> X = np.random.default_rng(0).random((5, 3, 2))
    >>> Tucker(rank=(2, 2, 2)).fit_transform(X).shape
    (5, 2)
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

    def _decompose(self, X: Any) -> TuckerTensor:
        arguments: dict[str, Any] = {"error": self.error, "method": self.method, "max_iters": self.max_iters}
        arguments |= {"tol": self.tol, "seed": self.seed, **(self.options or {})}
        return tucker(X, self.rank, **arguments)

    def _fitted_rows(self) -> NDArray[Any]:
        return self.model_.factors[self.mode]
