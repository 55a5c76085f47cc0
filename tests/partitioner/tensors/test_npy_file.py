"""Elements that are read from a file."""

from __future__ import annotations

import copy
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import amped
from partitioner.errors import InputError
from partitioner.tensors import npy_file, stored
from partitioner.tensors.npy_file import FileElements
from partitioner.tensors.stored import Stored

ARRAY = np.random.default_rng(0).random((7, 1, 9, 8))
PLACES = [
    (slice(0, 7), slice(0, 1), slice(0, 9), slice(0, 8)),
    (slice(2, 5), slice(0, 1), slice(0, 9), slice(0, 8)),
    (slice(2, 5), slice(0, 1), slice(3, 7), slice(0, 8)),
    (slice(0, 7), slice(0, 1), slice(3, 4), slice(1, 8)),
    (slice(6, 7), slice(0, 1), slice(8, 9), slice(7, 8)),
]


def opened(folder: Path) -> FileElements:
    (folder / "x.bin").write_bytes(b"head" + ARRAY.tobytes())
    with open(folder / "x.bin", "rb") as file:
        return FileElements(file, 4, ARRAY.shape, ARRAY.dtype, "x.bin")


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("short", [0, 1 << 14])
@pytest.mark.parametrize("band", [1 << 10, 1 << 22])
def test_ranges_are_those_of_the_array(
    tmp_path: Path, place: tuple[slice, ...], short: int, band: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what lies between elements is read with them, in bands of a few rows."""
    monkeypatch.setattr(npy_file, "SHORT", short)
    monkeypatch.setattr(npy_file, "BAND", 16 * 9 * 8 * 8 if band == 1 << 10 else band)
    elements, want = opened(tmp_path), ARRAY[place]
    assert np.array_equal(elements[place], want)


def test_threads_have_handles_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that follow each other are read through one; there are no more than a few."""
    monkeypatch.setattr(npy_file, "HANDLES", 4)
    elements = opened(tmp_path)
    for row in range(7):
        assert np.array_equal(elements[slice(row, row + 1), slice(0, 1), slice(0, 9), slice(0, 8)][0], ARRAY[row])
    assert len(elements._handles) == 2
    with ThreadPoolExecutor(8) as pool:
        places = [(slice(k % 7, k % 7 + 1), slice(0, 1), slice(0, 9), slice(0, 8)) for k in range(200)]
        for place, found in zip(places, pool.map(elements.__getitem__, places), strict=True):
            assert np.array_equal(found, ARRAY[place])
    assert len(elements._handles) <= 8 + 4
    assert sorted(elements._free) == sorted(elements._handles)


def test_a_file_that_gets_another_name_or_is_cut_short(tmp_path: Path) -> None:
    elements = opened(tmp_path)
    (tmp_path / "x.bin").rename(tmp_path / "y.bin")
    (tmp_path / "x.bin").write_bytes(b"other")
    assert np.array_equal(elements[PLACES[0]], ARRAY)
    (tmp_path / "y.bin").write_bytes(b"head" + ARRAY.tobytes()[:-8])
    with pytest.raises(
        InputError, match=r"x\.bin: truncated while it was read: it had at least 4,036 bytes, .* 4,028 now"
    ):
        elements[PLACES[0]]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["f8", ">f8", "f4", "f2", "i2", "u1", "i8"])
@pytest.mark.parametrize(("part", "piece"), [(1 << 23, 1 << 22), (300, 40), (8, 8)])
def test_elements_are_converted_and_looked_at(
    tmp_path: Path, order: str, kind: str, part: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of a part, where it is long: of few numbers, as they are looked at."""
    monkeypatch.setattr(stored, "PART", part)
    monkeypatch.setattr(stored, "PIECE", piece)
    array = np.array(10 * ARRAY, kind, order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "x.npy", array)
    tensor = amped.read(tmp_path / "x.npy")
    assert isinstance(tensor, amped.DenseTensor)
    assert isinstance(tensor.memory, Stored)
    wanted, seen = tensor.memory.within((slice(1, 6), slice(2, 8))), list[np.ndarray]()
    for target in (np.full(wanted.shape, np.nan), np.zeros(wanted.shape, kind)):
        wanted.into(target)
        assert np.array_equal(target, array.transpose(tensor.modes)[1:6, 2:8])
    target = np.full(wanted.shape, np.nan)
    wanted.into(target, lambda found: seen.append(found.copy()))
    assert np.array_equal(target, array.transpose(tensor.modes)[1:6, 2:8])
    assert max(each.size for each in seen) <= max(1, part // 4)
    assert (len(seen) > 1) == (part < 1 << 23)
    assert {each.dtype for each in seen} == {np.dtype(kind)}
    assert np.array_equal(np.concatenate([each.reshape(-1) for each in seen]), target.reshape(-1))


def test_threads_share_handles_where_the_process_may_have_no_more(tmp_path: Path) -> None:
    elements, places = opened(tmp_path), [(slice(k, k + 1), *PLACES[0][1:]) for k in range(7)]
    with mock.patch.object(elements, "_opened", side_effect=OSError(24, "Too many open files")):
        for place in [*places, *places[::-1]]:
            assert np.array_equal(elements[place], ARRAY[place])
        taken = elements._acquire(0)
        with pytest.raises(InputError, match="cannot be read: Too many open files"):
            elements[PLACES[0]]
        elements._free[taken] = 0
        assert np.array_equal(elements[PLACES[0]], ARRAY)


def test_elements_are_pickled_not_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ARRAY)
    tensor = amped.read(tmp_path / "x.npy")
    assert isinstance(tensor.memory, Stored)
    for found in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
        (tmp_path / "x.npy").unlink(missing_ok=True)
        assert np.array_equal(found.array(), ARRAY)


def test_a_file_that_is_written_to_meanwhile(tmp_path: Path) -> None:
    elements = opened(tmp_path)
    assert np.array_equal(elements[PLACES[1]], ARRAY[PLACES[1]])
    (tmp_path / "x.bin").write_bytes(b"head" + (2 * ARRAY).tobytes())
    now = (tmp_path / "x.bin").stat()
    os.utime(tmp_path / "x.bin", ns=(now.st_atime_ns, now.st_mtime_ns + 10**9))  # clocks of some systems are coarse
    for place in PLACES:
        with pytest.raises(InputError, match=r"x\.bin: changed while it was read"):
            elements[place]
