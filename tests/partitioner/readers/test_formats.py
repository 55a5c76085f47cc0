"""The choice of a reader for a path."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from partitioner.errors import InputError
from partitioner.readers import PLAIN, ReadOptions, formats, is_divisible, line_where, open_dense

KEYS = ReadOptions(key=("a", "b"))


@pytest.mark.parametrize(
    ("name", "form", "kind", "reader"),
    [
        ("t.tns", PLAIN, "sparse", formats.TextReader),
        ("t", PLAIN, "sparse", formats.TextReader),
        ("t.tns", KEYS, "table", formats.TableReader),
        ("t.NPZ", PLAIN, "sparse", formats.ArchiveReader),
        ("t.Csv.gz", PLAIN, "table", formats.TableReader),
        ("t.npy", KEYS, "dense", formats.NpyReader),
        ("t.h5:a/b.csv", PLAIN, "dense", formats.ChunkedReader),
        ("t.zarr/", PLAIN, "dense", formats.ChunkedReader),
    ],
)
def test_names_say_what_a_file_is(name: str, form: ReadOptions, kind: str, reader: type) -> None:
    found = formats.reader_of(name, form)
    assert type(found) is reader
    assert found.kind == kind


def test_readers_have_names_and_endings_of_their_own() -> None:
    readers = [*formats.READERS, formats.TEXT]
    assert len({each.name for each in readers}) == len(readers)
    endings = [ending for each in readers for ending in each.extensions]
    assert len(set(endings)) == len(endings)
    assert all(ending.startswith(".") and ending == ending.lower() for ending in endings)


def test_a_folder_has_no_name_of_an_array_or_a_table(tmp_path: Path) -> None:
    for name in ("t.npy", "t.csv"):
        (tmp_path / name).mkdir()
        assert formats.reader_of(tmp_path / name, KEYS) is formats.TEXT


@pytest.mark.parametrize(
    ("name", "form", "expected"),
    [("t.tns", PLAIN, True), ("t.gz", PLAIN, False), ("t.tns", KEYS, False), ("t.npz", PLAIN, False),
     ("t.csv", PLAIN, False), ("t.npy", PLAIN, False), ("missing", PLAIN, False)],
)  # fmt: skip
def test_only_plain_text_is_divisible(tmp_path: Path, name: str, form: ReadOptions, expected: bool) -> None:
    text = b"1 1 1 2.0\n1 2 3 -4.0\n"
    if name != "missing":
        (tmp_path / name).write_bytes(gzip.compress(text) if name == "t.gz" else text)
    assert is_divisible(tmp_path / name, form) == expected
    assert line_where(tmp_path / name, lambda value: value < 0) == (2 if name in ("t.tns", "t.gz") else None)


def test_a_sparse_file_is_not_opened_as_a_dense_one(tmp_path: Path) -> None:
    (tmp_path / "t.tns").write_text("1 1 1 2.0\n")
    with pytest.raises(InputError, match=r"t\.tns: text: not a dense tensor"):
        open_dense(tmp_path / "t.tns")
