"""Convert objects of other libraries to tensors, without importing these libraries.

Many objects have several interfaces: xarray arrays and polars frames export Arrow streams, and frames convert to
arrays. The most specific one decides: a known type (or a subclass of one), then a model, then an array, and last an
Arrow stream.
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
from .labels import Labels, as_labels, plain_objects
from .lowrank import factors_of, full, parts_of
from .sparse import SparseTensor

__all__ = ["AnyTensor", "factors_of", "is_matrix_or_table", "is_table", "is_tensor", "tensor_of"]

AnyTensor = SparseTensor | DenseTensor
KEYS = "a table: amped.from_frame(frame, keys=[...]) selects the column of each mode"
COLUMNS = "columns", "column_names", "schema"  # attributes of tables but not of arrays
ON_GPU = "cupyx.scipy.sparse"
SHOWN = 5  # names in an error message
NUMBERED = re.compile(r"dim_\d+")  # xarray's names of unnamed dimensions


def tensor_of(obj: object) -> AnyTensor | None:
    """Convert an object of another library, or an array, to a tensor; return None if it is neither.

    Supported are SciPy's and PyData's sparse arrays, pyttb's `sptensor` and `tensor`, PyTorch's sparse and dense
    tensors, xarray's `DataArray` (coordinates become labels), a pandas `DataFrame` of numbers (a matrix), AnnData
    objects (X, or two or more layers), CP and Tucker models of any library (converted to dense tensors), and everything
    that NumPy or CuPy accepts as an array or by DLPack.
    Duplicates are summed.

    Raises
    ------
    InputError
        If the object is a table, or its shape or values are not valid for a tensor.
    """
    convert = _converter(obj)
    return None if convert is None else convert(obj)


def is_table(obj: object) -> bool:
    """Return whether an object is a table of events and nothing more specific; False for pandas frames.

    A pandas `DataFrame` can be a table or a matrix, depending on the context.
    """
    return _converter(obj) is _refuse_table


def is_tensor(obj: object) -> bool:
    """Return whether an object is a tensor or a model of a known library, and not a table."""
    return _converter(obj) not in (None, DenseTensor, _refuse_table, _of_pandas, _of_dataset)


def is_matrix_or_table(obj: object) -> bool:
    """Return whether an object is a pandas `DataFrame`."""
    return _converter(obj) is _of_pandas


def _converter(obj: object) -> Callable[[Any], AnyTensor] | None:
    """Return the function that converts an object to a tensor, according to its most specific type."""
    for kind in type(obj).__mro__:
        if (converter := CONVERTERS.get((kind.__module__.partition(".")[0], kind.__name__))) is not None:
            return converter
    converter = next((convert for matches, convert in BY_LIBRARY if matches(obj)), None)
    if converter is None and not isinstance(obj, (tuple, list)) and parts_of(obj) is not None:
        converter = _of_model
    streams = hasattr(obj, "__arrow_c_stream__")
    if converter is None and streams and any(hasattr(obj, name) for name in COLUMNS):
        converter = _refuse_table
    array = hasattr(obj, "__array__") and not isinstance(obj, Unconverted)
    if converter is None and (array or hasattr(obj, "__cuda_array_interface__") or hasattr(obj, "__dlpack_device__")):
        converter = DenseTensor
    return _refuse_table if converter is None and streams else converter


def _of_model(obj: object) -> DenseTensor:
    parts = parts_of(obj)
    assert parts is not None
    tensor = DenseTensor(full(*parts))
    tensor.labels = getattr(obj, "labels", None)
    return tensor


def _of_scipy(obj: Any) -> SparseTensor:
    coo = (obj.get() if type(obj).__module__.startswith(ON_GPU) else obj).tocoo()
    return SparseTensor.from_columns(np.array(coo.coords), _numbers(coo.data), coo.shape)


def _of_pydata(obj: Any, packing: Packing | None = None) -> SparseTensor:
    coo = obj if hasattr(obj, "coords") else obj.asformat("coo")
    fill, values = np.asarray(coo.fill_value).reshape(1), coo.data
    if packing is not None:
        try:
            fill, values = map(packing.all_unpacked, (fill, values))
        except InputError as error:
            raise InputError(f"stored values: {error}") from None
    if fill[0] != 0:
        raise InputError(f"a sparse array with fill value {fill[0]}: expected 0")
    return SparseTensor.from_columns(np.array(coo.coords), _numbers(values), coo.shape)


def _of_torch(obj: Any) -> AnyTensor:
    obj = obj.detach()
    if str(obj.layout) == "torch.strided":
        return DenseTensor(obj)
    coo = obj.to_sparse().coalesce().cpu()
    return SparseTensor.from_columns(coo.indices().numpy(), _numbers(coo.values().numpy()), tuple(coo.shape))


def _of_sptensor(obj: Any) -> SparseTensor:
    if not obj.nnz:
        return SparseTensor(np.zeros((0, len(obj.shape)), np.int32), [], obj.shape)
    return SparseTensor(np.asarray(obj.subs), _numbers(np.asarray(obj.vals)).reshape(-1), obj.shape)


def _numbers(values: Any) -> Any:
    """Return a copy of a caller's values as numbers; bools become 0 and 1."""
    return np.array(values, np.float64 if values.dtype.kind == "b" else None)


