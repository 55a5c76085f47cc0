"""What attributes say of the numbers of HDF5, netCDF-4 and Zarr files: scale, offset, fill values, valid numbers."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amped
from partitioner.errors import InputError
from partitioner.tensors.stored import Stored

NUMBERS = np.random.default_rng(0).integers(0, 200, (4, 5, 6)).astype(np.int16)
MISSING = NUMBERS.copy()
MISSING[1, 2, 3] = -999
WAYS = ["contiguous", "chunked", "zarr2", "zarr3"]


def written(folder: Path, way: str, array: np.ndarray, attributes: dict[str, Any]) -> Path:
    if way.startswith("zarr"):
        zarr = pytest.importorskip("zarr")
        plain = {name: each.tolist() if hasattr(each, "tolist") else each for name, each in attributes.items()}
        chunks, form = (2, 5, 6), int(way[-1])
        made = zarr.create_array(
            folder / "x.zarr", shape=array.shape, chunks=chunks, dtype=array.dtype, zarr_format=form, attributes=plain
        )
        made[:] = array
        return folder / "x.zarr"
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.nc", "w") as file:
        data = file.create_dataset("x", data=array, chunks=(2, 5, 6) if way == "chunked" else None)
        data.attrs.update(attributes)
        for mode, length in enumerate(array.shape):
            scale = file.create_dataset(f"axis{mode}", data=np.arange(length))
            scale.make_scale(f"axis{mode}")
            data.dims[mode].attach_scale(scale)
    return folder / "x.nc"


def elements(path: Path) -> np.ndarray:
    tensor = amped.read(path)
    assert isinstance(tensor, amped.DenseTensor)
    found = tensor.array()
    assert found.dtype == tensor.dtype
    tensor.norm()
    return found


SCALED: list[tuple[dict[str, Any], Any, str]] = [
    ({"scale_factor": 0.01, "add_offset": 273.15, "units": "K" * 999}, NUMBERS * 0.01 + 273.15, "f8"),
    ({"scale_factor": np.array([0.5])}, NUMBERS * 0.5, "f8"),
    ({"add_offset": 3}, NUMBERS + 3.0, "f8"),
    ({"scale_factor": "0.25", "_FillValue": "-1"}, NUMBERS * 0.25, "f8"),
    ({"_FillValue": -9999, "missing_value": [-1, -2]}, NUMBERS, "i2"),
    ({"_FillValue": math.nan, "valid_range": [0, 500], "long_name": "none"}, NUMBERS, "i2"),
    ({"missing_value": 1e30, "valid_min": "none"}, NUMBERS, "i2"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("attributes", "want", "kind"), SCALED)
def test_numbers_become_elements(
    tmp_path: Path, way: str, attributes: dict[str, Any], want: np.ndarray, kind: str
) -> None:
    found = elements(written(tmp_path, way, NUMBERS, attributes))
    assert found.dtype == kind
    assert np.array_equal(found, want)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", ["<", ">"])
def test_bytes_in_either_order(tmp_path: Path, way: str, order: str) -> None:
    file = written(tmp_path, way, NUMBERS.astype(f"{order}i4"), {"scale_factor": 0.5})
    assert np.array_equal(elements(file), NUMBERS * 0.5)


@pytest.mark.parametrize(("kind", "want"), [("i2", "f4"), ("f4", "f4"), ("i4", "f8"), ("f8", "f8")])
def test_attributes_of_single_precision(tmp_path: Path, kind: str, want: str) -> None:
    """Single precision does not hold integers of 32 bits."""
    attributes = {"scale_factor": np.float32(0.1), "add_offset": np.float32(1)}
    found = elements(written(tmp_path, "chunked", NUMBERS.astype(kind), attributes))
    assert found.dtype == want
    assert np.allclose(found, NUMBERS * 0.1 + 1, rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_unsigned_numbers_in_signed_ones(tmp_path: Path, way: str) -> None:
    attributes = {"_Unsigned": "true", "_FillValue": np.int8(-1), "valid_range": np.array([0, -2], np.int8)}
    file = written(tmp_path, way, NUMBERS.astype(np.uint8).view(np.int8), attributes)
    assert np.array_equal(elements(file), NUMBERS)
    assert elements(file).dtype == np.uint8


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"_FillValue": np.int16(-999)}, r"element \[1, 2, 3\] is -999, a missing value \(_FillValue\): replace "),
    ({"missing_value": [-1.0, -999.0]}, r"element \[1, 2, 3\] is -999, a missing value \(missing_value\)"),
    ({"_FillValue": "-999", "scale_factor": 0.1}, r"element \[1, 2, 3\] is -999, a missing value \(_FillValue\)"),
    ({"valid_min": 0}, r"element \[1, 2, 3\] is below 0, the least valid one \(valid_min\)"),
    ({"valid_range": [-99, 300]}, r"element \[1, 2, 3\] is below -99, the least valid one \(valid_range\)"),
    ({"valid_min": -1.5, "scale_factor": 0.1}, r"element \[1, 2, 3\] is below -1.5, the least .* \(valid_min\)"),
    ({"scale_factor": [1.0, 2.0]}, "attribute scale_factor is 2 numbers: expected one finite number other than 0"),
    ({"scale_factor": 0.0}, "attribute scale_factor is 0.0: expected one finite number other than 0"),
    ({"add_offset": "much"}, "attribute add_offset is not a number"),
    ({"_FillValue": [-999] * 99}, "attribute _FillValue has 99 values, expected one"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("attributes", "cause"), REFUSED)
def test_what_is_missing_or_unclear_is_refused(
    tmp_path: Path, way: str, attributes: dict[str, Any], cause: str
) -> None:
    file = written(tmp_path, way, MISSING, attributes)
    with pytest.raises(InputError, match=rf"x\.\w+: {cause}"):
        elements(file)


@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize("way", ["contiguous", "zarr3"])
def test_decompositions_are_of_elements(tmp_path: Path, way: str, placement: str) -> None:
    options: dict[str, Any] = {"device": "cpu", "max_iters": 3, "precision": "fp64"}
    file = written(tmp_path, way, NUMBERS, {"scale_factor": 0.01, "add_offset": 5.0, "_FillValue": -999})
    found = amped.cp_als(file, 2, placement=placement, **options)
    assert found.fits == pytest.approx(amped.cp_als(NUMBERS * 0.01 + 5, 2, **options).fits, rel=1e-9)
    file = (
        written(tmp_path / "missing", way, MISSING, {"_FillValue": -999})
        if (tmp_path / "missing").mkdir() is None
        else file
    )
    with pytest.raises(InputError, match=r"element \[1, 2, 3\] is -999, a missing value"):
        amped.cp_als(file, 2, placement=placement, **options)


def test_chunks_that_were_never_written_are_missing_where_a_fill_value_is_declared(tmp_path: Path) -> None:
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    for declared in (False, True):
        with h5py.File(tmp_path / f"{declared}.h5", "w") as file:
            part, none = (
                file.create_dataset(n, (4, 5, 6), "f8", chunks=c) for n, c in (("part", (2, 5, 6)), ("none", None))
            )
            part[:2] = 1.0
            for data in (part, none) if declared else ():
                data.attrs["_FillValue"] = -1.0
        given = {"attributes": {"missing_value": -1}} if declared else {}
        zarr.create_array(tmp_path / f"{declared}.zarr", shape=(4, 5, 6), chunks=(2, 5, 6), dtype="f8", **given)[:2] = (
            1.0
        )
    assert elements(Path(f"{tmp_path}/False.h5:part")).sum() == elements(tmp_path / "False.zarr").sum() == 60
    with pytest.raises(InputError, match="1 of its 2 chunks was never written, and _FillValue declares"):
        amped.read(tmp_path / "True.h5:part")
    with pytest.raises(InputError, match="its elements were never written, and _FillValue declares"):
        amped.read(tmp_path / "True.h5:none")
    with pytest.raises(InputError, match=r"chunk c/1/0/0 was never written, and missing_value declares .*: write it"):
        elements(tmp_path / "True.zarr")


def test_fill_values_of_the_container(tmp_path: Path) -> None:
    """Zero is everybody's default, and no sign that something is missing; nor are those of bytes, which netCDF sets."""
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, kind, fill in (("zero", "f8", 0), ("some", "f8", -9), ("byte", "u1", 255)):
            data = file.create_dataset(name, (4, 5, 6), kind, chunks=(2, 5, 6), fillvalue=fill)
            data[:2], data[2:, 0] = 1, 255
    assert elements(Path(f"{tmp_path}/x.h5:zero")).shape == elements(Path(f"{tmp_path}/x.h5:byte")).shape == (4, 5, 6)
    with pytest.raises(InputError, match=r"element \[2, 1, 0\] is -9.0, a missing value \(the array's fill value\)"):
        elements(Path(f"{tmp_path}/x.h5:some"))
    for form in (2, 3):
        made = zarr.create_array(
            tmp_path / f"{form}.zarr", shape=(4, 5, 6), chunks=(2, 5, 6), dtype="f8", fill_value=-9, zarr_format=form
        )
        made[:2] = 1.0
        with pytest.raises(InputError, match=r"chunk .*1.0.0 was never written, and the array's fill value declares"):
            elements(tmp_path / f"{form}.zarr")
        made[2:], made[3, 4, 5] = 1.0, -9
        with pytest.raises(InputError, match=r"element \[3, 4, 5\] is -9.0, a missing value"):
            elements(tmp_path / f"{form}.zarr")


