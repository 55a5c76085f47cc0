"""The store: data survives a round trip, and damage is detected and reported."""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import exhaustive
from oracle import random_nonzeros
from tensors import write_store

from partitioner.errors import InputError
from partitioner.host import checksums
from partitioner.readers import read
from partitioner.shards.partition import SortedTensor
from partitioner.store.format import MANIFEST, Store, exact_dtype
from partitioner.tensors.labels import Labels
from partitioner.tensors.sparse import SparseTensor

SHAPE = (5, 1, 9)
LABELS = ["a,b", '"', "new\nline", None, "\N{GRINNING FACE}" * 10_000]


def small_tensor(dtype: Any = np.float64) -> SparseTensor:
    columns, values = random_nonzeros(1, SHAPE, 30)
    return SparseTensor(columns.T, values.astype(dtype), SHAPE)


def read_all(path: Path) -> SparseTensor:
    """Read every file of a store with its checks."""
    store = Store(path)
    for mode in range(store.order):
        copy = store.mode(mode)
        copy.share(0, store.nnz, range(store.shape[mode]), store.nnz)
    return store.tensor()


def rewrite(path: Path, **changes: Any) -> None:
    """Change fields of a manifest, with a right checksum."""
    body = json.loads((path / MANIFEST).read_text()) | changes
    body.pop("crc32")
    checksums.write_manifest(path, body)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small store in an otherwise empty folder."""
    return write_store(small_tensor(), tmp_path / "store").path


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_round_trip(tmp_path: Path, dtype: Any) -> None:
    tensor = small_tensor(dtype)
    store = write_store(tensor, tmp_path / "store")
    assert (store.shape, store.nnz, store.order) == (tensor.shape, tensor.nnz, tensor.order)
    assert (store.norm, store.value_range) == (tensor.norm(), tensor.value_range())
    assert (store.duplicates, store.zeros) == (tensor.duplicates, tensor.zeros)
    assert tensor.duplicates > 0
    for mode in range(tensor.order):
        stored, sorted_copy = store.mode(mode), SortedTensor(tensor, mode)
        for keep in (0, 1, store.nnz):
            *columns, values = stored.share(0, store.nnz, range(SHAPE[mode]), keep)
            for k in range(tensor.order):
                assert np.array_equal(columns[k], sorted_copy.column(k))
                assert isinstance(columns[k], np.ndarray) is (keep == store.nnz)
            assert np.array_equal(values, sorted_copy.values)
    back = store.tensor()
    assert np.array_equal(back.columns, tensor.columns)
    assert np.array_equal(back.values, tensor.values)
    assert back.values.dtype == dtype
    assert (back.shape, back.duplicates) == (tensor.shape, tensor.duplicates)


@pytest.mark.parametrize(
    ("values", "narrow"),
    [
        ([1.0, 0.5, -(2.0**127)], "f4"),
        ([1.0, 2.0**24 + 1], "f8"),
        ([1.0, 1e39], "f8"),
        ([1.0, 0.1], "f8"),
        ([1.0, 2.0**-149], "f4"),
        ([1.0, 2.0**-150], "f8"),
    ],
)
def test_values_are_narrowed_only_where_that_is_exact(tmp_path: Path, values: list[float], narrow: str) -> None:
    indices = [[0, k] for k in range(len(values))]
    assert exact_dtype(np.array(values)) == np.dtype(narrow)
    store = write_store(SparseTensor(indices, values), tmp_path / "store")
    assert store.value_dtype == np.dtype(narrow)
    assert np.array_equal(store.mode(1).values, values)


@pytest.mark.parametrize("every", [7, exhaustive(1)])
def test_any_flipped_byte_of_a_file_is_found(path: Path, every: int) -> None:
    rng = np.random.default_rng(0)
    for file in sorted(path.glob("*.npy")):
        whole = file.read_bytes()
        for at in range(0, len(whole), every):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << int(rng.integers(8))
            file.write_bytes(flipped)
            with pytest.raises(InputError, match=re.escape(str(file))):
                read_all(path)
        file.write_bytes(whole)
    read_all(path)


@pytest.mark.parametrize("every", [7, exhaustive(1)])
def test_any_flipped_byte_of_the_manifest_is_found(path: Path, every: int) -> None:
    file = path / MANIFEST
    whole = file.read_bytes()
    for at in range(0, len(whole), every):
        for bit in (0, 2, 5, 7):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            file.write_bytes(flipped)
            with pytest.raises(InputError, match=re.escape(str(path))):
                Store(path)


@pytest.mark.parametrize("change", ["missing", "truncated", "longer", "empty"])
def test_a_file_that_is_not_whole_is_found_on_opening(path: Path, change: str) -> None:
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        if change == "missing":
            file.unlink()
        else:
            file.write_bytes({"truncated": whole[:-2], "longer": whole + b"}", "empty": b""}[change])
        with pytest.raises(InputError, match=re.escape(str(path))) as caught:
            Store(path)
        assert file.name in str(caught.value)
        file.write_bytes(whole)
    read_all(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", "{", '{"format": "amped-store", "version": 1}', "\xff", '{"format": "other"}']
)
def test_what_is_no_manifest_is_refused(path: Path, text: str) -> None:
    (path / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=re.escape(str(path / MANIFEST))):
        Store(path)


def test_another_version_is_refused_by_its_number(path: Path) -> None:
    rewrite(path, version=1)
    with pytest.raises(InputError, match="version 1; this amped reads versions 2 to 4"):
        Store(path)


@pytest.mark.parametrize(
    "change", [{"shape": None}, {"nnz": "many"}, {"files": []}, {"value_dtype": "no"}, {"value_range": [1.0, 2.0]}]
)
def test_a_manifest_that_makes_no_sense_is_refused(path: Path, change: dict[str, Any]) -> None:
    rewrite(path, **change)
    with pytest.raises(InputError, match=re.escape(str(path / MANIFEST))):
        Store(path)


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a store"):
        Store(tmp_path)


def test_checksums_are_taken_by_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "BLOCK", 256)
    columns, values = random_nonzeros(2, (50, 60), 400)
    store = write_store(SparseTensor(columns.T, values), tmp_path / "store")
    file = store.path / store.mode(1).names[0]
    whole = bytearray(file.read_bytes())
    item, header = 4, len(whole) - 4 * store.nnz
    for bad in (0, store.nnz // 2, store.nnz - 1):
        flipped = whole.copy()
        flipped[header + bad * item] ^= 4
        file.write_bytes(flipped)
        block = (header + bad * item) // 256
        for start in range(0, store.nnz, 7):
            stop = min(start + 20, store.nnz)
            touched = (header + start * item) // 256 <= block <= (header + stop * item - 1) // 256
            rows, keep = range(50 + 10), (stop - start) // 2
            if touched:
                with pytest.raises(InputError, match=f"block {block} "):
                    store.mode(1).share(start, stop, rows, keep)
            else:
                store.mode(1).share(start, stop, rows, keep)
        store.mode(1).share(bad, bad, range(60), 0)  # an empty share touches nothing


def test_a_store_is_not_replaced_without_force(path: Path) -> None:
    other = SparseTensor([[0, 1], [2, 3]], [1.0, 2.0])
    with pytest.raises(InputError, match="exists already"):
        write_store(other, path)
    assert read_all(path).shape == SHAPE
    write_store(other, path, force=True)
    assert read_all(path).shape == (3, 4)
    assert os.listdir(path.parent) == [path.name]


OTHERS = {
    "folder": "not a store: it has no manifest.json",
    "file": "not a store",
    "link": "not a store: it has no manifest.json",
    "another program's": "not the manifest of a store",
    "store and notes": "holds thesis.tex, which the store",
    "store and folder": "holds more, which the store",
    "folder by a file's name": "holds mode1.index0.npy, which",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_force_replaces_nothing_but_a_store(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "precious"
    held = target if kind != "link" else tmp_path / "elsewhere"
    if kind == "file":
        target.write_text("data")
    elif "store" in kind or "name" in kind:
        write_store(small_tensor(), held)
    else:
        held.mkdir()
    if kind == "another program's":
        (held / MANIFEST).write_text('{"name": "a web app", "files": {"thesis.tex": {}}}')
    if kind == "store and folder":
        (held / "more").mkdir()
    elif kind == "folder by a file's name":
        (held / "mode1.index0.npy").unlink()
        (held / "mode1.index0.npy").mkdir()
    elif held.is_dir():
        (held / "thesis.tex").write_text("data")
    if kind == "link":
        target.symlink_to(held)
    before = {p: p.is_file() and p.read_bytes() for p in tmp_path.rglob("*")}
    with pytest.raises(InputError, match=OTHERS[kind]):
        write_store(small_tensor(), target, force=True)
    assert {p: p.is_file() and p.read_bytes() for p in tmp_path.rglob("*")} == before


def test_force_replaces_a_store_that_is_damaged_or_of_another_version(path: Path) -> None:
    rewrite(path, version=1)
    (path / "mode1.values.npy").unlink()
    write_store(small_tensor(), path, force=True)
    read_all(path)
    assert os.listdir(path.parent) == [path.name]


def test_force_does_not_replace_the_current_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path)
    with pytest.raises(InputError, match="is the current folder"):
        write_store(small_tensor(), Path(), force=True)
    read_all(path)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "", ".", "..", "a/b", "a\0b"])
def test_files_in_a_manifest_have_plain_names(path: Path, name: str) -> None:
    files = json.loads((path / MANIFEST).read_text())["files"]
    rewrite_as = {"format": "amped-store", "version": 2, "files": files | {name: {"bytes": 0, "crc32": []}}}
    checksums.write_manifest(path, rewrite_as)
    for opened in (Store, lambda path: write_store(small_tensor(), path, force=True)):
        with pytest.raises(InputError, match="is not a plain file name"):
            opened(path)


@pytest.mark.parametrize("name", [MANIFEST, "mode0.values.npy"])
def test_a_pipe_among_the_files_is_not_waited_for(path: Path, name: str) -> None:
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(InputError, match=f"{name}: not a regular file"):
        Store(path)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_nothing_behind(
    path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write = list[int](), checksums._write_at

    def fail_later(handle: int, data: bytes, at: int) -> int:
        written.append(handle)
        if len(written) == 6:
            raise error
        return write(handle, data, at)

    monkeypatch.setattr(checksums, "_write_at", fail_later)
    for target in (path, path.parent / "new"):
        written.clear()
        with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt) as caught:
            write_store(small_tensor(), target, force=True)
        assert not isinstance(error, OSError) or str(caught.value).startswith(f"{target}: ")
        assert os.listdir(path.parent) == [path.name]
    read_all(path)


def test_the_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder does not exist"):
        write_store(small_tensor(), tmp_path / "no" / "store")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_the_folder_must_be_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="not writable"):
        write_store(small_tensor(), tmp_path / "store")


def test_a_store_can_be_moved(path: Path) -> None:
    moved = shutil.move(path, path.parent / "moved")
    assert read_all(moved).nnz == small_tensor().nnz


def test_labels_are_kept(tmp_path: Path) -> None:
    tensor = small_tensor().compacted(base=10)
    path = write_store(tensor, tmp_path / "store").path
    for labels in (Store(path).labels(), read(path).labels, read(path, compact=True).labels):
        assert labels is not None
        for found, expected in zip(labels, tensor.labels or (), strict=True):
            assert np.array_equal(found, expected)
    file = path / "mode0.labels.npy"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(InputError, match=f"{re.escape(str(file))}.*checksum"):
        Store(path).labels()
    file.write_bytes(damaged[:-8])
    with pytest.raises(InputError, match=re.escape(str(file))):
        Store(path)


def test_labels_of_all_kinds_are_kept(tmp_path: Path) -> None:
    tensor = small_tensor()
    tensor.labels = Labels([LABELS[:5], np.array(["2026-01-01T10"], "M8[h]"), np.arange(9) / 8], ["a", "b", "hour(c)"])
    path = write_store(tensor, tmp_path / "store").path
    for labels in (Store(path).labels(), read(path).labels):
        assert labels is not None
        assert labels.names == ("a", "b", "hour(c)")
        assert labels[0].tolist() == LABELS[:5]
        for mode in (1, 2):
            assert labels[mode].dtype == tensor.labels[mode].dtype
            assert np.array_equal(labels[mode], tensor.labels[mode])


@pytest.mark.parametrize(
    "kind",
    [
        {"dtype": "|O", "size": 5},
        {"dtype": "<c16", "size": 5},
        {"dtype": "|u1", "size": 5, "offsets": 5},
        {"dtype": "<i8", "size": 4},
        {"dtype": "<i8", "size": -1},
        {"dtype": "<i8", "size": 5, "offsets": 6},
        {"dtype": "nothing", "size": 5},
        {},
    ],
)
def test_wrong_kinds_of_labels_are_refused(tmp_path: Path, kind: dict[str, Any]) -> None:
    path = write_store(small_tensor().compacted(), tmp_path / "store").path
    told = json.loads((path / MANIFEST).read_text())["labels"]
    told["modes"][0] = kind
    rewrite(path, labels=told)
    with pytest.raises(InputError, match="damaged manifest"):
        Store(path)


def test_labels_of_the_version_before_are_read(tmp_path: Path) -> None:
    path = write_store(small_tensor().compacted(base=10), tmp_path / "store").path
    rewrite(path, version=3, labels=None)
    labels = Store(path).labels()
    assert labels is not None
    assert labels[1].tolist() == [10]


def test_labels_of_some_modes_are_refused(tmp_path: Path) -> None:
    path = write_store(small_tensor().compacted(), tmp_path / "store").path
    files = json.loads((path / MANIFEST).read_text())["files"]
    rewrite(path, files={name: entry for name, entry in files.items() if name != "mode1.labels.npy"})
    with pytest.raises(InputError, match="damaged manifest"):
        Store(path)


def test_a_store_of_the_version_before_is_read(path: Path) -> None:
    rewrite(path, version=2)
    assert Store(path).labels() is None
    assert np.array_equal(read(path).columns, small_tensor().columns)


def test_a_store_is_read_as_it_was_made(path: Path) -> None:
    with pytest.raises(InputError, match="created without compact=True"):
        read(path, compact=True)
    with pytest.raises(InputError, match="a store has values"):
        read(path, no_values=True)


@pytest.mark.parametrize("threads", [1, 3])
def test_arrays_are_written_in_blocks_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(checksums, "BLOCK", 200)  # the header of an array takes 128 bytes
    arrays = [
        np.arange(size, dtype=dtype) for size, dtype in ((0, "i4"), (17, "i4"), (18, "i4"), (19, "i4"), (999, "f8"))
    ]
    paths = [tmp_path / f"{k}.npy" for k in range(len(arrays))]
    for path, array, entry in zip(paths, arrays, checksums.write_arrays(paths, arrays, threads), strict=True):
        content = path.read_bytes()
        assert np.array_equal(np.load(path), array)
        assert entry["bytes"] == len(content)
        assert entry["crc32"] == [zlib.crc32(content[at : at + 200]) for at in range(0, len(content), 200)]
    with pytest.raises(FileExistsError):
        checksums.write_arrays(paths[1:2], arrays[1:2], threads)
