"""One tensor as arrays, sparse arrays, tensors of other libraries, data frames and tables."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import amped
from amped.errors import InputError
from amped.parallel.mpi import world

SHAPE = (7, 6, 5)
NAMES = ("sample", "gene", "hour")
HOW = {"device": "cpu", "precision": "fp64"}
FIT = {"max_iters": 4, "tol": 0, **HOW}
CLOSE = {"rtol": 1e-7, "atol": 1e-9}
LABELS = [[f"s{k}" for k in range(7)], ["g1", "g2", "g3", "g4", "g5", "g6"], [2, 4, 6, 8, 10]]


def array() -> np.ndarray:
    """Return counts without empty rows; a third of them are zero."""
    rng = np.random.default_rng(4)
    factors = [rng.gamma(1.0, 1.0, (length, 2)) for length in SHAPE]
    found = rng.poisson(3 * np.einsum("ar,br,cr->abc", *factors)).astype(np.float64)
    found[0], found[:, 0], found[:, :, 0] = found[0] + 1, found[:, 0] + 1, found[:, :, 0] + 1
    return found


class Case(NamedTuple):
    """An object, and the data that it equals."""

    make: Callable[[Path], Any]
    wide: bool = False  # a matrix: the first slice of the last mode
    keys: tuple[str, ...] = ()  # of a table
    refused: str | None = None  # part of the error message


def sparse_tensor() -> amped.SparseTensor:
    """Return the array as amped's own sparse tensor."""
    whole = array()
    return amped.SparseTensor(np.argwhere(whole), whole[whole != 0], SHAPE)


def mapped(folder: Path) -> np.ndarray:
    """Return the array, memory-mapped read-only from a file."""
    np.save(folder / "mapped.npy", array())
    result: np.ndarray = np.load(folder / "mapped.npy", mmap_mode="r")
    return result


def read_only(values: np.ndarray) -> np.ndarray:
    """Return an array made read-only."""
    values.flags.writeable = False
    return values


def spread(values: np.ndarray) -> np.ndarray:
    """Return the array as every second element of another one."""
    other = np.full([2 * length for length in values.shape], np.nan)
    other[::2, ::2, ::2] = values
    return other[::2, ::2, ::2]


def scipy_sparse(kind: str, values: np.ndarray) -> Any:
    """Return SciPy's array or matrix of a kind."""
    import scipy.sparse

    return getattr(scipy.sparse, kind)(values)


def data_array(dims: tuple[str, ...] = NAMES, coordinates: int = 3, sparse: bool = False) -> Any:
    """Return xarray's array, with coordinates for the first dimensions, and `dims` in this order."""
    import xarray

    coords = dict(zip(NAMES[:coordinates], LABELS, strict=False))
    data: Any = array()
    if sparse:
        data = importlib.import_module("sparse").COO.from_numpy(data)
    return xarray.DataArray(data, dims=NAMES, coords=coords).transpose(*dims)


def events() -> dict[str, list[Any]]:
    """Return the nonzeros as columns of a table."""
    whole = array()
    places = np.argwhere(whole)
    columns = {name: [LABELS[m][k] for k in places[:, m]] for m, name in enumerate(NAMES)}
    return {**columns, "count": whole[whole != 0].tolist()}


def frame(library: str) -> Any:
    """Return the nonzeros as a table of a library."""
    if library == "pandas":
        return importlib.import_module("pandas").DataFrame(events())
    if library == "polars":
        return importlib.import_module("polars").DataFrame(events())
    table = importlib.import_module("pyarrow").table(events())
    return table if library == "pyarrow" else importlib.import_module("duckdb").from_arrow(table)


def written(folder: Path) -> Path:
    """Return a CSV file of the nonzeros."""
    frame("pandas").to_csv(folder / "events.csv", index=False)
    return folder / "events.csv"


def wide() -> Any:
    """Return a matrix with labels."""
    pandas = importlib.import_module("pandas")
    return pandas.DataFrame(array()[:, :, 0], index=LABELS[0], columns=LABELS[1])


def model_of(library: str) -> Any:
    """Return a CP model of a library."""
    rng = np.random.default_rng(0)
    found = amped.KruskalTensor(np.ones(2), [rng.random((length, 2)) for length in SHAPE])
    return found if library == "amped" else getattr(found, f"to_{library}")()


