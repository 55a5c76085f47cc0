"""What estimators return for samples: arrays, or data frames with named columns, by scikit-learn's ``set_output``."""

from __future__ import annotations

import sys
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

CONTAINERS = "default", "pandas", "polars"
CONFIG = "_sklearn_output_config"  # scikit-learn's `clone` copies this attribute


class Container:
    """What scikit-learn, its pipelines and unions call to name columns, and to choose between arrays and frames."""

    model_: Any
    _fitted: Any
    mode: int

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return names of the columns that `transform` returns: ``cp0``, ``cp1``, ..., or ``tucker0``, ...

        Parameters
        ----------
        input_features : object
            Ignored: a component belongs to no feature.

        Returns
        -------
        (rank,) array of str objects
            As scikit-learn's own decompositions name theirs.
        """
        count, prefix = self._fitted.factors[self.mode].shape[1], type(self).__name__.lower()
        return np.array([f"{prefix}{number}" for number in range(count)], dtype=object)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Set what `transform` and `fit_transform` return; ``sklearn.set_config`` sets what is not set here.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, optional
            An array, or a data frame. None changes nothing.

        Returns
        -------
        the estimator
            This one.
        """
        if transform is not None:
            _check(transform)
            setattr(self, CONFIG, {"transform": transform})
        return self

    def _contained(self, rows: NDArray[Any], X: Any) -> Any:
        """Return rows of samples in the container that is set."""
        kind = getattr(self, CONFIG, {}).get("transform")
        if kind is None and "sklearn" in sys.modules:
            kind = sys.modules["sklearn"].get_config()["transform_output"]
        if kind in (None, "default"):
            return rows
        _check(kind)
        names = self.get_feature_names_out().tolist()
        try:
            if kind == "pandas":
                import pandas

                index = X.index if isinstance(X, pandas.DataFrame) and len(X) == len(rows) else None
                return pandas.DataFrame(rows, columns=names, index=index)
            import polars

            return polars.DataFrame(rows, schema=names, orient="row")
        except ImportError:
            raise InputError(f"set_output(transform={kind!r}) needs {kind}: pip install {kind}") from None


def _check(kind: object) -> None:
    if kind not in CONTAINERS:
        raise InputError(f"transform={kind!r}: expected one of {', '.join(map(repr, CONTAINERS))}")
