"""Dense tensors: arrays of any layout, mapped files, and rejected input."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pytest

import amped
from amped.errors import InputError
from partitioner.build import partition
from partitioner.readers import with_zeros
from partitioner.tensors import dense, statistics
from partitioner.tensors.dense import DenseTensor, indices_of, joined
from partitioner.tensors.stored import Stored, pieces

RNG = np.random.default_rng(0)
ARRAY = RNG.standard_normal((4, 1, 5, 3))


@pytest.mark.parametrize(
    ("array", "modes", "copied"),
    [
        (ARRAY, (0, 2, 3, 1), False),
        (np.asfortranarray(ARRAY), (3, 2, 0, 1), False),
        (ARRAY.transpose(2, 0, 3, 1), (1, 0, 2, 3), False),
        (ARRAY[:, :, ::2], (0, 2, 3, 1), True),
        (ARRAY[::-1], (0, 2, 3, 1), True),
        (np.broadcast_to(ARRAY[:1], (4, 1, 5, 3)), (0, 2, 3, 1), True),
    ],
    ids=["C", "Fortran", "transposed", "strided", "reversed", "broadcast"],
)
def test_any_order_in_memory_is_taken(array: np.ndarray, modes: tuple[int, ...], copied: bool) -> None:
    tensor = DenseTensor(array)
    assert np.array_equal(tensor.array(), array)
    assert tensor.memory.flags.c_contiguous
    assert tensor.modes == modes
    assert np.shares_memory(tensor.memory, array) != copied


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", ">f8", "i1", "u1", "i2", "u4", "i8", "?"])
def test_elements_are_kept_as_they_are(tmp_path: Path, kind: str) -> None:
    array = (10 * ARRAY).astype(kind) if kind[-2:-1] in "f" or kind == "?" else abs(10 * ARRAY).astype(kind)
    np.save(tmp_path / "x.npy", np.asfortranarray(array))
    tensor = amped.read(tmp_path / "x.npy")
    assert isinstance(tensor, DenseTensor)
    assert isinstance(tensor.memory, Stored)
    assert tensor.dtype == array.dtype
    assert np.array_equal(tensor.array(), array)
    assert tensor.norm() == pytest.approx(np.linalg.norm(array.astype(np.float64)), rel=1e-14)


def test_facts_of_parts_are_those_of_the_whole() -> None:
    array = RNG.standard_normal((13, 11, 7)) * np.array([1, 1e-9, 1e100, 0, 3, 1, 1])
    with mock.patch.object(dense, "BLOCK", 17):
        tensor = DenseTensor(array)
        ends = (0, 5, 5, 11, 13)
        places = [(slice(b, e), slice(*cut)) for b, e in pairwise(ends) for cut in ((0, 3), (3, 11))]
        parts = joined([tensor.facts(place) for place in places])
        assert parts.norm() == pytest.approx(float(np.linalg.norm(array)), rel=1e-14)
        assert (parts.low, parts.high, parts.nonzeros) == (array.min(), array.max(), np.count_nonzero(array))
        assert sum(map(tensor.digest, places)) & dense.MASK == tensor.digest()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i8"])
@pytest.mark.parametrize("size", [1, 100, 128, 1000])
def test_a_gpu_finds_the_same_facts(kind: str, size: int) -> None:
    """With parts of 64 elements, whole ones and others."""
    cupy, cuda_dense = pytest.importorskip("cupy"), pytest.importorskip("partitioner.tensors.gpu_elements")
    array = (20 * RNG.standard_normal((size, 1))).astype(kind)
    array[size // 2 : size // 2 + 7] = 0
    with mock.patch.object(cuda_dense, "REDUCED", 64):
        want, found = DenseTensor(array).facts(), DenseTensor(cupy.asarray(array)).facts()
        assert found._replace(squares=0, single=0) == want._replace(squares=0, single=0)
        assert np.allclose(found[2:4], want[2:4], rtol=1e-13)
        if array.dtype.kind == "f":
            array[-1] = np.nan
            assert DenseTensor(cupy.asarray(array)).facts().bad == size - 1


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", ">f8", "i1", "u2", "i8", "?"])
def test_compiled_code_finds_the_same_facts(kind: str) -> None:
    array = (20 * RNG.standard_normal((9, 8, 7))).astype(kind)
    array[3:5] = 0
    want = DenseTensor(array).facts()
    with mock.patch.object(statistics, "COMPILED", 1):
        found = DenseTensor(array).facts()
        assert found._replace(squares=0, single=0) == want._replace(squares=0, single=0)
        assert np.allclose(found[2:4], want[2:4], rtol=1e-14)
        assert DenseTensor(np.zeros((3, 4), array.dtype)).facts().nonzeros == 0
        if array.dtype.kind != "f":
            return
        for bad in (np.nan, np.inf, -np.inf):
            array[4, 7, 6] = bad
            assert DenseTensor(array).facts().bad == 4 * 56 + 55
        if array.dtype.itemsize == 8:
            for size in (1e300, 1e-300):
                norm = DenseTensor(np.full((3, 4), size, kind)).facts().norm()
                assert norm == pytest.approx(size * np.sqrt(12), rel=1e-14)


@pytest.mark.parametrize("shape", [(7,), (4, 5, 6), (3, 1, 2, 5), (2, 0, 3)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_indices_of_chosen_elements(shape: tuple[int, ...], share: float) -> None:
    chosen = np.random.default_rng(0).random(shape) < share
    for memory in (chosen, np.asfortranarray(chosen)):
        found = indices_of(memory)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, np.array(np.nonzero(chosen)))


def test_the_norm_after_rounding_is_known() -> None:
    tensor = DenseTensor(np.full((2, 3), 1 + 2.0**-25))
    assert tensor.facts().norm(rounded=True) == pytest.approx(np.sqrt(6), rel=1e-15)
    assert tensor.norm() > np.sqrt(6)


def test_a_digest_is_that_of_the_tensor_not_of_its_memory() -> None:
    same = [ARRAY, np.asfortranarray(ARRAY), ARRAY.transpose(3, 2, 1, 0).copy().transpose(3, 2, 1, 0)]
    assert len({DenseTensor(array).digest() for array in same}) == 1
    assert DenseTensor(ARRAY.transpose(3, 1, 2, 0)).digest() != DenseTensor(ARRAY).digest()
    assert DenseTensor(ARRAY.astype(np.float32)).digest() == DenseTensor(ARRAY.astype("f4").astype("f8")).digest()


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_first_element_that_is_not_finite_is_named(order: str) -> None:
    array = np.array(ARRAY, order=order)  # type: ignore[call-overload]
    array[2, 0, 4, 1] = np.inf
    with mock.patch.object(dense, "BLOCK", 7), pytest.raises(InputError, match=r"element \[2, 0, 4, 1\] is inf"):
        DenseTensor(array).norm()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[object()] * 2] * 2), "elements are object"),
        (np.zeros((2, 2), complex), "elements are complex128"),
        (np.zeros((2, 2), "U3"), "elements are <U3"),
        (np.zeros((2, 2), "M8[s]"), "elements are datetime64"),
        (np.zeros((2, 2), [("a", "f4")]), "elements are"),
        (np.zeros((2, 2), np.longdouble), "at most 64 bits"),
        (np.zeros(3), "order 1 tensor"),
        (np.zeros((1,) * 9), "order 9 tensor"),
        (np.zeros((2, 0, 3)), "length 0 of mode 1"),
    ],
    ids=range(9),
)
def test_other_arrays_are_refused(tmp_path: Path, array: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DenseTensor(array)
    if not isinstance(array, np.ma.MaskedArray):
        np.save(tmp_path / "x.npy", array, allow_pickle=True)
        with pytest.raises(InputError, match=rf"x\.npy: .*{message}"):
            amped.read(tmp_path / "x.npy")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    with pytest.raises(InputError, match="no such file"):
        amped.read(file)
    np.save(file, ARRAY)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(InputError, match="truncated: 479 bytes of elements, expected 480"):
        amped.read(file)
    for damaged in (b"", b"hello", whole[:50], whole.replace(b"descr", b"descx"), whole.replace(b"(4,", b"(-4,")):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match=r"x\.npy: "):
            amped.read(file)
    huge = whole.replace(b"(4, 1, 5, 3), }", b"(4, 1, 5, 999999999), }")[: len(whole)]
    file.write_bytes(huge)
    with pytest.raises(InputError, match=r"truncated|damaged"):
        amped.read(file)


def test_ways_to_read_sparse_tensors_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ARRAY)
    for how in ({"compact": True}, {"no_values": True}):
        with pytest.raises(InputError, match="has every element"):
            amped.read(tmp_path / "x.npy", **how)
    with pytest.raises(InputError, match="a dense tensor cannot be partitioned"):
        partition(tmp_path / "x.npy", tmp_path / "store")


def test_a_sparse_tensor_gets_its_zeros(tmp_path: Path) -> None:
    (tmp_path / "x.tns").write_text("1 1 2 1.5\n3 2 1 2\n3 2 1 1\n")
    tensor = amped.read(tmp_path / "x.tns", dense=True)
    assert isinstance(tensor, DenseTensor)
    want = np.zeros((3, 2, 2))
    want[0, 0, 1], want[2, 1, 0] = 1.5, 3
    assert np.array_equal(tensor.array(), want)
    sparse = amped.SparseTensor([[0, 0], [2**31 - 2, 2**31 - 2]], [1.0, 1.0])
    with pytest.raises(InputError, match="needs 36,893,488,"):
        with_zeros(sparse)


@pytest.mark.parametrize("most", [1, 2, 5, 7, 21, 60, 1000])
def test_pieces_cover_a_place_in_memory_order(most: int) -> None:
    shape, place = (4, 3, 5, 7), (slice(1, 4), slice(0, 2))
    numbers, seen = np.arange(math.prod(shape)).reshape(shape), []
    for part in pieces(shape, place, most):
        assert 0 < numbers[part].size <= most
        seen += numbers[part].reshape(-1).tolist()
    assert seen == numbers[place].reshape(-1).tolist()


def hdf5(folder: Path, array: np.ndarray) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("group/data", data=array, chunks=True, compression="gzip")
    return folder / "x.h5"


def plain_hdf5(folder: Path, array: np.ndarray) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("group/data", data=array)
    return folder / "x.h5"


def zarr_file(folder: Path, array: np.ndarray) -> Path:
    zarr = pytest.importorskip("zarr")
    zarr.save_array(folder / "x.zarr", array)
    return folder / "x.zarr"


@pytest.mark.parametrize("write", [hdf5, plain_hdf5, zarr_file])
@pytest.mark.parametrize("kind", ["f8", "f4", "i2"])
def test_files_of_other_libraries(tmp_path: Path, write: Any, kind: str) -> None:
    array = (10 * ARRAY).astype(kind)
    file = write(tmp_path, array)
    tensor, want = amped.read(file), DenseTensor(array)
    assert isinstance(tensor, DenseTensor)
    assert isinstance(tensor.memory, Stored)
    assert tensor.memory.plain == (write is plain_hdf5)
    assert np.array_equal(tensor.array(), array)
    with mock.patch.multiple(dense, BLOCK=7, PIECE=56):
        assert tensor.norm() == pytest.approx(want.norm(), rel=1e-14)
        assert tensor.digest() == want.digest()
    within = tensor.memory.within((slice(1, 4), slice(2, 5))).within(slice(1, 9))
    assert within.shape == (2, 3, 3, 1)
    assert np.array_equal(within[:, 1:], want.memory[2:4, 3:5])


@pytest.mark.parametrize("write", [hdf5, plain_hdf5, zarr_file])
def test_wrong_files_of_other_libraries_are_refused(tmp_path: Path, write: Any) -> None:
    bad = np.array(ARRAY)
    bad[3, 0, 1, 2] = np.nan
    file = write(tmp_path, bad)
    with pytest.raises(InputError, match=r"x\..*: element \[3, 0, 1, 2\] is nan"):
        read_dense_norm(file)
    with pytest.raises(InputError, match=r"holds no array 'other'|cannot be read"):
        amped.read(f"{file}:other")
    with pytest.raises(InputError, match="no such file"):
        amped.read(tmp_path / f"none{file.suffix}")
    if file.is_file():
        file.write_bytes(b"nothing")
        with pytest.raises(InputError, match=r"x\.h5: "):
            amped.read(file)


def test_a_pipe_is_no_file_of_another_library(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    os.mkfifo(tmp_path / "x.h5")
    with pytest.raises(InputError, match="not a regular file"):
        amped.read(tmp_path / "x.h5")


def test_damaged_elements_of_other_libraries_are_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=ARRAY, chunks=ARRAY.shape, compression="gzip")
        at, size = (getattr(file["x"].id.get_chunk_info(0), name) for name in ("byte_offset", "size"))
        file["none"] = h5py.Empty("f8")
    content = bytearray((tmp_path / "x.h5").read_bytes())
    content[at + 4 : at + size] = b"\xff" * (size - 4)
    (tmp_path / "x.h5").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.h5:x: elements cannot be read: "):
        read_dense_norm(f"{tmp_path}/x.h5:x")
    with pytest.raises(InputError, match=r"x\.h5:none: the array is empty"):
        amped.read(f"{tmp_path}/x.h5:none")


def test_groups_that_lead_to_themselves(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["g/x"] = ARRAY
        file["g/again"] = h5py.SoftLink("/g")
    assert read_dense_norm(f"{tmp_path}/x.h5:g/x") == pytest.approx(np.linalg.norm(ARRAY))
    with pytest.raises(InputError, match="holds no array 'g/again'"):
        amped.read(f"{tmp_path}/x.h5:g/again")


def read_dense_norm(file: Path | str) -> float:
    tensor = amped.read(file)
    assert isinstance(tensor, DenseTensor)
    return tensor.norm()


def test_numbers_of_fewer_bits_are_converted(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    array = np.arange(-60, 60, dtype=np.int16).reshape(4, 5, 6)
    for name, bits, first in (("a", 12, 0), ("b", 12, 3), ("c", 16, 0)):
        kind = h5py.h5t.STD_I16LE.copy()
        kind.set_precision(bits)
        kind.set_offset(first)
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            space = h5py.h5s.create_simple(array.shape)
            made = h5py.h5d.create(file.id, b"x", kind, space)
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, array)
        tensor: Any = amped.read(tmp_path / f"{name}.h5")
        assert tensor.memory.plain == (bits == 16)
        assert np.array_equal(tensor.array(), array)


def test_an_array_of_several_is_named(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"], file["g/b"], file["g/text"] = ARRAY, ARRAY + 1, "words"
    with pytest.raises(InputError, match=r"holds 2 arrays \(a, g/b\): select one with FILE:NAME"):
        amped.read(tmp_path / "x.h5")
    tensor = amped.read(f"{tmp_path / 'x.h5'}:g/b")
    assert isinstance(tensor, DenseTensor)
    assert np.array_equal(tensor.array(), ARRAY + 1)


def test_a_library_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_bytes(b"")
    with mock.patch.dict("sys.modules", {"h5py": None}), pytest.raises(InputError, match=r"need h5py .* amped\[hdf5\]"):
        amped.read(tmp_path / "x.h5")


def test_pages_of_a_mapped_file_are_let_go(tmp_path: Path) -> None:
    """Otherwise everything read once would count as this process's memory."""
    given = np.ones((64, 1 << 17))
    DenseTensor(given).norm()  # loads libraries
    np.save(tmp_path / "x.npy", given)
    tensor = DenseTensor(np.load(tmp_path / "x.npy", mmap_mode="r"))
    before = psutil.Process().memory_info().shared
    assert tensor.norm() == np.sqrt(tensor.size)
    tensor.digest()
    assert psutil.Process().memory_info().shared - before < tensor.nbytes // 4
    assert tensor.memory[3, 5] == 1


def test_what_was_written_to_a_mapped_copy_stays(tmp_path: Path) -> None:
    """Released pages would have the content of the file again."""
    given = np.random.default_rng(0).random((200, 100, 100))
    np.save(tmp_path / "x.npy", given)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    mapped -= 100
    tensor = DenseTensor(mapped)
    assert [tensor.norm(), tensor.norm()] == pytest.approx([np.linalg.norm(given - 100)] * 2)
    amped.cp_als(mapped, 2, max_iters=2, device="cpu")
    assert np.array_equal(mapped, given - 100)
    assert np.array_equal(np.load(tmp_path / "x.npy"), given), "the file is as it was"