def _of_xarray(obj: Any) -> AnyTensor:
    tensor = _of_variable(obj.variable)
    tensor.gaps = tensor.dtype.kind == "f"
    if obj.coords.keys() & set(obj.dims) or not all(NUMBERED.fullmatch(str(name)) for name in obj.dims):
        # As in xarray, a dimension without a coordinate is numbered.
        names, units = [str(name) for name in obj.dims], [_unit(obj, name) for name in obj.dims]
        tensor.labels = Labels((_coordinate(obj, name) for name in obj.dims), names, units=units)
    return tensor


def _of_variable(obj: Any) -> AnyTensor:
    """Convert an xarray array, applying attributes that describe its numbers as for arrays in files."""
    packing = Packing(obj.dtype, _undecoded(obj))
    data = obj.data
    if _is_pydata(data):
        return _of_pydata(data, packing)
    if packing.plain:
        return DenseTensor(data if hasattr(data, "__cuda_array_interface__") else obj.values)
    return DenseTensor(packing.all_unpacked(obj.as_numpy().values))


def _undecoded(obj: Any) -> dict[str, Any]:
    """Return the attributes of an xarray array that still apply to its numbers.

    xarray moves attributes that it has applied to `encoding`, except bounds, which then refer to the undecoded numbers.
    """
    decoded = any(name in obj.encoding for name in (*SCALES, "_Unsigned"))
    return {name: obj.attrs[name] for name in NAMES if name in obj.attrs and not (decoded and name in BOUNDS)}


def _coordinate(obj: Any, name: Any) -> Any:
    """Return the labels of an xarray dimension."""
    variable = obj[name].variable
    numbers = variable.values
    try:
        numbers = Packing(numbers.dtype, _undecoded(variable)).all_unpacked(numbers)
    except InputError as error:
        raise InputError(f"coordinate {str(name)!r}: {error}") from None
    return _index(numbers)


def _unit(obj: Any, name: Any) -> str | None:
    """Return the unit of an xarray coordinate, if it has one."""
    unit = obj[name].attrs.get("units")
    return unit if isinstance(unit, str) else None


def _of_dataset(obj: Any) -> AnyTensor:
    names = ", ".join(repr(str(name)) for name in list(obj.data_vars)[:SHOWN]) or "none"
    raise InputError(f"an xarray Dataset holds several arrays ({names}): pass one of them, as dataset[NAME]")


def _of_pandas(obj: Any) -> DenseTensor:
    """Convert a frame of numbers to a matrix; raise `InputError` for a table of events."""
    if not all(getattr(kind, "kind", "O") in "biuf" for kind in obj.dtypes):
        raise InputError(KEYS)
    nullable = any(not isinstance(kind, np.dtype) for kind in obj.dtypes)
    tensor = DenseTensor(obj.to_numpy(np.float64, na_value=np.nan) if nullable else obj.to_numpy())
    names = [str(each.name) if each.name is not None else f"mode {mode}" for mode, each in enumerate(obj.axes)]
    tensor.labels = Labels((_index(each.to_numpy()) for each in obj.axes), names)
    return tensor


