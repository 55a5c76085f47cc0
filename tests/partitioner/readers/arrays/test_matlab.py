"""MATLAB files of version 7.3 and of earlier ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import coo_array, csc_array

import amped
from partitioner.errors import InputError

h5py = pytest.importorskip("h5py")

ARRAY = np.random.default_rng(0).random((4, 5, 6))
HEAD = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM"
MATRIX = coo_array(([1.5, -2.0, 3.0], ([0, 2, 4], [1, 0, 3])), shape=(6, 5))


def write_hdf5(path: Path, variables: dict[str, Any]) -> None:
    """Write a file as MATLAB does: modes in reverse order, sparse matrices as groups."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in variables.items():
            if isinstance(value, np.ndarray):
                file[name] = value.T
                file[name].attrs["MATLAB_class"] = np.bytes_("double")
            elif isinstance(value, str):
                file[name] = np.array([[ord(letter)] for letter in value], np.uint16)
                file[name].attrs["MATLAB_class"] = np.bytes_("char")
            else:
                columns, group = csc_array(value), file.create_group(name)
                group.attrs.update(MATLAB_class=np.bytes_("double"), MATLAB_sparse=np.uint64(value.shape[0]))
                group["data"], group["ir"] = columns.data, columns.indices.astype(np.uint64)
                group["jc"] = columns.indptr.astype(np.uint64)
        file.create_group("#refs#")["a"] = ARRAY
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file")


WRITERS = {"5": savemat, "4": lambda path, mapping: savemat(path, mapping, format="4"), "7.3": write_hdf5}


@pytest.mark.parametrize("version", ["5", "7.3"])
def test_arrays(tmp_path: Path, version: str) -> None:
    WRITERS[version](tmp_path / "x.mat", {"X": ARRAY, "wavelengths": np.arange(9.0)[:, None], "note": "text"})
    for path in (tmp_path / "x.mat", f"{tmp_path}/x.mat:X"):
        tensor = amped.read(path)
        assert isinstance(tensor, amped.DenseTensor)
        assert np.array_equal(tensor.array(), ARRAY)
    model = amped.cp_als(tmp_path / "x.mat", 2, max_iters=3, seed=1, device="cpu", precision="fp64")
    expected = amped.cp_als(ARRAY, 2, max_iters=3, seed=1, device="cpu", precision="fp64")
    assert model.fits == pytest.approx(expected.fits)


@pytest.mark.parametrize("version", WRITERS)
def test_sparse_matrices(tmp_path: Path, version: str) -> None:
    WRITERS[version](tmp_path / "x.mat", {"S": MATRIX, "other": np.eye(2)})
    tensor = amped.read(f"{tmp_path}/x.mat:S")
    assert isinstance(tensor, amped.SparseTensor)
    assert np.array_equal(tensor.todense(), MATRIX.todense())
    assert amped.cp_als(f"{tmp_path}/x.mat:S", 1, max_iters=2, device="cpu").shape == (6, 5)
    with pytest.raises(InputError, match=r"holds 2 arrays \(S, other\): select one with FILE:NAME"):
        amped.read(tmp_path / "x.mat")


@pytest.mark.parametrize("version", ["5", "7.3"])
def test_wrong_names(tmp_path: Path, version: str) -> None:
    WRITERS[version](tmp_path / "x.mat", {"X": ARRAY, "note": "text"})
    for name in ("Y", "note", "#refs#"):
        with pytest.raises(InputError, match=rf"x\.mat:{name}: holds no array of numbers '{name}'"):
            amped.read(f"{tmp_path}/x.mat:{name}")
    for how in ({"no_values": True}, {"index_base": 0}, {"keys": ["a", "b"]}):
        with pytest.raises(InputError):
            amped.read(tmp_path / "x.mat", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content", [b"", b"1 2 3\n", bytes(200), b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + b"\xff" * 64]
)
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.mat").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.mat: ") as error:
        amped.read(tmp_path / "x.mat")
    assert "\n" not in str(error.value)


def test_damaged_sparse_matrices(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "x.mat", {"S": MATRIX})
    with h5py.File(tmp_path / "x.mat", "r+") as file:
        file["S/jc"][...] = np.array([0, 2, 1, 3, 3, 3], np.uint64)
    with pytest.raises(InputError, match="damaged sparse matrix"):
        amped.read(tmp_path / "x.mat")
    write_hdf5(tmp_path / "x.mat", {"S": MATRIX})
    with h5py.File(tmp_path / "x.mat", "r+") as file:
        file["S/ir"][0] = 6
    with pytest.raises(InputError, match="index of mode 0 is outside its length 6"):
        amped.read(tmp_path / "x.mat")


def test_complex_numbers_and_links_are_refused(tmp_path: Path) -> None:
    savemat(tmp_path / "x.mat", {"X": ARRAY * 1j})
    with pytest.raises(InputError, match="expected real numbers"):
        amped.read(tmp_path / "x.mat")
    write_hdf5(tmp_path / "y.mat", {"note": "text"})
    with h5py.File(tmp_path / "y.mat", "r+") as file:
        file["X"] = h5py.ExternalLink("/etc/hostname", "X")
    with pytest.raises(InputError, match=r"holds 0 arrays \(none\)"):
        amped.read(tmp_path / "y.mat")
