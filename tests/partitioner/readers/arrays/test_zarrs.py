"""Zarr folders and archives: metadata of objects runs no code, and chunks that change or vanish are detected."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import amped
from partitioner.errors import InputError
from partitioner.readers.arrays import watch, zarrs

zarr = pytest.importorskip("zarr")

ARRAY = np.random.default_rng(0).random((4, 5, 6))
LAYOUTS: dict[str, dict[str, Any]] = {
    "2": {"zarr_format": 2},
    "2 with folders": {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "3": {},
    "3 with dots": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "3 named as 2": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "shards": {"shards": (2, 5, 6), "chunks": (1, 5, 3)},
}
PLACE = (slice(2, 4), slice(0, 5), slice(0, 6))


def written(store: Any, name: str | None = None, **how: Any) -> None:
    made = zarr.create_array(store, name=name, shape=ARRAY.shape, dtype="f8", **{"chunks": (2, 5, 6)} | how)
    made[:] = ARRAY


def opened(path: Path | str) -> amped.DenseTensor:
    tensor = amped.read(path)
    assert isinstance(tensor, amped.DenseTensor)
    return tensor


def chunks(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file() and not each.name.startswith((".z", "zarr")))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chunks_that_change_meanwhile(tmp_path: Path, layout: str) -> None:
    written(tmp_path / "x.zarr", **LAYOUTS[layout])
    files = chunks(tmp_path / "x.zarr")
    assert len(files) == 2
    tensor = opened(tmp_path / "x.zarr")
    assert np.array_equal(tensor.array(), ARRAY)
    content = files[1].read_bytes()
    for change in ("removed", "cut", "written"):
        if change == "removed":
            files[1].unlink()
        else:
            files[1].write_bytes(content[:-1] if change == "cut" else content)
        with pytest.raises(InputError, match=r"x\.zarr: .*1.* (was removed|changed) while "):
            tensor.memory[PLACE]
    assert np.array_equal(tensor.memory[:2, :5, :6], ARRAY[:2])
    shutil.rmtree(tmp_path / "x.zarr")
    with pytest.raises(InputError, match=r"x\.zarr: "):
        tensor.memory[:2, :5, :6]


@pytest.mark.parametrize("form", [2, 3])
def test_chunks_that_are_added_meanwhile(tmp_path: Path, form: int) -> None:
    made = zarr.create_array(tmp_path / "x.zarr", shape=(4, 5, 6), chunks=(2, 5, 6), dtype="f8", zarr_format=form)
    made[:2] = ARRAY[:2]
    tensor = opened(tmp_path / "x.zarr")
    assert not tensor.memory[PLACE].any()
    made[2:] = ARRAY[2:]
    with pytest.raises(InputError, match=r"x\.zarr: .*1.0.0 was added while|x\.zarr: c/1/0/0 was added while"):
        tensor.memory[PLACE]


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_chunks_that_are_lost_end_a_decomposition(tmp_path: Path, placement: str) -> None:
    """They would be zeros, and the fit that of the zeros."""
    written(tmp_path / "x.zarr")
    read, lost = watch.WatchedFolder.check, chunks(tmp_path / "x.zarr")[1]
    seen = list[str]()

    def losing(folder: watch.WatchedFolder, name: str) -> None:
        if seen.count(name) == (2 if placement == "stream" else 0):
            lost.unlink(missing_ok=True)
        seen.append(name)
        read(folder, name)

    with (
        mock.patch.object(watch.WatchedFolder, "check", losing),
        pytest.raises(InputError, match="c/1/0/0 was removed"),
    ):
        amped.cp_als(tmp_path / "x.zarr", 2, max_iters=20, tol=0, device="cpu", placement=placement)


def test_archives(tmp_path: Path) -> None:
    place = tmp_path / "x.zarr.zip"
    with zarr.storage.ZipStore(place, mode="w") as store:
        zarr.create_group(store)
        written(store, "g/x")
    for name in ("", ":g/x"):
        tensor = opened(f"{place}{name}")
        assert np.array_equal(tensor.array(), ARRAY)
    with pytest.raises(InputError, match="holds no array 'g'"):
        amped.read(f"{place}:g")
    os.utime(place, ns=(0, 0))
    with pytest.raises(InputError, match=r"x\.zarr\.zip:g/x: changed while it was read"):
        tensor.memory[PLACE]
    for name in ("x.zarr.zip", "y.zarr"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(InputError, match="neither a Zarr folder nor a zip archive of one"):
            amped.read(tmp_path / name)


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
def test_arrays_of_groups_are_named_and_vectors_do_not_count(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    group.create_array("t", shape=4, dtype="f8")[:] = 1
    written(tmp_path / "x.zarr", "a/v")
    zarr.consolidate_metadata(tmp_path / "x.zarr")
    assert np.array_equal(opened(tmp_path / "x.zarr").array(), ARRAY)
    written(tmp_path / "x.zarr", "w", zarr_format=3)
    with pytest.raises(InputError, match=r"holds 2 arrays \(a/v, w\): select one with FILE:NAME"):
        amped.read(tmp_path / "x.zarr")
    for name in ("a/none", "a", "../x.zarr/w", "a//v", "./w"):
        with pytest.raises(InputError, match="holds no array"):
            amped.read(f"{tmp_path}/x.zarr:{name}")


class Harm:
    """What runs when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.fspath(self.mark),)