@pytest.mark.parametrize("form", [2, 3])
def test_what_xarray_writes(tmp_path: Path, form: int) -> None:
    """In format 2 the fill value is not among the attributes; in format 3 it is text, of floating-point numbers."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    values = NUMBERS * 0.5
    packed = {"v": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": 0 if form == 2 else -9}}
    sets = {}
    for name, low, encoding in (
        ("plain", 1, {}),
        ("packed", 1, packed),
        ("missing", 0, packed),
        ("float", 0, {"v": {"_FillValue": -9.0}}),
    ):
        given = xarray.DataArray(values + 1, dims=("t", "y", "x"), coords={"t": np.arange(4)}, name="v")
        given = given if low else given.where(given > given.min())
        given.to_dataset().to_zarr(
            tmp_path / f"{name}.zarr", zarr_format=form, encoding=encoding, consolidated=form == 2
        )
        sets[name] = tmp_path / f"{name}.zarr"
    assert np.array_equal(elements(sets["plain"]), values + 1)
    assert np.array_equal(elements(sets["packed"]), values + 1)
    for name in ("missing", "float"):
        with pytest.raises(InputError, match=r"a missing value \(_FillValue\)"):
            elements(sets[name])


def test_attributes_that_are_no_numbers_do_no_harm(tmp_path: Path) -> None:
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset("x", data=NUMBERS)
        data.attrs["_FillValue"], data.attrs["missing_value"] = file.ref, h5py.Empty("f8")
        data.attrs["scale_factor"] = h5py.Empty("f8")
    tensor = amped.read(tmp_path / "x.h5")
    assert isinstance(tensor.memory, Stored)  # type: ignore[union-attr]
    assert tensor.memory.plain  # type: ignore[union-attr]
    zarr.save_array(tmp_path / "x.zarr", NUMBERS)
    meta = json.loads((tmp_path / "x.zarr" / "zarr.json").read_text())
    meta["attributes"] = {
        "_FillValue": {"a": [1]},
        "missing_value": [[1], [2, 3]],
        "valid_range": [1e999, None],
        "valid_min": 10**99 * -1,
    }
    (tmp_path / "x.zarr" / "zarr.json").write_text(json.dumps(meta))
    assert np.array_equal(elements(tmp_path / "x.zarr"), NUMBERS)


@pytest.mark.parametrize("way", WAYS)
def test_arrays_that_a_library_has_open(tmp_path: Path, way: str) -> None:
    """NumPy would take the numbers as they are."""

    def opened(file: Path) -> Any:
        if way.startswith("zarr"):
            return pytest.importorskip("zarr").open_array(file, mode="r")
        return pytest.importorskip("h5py").File(file, "r")["x"]

    given = opened(written(tmp_path, way, NUMBERS, {"scale_factor": 0.5, "_FillValue": -999}))
    assert np.array_equal(amped.DenseTensor(given).array(), NUMBERS * 0.5)
    if hasattr(given, "file"):
        given.file.close()
    shutil.rmtree(tmp_path / "x.zarr", ignore_errors=True)
    given = opened(written(tmp_path, way, MISSING, {"_FillValue": -999}))
    with pytest.raises(InputError, match=r"X: element \[1, 2, 3\] is -999, a missing value"):
        amped.cp_als(given, 2, device="cpu")


class Variable:
    """What netCDF4 has: an array that is masked once it is read."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.ma.masked_equal(MISSING, -999)


