"""HDF5 and netCDF-4 files: references to other files are not followed, and changes are detected."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import amped
from partitioner.errors import InputError
from partitioner.readers.arrays import chunked, hdf5

h5py = pytest.importorskip("h5py")

ARRAY = np.random.default_rng(0).random((4, 5, 6))
PLACE = (slice(0, 2), slice(0, 5), slice(0, 6))


def elements(path: Path | str) -> np.ndarray:
    tensor = amped.read(path)
    assert isinstance(tensor, amped.DenseTensor)
    return tensor.array()


def test_objects_are_listed_once_whatever_the_number_of_their_names(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        group = file
        for _ in range(40):  # 2**40 paths
            group["b"] = inner = group.create_group("a")
            group = inner
        group["top"], group["x"] = file["/"], ARRAY
    assert np.array_equal(elements(tmp_path / "x.h5"), ARRAY)
    assert np.array_equal(elements(f"{tmp_path}/x.h5:{'b/a/' * 20}top/{'a/' * 40}x"), ARRAY)


def test_no_more_objects_are_listed_than_is_sensible(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for number in range(9):
            file.create_group(f"g{number}")
        file["x"] = ARRAY
    with (
        mock.patch.object(hdf5, "MAX_NODES", 5),
        pytest.raises(InputError, match="more than 5 objects: select an array"),
    ):
        amped.read(tmp_path / "x.h5")
    assert np.array_equal(elements(f"{tmp_path}/x.h5:x"), ARRAY)


def test_groups_in_groups_in_groups(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        group = file
        for _ in range(2000):
            group = group.create_group("g")
        group["x"], group["y"] = ARRAY, ARRAY
    with pytest.raises(InputError, match=r"holds 2 arrays \(g/g/.*\.\.\., g/.*\.\.\.\)") as caught:
        amped.read(tmp_path / "x.h5")
    assert len(str(caught.value)) < 400


def test_links_are_followed_within_the_file_only(tmp_path: Path) -> None:
    """The others may lead to a pipe, which is waited for, or to a file that the user has not named."""
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file["y"] = ARRAY + 1
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["g/x"] = ARRAY
        links = {"out": h5py.ExternalLink("y.h5", "/y"), "pipe": h5py.ExternalLink("pipe", "/")}
        soft = {"soft": "g/x", "absolute": "/soft", "none": "/nothing", "loop": "loop", "way": "out"}
        for name, link in (links | {name: h5py.SoftLink(to) for name, to in soft.items()}).items():
            file[name] = link
        file["g/up"] = h5py.SoftLink("/g/../g/x")
    for name in ("", ":g/x", ":soft", ":absolute", ":/g//./x/"):
        assert np.array_equal(elements(f"{tmp_path}/x.h5{name}"), ARRAY)
    for name, cause in (
        ("out", "'out' is a link to another file, which is not followed: use y.h5:y"),
        ("way", "'way' is a link to another file, which is not followed: use y.h5:y"),
        ("pipe/x", "'pipe/x' is a link to another file"),
        ("none", "holds no array 'none'"),
        ("loop", "'loop' is a link that leads to too many others"),
        ("g/up", "holds no array 'g/up'"),
        ("g/x/y", "holds no array 'g/x/y'"),
        ("g", "holds no array 'g'"),
    ):
        with pytest.raises(InputError, match=re.escape(f"x.h5:{name}: {cause}")):
            amped.read(f"{tmp_path}/x.h5:{name}")
    assert np.array_equal(elements(f"{tmp_path}/y.h5:y"), ARRAY + 1)


def virtual(file: Any, source: str, name: str = "y") -> None:
    layout = h5py.VirtualLayout(shape=ARRAY.shape, dtype="f8")
    layout[:] = h5py.VirtualSource(source, name, shape=ARRAY.shape)
    file.create_virtual_dataset("x", layout)


@pytest.mark.parametrize("source", ["y.h5", "pipe"])
def test_elements_in_other_files_are_not_read(tmp_path: Path, source: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file["y"] = ARRAY
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        virtual(file, source)
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file.create_dataset("x", ARRAY.shape, "f8", external=[(tmp_path / source, 0, ARRAY.nbytes)])
    with pytest.raises(InputError, match=rf"virtual\.h5: a virtual dataset, made of {source} among others"):
        amped.read(tmp_path / "virtual.h5")
    with pytest.raises(
        InputError, match=rf"raw\.h5: has its elements in another file, .*{source}, which is not opened"
    ):
        amped.read(tmp_path / "raw.h5")


def test_virtual_datasets_of_the_same_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["y"] = ARRAY
        virtual(file, ".")
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file.create_dataset("y", ARRAY.shape, "f8", external=[("/etc/passwd", 0, ARRAY.nbytes)])
        virtual(file, ".")
    assert np.array_equal(elements(f"{tmp_path}/x.h5:x"), ARRAY)
    with pytest.raises(InputError, match="has its elements in another file, /etc/passwd"):
        amped.read(f"{tmp_path}/raw.h5:x")


def test_a_filter_that_is_missing_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_chunk(ARRAY.shape)
        made.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, ())
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple(ARRAY.shape), made)
    with pytest.raises(InputError, match=r"compressed by filter 32001 .* is not installed: install hdf5plugin"):
        amped.read(tmp_path / "x.h5")


@pytest.mark.parametrize(
    ("start", "remedy"), [(b"CDF\x01", "nccopy -k nc4"), (b"CDF\x05", "nccopy"), (b"\x0e\x03\x13\x01", "h4toh5")]
)
def test_older_formats_are_named(tmp_path: Path, start: bytes, remedy: str) -> None:
    for ending in ("nc", "nc4", "netcdf", "h5"):
        (tmp_path / f"x.{ending}").write_bytes(start + bytes(64))
        with pytest.raises(InputError, match=rf"x\.{ending}: an? (netCDF-3|HDF4) file: .*{remedy}"):
            amped.read(tmp_path / f"x.{ending}")


def test_one_damaged_object_hides_no_others(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["bad"] = ARRAY[0]
        at = h5py.h5o.get_info(file.id, b"bad").addr
        file["x"] = ARRAY
    content = bytearray((tmp_path / "x.h5").read_bytes())
    content[at : at + 1] = b"\xff"
    (tmp_path / "x.h5").write_bytes(content)
    assert np.array_equal(elements(f"{tmp_path}/x.h5:x"), ARRAY)
    with pytest.raises(InputError, match=r"x\.h5:bad: cannot be read: "):
        amped.read(f"{tmp_path}/x.h5:bad")


@pytest.mark.parametrize("chunks", [None, (2, 5, 6)])
@pytest.mark.parametrize("how", ["written", "cut"])
def test_a_file_that_changes_meanwhile(tmp_path: Path, chunks: tuple[int, ...] | None, how: str) -> None:
    place = tmp_path / "x.h5"
    with h5py.File(place, "w") as file:
        file.create_dataset("x", data=ARRAY, chunks=chunks)
    tensor = amped.read(place)
    assert isinstance(tensor, amped.DenseTensor)
    assert np.array_equal(tensor.memory[PLACE], ARRAY[PLACE])
    content = place.read_bytes()
    with open(place, "r+b") as raw:
        if how == "cut":
            raw.truncate(len(content) - 960)
        else:
            raw.write(content)
    now = place.stat()
    os.utime(place, ns=(now.st_atime_ns, now.st_mtime_ns + 10**9))  # clocks of some systems are coarse
    for _ in range(2):
        with pytest.raises(InputError, match=r"x\.h5: (changed|truncated) while it was read"):
            tensor.memory[PLACE]


@pytest.mark.parametrize("chunks", [None, (2, 5, 6)])
def test_another_file_that_takes_the_name_changes_nothing(tmp_path: Path, chunks: tuple[int, ...] | None) -> None:
    for name, array in (("x.h5", ARRAY), ("y.h5", ARRAY + 1)):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("x", data=array, chunks=chunks)
    tensor = amped.read(tmp_path / "x.h5")
    os.replace(tmp_path / "y.h5", tmp_path / "x.h5")
    assert np.array_equal(tensor.array(), ARRAY)  # type: ignore[union-attr]


def test_chunks_that_memory_has_no_room_for(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (1 << 9, 1 << 9, 1 << 9), "f8", chunks=(1 << 8, 1 << 9, 1 << 9))
    with (
        mock.patch.object(chunked, "total_memory", return_value=1 << 20),
        pytest.raises(InputError, match="has chunks of 536,870,912"),
    ):
        amped.read(tmp_path / "x.h5")
