"""The base class of estimators, and checks of their samples."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.validate import whole

from ..errors import InputError
from ..models.kruskal import KruskalTensor
from ..models.tucker import TuckerTensor
from ..options import Options
from .frames import Container
from .projection import projected_score

MOST_SEED = 2**31 - 1


class Estimator(Container, ABC):
    """Base class of estimators of tensors, whose samples are the indices of one mode."""

    mode: int
    seed: int | None
    random_state: object
    options: Mapping[str, Any] | None
    model_: Any
    n_features_in_: int
    n_iter_: int

    def _set_model(self, model: KruskalTensor | TuckerTensor) -> Self:
        """Set the fitted attributes; raise `InputError` if the model has no such mode."""
        self.n_iter_ = int(model.run["iterations"])
        lengths = model.shape
        if self.mode not in range(len(lengths)):
            raise InputError(f"mode {self.mode!r} is outside 0..{len(lengths) - 1}")
        self.model_ = model
        self.n_features_in_ = int(np.prod([float(n) for m, n in enumerate(lengths) if m != self.mode]))
        return self

    def score(self, X: object, y: object = None) -> float:
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
        with naming_missing_values():
            return projected_score(self._fitted, self._checked(X), self.mode, self._projection_options)

    def fit_transform(self, X: object, y: object = None) -> Any:
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

    def transform(self, X: object) -> Any:
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
        with naming_missing_values():
            rows = self._fitted.transform(self._checked(X), self.mode, **self._projection_options)
        return self._contained(rows, X)

    def fit(self, X: object, y: object = None) -> Self:
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
        with naming_missing_values():
            return self._set_model(self._decompose(plain_array(X)))

    @abstractmethod
    def _decompose(self, X: object) -> KruskalTensor | TuckerTensor:
        """Return the model of a tensor."""

    @abstractmethod
    def _fitted_rows(self) -> Floats:
        """Return the rows of the samples of the fitted tensor."""

    @property
    def components_(self) -> NDArray[np.float64]:
        """The components over the modes of the features, as in scikit-learn's decompositions.

        Its shape is (components, lengths of the other modes). Samples are approximately
        ``numpy.tensordot(estimator.transform(X), estimator.components_, 1)``, with the samples as first mode.
        """
        if not hasattr(self, "model_"):
            raise AttributeError(f"this {type(self).__name__} is not fitted yet: call fit(X) first")
        return np.moveaxis(self._components(), self.mode, 0)

    @abstractmethod
    def _components(self) -> NDArray[np.float64]:
        """Return the model with the identity matrix as factor matrix of the samples."""

    def _checked(self, X: object) -> Any:
        """Return new samples; raise `InputError` if their number of features differs from that of the fit."""
        X, expected = plain_array(X), getattr(self, "n_features_in_", None)
        if expected is not None and isinstance(X, np.ndarray) and self.mode < X.ndim:
            found = X.size // X.shape[self.mode] if X.shape[self.mode] else expected
            if found != expected:
                name = type(self).__name__
                raise InputError(f"X has {found} features, but {name} is expecting {expected} features as input")
        return X

    @property
    def _seed(self) -> int | None:
        """The seed of the random start."""
        state = self.random_state
        if state is None:
            return self.seed
        if isinstance(state, np.random.RandomState):
            return int(state.randint(MOST_SEED))
        return (
            int(state.integers(MOST_SEED))
            if isinstance(state, np.random.Generator)
            else whole("random_state", state, 0)
        )

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

    def set_params(self, **params: object) -> Self:
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

        # Rows have the precision of `options`, not that of X.
        tags = InputTags(one_d_array=False, two_d_array=True, three_d_array=True, sparse=True)
        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            input_tags=tags,
        )

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value != defaults[name].default]
        return f"{type(self).__name__}({', '.join(changed)})"


@contextmanager
def naming_missing_values() -> Iterator[None]:
    """Name NaN and infinity in errors as scikit-learn does."""
    try:
        yield
    except InputError as error:
        if "must be finite" not in error.cause:
            raise
        raise InputError(f"X contains NaN or inf: {error.cause}", path=error.path) from None


def plain_array(X: object) -> Any:
    """Return lists and arrays of numbers as scikit-learn's estimators take them; other objects are unchanged.

    Raises
    ------
    InputError
        If an array is empty, complex, or has one dimension only.
    TypeError
        If an element is not a number.
    """
    if isinstance(X, (list, tuple)):
        X = np.asarray(X)
    if not isinstance(X, np.ndarray):
        return X
    if X.dtype.kind == "O":
        X = X.astype(np.float64)
    if X.dtype.kind == "c":
        raise InputError(f"Complex data not supported: X is {X.dtype}")
    if X.ndim == 1:
        raise InputError("X has one dimension. Reshape your data: one row per sample")
    if X.ndim > 1 and not X.size:
        lacking = "sample(s)" if not len(X) else "feature(s)"
        raise InputError(f"Found array with 0 {lacking} (shape={X.shape}) while a minimum of 1 is required.")
    return X