OBJECTS: list[dict[str, Any]] = [
    {"dtype": "|O", "filters": [{"id": "pickle"}]},
    {"dtype": "<f8", "compressor": {"id": "pickle"}},
    {"dtype": "|O", "filters": [{"id": "vlen-utf8"}, {"id": "pickle"}], "fill_value": ""},
    {"dtype": "|O", "compressor": {"id": "pickle"}, "filters": [{"id": "vlen-utf8"}], "fill_value": ""},
    {"dtype": "<f8", "filters": [{"id": "json2"}]},
    {"dtype": "<f8", "filters": [{"id": "msgpack2"}]},
    {"dtype": "|O"},
    {"dtype": [["a", "<f8"]]},
    {"codecs": [{"name": "bytes"}, {"name": "numcodecs.pickle"}]},
    {"codecs": [{"name": "sharding_indexed", "configuration": {"codecs": [{"name": "numcodecs.Pickle"}]}}]},
    {"codecs": [{"name": "vlen-utf8"}]},
]


@pytest.mark.parametrize("meta", OBJECTS, ids=str)
def test_objects_are_refused_before_they_are_decoded(tmp_path: Path, meta: dict[str, Any]) -> None:
    folder, harm = tmp_path / "x.zarr", pickle.dumps(Harm(tmp_path / "harm"))
    written(folder, zarr_format=3 if "codecs" in meta else 2, compressors=None)
    file = folder / ("zarr.json" if "codecs" in meta else ".zarray")
    file.write_text(json.dumps(json.loads(file.read_text()) | meta))
    for each in chunks(folder):
        each.write_bytes(harm)
    with pytest.raises(InputError, match=r"x\.zarr: (has the codec '.*', which stores Python objects|elements are )"):
        opened(folder).array()
    assert not (tmp_path / "harm").exists()


DAMAGED: list[tuple[str, str]] = [
    ("[" * 100_000, "damaged metadata: zarr.json: "),
    ("\x00", "damaged metadata: zarr.json: "),
    ("[1]", "damaged metadata: zarr.json is not an object"),
    ('{"zarr_format": 7}', "zarr.json is of Zarr format 7, expected 2 or 3"),
    ('{"zarr_format": 3, "node_type": "array"}', "damaged metadata: zarr.json has no shape"),
    ('{"zarr_format": 3, "node_type": [], "shape": []}', r"holds 0 arrays \(none\)"),
]
WRONG: list[tuple[str, Any]] = [
    ("shape", "abc"),
    ("shape", [4, "5", 6]),
    ("chunk_grid", 5),
    ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [0, 5, 6]}}),
    ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [1]}}),
    ("chunk_key_encoding", [1]),
    ("data_type", {"name": "x"}),
    ("codecs", 5),
    ("fill_value", [1]),
]


@pytest.mark.parametrize(("text", "cause"), DAMAGED)
def test_damaged_metadata(tmp_path: Path, text: str, cause: str) -> None:
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr" / "zarr.json").write_text(text)
    with pytest.raises(InputError, match=rf"x\.zarr: {cause}"):
        amped.read(tmp_path / "x.zarr")


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_wrong_metadata(tmp_path: Path, name: str, value: Any) -> None:
    written(tmp_path / "x.zarr")
    file = tmp_path / "x.zarr" / "zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    with pytest.raises(InputError, match=r"x\.zarr: "):
        opened(tmp_path / "x.zarr").array()


def test_pipes_and_links_are_not_waited_for(tmp_path: Path) -> None:
    written(tmp_path / "x.zarr")
    (tmp_path / "x.zarr" / "c" / "again").symlink_to("..")
    assert np.array_equal(opened(tmp_path / "x.zarr").array(), ARRAY)
    os.mkfifo(tmp_path / "x.zarr" / "c" / "pipe")
    with pytest.raises(InputError, match="c/pipe is not a regular file"):
        amped.read(tmp_path / "x.zarr")
    zarr.open_group(tmp_path / "g.zarr", mode="w")
    written(tmp_path / "g.zarr", "x")
    (tmp_path / "g.zarr" / "again").symlink_to(".")
    assert np.array_equal(opened(tmp_path / "g.zarr").array(), ARRAY)
    (tmp_path / "g.zarr" / "zarr.json").unlink()
    os.mkfifo(tmp_path / "g.zarr" / "zarr.json")
    os.mkfifo(tmp_path / "pipe.zarr")
    for name in ("g.zarr", "pipe.zarr"):
        with pytest.raises(InputError, match=rf"{name}: not a regular file"):
            amped.read(tmp_path / name)


def test_no_more_folders_and_metadata_are_looked_at_than_is_sensible(tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "x.zarr", mode="w")
    for number in range(9):
        (tmp_path / "x.zarr" / f"g{number}").mkdir()
    with (
        mock.patch.object(zarrs, "MAX_NODES", 5),
        pytest.raises(InputError, match="more than 5 folders: select an array"),
    ):
        amped.read(tmp_path / "x.zarr")
    with (
        mock.patch.object(zarrs, "MAX_METADATA", 5),
        pytest.raises(InputError, match=r"zarr\.json is too long for metadata"),
    ):
        amped.read(tmp_path / "x.zarr")


def test_chunks_that_unpack_to_more_than_memory_holds(tmp_path: Path) -> None:
    written(tmp_path / "x.zarr")
    tensor = opened(tmp_path / "x.zarr")
    cause = r"x\.zarr: elements cannot be read: not enough memory .*: output buffer"
    failing = mock.patch.object(zarr.Array, "__getitem__", side_effect=MemoryError("output buffer"))
    with failing, pytest.raises(InputError, match=cause):
        tensor.memory[PLACE]
