"""Semi-sparse tensors: kept, converted, saved and read."""

from __future__ import annotations

import os
from itertools import combinations, permutations
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from ttmcases import SHAPES, dense_of, tensor_of

import amped
from amped import InputError, SemiSparseTensor
from amped.operators.sources import semisparse
from amped.operators.sources.semisparse import SemiSparseProduct
from amped.parallel.mpi import Comm
from amped.runs.products import open_semisparse


@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) < 5], ids=str)
def test_conversions(shape: tuple[int, ...]) -> None:
    """To and from coordinates and arrays, with any modes dense, in any order; all of them, too."""
    tensor = tensor_of(shape, 40)
    array, order = dense_of(tensor), len(shape)
    for count in range(1, order + 1):
        for chosen in combinations(range(order), count):
            for modes in list(permutations(chosen))[:3]:
                for found in (SemiSparseTensor.from_sparse(tensor, modes), SemiSparseTensor.from_dense(array, modes)):
                    np.testing.assert_array_equal(found.to_dense(), array)
                    again = found.to_sparse()
                    np.testing.assert_array_equal(again.columns, tensor.columns)
                    np.testing.assert_array_equal(again.values, tensor.values)
                    assert (found.shape, found.modes, found.order) == (shape, modes, order)
                    assert found.values.shape == (found.fibres, *(shape[m] for m in modes))
                    assert found.norm() == pytest.approx(tensor.norm(), rel=1e-12)
                    assert found.nbytes == found.indices.nbytes + found.values.nbytes


def test_fibres_are_sorted_and_summed() -> None:
    found = SemiSparseTensor([[1, 0], [0, 2], [1, 0]], [[1, 2], [3, 4], [5, 6]], 1, (2, 2, 3))
    assert found.indices.tolist() == [[0, 2], [1, 0]]
    assert found.values.tolist() == [[3, 4], [6, 8]]
    assert found.values.dtype == np.float64
    assert SemiSparseTensor([[0]], np.ones((1, 2), np.float32), 0, (2, 5)).values.dtype == np.float32


