"""Data frames: tensors of tables in memory, and samples' components by scikit-learn's ``set_output``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from partitioner.readers import ReadOptions, read_frame
from partitioner.tensors.interop import is_tensor
from partitioner.tensors.sparse import SparseTensor

from ..errors import InputError

CONTAINERS = "default", "pandas", "polars"
CONFIG = "_sklearn_output_config"  # scikit-learn's `clone` copies this attribute


def from_frame(
    frame: Any,
    keys: Sequence[str] | str,
    value: str | None = None,
    *,
    where: str | None = None,
    missing: str = "drop",
) -> SparseTensor:
    """Return the tensor of a table in memory: rows of equal keys are one nonzero.

    Parameters
    ----------
    frame : pandas, Polars or Arrow table, or DuckDB relation
        Anything else with ``__arrow_c_stream__``, too. Its columns are read where they are. The levels of a pandas
        index are columns, too, and the values of a pandas Series are the default `value`.
    keys : sequence of str
        For each mode a column, or an expression of DuckDB's SQL, as ``"hour(time)"``. Their values become ``labels``.
    value : str, optional
        A column, or expression, that is summed; or an aggregate, as ``"avg(delay)"``. By default rows are counted.
    where : str, optional
        The condition of the rows that are read.
    missing : {"drop", "keep"}
        Whether rows that lack a key are left out, and told of, or get a missing label: NaN, NaT or None.

    Returns
    -------
    SparseTensor
        With `labels`: numbers, dates and times in their order, and bins of time without rows, too; strings in
        alphabetical order, categories in theirs. Under ``mpirun`` each rank that calls this has its own.

    Raises
    ------
    InputError
        If it is no table, an expression is wrong, or no row has all keys.

    Warns
    -----
    InputWarning
        Of rows that are left out, and of keys that look like identifiers.

    Examples
    --------
    >>> X = from_frame(flights, ["carrier", "dest", "hour(time_hour)"])  # doctest: +SKIP
    >>> model = cp_als(X, rank=10, nonnegative=True)  # doctest: +SKIP
    >>> model.labels[1][model.factors[1][:, 0].argmax()]  # doctest: +SKIP
    """
    if is_tensor(frame):
        kind = type(frame).__name__
        raise InputError(f"frame is of type {kind}: a tensor has no keys; pass it to cp_als as it is")
    return read_frame(frame, ReadOptions(key=keys, value=value, where=where, missing=missing))  # type: ignore[arg-type]


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
