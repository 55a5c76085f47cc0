"""Matrix Market files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy.io import mmwrite
from scipy.sparse import coo_array

import amped
from partitioner.errors import InputError
from partitioner.readers import is_dense

HEAD = "%%MatrixMarket matrix coordinate"


@pytest.mark.parametrize("ending", [".mtx", ".MTX.gz"])
def test_sparse_matrices(tmp_path: Path, ending: str) -> None:
    matrix = coo_array(([1.5, -2.0, 3.0], ([0, 2, 4], [1, 0, 3])), shape=(6, 5))
    mmwrite(tmp_path / "x.mtx", matrix)
    text = (tmp_path / "x.mtx").read_bytes()
    path = tmp_path / f"t{ending}"
    path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    tensor = amped.read(path)
    assert isinstance(tensor, amped.SparseTensor)
    assert np.array_equal(tensor.todense(), matrix.todense())
    assert amped.cp_als(path, 1, max_iters=2, device="cpu").shape == (6, 5)
    assert amped.read(path, shape=(7, 5)).shape == (7, 5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(f"{HEAD} pattern general\n2 2 2\n1 1\n2 1\n", [[1, 0], [1, 0]]),
     (f"{HEAD} integer symmetric\n2 2 2\n1 1 4\n2 1 3\n", [[4, 3], [3, 0]]),
     (f"{HEAD} real general\n% remark\n2 2 2\n1 2 4\n1 2 3\n", [[0, 7], [0, 0]])],
)  # fmt: skip
def test_kinds_of_elements(tmp_path: Path, text: str, expected: list[list[int]]) -> None:
    (tmp_path / "x.mtx").write_text(text)
    assert amped.read(tmp_path / "x.mtx").todense().tolist() == expected


def test_arrays_are_dense(tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((4, 3))
    mmwrite(tmp_path / "x.mtx", array)
    tensor = amped.read(tmp_path / "x.mtx")
    assert isinstance(tensor, amped.DenseTensor)
    assert np.array_equal(tensor.array(), array)
    with pytest.raises(InputError, match="applies to sparse tensors"):
        amped.read(tmp_path / "x.mtx", shape=(9, 9))


@pytest.mark.parametrize(
    ("text", "cause"),
    [(f"{HEAD} complex general\n2 2 1\n1 1 1 2\n", "expected real numbers"),
     (f"{HEAD} real general\n2 2 0\n", "no nonzeros"),
     (f"{HEAD} real general\n2 2 1\n1 1 nan\n", "is not finite"),
     (f"{HEAD} real general\n2 2 1\n3 1 1\n", "cannot be read"),
     (f"{HEAD} real general\n2 2 2\n1 1 1\n", "cannot be read"),
     ("%%MatrixMarket matrix array complex general\n1 1\n1 2\n", "expected real numbers"),
     ("1 1 1\n", "cannot be read"), ("", "cannot be read")],
)  # fmt: skip
def test_wrong_files(tmp_path: Path, text: str, cause: str) -> None:
    (tmp_path / "x.mtx").write_text(text)
    with pytest.raises(InputError, match=rf"x\.mtx: .*{cause}") as error:
        amped.read(tmp_path / "x.mtx")
    assert "\n" not in str(error.value)


def test_wrong_options_and_files(tmp_path: Path) -> None:
    path = tmp_path / "x.mtx"
    path.write_text(f"{HEAD} pattern general\n2 2 1\n1 1\n")
    for how in ({"no_values": True}, {"index_base": 0}):
        with pytest.raises(InputError, match="does not apply"):
            amped.read(path, **how)  # type: ignore[arg-type]
    (tmp_path / "x.mtx.gz").write_bytes(b"\x1f\x8b\x08 damaged")
    assert not is_dense(tmp_path / "x.mtx.gz")
    with pytest.raises(InputError, match=r"x\.mtx\.gz: "):
        amped.read(tmp_path / "x.mtx.gz")