@pytest.mark.parametrize("modes", [1, (0, 2), (2, 0, 1)])
def test_a_file(folder: Path, modes: Any) -> None:
    tensor = tensor_of((5, 4, 3), 20)
    tensor.labels = tuple(np.arange(n) * 10 for n in tensor.shape)
    found = SemiSparseTensor.from_sparse(tensor, modes)
    found.save("y.npz")
    again = SemiSparseTensor.load("y.npz")
    for name in ("indices", "values"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert (again.modes, again.shape) == (found.modes, found.shape)
    assert again.labels is not None
    assert [each.tolist() for each in again.labels] == [each.tolist() for each in tensor.labels]
    with np.load("y.npz") as archive:
        assert archive["mode"].shape == (() if modes == 1 else (len(modes),))
    with pytest.raises(InputError, match="exists already"):
        found.save("y.npz", replace=False)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"indices": [[0], [1]]}, r"indices are int64 of shape \(2, 1\): expected \(fibres, 2\)"),
    ({"indices": [[0.5, 1], [1, 1]]}, "indices are float64"),
    ({"indices": [[0, 3], [1, 1]]}, "an index of mode 2 is out of range for length 3"),
    ({"indices": [[-1, 0], [1, 1]]}, "an index of mode 0 is out of range for length 2"),
    ({"values": [[1, 2], [3, 4]]}, r"values are int64 of shape \(2, 2\): expected real numbers of \(2, 4\)"),
    ({"values": np.full((2, 4), np.nan)}, "a value is not finite"),
    ({"values": np.full((2, 4), "x")}, "expected real numbers"),
    ({"modes": 3}, "mode 3: expected an integer from 0 to 2"),
    ({"modes": ()}, "expected at least one, each once"),
    ({"modes": (1, 1)}, "expected at least one, each once"),
    ({"modes": 1.5}, "mode 1.5"),
    ({"shape": (2, 0, 3)}, "length of a mode 0"),
    ({"indices": np.ma.masked_equal([[0, 1], [1, 1]], 0)}, "indices has masked entries|indices have masked entries"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_does_not_go_together(change: dict[str, Any], message: str) -> None:
    right = {"indices": [[0, 1], [1, 1]], "values": np.ones((2, 4)), "modes": 1, "shape": (2, 4, 3)}
    SemiSparseTensor(**right)
    with pytest.raises(InputError, match=message):
        SemiSparseTensor(**{**right, **change})


def test_files_that_are_others(folder: Path) -> None:
    np.savez("t.npz", indices=[[0, 0]], values=[1.0])
    np.savez("m.npz", indices=[[0]], values=[[1.0, 2.0]], mode="x", shape=[1, 2])
    np.savez("s.npz", indices=[[7]], values=[[1.0, 2.0]], mode=1, shape=[1, 2])
    for name, message in (
        ("t", ".*mode, shape missing"),
        ("m", "mode is <U1"),
        ("s", "an index of mode 0 is out of range"),
    ):
        with pytest.raises(InputError, match=f"{name}.npz: {message}"):
            SemiSparseTensor.load(f"{name}.npz")
    with pytest.raises(InputError, match="No such file"):
        SemiSparseTensor.load("missing.npz")


@pytest.mark.parametrize("name", ["t", "tensor"])  # values begin at different places
def test_values_may_stay_in_the_file(folder: Path, name: str, comm: Comm) -> None:
    tensor = SemiSparseTensor.from_sparse(tensor_of((30, 20, 40), 900), 2)
    tensor.save(f"{name}.npz")
    mapped = SemiSparseTensor.load(f"{name}.npz", mapped=True)
    assert mapped.in_file
    assert mapped.norm() == tensor.norm()
    np.testing.assert_array_equal(mapped.values, tensor.values)
    np.testing.assert_array_equal(mapped.indices, tensor.indices)
    how = np.dtype(np.float32), True
    there, held = open_semisparse(f"{name}.npz", comm), SemiSparseProduct(tensor, comm)
    assert there is not None
    assert held.loading(1, *how).tensor - there.loading(1, *how).tensor == tensor.values.nbytes
    for mode in (0, 1):
        for one, other in zip(there.by_fibre(mode, how[0]), held.by_fibre(mode, how[0]), strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.flags.aligned


def test_a_mapped_file_is_verified(folder: Path) -> None:
    tensor = SemiSparseTensor.from_sparse(tensor_of((30, 20, 40), 900), 2)
    tensor.save("t.npz")
    data = bytearray(Path("t.npz").read_bytes())
    data[data.index(tensor.values.tobytes()) + 1000] ^= 1
    Path("t.npz").write_bytes(data)
    with pytest.raises(InputError, match=r"t\.npz: damaged"):
        SemiSparseTensor.load("t.npz", mapped=True)


@pytest.mark.parametrize("kind", [">f4", "i2", "f8"])
@pytest.mark.parametrize("layout", ["C", "F"])
def test_values_in_a_file_are_those_of_any_type_and_order(
    folder: Path, kind: str, layout: Any, comm: Comm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read in blocks, in the order of the file."""
    monkeypatch.setattr(semisparse, "BLOCK", 40 * 7)
    tensor = SemiSparseTensor.from_sparse(tensor_of((30, 20, 40), 900), 2)
    values = np.asarray(np.rint(9 * tensor.values), kind, layout)
    np.savez("t.npz", indices=tensor.indices, values=values, mode=2, shape=tensor.shape)
    there, held = open_semisparse("t.npz", comm), SemiSparseProduct(SemiSparseTensor.load("t.npz"), comm)
    assert there is not None
    assert there.value_range == held.value_range
    for mode in (0, 1):
        for one, other in zip(there.by_fibre(mode, tensor.dtype), held.by_fibre(mode, tensor.dtype), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("how", ["cut", "written"])
def test_a_file_that_changes_meanwhile_is_an_error(folder: Path, mode: int, how: str) -> None:
    """A file that is mapped, and cut short then, would end the process without a word."""
    tensor = SemiSparseTensor.from_sparse(tensor_of((30, 20, 40), 900), 2)
    tensor.save("t.npz")
    opened = semisparse._kind

    def changing(root: SemiSparseTensor) -> Any:
        found, now = opened(root), os.stat("t.npz")
        if how == "cut":
            os.truncate("t.npz", 4096)
        os.utime("t.npz", ns=(now.st_atime_ns, now.st_mtime_ns + 10**9))
        return found

    cause = r"t\.npz: (truncated|changed) while it was read"
    with mock.patch.object(semisparse, "_kind", changing), pytest.raises(InputError, match=cause):
        amped.ttm("t.npz", np.ones((tensor.shape[mode], 2)), mode, device="cpu")


def test_compressed_values_come_to_memory(folder: Path) -> None:
    tensor = SemiSparseTensor.from_sparse(tensor_of((30, 20, 40), 900), 2)
    np.savez_compressed("t.npz", indices=tensor.indices, values=tensor.values, mode=2, shape=tensor.shape)
    found = SemiSparseTensor.load("t.npz", mapped=True)
    assert not found.in_file
    np.testing.assert_array_equal(found.values, tensor.values)


def test_what_it_looks_like() -> None:
    assert repr(SemiSparseTensor.from_dense(np.eye(2), 0)) == (
        "SemiSparseTensor(shape=(2, 2), mode=0, fibres=2, values=float64)"
    )
    assert "modes=(0, 1)" in repr(amped.SemiSparseTensor.from_dense(np.eye(2), (0, 1)))
