"""Decompositions as estimators in the style of scikit-learn, which need not be installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.losses import Loss
from ..models.kruskal import KruskalTensor
from ..models.tucker import TuckerTensor
from .estimator import Estimator
from .gcp import MethodName, cp
from .tucker import tucker


class CP(Estimator):
    """The canonical polyadic decomposition as an estimator: samples are the indices of one mode.

    Parameters
    ----------
    rank : int
        Number of components.
    mode : int
        The mode of the samples, counted from 0.
    loss : str or Loss
        See `cp`.
    method : str, optional
        See `cp`.
    nonnegative : bool
        Constrain all factor matrices to be non-negative. With the Poisson loss they always are.
    max_iters : int, optional
        Maximum number of iterations; see `cp`.
    tol : float, optional
        See `cp`.
    starts : int
        See `cp_als`.
    seed : int, optional
        See `cp_als`.
    random_state : int, RandomState or Generator, optional
        The seed by scikit-learn's name; overrides `seed`.
    options : mapping, optional
        Further arguments of these functions, including the fields of `amped.Options`.

    Attributes
    ----------
    model_ : KruskalTensor
        Set by `fit`.
    n_features_in_ : int
        Number of elements per sample: the product of the other modes' lengths.
    n_iter_ : int
        Number of iterations of the fit.

    Examples
    --------
    >>> X = np.random.default_rng(0).random((5, 3, 2))
    >>> estimator = CP(rank=2)
    >>> estimator.fit_transform(X).shape, estimator.transform(X[:1]).shape
    ((5, 2), (1, 2))
    >>> estimator.components_.shape
    (2, 3, 2)
    """

    model_: KruskalTensor
    n_features_in_: int

    def __init__(
        self,
        rank: int = 10,
        *,
        mode: int = 0,
        loss: str | Loss = "gaussian",
        method: MethodName | None = None,
        nonnegative: bool = False,
        max_iters: int | None = None,
        tol: float | None = None,
        starts: int = 1,
        seed: int | None = None,
        random_state: object = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.rank, self.mode, self.loss, self.method, self.nonnegative = rank, mode, loss, method, nonnegative
        self.max_iters, self.tol, self.starts, self.seed = max_iters, tol, starts, seed
        self.random_state, self.options = random_state, options

    def _decompose(self, X: Any) -> KruskalTensor:
        arguments: dict[str, Any] = {"loss": self.loss, "method": self.method, "starts": self.starts}
        arguments |= {"seed": self._seed, "max_iters": self.max_iters, "tol": self.tol}
        arguments["nonnegative"] = self.nonnegative
        return cp(X, self.rank, **arguments | dict(self.options or {}))

    def _components(self) -> NDArray[np.float64]:
        factors = [np.eye(self.model_.rank) if m == self.mode else f for m, f in enumerate(self.model_.host_factors)]
        return KruskalTensor(np.ones(self.model_.rank), factors).full()

    def _fitted_rows(self) -> Floats:
        factor = self.model_.host_factors[self.mode]
        rows: Floats = (factor * self.model_.weights).astype(factor.dtype)
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
    random_state : int, RandomState or Generator, optional
        See `CP`.
    options : mapping, optional
        Further arguments of `tucker`, including the fields of `amped.Options`.

    Attributes
    ----------
    model_ : TuckerTensor
        Set by `fit`.
    n_features_in_ : int
        Number of elements per sample: the product of the other modes' lengths.
    n_iter_ : int
        Number of iterations of the fit.

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
        random_state: object = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.rank, self.error, self.mode, self.method = rank, error, mode, method
        self.max_iters, self.tol, self.seed = max_iters, tol, seed
        self.random_state, self.options = random_state, options

    def _decompose(self, X: Any) -> TuckerTensor:
        arguments: dict[str, Any] = {"error": self.error, "method": self.method, "max_iters": self.max_iters}
        arguments |= {"tol": self.tol, "seed": self._seed, **(self.options or {})}
        return tucker(X, self.rank, **arguments)

    def _fitted_rows(self) -> Floats:
        return self.model_.host_factors[self.mode]

    def _components(self) -> NDArray[np.float64]:
        model = self.model_
        factors = [np.eye(model.ranks[m]) if m == self.mode else factor for m, factor in enumerate(model.host_factors)]
        return TuckerTensor(model.core, factors).full()