KEYS = NAMES
CASES: dict[str, Case] = {
    "fortran": Case(lambda _: np.asfortranarray(array())),
    "permuted": Case(lambda _: np.ascontiguousarray(array().transpose(2, 0, 1)).transpose(1, 2, 0)),
    "backwards": Case(lambda _: np.ascontiguousarray(array()[::-1, :, ::-1])[::-1, :, ::-1]),
    "spread": Case(lambda _: spread(array())),
    "read-only": Case(lambda _: read_only(array())),
    "read-only fortran": Case(lambda _: read_only(np.asfortranarray(array()))),
    "other byte order": Case(lambda _: array().astype(">f8")),
    "single": Case(lambda _: array().astype(np.float32)),
    "integers": Case(lambda _: array().astype(np.int64)),
    "small integers": Case(lambda _: array().astype(np.uint8)),
    "mapped": Case(mapped),
    "file": Case(lambda folder: (mapped(folder), folder / "mapped.npy")[1]),
    "file, bytes": Case(lambda folder: (mapped(folder), bytes(folder / "mapped.npy"))[1]),
    "masked, no mask": Case(lambda _: np.ma.array(array())),
    "list": Case(lambda _: array().tolist(), refused="is of type list: expected a tensor or array"),
    "nan": Case(lambda _: np.where(array() > 0, array(), np.nan), refused="nan: every element must be finite"),
    "objects": Case(lambda _: array().astype(object), refused="elements are object"),
    "none": Case(lambda _: object(), refused="is of type object: expected a tensor or array"),
    "amped sparse": Case(lambda _: sparse_tensor()),
    "amped dense": Case(lambda _: amped.DenseTensor(array())),
    "amped semi-sparse": Case(lambda _: amped.SemiSparseTensor.from_sparse(sparse_tensor(), 2)),
    "scipy coo": Case(lambda _: scipy_sparse("coo_array", array())),
    "scipy csr": Case(lambda _: scipy_sparse("csr_array", array()[:, :, 0]), wide=True),
    "scipy csc matrix": Case(lambda _: scipy_sparse("csc_matrix", array()[:, :, 0]), wide=True),
    "sparse COO": Case(lambda _: importlib.import_module("sparse").COO.from_numpy(array())),
    "sparse GCXS": Case(lambda _: importlib.import_module("sparse").GCXS.from_numpy(array())),
    "pyttb tensor": Case(lambda _: importlib.import_module("pyttb").tensor(array())),
    "pyttb sptensor": Case(lambda _: sparse_tensor().to_pyttb()),
    "tensorly": Case(lambda _: importlib.import_module("tensorly").tensor(array())),
    "torch": Case(lambda _: importlib.import_module("torch").from_numpy(array())),
    "torch sparse": Case(lambda _: importlib.import_module("torch").from_numpy(array()).to_sparse()),
    "jax": Case(lambda _: importlib.import_module("jax").numpy.asarray(array())),
    "xarray": Case(lambda _: data_array()),
    "xarray, some coordinates": Case(lambda _: data_array(coordinates=2)),
    "xarray, no coordinates": Case(lambda _: data_array(coordinates=0)),
    "xarray of sparse": Case(lambda _: data_array(sparse=True)),
    "xarray Dataset": Case(lambda _: data_array().to_dataset(name="q"), refused="pass one of them, as dataset"),
    "pandas wide": Case(lambda _: wide(), wide=True),
    "pandas wide, nullable": Case(lambda _: wide().convert_dtypes(), wide=True),
    "pandas long": Case(lambda _: frame("pandas"), keys=KEYS),
    "polars": Case(lambda _: frame("polars"), keys=KEYS),
    "polars lazy": Case(lambda _: frame("polars").lazy(), keys=KEYS),
    "pyarrow": Case(lambda _: frame("pyarrow"), keys=KEYS),
    "pyarrow batch": Case(lambda _: frame("pyarrow").to_batches()[0], keys=KEYS),
    "duckdb": Case(lambda _: frame("duckdb"), keys=KEYS),
    "csv": Case(written, keys=KEYS),
}


def missing(name: str) -> str | None:
    """Return the library that a case needs and that is not installed."""
    library = name.split()[0].rstrip(",")
    known = {"scipy", "sparse", "pyttb", "tensorly", "torch", "jax", "xarray", "pandas", "polars", "pyarrow", "duckdb"}
    return library if library in known and importlib.util.find_spec(library) is None else None


def outcome(fitted: Any, after: Any, folder: Path) -> dict[str, Any]:
    """Return the results of all functions for an object; `after` is passed to functions after the fit."""
    model = amped.cp_als(fitted, 2, **FIT)
    estimator = amped.CP(2, max_iters=4, tol=0, options=HOW).fit(fitted)
    if world().rank == 0:
        model.report(folder / "report.html", after)
    results = {
        "factors": np.concatenate([f.ravel() for f in model.factors]) ** 2,
        "weights": model.weights,
        "fit": model.fits[-1],
        "score": model.score(after),
        "entries": [(each.value, each.expected) for each in model.residuals(after, 3).entries],
        "rows": model.transform(after, 0, **HOW),
        "estimator": estimator.score(after),
        "samples": estimator.transform(after),
    }
    if world().size > 1:  # Tucker models accept the same objects, and the runs take long
        return results
    core = amped.tucker(fitted, (2,) * len(model.shape), **FIT)
    return results | {"core": core.score(after), "core rows": core.transform(after, 0, **HOW) ** 2}


def prepared(name: str, case: Case, folder: Path) -> tuple[Any, Any]:
    """Return the objects to pass to the fit, and to functions after the fit."""
    fresh = folder / f"rank{world().rank}"
    fresh.mkdir(exist_ok=True)
    obj = case.make(fresh)
    if isinstance(obj, (bytes, Path)):
        obj = world().bcast(obj)
    if not case.keys:
        return obj, obj
    if name == "csv":
        return amped.read(obj, keys=case.keys, value="count"), obj
    return amped.from_frame(obj, case.keys, "count"), obj


def check(name: str, wanted: dict[bool, dict[str, Any]], folder: Path) -> None:
    """Compare the results for an object with those for the NumPy array, or expect an error message of one line."""
    case = CASES[name]
    if (library := missing(name)) is not None:
        pytest.skip(f"{library} is not installed")
    fitted, after = prepared(name, case, folder)
    if case.refused is None:
        results, want = outcome(fitted, after, folder), wanted[case.wide]
        for what in want:
            np.testing.assert_allclose(results[what], want[what], **CLOSE, err_msg=what)
        return
    model = amped.cp_als(array(), 2, **FIT)
    core = amped.tucker(array(), (2, 2, 2), **FIT)
    calls = [
        lambda: amped.cp_als(fitted, 2, **FIT),
        lambda: model.score(after), lambda: model.residuals(after), lambda: core.score(after),
        lambda: model.transform(after, 0, **HOW), lambda: core.transform(after, 0, **HOW),
        lambda: model.report(folder / "report.html", after), lambda: amped.mttkrp(fitted, model.factors, 0, **HOW),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(InputError, match=case.refused) as caught:
            call()
        assert "\n" not in str(caught.value)