def test_what_is_masked_once_it_is_read() -> None:
    tensor = amped.DenseTensor(Variable())
    assert tensor.has_gaps
    np.testing.assert_array_equal(np.isnan(tensor.array()), MISSING == -999)
    with pytest.raises(InputError, match="is missing: only CP decompositions, scan and core_consistency accept gaps"):
        amped.tucker(tensor, (1, 1, 1))


def test_a_container_that_gives_bytes_a_value(tmp_path: Path) -> None:
    """Every value of a byte may be data: but not where nothing was written."""
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (4, 5, 6), "u1", chunks=(2, 5, 6), fillvalue=255)[:2] = 255
    with pytest.raises(InputError, match="1 of its 2 chunks was never written, and the array's fill value declares"):
        amped.read(tmp_path / "x.h5")
    made = zarr.create_array(tmp_path / "x.zarr", shape=(4, 5, 6), chunks=(2, 5, 6), dtype="u1", fill_value=255)
    made[:2] = 1
    with pytest.raises(InputError, match="chunk c/1/0/0 was never written, and the array's fill value declares"):
        elements(tmp_path / "x.zarr")


@pytest.mark.parametrize("kind", ["S3", "c16", "f16"])
def test_attributes_make_no_tensor_of_what_is_none(tmp_path: Path, kind: str) -> None:
    file = written(tmp_path, "chunked", NUMBERS.astype(kind), {"scale_factor": 2.0, "_FillValue": 3})
    with pytest.raises(InputError, match=r"x\.nc: elements are "):
        amped.read(file)