def _of_anndata(obj: Any) -> AnyTensor:
    """Convert X, or two or more layers, which then form the first mode; the names of `obs` and `var` become labels."""
    if obj.isbacked:
        obj = obj.to_memory()
    layers = {} if len(obj.layers) < 2 else {str(name): layer for name, layer in obj.layers.items()}
    if not layers and obj.X is None:
        raise InputError("an AnnData object without X: set X, or two or more layers")
    tensor = _stacked([*layers.values()]) if layers else tensor_of(obj.X)
    assert tensor is not None
    axes, names = [obj.obs_names, obj.var_names], ["obs", "var"]
    labels = [*([as_labels([*layers])] if layers else []), *(_index(each.to_numpy()) for each in axes)]
    tensor.labels = Labels(labels, [*(["layer"] if layers else []), *names])
    return tensor


def _stacked(matrices: list[Any]) -> AnyTensor:
    """Return matrices of one shape as a tensor, of which they are the slices: a sparse one if all are sparse."""
    tensors = [tensor_of(matrix) for matrix in matrices]
    parts = [each for each in tensors if isinstance(each, SparseTensor)]
    if len(parts) < len(tensors):
        return DenseTensor(np.stack([each.todense() for each in tensors if each is not None]))
    numbers = np.repeat(np.arange(len(parts), dtype=np.int32), [each.nnz for each in parts])
    columns = np.vstack([numbers, np.hstack([np.array(each.columns) for each in parts])])
    return SparseTensor.from_columns(
        columns, np.concatenate([each.values for each in parts]), (len(parts), *parts[0].shape)
    )


def _index(obj: Any) -> Any:
    """Return a pandas or xarray index as labels; a multi-level index as text."""
    if obj.dtype.kind == "O":
        obj = plain_objects(np.asarray(obj, object))
    if obj.dtype.kind == "O" and not all(isinstance(each, str) or each is None for each in obj):
        obj = np.array([None if each is None or each != each else str(each) for each in obj], object)
    return as_labels(obj)


def _refuse_table(obj: object) -> DenseTensor:
    raise InputError(KEYS)


def _is_scipy(kind: type) -> bool:
    return kind.__module__.startswith(("scipy.sparse", ON_GPU))


def _is_pydata(obj: object) -> bool:
    return type(obj).__module__.startswith("sparse.") and hasattr(obj, "fill_value")


CONVERTERS: dict[tuple[str, str], Callable[[Any], AnyTensor]] = {
    ("pyttb", "sptensor"): _of_sptensor,
    ("pyttb", "tensor"): lambda obj: DenseTensor(obj.data),
    ("xarray", "DataArray"): _of_xarray,
    ("xarray", "Variable"): _of_variable,
    ("xarray", "Dataset"): _of_dataset,
    ("pandas", "DataFrame"): _of_pandas,
    ("anndata", "AnnData"): _of_anndata,
    **dict.fromkeys(
        [
            ("pandas", "Series"), ("polars", "DataFrame"), ("polars", "LazyFrame"), ("pyarrow", "Table"),
            ("pyarrow", "RecordBatch"), ("pyarrow", "RecordBatchReader"), ("cudf", "DataFrame"), ("cudf", "Series"),
            ("dask", "DataFrame"), ("dask", "Series"),
            ("duckdb", "DuckDBPyRelation"), ("_duckdb", "DuckDBPyRelation"),
        ],
        _refuse_table,
    ),
}  # fmt: skip
"""Converters by library and type; they also apply to subclasses."""

BY_LIBRARY: list[tuple[Callable[[Any], bool], Callable[[Any], AnyTensor]]] = [
    (lambda obj: hasattr(obj, "tocoo") and any(_is_scipy(kind) for kind in type(obj).__mro__), _of_scipy),
    (_is_pydata, _of_pydata),
    (lambda obj: type(obj).__module__ == "torch" and hasattr(obj, "layout"), _of_torch),
]
"""Converters of libraries with several types."""
