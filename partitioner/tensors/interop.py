"""Objects of other libraries: whether one is a tensor or a table. None of these libraries is imported for it.

Many objects are several things at once: xarray's arrays and polars's frames export Arrow streams, and frames convert to
arrays. So the most specific kind decides: a known type (or a subclass of one), then a model, then an array, and last
whatever exports an Arrow stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import InputError
from .cf_attributes import BOUNDS, NAMES, SCALES, Packing
from .conversion import Unconverted
from .dense import DenseTensor
from .labels import Labels, as_labels, plain_times
from .lowrank import factors_of, full, parts_of
from .sparse import SparseTensor

__all__ = ["AnyTensor", "factors_of", "is_matrix_or_table", "is_table", "is_tensor", "tensor_of"]

AnyTensor = SparseTensor | DenseTensor
KEYS = "a table: amped.from_frame(frame, keys=[...]) says which column each mode is"
COLUMNS = "columns", "column_names", "schema"  # what tables have, and arrays have not
SHOWN = 5  # names that an error lists
NUMBERED = re.compile(r"dim_\d+")  # xarray's names for dimensions without a name


def tensor_of(given: Any) -> AnyTensor | None:
    """Return the tensor that an object of another library stands for, or that an array is; None if it is neither.

    SciPy's and PyData's sparse arrays, pyttb's `sptensor` and `tensor`, PyTorch's sparse and dense tensors, xarray's
    `DataArray` (its coordinates become labels), pandas's `DataFrame` of numbers (a matrix), CP and Tucker models of
    any library (the dense tensor that they stand for), and whatever NumPy or CuPy take for an array. Duplicates are
    summed.

    Raises
    ------
    InputError
        If it is a table, or one of these whose shape or values are none of a tensor.
    """
    take = _taker(given)
    return None if take is None else take(given)


def is_table(given: Any) -> bool:
    """Return whether an object is a table of events and nothing more specific; of pandas's frames, False.

    A pandas `DataFrame` may be a table or a matrix: that depends on what it is compared with.
    """
    return _taker(given) is _refuse_table


def is_tensor(given: Any) -> bool:
    """Return whether an object is a tensor or a model of a known library, which is no table."""
    return _taker(given) not in (None, DenseTensor, _refuse_table, _of_pandas, _of_dataset)


def is_matrix_or_table(given: Any) -> bool:
    """Return whether an object is a pandas `DataFrame`."""
    return _taker(given) is _of_pandas


def _taker(given: Any) -> Callable[[Any], AnyTensor] | None:
    """Return the function that makes a tensor of an object, by the most specific kind that it is of."""
    for kind in type(given).__mro__:
        if (known := TAKEN.get((kind.__module__.partition(".")[0], kind.__name__))) is not None:
            return known
    known = next((take for library, take in BY_LIBRARY if library(given)), None)
    if known is None and not isinstance(given, (tuple, list)) and parts_of(given) is not None:
        known = _of_model
    streams = hasattr(given, "__arrow_c_stream__")
    if known is None and streams and any(hasattr(given, name) for name in COLUMNS):
        known = _refuse_table
    array = hasattr(given, "__array__") and not isinstance(given, Unconverted)
    if known is None and (array or hasattr(given, "__cuda_array_interface__")):
        known = DenseTensor
    return _refuse_table if known is None and streams else known


def _of_model(given: Any) -> DenseTensor:
    parts = parts_of(given)
    assert parts is not None
    tensor = DenseTensor(full(*parts))
    tensor.labels = getattr(given, "labels", None)
    return tensor


def _of_scipy(given: Any) -> SparseTensor:
    found = given.tocoo()
    return SparseTensor.from_columns(np.array(found.coords), _numbers(found.data), found.shape)


def _of_pydata(given: Any, packing: Packing | None = None) -> SparseTensor:
    found = given if hasattr(given, "coords") else given.asformat("coo")
    absent, values = np.asarray(found.fill_value).reshape(1), found.data
    if packing is not None:
        try:
            absent, values = map(packing.all_unpacked, (absent, values))
        except InputError as error:
            raise InputError(f"of the stored values, {error}") from None
    if absent[0] != 0:
        raise InputError(f"a sparse array whose absent elements are {absent[0]}: expected 0")
    return SparseTensor.from_columns(np.array(found.coords), _numbers(values), found.shape)


def _of_torch(given: Any) -> AnyTensor:
    given = given.detach()
    if str(given.layout) == "torch.strided":
        return DenseTensor(given)
    found = given.to_sparse().coalesce().cpu()
    return SparseTensor.from_columns(found.indices().numpy(), _numbers(found.values().numpy()), tuple(found.shape))


def _of_sptensor(given: Any) -> SparseTensor:
    if not given.nnz:
        raise InputError("no nonzeros")
    return SparseTensor(np.asarray(given.subs), _numbers(np.asarray(given.vals)).reshape(-1), given.shape)


def _numbers(values: Any) -> Any:
    """Return values of a caller's as numbers that nobody else has: truth values count 1."""
    return np.array(values, np.float64 if values.dtype.kind == "b" else None)


