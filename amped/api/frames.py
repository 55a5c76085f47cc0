"""Data frames: tensors from tables in memory, and the output container that scikit-learn's ``set_output`` selects."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.readers import ReadOptions, read_frame
from partitioner.readers.tables.frames import level_names
from partitioner.tensors.interop import is_tensor
from partitioner.tensors.sparse import SparseTensor

from ..errors import InputError

CONTAINERS = "default", "pandas", "polars"
CONFIG = "_sklearn_output_config"  # scikit-learn's `clone` copies this attribute


def from_frame(
    frame: Any,
    keys: Sequence[str] | Mapping[str, str] | str | None = None,
    value: str | None = None,
    *,
    where: str | None = None,
    missing: str = "drop",
    keep_zeros: bool = False,
) -> SparseTensor:
    """Build a tensor from a table in memory: rows with equal keys become one nonzero.

    Parameters
    ----------
    frame : pandas, cuDF, Polars or Arrow table, DuckDB relation, or object with ``__arrow_c_stream__``
        The columns are read without a copy; those of cuDF that are used are copied to the host. The levels of an index
        count as columns, and the values of a Series are the default `value`.
    keys : sequence of str, or mapping, optional
        One column per mode, or an expression in DuckDB's SQL, such as ``"hour(time)"``. Their values become ``labels``.
        ``"hour(time) AS hour"``, or the mapping ``{"hour": "hour(time)"}``, names the mode. The default is the levels
        of the index of a Series.
    value : str, optional
        A column or expression to sum, or an aggregate such as ``"avg(delay)"``. By default rows are counted.
    where : str, optional
        SQL condition that selects rows.
    missing : {"drop", "keep"}
        Whether rows without a key are dropped, with a warning, or get a missing label: NaN, NaT or None.
    keep_zeros : bool
        Keep sums that are zero, which are dropped by default: elements that are observed to be zero.

    Returns
    -------
    SparseTensor
        Its `labels` are sorted: numbers, dates and times in ascending order, including bins of time without rows;
        strings alphabetically; categories in their own order. Not collective: under ``mpirun`` each rank that calls
        this gets its own tensor.

    Raises
    ------
    InputError
        If `frame` is not a table, an expression is invalid, or no row has all keys.

    Warns
    -----
    InputWarning
        If rows are dropped, or keys look like identifiers.

    Examples
    --------
    >>> import pandas as pd
    >>> rides = pd.DataFrame({"place": ["park", "port", "park"], "hour": [8, 8, 9]})
    >>> X = from_frame(rides, ["place", "hour"])
    >>> X.shape, X.nnz, X.labels[0].tolist()
    ((2, 2), 3, ['park', 'port'])
    """
    if is_tensor(frame):
        kind = type(frame).__name__
        raise InputError(f"frame is of type {kind}: a tensor has no keys; pass it to cp_als as it is")
    keys = level_names(frame) if keys is None else keys
    form = ReadOptions(key=keys, value=value, where=where, missing=missing, keep_zeros=keep_zeros)  # type: ignore[arg-type]
    return read_frame(frame, form)


class Container:
    """The methods by which scikit-learn names output columns and chooses between arrays and data frames."""

    model_: Any
    _fitted: Any
    mode: int

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of the output columns of `transform`: ``cp0``, ``cp1``, ..., or ``tucker0``, ...

        Parameters
        ----------
        input_features : object
            Ignored: components do not correspond to input features.

        Returns
        -------
        (rank,) array of str objects
            The lower-case class name and a number, as for scikit-learn's decompositions.
        """
        count, prefix = self._fitted.host_factors[self.mode].shape[1], type(self).__name__.lower()
        return np.array([f"{prefix}{number}" for number in range(count)], dtype=object)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Set the type of the output of `transform` and `fit_transform`, by default that of ``sklearn.set_config``.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, optional
            A NumPy array or a data frame. None leaves the setting unchanged.

        Returns
        -------
        Self
            This estimator.
        """
        if transform is not None:
            _check(transform)
            setattr(self, CONFIG, {"transform": transform})
        return self

    def _contained(self, rows: Floats, X: object) -> Any:
        """Return the rows of the samples in the selected container."""
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
