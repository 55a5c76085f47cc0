"""The reader of NumPy archives: results for valid ones, and errors for each kind of invalid one."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partitioner.errors import InputError
from partitioner.readers import chunks, read, settle
from partitioner.readers.arrays.npz import ArchivePart
from partitioner.tensors.labels import Labels, named

INDICES = np.array([[0, 0, 0], [0, 1, 2], [3, 0, 1]])
VALUES = np.array([1.5, -2.0, 0.25])


def archive(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "x.npz", **arrays)
    return folder / "x.npz"


@pytest.mark.parametrize("index", [np.int8, np.uint16, np.int32, np.uint64, ">i8"])
@pytest.mark.parametrize("value", [np.float32, np.float64, np.float16, np.int32])
def test_npz(tmp_path: Path, index: Any, value: Any) -> None:
    values = (VALUES * 4).astype(value)
    shapes: list[dict[str, Any]] = [{}, {"shape": [4, 2, 3]}, {"shape": np.array([9, 9, 9], np.uint8)}]
    for shape in shapes:
        tensor = read(archive(tmp_path, indices=INDICES.astype(index), values=values, **shape))
        assert tensor.shape == tuple(shape.get("shape", [4, 2, 3]))
        np.testing.assert_array_equal(tensor.indices, INDICES)
        np.testing.assert_array_equal(tensor.values, VALUES * 4)
        assert tensor.values.dtype == (np.float32 if value is np.float32 else np.float64)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"values": VALUES}, "no array 'indices' in the archive, which holds values"),
    (
        {"indices": INDICES, "vals": VALUES},
        "no array 'values' in the archive, which holds indices, vals; no_values=True",
    ),
    ({"indices": INDICES.astype(float), "values": VALUES}, "'indices' is a (3, 3) array of float64, expected"),
    ({"indices": INDICES > 0, "values": VALUES}, "'indices' is a (3, 3) array of bool, expected"),
    ({"indices": INDICES.astype(object), "values": VALUES}, "cannot read 'indices': an array of Python objects"),
    ({"indices": INDICES[0], "values": VALUES}, "'indices' is a (3,) array of int64, expected (nnz, order)"),
    ({"indices": INDICES[None], "values": VALUES}, "'indices' is a (1, 3, 3) array"),
    ({"indices": INDICES[:, :1], "values": VALUES}, "order 1 "),
    ({"indices": np.zeros((3, 9), int), "values": VALUES}, "order 9 "),
    ({"indices": INDICES[:0], "values": VALUES[:0]}, "no nonzeros"),
    ({"indices": INDICES, "values": VALUES * 0}, "no nonzeros"),
    ({"indices": INDICES[:2], "values": VALUES}, "3 values for 2 rows of indices"),
    ({"indices": INDICES, "values": VALUES[:, None]}, "'values' is a (3, 1) array of float64"),
    ({"indices": INDICES, "values": VALUES.astype(complex)}, "'values' is a (3,) array of complex128"),
    ({"indices": INDICES, "values": VALUES.astype(str)}, "'values' is a (3,) array of <U32"),
    ({"indices": INDICES, "values": VALUES.astype(object)}, "cannot read 'values': an array of Python objects"),
    ({"indices": INDICES, "values": np.array([1, np.nan, 1])}, "value nan of nonzero 1 is not finite"),
    ({"indices": INDICES, "values": np.array([1, 1, -np.inf])}, "value -inf of nonzero 2 is not finite"),
    ({"indices": INDICES - 1, "values": VALUES}, "index -1 of mode 0 in nonzero 0: indices count from 0"),
    ({"indices": INDICES + 2**31 - 3, "values": VALUES}, "index 2147483647 of mode 2 in nonzero 1 is outside"),
    ({"indices": INDICES.astype(np.uint64) + np.uint64(2**63), "values": VALUES}, "index 9223372036854775808 of"),
    ({"indices": INDICES, "values": VALUES, "shape": [4, 2]}, "'shape' has 2 modes, 'indices' has 3"),
    ({"indices": INDICES, "values": VALUES, "shape": [4.0, 2, 3]}, "'shape' is a (3,) array of float64"),
    ({"indices": INDICES, "values": VALUES, "shape": 4}, "'shape' is a () array of int64"),
    ({"indices": INDICES, "values": VALUES, "shape": [4, 0, 3]}, "length 0 of mode 1 is outside 1..2147483647"),
    ({"indices": INDICES, "values": VALUES, "shape": [4, 2**31, 3]}, "length 2147483648 of mode 1 is outside"),
    ({"indices": INDICES, "values": VALUES, "shape": [4, 2, 2]}, "index 2 of mode 2 in nonzero 1 is outside its"),
]


@pytest.mark.parametrize(("arrays", "cause"), BAD)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, Any], cause: str) -> None:
    path = archive(tmp_path, **arrays)
    with pytest.raises(InputError) as caught:
        read(path)
    assert caught.value.path == str(path)
    assert caught.value.cause.startswith(cause)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_anywhere_is_an_input_error_or_harmless(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "x.npz"
    save(path, indices=INDICES, values=VALUES, shape=[4, 2, 3])
    whole = path.read_bytes()
    errors: list[InputError] = []
    for k in range(0, len(whole), 5):
        for data in (whole[:k], whole[:k] + bytes([whole[k] ^ 255]) + whole[k + 1 :]):
            path.write_bytes(data)
            try:
                read(path)
            except InputError as error:
                errors.append(error)
    assert len(errors) > len(whole) / 5 * 1.5
    assert all(error.path == str(path) and "\n" not in str(error) for error in errors)


def test_files_that_are_no_archive_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    for data in (b"", b"1 1 1\n", b"PK\x03\x04" + bytes(40)):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"x\.npz: not an \.npz archive, or truncated"):
            read(path)
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("indices", "not an array")
    with pytest.raises(InputError, match="'indices' is not an array"):
        read(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", "CF")
def test_pieces_in_any_storage_order(tmp_path: Path, save: Any, order: Any) -> None:
    rng = np.random.default_rng(5)
    indices, values = rng.integers(0, 99, (1000, 4), np.int64), rng.random(1000)
    path, seen = tmp_path / "x.npz", list[tuple[int, int | None]]()
    save(path, indices=np.asarray(indices, order=order), values=values, shape=[99] * 4)
    part = ArchivePart(path, rows=300, progress=lambda *now: seen.append(now))
    read_columns, read_values, more = zip(*chunks(part, 450), strict=True)
    assert ([v.size for v in read_values], more) == ([450, 450, 100], (True, True, False))
    np.testing.assert_array_equal(np.hstack(read_columns), indices.T)
    np.testing.assert_array_equal(np.hstack(read_values), values)
    assert settle(path, [part.outcome]) == part.outcome
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_the_first_wrong_nonzero_is_named_whatever_the_pieces(tmp_path: Path) -> None:
    indices, values = np.zeros((1000, 3), np.int64), np.ones(1000)
    for mode, nonzero in ((2, 900), (0, 700), (1, 699), (2, 301)):  # each time an earlier one
        indices[nonzero, mode] = -1
        values[nonzero + 1] = np.nan
        path = archive(tmp_path, indices=indices, values=values)
        for rows in (100, 300, 5000):
            part = ArchivePart(path, rows=rows)
            list(chunks(part, 250))
            with pytest.raises(InputError, match=f"index -1 of mode {mode} in nonzero {nonzero}: "):
                settle(path, [part.outcome])


def test_headers_that_lie_take_no_memory(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as other:
        for name, shape in (("indices", "(1000000000000, 3)"), ("values", "(1000000000000,)")):
            header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
            other.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80))
    with pytest.raises(InputError, match="cannot read 'indices': the data is truncated"):
        read(tmp_path / "x.npz")


def test_archives_without_values(tmp_path: Path) -> None:
    path = archive(tmp_path, indices=np.concatenate([INDICES, INDICES[:1]]))
    tensor = read(path, no_values=True)
    assert tensor.indices.tolist() == INDICES.tolist()
    assert tensor.values.tolist() == [2, 1, 1]
    with pytest.raises(InputError, match="holds 'values'"):
        read(archive(tmp_path, indices=INDICES, values=VALUES), no_values=True)
    with pytest.raises(InputError, match="'indices' is a"):
        read(archive(tmp_path, indices=np.float64(1)), no_values=True)


def test_used_indices_are_numbered_from_the_lowest(tmp_path: Path) -> None:
    tensor = read(archive(tmp_path, indices=INDICES, values=VALUES, shape=[9, 9, 9]), compact=True)
    assert tensor.shape == (2, 2, 3)
    assert [each.tolist() for each in tensor.labels or ()] == [[0, 3], [0, 1], [0, 1, 2]]


def test_indices_that_count_from_1(tmp_path: Path) -> None:
    path = archive(tmp_path, indices=INDICES + 1, values=VALUES)
    assert read(path, index_base=1).indices.tolist() == INDICES.tolist()  # type: ignore[union-attr]
    labels = read(path, index_base=1, compact=True).labels
    assert [each.tolist() for each in labels or ()] == [[1, 4], [1, 2], [1, 2, 3]]
    wrong = archive(tmp_path, indices=INDICES, values=VALUES)
    with pytest.raises(InputError, match=r"index 0 of mode \d in nonzero \d: indices count from 1"):
        read(wrong, index_base=1)


def labels_of(*given: Any, names: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    labels = Labels.of(given, [len(each) for each in given])
    assert labels is not None
    labels.names = names
    return named(labels)


def test_labels_come_with_an_archive(tmp_path: Path) -> None:
    words = ["", "a, b", None, "é" * 20_000]
    days = np.array(["2024-01-01", "NaT"], "M8[D]")
    labels = labels_of(words, days, [1.5, np.nan, 3], names=("who", "when", "how much"))
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", indices=INDICES, values=VALUES, shape=(4, 2, 3), **labels)
        tensor = read(tmp_path / "x.npz")
        assert tensor.labels is not None
        assert tensor.labels.names == ("who", "when", "how much")
        assert tensor.labels[0].tolist() == words
        np.testing.assert_array_equal(tensor.labels[1], days)
        np.testing.assert_array_equal(tensor.labels[2], [1.5, np.nan, 3])
        kept = read(tmp_path / "x.npz", compact=True)
        assert kept.labels is not None
        assert kept.labels[0].tolist() == ["", "é" * 20_000]
        with pytest.raises(InputError, match=r"shape cannot be combined with labels"):
            read(tmp_path / "x.npz", shape=(9, 9, 9))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"shape": None}, "holds labels, but no 'shape'"),
        ({"labels_1": None}, "cannot read labels"),
        ({"labels_1": np.zeros((2, 1))}, "'labels_1' is a"),
        ({"labels_1": np.zeros(3)}, "labels of shapes"),
        ({"labels_1": np.zeros(2, complex)}, "cannot read labels"),
        ({"labels_0_offsets": np.array([0, 9, 1, 2, 3])}, "cannot read labels"),
        ({"labels_0_offsets": np.array([0, 1, 2, 3, 1 << 60])}, "cannot read labels"),
        ({"labels_0": np.full(4, 0xFF, np.uint8)}, "cannot read labels"),
        ({"labels_0": np.array(["a", "b", None, "d"], object)}, "array of Python objects"),
    ],
)
def test_labels_at_fault_are_told(tmp_path: Path, change: dict[str, Any], cause: str) -> None:
    arrays = {"indices": INDICES, "values": VALUES, "shape": np.array([4, 2, 3])}
    arrays |= labels_of(list("abcd"), [1, 2], [1, 2, 3]) | change
    path = archive(tmp_path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(InputError, match=cause):
        read(path)


def test_a_message_names_some_of_many_arrays(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"which holds a0, .*, a9, \.\.\.$") as caught:
        read(archive(tmp_path, **{f"a{k}": VALUES for k in range(99)}))
    assert len(caught.value.cause) < 120
    name = 9999 * "b"
    with pytest.raises(InputError, match=r"which holds b+$") as caught:
        read(archive(tmp_path, **{name: VALUES}))
    assert len(caught.value.cause) < 120
