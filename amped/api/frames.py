"""Tables in memory, in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partitioner.errors import InputError
from partitioner.readers import ReadOptions, read_frame
from partitioner.tensors.interop import is_tensor
from partitioner.tensors.sparse import SparseTensor


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