def _of_xarray(given: Any) -> AnyTensor:
    tensor = _of_variable(given.variable)
    if given.coords.keys() & set(given.dims) or not all(NUMBERED.fullmatch(str(name)) for name in given.dims):
        # A dimension without a coordinate is numbered, as xarray has it.
        tensor.labels = Labels((_coordinate(given, name) for name in given.dims), [str(name) for name in given.dims])
    return tensor


def _of_variable(given: Any) -> AnyTensor:
    """Return an array of xarray's; what its attributes say of the numbers applies, as for arrays in files."""
    packing = Packing(given.dtype, _undecoded(given))
    data = given.data
    if _is_pydata(data):
        return _of_pydata(data, packing)
    if packing.plain:
        return DenseTensor(data if hasattr(data, "__cuda_array_interface__") else given.values)
    return DenseTensor(packing.all_unpacked(given.as_numpy().values))


def _undecoded(given: Any) -> dict[str, Any]:
    """Return the attributes of an array of xarray's that say something of its numbers as they are.

    What xarray has applied it moves to `encoding`, but for the bounds, which are then of numbers that are gone.
    """
    decoded = any(name in given.encoding for name in (*SCALES, "_Unsigned"))
    return {name: given.attrs[name] for name in NAMES if name in given.attrs and not (decoded and name in BOUNDS)}


def _coordinate(given: Any, name: Any) -> Any:
    """Return the labels of a dimension of xarray's."""
    found = given[name].variable
    numbers = found.values
    try:
        numbers = Packing(numbers.dtype, _undecoded(found)).all_unpacked(numbers)
    except InputError as error:
        raise InputError(f"coordinate {str(name)!r}: {error}") from None
    return _index(numbers)


def _of_dataset(given: Any) -> AnyTensor:
    names = ", ".join(repr(str(name)) for name in list(given.data_vars)[:SHOWN]) or "none"
    raise InputError(f"an xarray Dataset holds several arrays ({names}): give one of them, as dataset[NAME]")


def _of_pandas(given: Any) -> DenseTensor:
    """Return a frame of numbers as a matrix; a table of events is refused."""
    if not all(getattr(kind, "kind", "O") in "biuf" for kind in given.dtypes):
        raise InputError(KEYS)
    nullable = any(not isinstance(kind, np.dtype) for kind in given.dtypes)
    tensor = DenseTensor(given.to_numpy(np.float64, na_value=np.nan) if nullable else given.to_numpy())
    names = [str(each.name) if each.name is not None else f"mode {mode}" for mode, each in enumerate(given.axes)]
    tensor.labels = Labels((_index(each.to_numpy()) for each in given.axes), names)
    return tensor


def _index(given: Any) -> Any:
    """Return an index of pandas's or xarray's as labels: what has several levels as text."""
    if given.dtype.kind == "O" and not all(isinstance(each, str) or each is None for each in given):
        given = np.array([None if each is None or each != each else str(each) for each in given], object)
    labels = as_labels(given)
    return plain_times(labels) if labels.dtype.kind == "M" else labels


def _refuse_table(given: Any) -> DenseTensor:
    raise InputError(KEYS)


def _is_pydata(given: Any) -> bool:
    return type(given).__module__.startswith("sparse.") and hasattr(given, "fill_value")


TAKEN: dict[tuple[str, str], Callable[[Any], AnyTensor]] = {
    ("pyttb", "sptensor"): _of_sptensor,
    ("pyttb", "tensor"): lambda given: DenseTensor(given.data),
    ("xarray", "DataArray"): _of_xarray,
    ("xarray", "Variable"): _of_variable,
    ("xarray", "Dataset"): _of_dataset,
    ("pandas", "DataFrame"): _of_pandas,
    **dict.fromkeys(
        [
            ("pandas", "Series"), ("polars", "DataFrame"), ("polars", "LazyFrame"), ("pyarrow", "Table"),
            ("pyarrow", "RecordBatch"), ("pyarrow", "RecordBatchReader"),
            ("duckdb", "DuckDBPyRelation"), ("_duckdb", "DuckDBPyRelation"),
        ],
        _refuse_table,
    ),
}  # fmt: skip
"""By library and type; subclasses count, too."""

BY_LIBRARY: list[tuple[Callable[[Any], bool], Callable[[Any], AnyTensor]]] = [
    (lambda given: type(given).__module__.startswith("scipy.sparse") and hasattr(given, "tocoo"), _of_scipy),
    (_is_pydata, _of_pydata),
    (lambda given: type(given).__module__ == "torch" and hasattr(given, "layout"), _of_torch),
]
"""What has several types."""
