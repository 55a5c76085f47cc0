"""A one-line header is not a nonzero, and a nonzero is not a header."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import pytest

from partitioner.build import partition
from partitioner.errors import InputError, InputWarning
from partitioner.readers import chunks, open_part, read, settle
from partitioner.tensors.sparse import SparseTensor

DATA = "1 1 1 1.0\n2 3 4 2.0\n1 2 2 3.5\n"
LONG = "".join(f"{k % 2 + 1} {k % 3 + 1} {k % 4 + 1} {k}.5\n" for k in range(600))


def ways(folder: Path, text: str) -> list[Path]:
    (folder / "x.tns").write_text(text)
    (folder / "x.tns.gz").write_bytes(gzip.compress(text.encode()))
    return [folder / "x.tns", folder / "x.tns.gz"]


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ("3 2 3 4\n", "order and mode lengths"),
        ("2 3 4 {}\n", "mode lengths and number of nonzeros"),
        ("5 6 7 {}\n", "mode lengths and number of nonzeros"),
    ],
)
@pytest.mark.parametrize("data", [DATA, LONG])
@pytest.mark.parametrize("before", ["", "# a comment\n\n"])
def test_headers(tmp_path: Path, header: str, what: str, data: str, before: str) -> None:
    text = before + header.format(data.count("\n")) + data
    line = before.count("\n") + 1
    for path in ways(tmp_path, text):
        for use in (lambda path: read(path), lambda path: partition(path, tmp_path / "store")):
            with pytest.raises(InputError, match=rf"line {line}: looks like a header on one line \({what}\)") as error:
                use(path)
            assert "put # before it" in str(error.value)
        assert not (tmp_path / "store").exists()
    for path in ways(tmp_path, f"{before}# {header.format(9)}{data}"):
        assert read(path).shape == (2, 3, 4)
    total = sum(float(line.split()[-1]) for line in text.splitlines() if line[:1].isdigit())
    for path in ways(tmp_path, "3\n9 9 9\n" + text):  # the remedy, if it is a nonzero
        tensor = read(path)
        assert isinstance(tensor, SparseTensor)
        assert tensor.values.sum() == total


@pytest.mark.parametrize("parts", [2, 3, 7])
@pytest.mark.parametrize("last", ["1 1 1 1\n", "2 3 5 1\n"])
def test_headers_in_parts(tmp_path: Path, parts: int, last: str) -> None:
    (path, _) = ways(tmp_path, f"2 3 4 601\n{LONG}{last}")
    opened = [open_part(path, part, parts, threads=1) for part in range(parts)]
    for part in opened:
        assert sum(values.size for _, values, _ in chunks(part, 100)) > 0
    outcomes = [part.outcome for part in opened]
    if last.startswith("2"):  # beyond the length that would be declared
        assert settle(path, outcomes).nonzeros == 602
        return
    with pytest.raises(InputError, match="line 1: looks like a header"):
        settle(path, outcomes)


@pytest.mark.parametrize(
    ("text", "options"), [("3 5 6 7\n" + DATA, {}), ("9 9 9\n1 1 1\n3 3 2\n2 2 1\n", {"no_values": True})]
)
def test_what_may_be_a_header_is_told_of(tmp_path: Path, text: str, options: dict[str, bool]) -> None:
    for path in ways(tmp_path, text):
        with pytest.warns(InputWarning, match="line 1: is read as a nonzero, but looks like a header on one line"):
            assert read(path, **options).nnz == 4  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "3 2 1 4\n" + DATA,  # an index is beyond
        "2 3 4 4\n" + DATA,  # another number of nonzeros
        "2 3 4 2.5\n" + DATA,
        "1 1 1 1\n" + DATA,
        "2 2 1 1\n1 1 1 5\n",
        "4 3 2 1\n",
        "3\n2 3 4\n2 3 4 3\n" + DATA,
        "sptensor\n3\n2 3 4\n4\n2 3 4 3\n" + DATA,
    ],
)
def test_nonzeros(tmp_path: Path, text: str) -> None:
    for path in ways(tmp_path, text):
        with warnings.catch_warnings():
            warnings.simplefilter("error", InputWarning)
            read(path)


@pytest.mark.parametrize(
    ("header", "what"), [("3 2 3 4 3", "order, mode lengths, number of nonzeros"), ("2 3 4", "mode lengths")]
)
def test_headers_of_other_widths(tmp_path: Path, header: str, what: str) -> None:
    width = len(header.split())
    told = rf"line 2: 4 columns, expected {width} as in line 1; if that is a header \({what}\), put # before it"
    for path in ways(tmp_path, f"{header}\n{DATA}"):
        with pytest.raises(InputError, match=told):
            read(path)
