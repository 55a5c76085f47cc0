"""Archives of semi-sparse tensors, read as sparse ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partitioner.errors import InputError
from partitioner.readers import is_semisparse, open_part, read
from partitioner.readers.arrays import semisparse
from partitioner.readers.pieces import chunks
from partitioner.tensors.sparse import SparseTensor

INDICES = [[0, 1], [2, 0], [2, 3]]
SHAPE = (3, 5, 4, 2)
GOOD: dict[str, Any] = {"indices": INDICES, "values": np.arange(30.0).reshape(3, 2, 5), "mode": [3, 1], "shape": SHAPE}


def dense(values: np.ndarray) -> np.ndarray:
    """The tensor of `GOOD` with its zeros."""
    found = np.zeros((3, 4, 2, 5))
    for (i, k), block in zip(INDICES, values, strict=True):
        found[i, k] = block
    return found.transpose(0, 3, 1, 2)


def array(tensor: Any) -> np.ndarray:
    assert isinstance(tensor, SparseTensor)
    found = np.zeros(tensor.shape)
    found[tuple(tensor.columns)] = tensor.values
    return found


@pytest.mark.parametrize("rows", [1, 2, 1 << 17])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_every_number_has_its_coordinates(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rows: int, order: Any, write: Any
) -> None:
    monkeypatch.setattr(semisparse, "ROWS", rows * 10)
    write("y.npz", **{**GOOD, "values": np.asarray(GOOD["values"], order=order)})
    assert is_semisparse("y.npz")
    tensor = read("y.npz")
    assert tensor.shape == SHAPE
    np.testing.assert_array_equal(array(tensor), dense(GOOD["values"]))
    parts = list(chunks(open_part("y.npz"), 7))
    assert sum(values.size for _, values, _ in parts) == 29, "zeros are left out"
    assert max(values.size for _, values, _ in parts) == 7


def test_one_dense_mode_in_single_precision(folder: Path) -> None:
    np.savez("y.npz", indices=[[1], [0]], values=np.array([[1, 2], [0, 3]], np.float32), mode=0, shape=[2, 2])
    tensor = read("y.npz")
    assert isinstance(tensor, SparseTensor)
    assert tensor.values.dtype == np.float32
    np.testing.assert_array_equal(array(tensor), [[0, 1], [3, 2]])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mode": [3, 3]}, r"'mode' is \[3, 3\], expected different modes from 0 to 3"),
    ({"mode": [3, 4]}, "expected different modes"),
    ({"mode": 1}, "expected .* an axis for each 'mode'"),
    ({"mode": [0.5, 1]}, "'mode' is .* expected one whole number or a few"),
    ({"mode": np.arange(9)}, "'mode' is .* expected one whole number or a few"),
    ({"mode": np.zeros(0, int)}, "'values' is"),
    ({"values": np.ones((2, 2, 5))}, "2 values for 3 rows of indices"),
    ({"values": np.ones((3, 2, 4))}, "'values' has 4 numbers in mode 1, 'shape' says 5"),
    ({"values": np.ones((3, 0, 5))}, "no nonzeros"),
    ({"values": np.zeros((3, 2, 5))}, "no nonzeros"),
    ({"values": np.full((3, 2, 5), np.nan)}, "value nan of nonzero 0 is not finite"),
    ({"values": np.full((3, 2, 5), "x")}, "expected .* real numbers"),
    ({"indices": [[0, 1], [2, 0], [2, 4]]}, "index 4 of mode 2 in nonzero 19 is outside its length 4"),
    ({"indices": [[0, 1], [2, 0], [-2, 3]]}, "index -2 of mode 0 in nonzero 19: indices count from 0"),
    ({"indices": [0, 1, 2]}, "'indices' is .* expected"),
    ({"shape": [3, 5, 4]}, "'shape' has 3 modes"),
    ({"shape": [3, 5, 4, 0]}, "length 0 of mode 3"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_told(folder: Path, change: dict[str, Any], message: str) -> None:
    np.savez("y.npz", **{**GOOD, **change})
    with pytest.raises(InputError, match=rf"^y\.npz: .*{message}"):
        read("y.npz")


def test_a_missing_shape_and_a_damaged_number(folder: Path) -> None:
    np.savez("y.npz", **{name: given for name, given in GOOD.items() if name != "shape"})
    with pytest.raises(InputError, match="no array 'shape'"):
        read("y.npz")
    np.savez("y.npz", **GOOD)
    data = Path("y.npz").read_bytes()
    at = data.index(np.float64(17).tobytes())
    Path("y.npz").write_bytes(data[:at] + np.float64(18).tobytes() + data[at + 8 :])
    with pytest.raises(InputError, match="Bad CRC-32"):
        read("y.npz")


def test_other_files_are_none(folder: Path) -> None:
    np.savez("t.npz", indices=[[0, 0]], values=[1.0])
    Path("t.tns").write_text("1 1 1.0\n")
    Path("x.npz").write_text("no archive")
    assert not any(is_semisparse(name) for name in ("t.npz", "t.tns", "x.npz", "missing.npz", "."))
