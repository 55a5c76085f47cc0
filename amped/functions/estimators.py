"""CP decompositions as scikit-learn has its estimators; that library is not needed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..models.kruskal import KruskalTensor
from ..options import Options
from .cp import cp_als, cp_apr


class CP:
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
        if self.mode not in range(len(model.factors)):
            raise InputError(f"mode {self.mode!r} is outside 0..{len(model.factors) - 1}")
        self.model_, lengths = model, model.shape
        self.n_features_in_ = int(np.prod([float(n) for m, n in enumerate(lengths) if m != self.mode]))
        return self

    def fit_transform(self, X: Any, y: object = None) -> NDArray[Any]:
        """Decompose a tensor; return what its samples have of the components.

        Parameters
        ----------
        X, y : object
            See `fit`.

        Returns
        -------
        (samples, rank) float32 or float64 array
            The weights are in it.
        """
        model = self.fit(X, y).model_
        rows: NDArray[Any] = model.factors[self.mode] * model.weights
        return rows.astype(model.factors[self.mode].dtype)

    def transform(self, X: Any) -> NDArray[Any]:
        """Return what new samples have of the components; see `KruskalTensor.transform`.

        Parameters
        ----------
        X : SparseTensor or path
            Of any length in the mode of the samples, and as long as what was fitted in the others.

        Returns
        -------
        (samples, rank) float32 or float64 array
            The weights are in it.
        """
        known = {"deadline", *(field.name for field in fields(Options))}
        options = {name: each for name, each in (self.options or {}).items() if name in known}
        positive = self.nonnegative or self.loss == "poisson"
        return self._fitted.transform(X, self.mode, nonnegative=positive, **options)

    def score(self, X: Any, y: object = None) -> float:
        """Return the fit of the model to a tensor, ``1 - ||X - M|| / ||X||``.

        Parameters
        ----------
        X, y : object
            See `fit`.

        Returns
        -------
        float
            At most 1.
        """
        return self._fitted.score(X)

    @property
    def _fitted(self) -> KruskalTensor:
        if not hasattr(self, "model_"):
            raise InputError("this CP is not fitted yet: call fit(X) first")
        return self.model_

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
        CP
            This estimator.
        """
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(f"CP has no parameter {name!r}: it has {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value != defaults[name].default]
        return f"CP({', '.join(changed)})"
