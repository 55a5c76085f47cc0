"""The text reader: results for valid files, and the reported line of invalid ones."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partitioner.errors import InputError
from partitioner.readers import chunks, open_part, read, settle
from partitioner.readers.pieces import collect
from partitioner.readers.text import parse, tns
from partitioner.readers.text.head import Head
from partitioner.readers.text.tns import TextPart
from partitioner.sorting.tables import Nonzeros

ROOT = Path(__file__).resolve().parents[4]
SMALL = 512  # bytes per block: several blocks and threads for a few lines
FROM_ZERO = "; if they count from 0, use index_base=0"
TABLE = "to read a table, use keys=[...]"


def write(folder: Path, text: bytes | str, name: str = "x.tns") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read(path)
    assert caught.value.path == str(path)
    assert "\n" not in str(caught.value)
    return caught.value


def read_columns(path: Path, **options: int) -> Nonzeros:
    return collect(path, TextPart(path, **options))


# ---- good text

PLAIN = "1 1 1 1.5\n1 2 3 -2\n4 1 2 .25\n"


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.rstrip("\n"),
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace(" ", "\t"),
        PLAIN.replace(" ", "   ").replace("\n", "  \t\n"),
        "  " + PLAIN.replace("\n", "\n "),
        PLAIN.replace("\n", " \r\n\r\n"),
        "# comment\n%another 1 2 3\n\n" + PLAIN.replace("\n", "\n  # between: é\n") + "\n \n#end",
        "\ufeff" + PLAIN,
        PLAIN.replace("2 3 -2", "+02 000000000003 -200e-2").replace(".25", "+25.E-2"),
        "\v\f" + PLAIN,
    ],
)
def test_flavours_of_text_give_the_same_tensor(tmp_path: Path, text: str) -> None:
    for name, data in (("x.tns", text.encode()), ("x.tns.gz", gzip.compress(text.encode()))):
        tensor = read(write(tmp_path, data, name))
        assert tensor.shape == (4, 2, 3)
        assert tensor.columns.dtype == np.int32
        np.testing.assert_array_equal(tensor.indices, [[0, 0, 0], [0, 1, 2], [3, 0, 1]])
        np.testing.assert_array_equal(tensor.values, [1.5, -2.0, 0.25])


@pytest.mark.parametrize(
    "head",
    [
        "sptensor\n3\n5 6 2147483647\n3\n",
        "# GenTen\nSPTENSOR indices-start-at-one\n\n3\n5 6 2147483647 \n% nnz\n3\n",
        "3\n5 6 2147483647\n",
        " 3 \r\n# lengths\r\n5\t6 2147483647\r\n",
    ],
)
def test_headers_declare_the_shape(tmp_path: Path, head: str) -> None:
    assert read(write(tmp_path, head + PLAIN)).shape == (5, 6, 2147483647)


def test_genten_indices_from_zero(tmp_path: Path) -> None:
    text = "sptensor indices-start-at-zero\n2\n3 4\n2\n0 0 1\n2 3 2\n"
    np.testing.assert_array_equal(read(write(tmp_path, text)).indices, [[0, 0], [2, 3]])
    error = refusal(write(tmp_path, text.replace("2 3 2", "3 3 2")))
    assert (error.line, error.cause) == (6, "index '3' of mode 0 is beyond the declared length 3")


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    halves = [gzip.compress(half.encode()) for half in (PLAIN[:13], PLAIN[13:])]
    for name, data in (("x.tns", gzip.compress(PLAIN.encode())), ("x.gz", PLAIN.encode())):
        assert read(write(tmp_path, data, name)).nnz == 3
    for padding in (b"", b"\0" * 600):
        members = halves[0] + padding + gzip.compress(b"") + halves[1] + padding
        assert read(write(tmp_path, members)).nnz == 3


@pytest.mark.parametrize(
    ("name", "shape", "nonzeros"),
    [
        ("tests/data/nycflights_5d.tns.gz", (16, 3, 105, 365, 24), 330813),
        ("amped/data/uber393k_4d.tns.gz", (183, 24, 874, 1247), 353486),
        ("tests/data/matmul_2-2-2.tns.gz", (4, 4, 4), 8),
    ],
)
def test_real_tensors(name: str, shape: tuple[int, ...], nonzeros: int) -> None:
    tensor = read(ROOT / name)
    assert (tensor.shape, tensor.nnz, tensor.duplicates, tensor.zeros) == (shape, nonzeros, 0, 0)
    with gzip.open(ROOT / name) as lines:
        words = b" ".join(line for line in lines if line[:1].isdigit()).split()
    table = np.array(words, np.int64).reshape(nonzeros, len(shape) + 1)
    order = np.lexsort(table[:, -2::-1].T)
    np.testing.assert_array_equal(tensor.indices, table[order, :-1] - 1)
    np.testing.assert_array_equal(tensor.values, table[order, -1])


def test_a_pipe_is_read_and_progress_told(tmp_path: Path) -> None:
    pipe, seen = tmp_path / "pipe", list[tuple[int, int | None]]()
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(PLAIN,))
    writer.start()
    assert read(pipe, progress=lambda *now: seen.append(now)).nnz == 3
    writer.join()
    assert seen == [(len(PLAIN), None)]
    for data in (PLAIN.encode() * 400, gzip.compress(PLAIN.encode() * 400)):
        seen.clear()
        path = write(tmp_path, data)
        collect(path, TextPart(path, progress=lambda *now: seen.append(now), block=SMALL))
        assert len(seen) > 5
        assert seen == sorted(seen)
        assert seen[-1] == (len(data), len(data))


def test_parts_of_what_one_reader_must_read(tmp_path: Path) -> None:
    """The first part has it all; the others do not even open a pipe, which would wait or take some of it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(PLAIN,))
    writer.start()
    np.savez(tmp_path / "x.npz", indices=[[0, 0, 0], [0, 1, 2], [3, 0, 1]], values=[1.5, -2, 0.25])
    for path in (pipe, write(tmp_path, gzip.compress(PLAIN.encode()), "x.gz"), tmp_path / "x.npz"):
        parts = [open_part(path, part, 3) for part in (2, 1, 0)][::-1]
        assert [len(list(chunks(part, 9))) for part in parts] == [1, 0, 0]
        whole = settle(path, [part.outcome for part in parts])
        assert (whole.order, whole.nonzeros, whole.lengths) == (3, 3, None)
    writer.join()


@pytest.mark.parametrize("limit", [1, 7, 1000, 2999, 3000, 3001])
@pytest.mark.parametrize("threads", [1, 3])
def test_chunks_are_as_long_as_they_may_be(tmp_path: Path, threads: int, limit: int) -> None:
    text = "".join(f"{k + 1} 1 {k}\n" for k in range(3000))
    for data in (text.encode(), gzip.compress(text.encode())):
        path = write(tmp_path, data)
        part = TextPart(path, threads=threads, block=SMALL)
        columns, values, more = zip(*chunks(part, limit), strict=True)
        assert [v.size for v in values] == [limit] * (3000 // limit) + [3000 % limit] * (3000 % limit > 0)
        assert more == (True,) * (len(values) - 1) + (False,)
        assert settle(path, [part.outcome]).nonzeros == 3000
        np.testing.assert_array_equal(np.concatenate(values), np.arange(3000))
        np.testing.assert_array_equal(np.hstack(columns)[0], np.arange(3000))


def test_lines_that_get_shorter_or_longer_than_those_looked_at(tmp_path: Path) -> None:
    """Memory is mapped for about as many as there are."""
    lines = [f"1 {k + 1} 1" for k in range(100_000)]
    for padding in (lambda k: k > 50_000, lambda k: k % 3, lambda k: k < 1000):
        text = "\n".join(line + " " * 40 * bool(padding(k)) for k, line in enumerate(lines))
        np.testing.assert_array_equal(read_columns(write(tmp_path, text))[0][1], np.arange(100_000))


def test_a_thread_that_fails_leaves_no_other_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, parse = write(tmp_path, "1 1 1\n" * 5000), tns._parse
    calls = iter(range(100))

    def fail_once(*given: Any) -> Any:
        if next(calls) == 5:
            raise MemoryError
        return parse(*given)

    monkeypatch.setattr(tns, "_parse", fail_once)
    with pytest.raises(MemoryError):
        read_columns(path, threads=3, block=SMALL)


def test_duplicates_are_summed_and_zeros_dropped(tmp_path: Path) -> None:
    tensor = read(write(tmp_path, "2 2 1\n1 1 5\n2 2 2\n3 3 0\n"))
    assert (tensor.duplicates, tensor.zeros, tensor.shape) == (1, 1, (3, 3))
    np.testing.assert_array_equal(tensor.values, [5, 3])


HARD = """9007199254740993 9007199254740992.5 0.1 -0 -0.0 +0e5 0e999999999999 1e22 1e23 1e-22 123456789012345678
9223372036854775807 18446744073709551615 18446744073709551616 2.2250738585072014e-308 2.2250738585072011e-308
5e-324 2.4703282292062327e-324 1.7976931348623157e308 179769313486231580e291 1.7976931348623158e+308 1e-400
8.5e15 1.00000000000000011102230246251565404 1.00000000000000011102230246251565405 7.2057594037927933e16
0.000000000000000000000000000000000000000012345678901234567 12345678 1234567.8 .1234567 -1.23456 99999999
000000000000000000000000000000.5 9.5367431640625e-07 6929495644600919.5 3.518437208883201171875e13 1e-323
0.00012345678901234567 123456789.123456789 5.e-1 -.5E+1 4503599627370497.5 9007199254740991e22 1e308""".split()


def test_values_are_correctly_rounded(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    doubles = rng.integers(0, 2**64, 20000, np.uint64).view(np.float64)
    tokens = HARD + [repr(v) for v in doubles[np.isfinite(doubles)].tolist()]
    tokens += [f"{v:.{d}{'ef'[d % 2]}}" for d in range(22) for v in rng.normal(0, 10.0 ** (d - 9), 500).tolist()]
    # Halfway between two doubles, and next to it.
    for m, e in zip(rng.integers(2**52, 2**53, 500).tolist(), rng.integers(0, 12, 500).tolist(), strict=True):
        tokens += [str((2 * m + 1 << e) + d) for d in (-1, 0, 1)] + [f"{m >> e}.5"]
    values = read_columns(write(tmp_path, "".join(f"1 1 {t}\n" for t in tokens)))[1]
    expected = np.array([float(t) for t in tokens])
    np.testing.assert_array_equal(values.view(np.int64), expected.view(np.int64))


# ---- bad text


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("", None, "the file is empty: no nonzeros"),
        ("# nothing\n\n", None, "no nonzeros"),
        ("1 1 0\n2 2 0\n", None, "no nonzeros: every value is zero"),
        ("1 1 1 1\n# c\n1 1 1\n", 3, "3 columns, expected 4 as in line 1"),
        ("1 1 1 1\n\n1 1 1 1 1\n", 3, "5 columns, expected 4 as in line 1"),
        ("1 1 1 1\n1 1 1 1 # c\n", 2, "6 columns, expected 4 as in line 1; a comment must be on a separate line"),
        ("1 1 1 1 # c\n1 1 1 1\n", 1, "'#' after a number; a comment must be on a separate line"),
        ("1 1 1 1\n7\n", 2, "1 column, expected 4"),
        ("1 5.0\n2 6.0\n", 1, "order 1 "),
        ("# c\n1\n10\n1 5.0\n", 2, "order 1 "),
        ("5\n", 1, "the file ends before the mode lengths of its header"),
        ("3\n1 1 1 5.0\n", 2, "4 mode lengths, expected 3"),
        ("1 1 1 1 1 1 1 1 1 1\n", 1, "order 9 "),
        ("9\n1 1 1 1 1 1 1 1 1\n", 1, "order 9 "),
        ("hello\n", 1, "one column, 'hello'"),
        ("i,j,v\n1,1,1\n", 1, f"looks comma-separated: {TABLE}"),
        ("i j v\n1 1 1\n", 1, "index 'i' of mode 0 is not an integer"),
        ("1 1 1\n1.5 1 1\n", 2, "index '1.5' of mode 0 is not an integer"),
        ("1 1 1\n1 abc 1\n", 2, "index 'abc' of mode 1 is not an integer"),
        ("1 1 1\n1 1e3 1\n", 2, "index '1e3' of mode 1 is not an integer"),
        ("1 1 1\n1 1_0 1\n", 2, "index '1_0' of mode 1 is not an integer"),
        ("1 1 1\n0 1 1\n", 2, f"index '0' of mode 0: indices count from 1{FROM_ZERO}"),
        ("sptensor indices-start-at-one\n2\n2 2\n1\n0 1 1\n", 5, "index '0' of mode 0: indices count from 1"),
        ("1,1,1,2.5\n", 1, f"looks comma-separated: {TABLE}"),
        ("who, what, 2.5\n", 1, f"looks comma-separated: {TABLE}"),
        ("1;1;1;2.5\n", 1, f"looks separated by ';': {TABLE}"),
        ("1 1 2,5\n", 1, "value '2,5' is not a number"),
        ("1 1 1\n1 -3 1\n", 2, "index '-3' of mode 1: indices count from 1"),
        ("1 1 1\n1 2147483648 1\n", 2, "index '2147483648' of mode 1 is above the highest, 2147483647"),
        ("1 1 1\n1 " + "9" * 40 + " 1\n", 2, "index '" + "9" * 29 + "...' of mode 1 is above"),
        ("1 1 1\n1 " + "9" * 6000 + " 1\n", 2, "is above the highest"),
        ("1 18446744073709551617 1\n", 1, "is above the highest"),
        ("1 1 1\n1 1 x\n", 2, "value 'x' is not a number"),
        ("1 1 1\n1 1 1.2.3\n", 2, "value '1.2.3' is not a number"),
        ("1 1 1\n1 1 1e\n", 2, "value '1e' is not a number"),
        ("1 1 1\n1 1 .\n", 2, "value '.' is not a number"),
        ("1 1 1\n1 1 1_0\n", 2, "value '1_0' is not a number"),
        ("1 1 1\n1 1 NaN\n", 2, "value 'NaN' is not finite"),
        ("1 1 1\n1 1 -inf\n", 2, "value '-inf' is not finite"),
        ("1 1 1\n1 1 1e999\n1 0 1\n", 2, "value '1e999' is too large for a double"),
        ("1 1 1\n1 1 1.7976931348623159e308\n", 2, "too large for a double"),
        ("1 1 1\n1 1 " + "9" * 400 + "\n", 2, "too large for a double"),
        ("1 1 1\n1 1 \x001\n", 2, "not text: byte 0x00 at column 5"),
        ("1 1 1\n1 1 1\x1f\n", 2, "not text: byte 0x1f at column 6"),
        ("1 1 1\n1 1 4.5\x1f\n", 2, "not text: byte 0x1f at column 8"),
        ("1 1 1\n1 1 4.5 \x1f\n", 2, "not text: byte 0x1f at column 9"),
        ("1 1 1\n1 1 4.5 \x1f \n", 2, "not text: byte 0x1f at column 9"),
        ("1 1 1\n1\x1f1 4.5\n", 2, "not text: byte 0x1f at column 2"),
        ("1 1 1\n1 1 123456.789 \x1f\n", 2, "not text: byte 0x1f at column 16"),
        ("1 1 1\n-0 1 1\n", 2, f"index '-0' of mode 0: indices count from 1{FROM_ZERO}"),
        ("1 1 1\n1. 1 1\n", 2, "index '1.' of mode 0 is not an integer"),
        ("1 1 1\n1 1 1-1\n", 2, "value '1-1' is not a number"),
        ("1 1 1\n1 1 -\n", 2, "value '-' is not a number"),
        ("1 1 1\n1 1 -.\n", 2, "value '-.' is not a number"),
        ("1 1 1\n1 1 1..2\n", 2, "value '1..2' is not a number"),
        ("1 1 1\n1 1 1234567.8.9\n", 2, "value '1234567.8.9' is not a number"),
        ("\x89PNG\r\n\x1a\n\0\0", 1, "not text: byte 0xc2"),
        ("3\n4 4 4\n1 1 1 1\n1 5 1 1\n", 4, "index '5' of mode 1 is beyond the declared length 4"),
        ("3\n4 4 4\n1 1 1\n", 3, "3 columns, expected 4 for the order 3 of the header"),
        ("3\n4 4\n", 2, "2 mode lengths, expected 3 for the order 3 of the header"),
        ("3\n4 0 4\n", 2, "length '0' of mode 1 is not an integer in 1..2147483647"),
        ("3\n4 2147483648 4\n", 2, "length '2147483648' of mode 1 is not an integer in 1..2147483647"),
        ("3\n4 4 4\n", None, "no nonzeros"),
        ("sptensor\n", 1, "the file ends before the order"),
        ("sptensor\n3 3\n", 2, "'3 3' where the header's order should be"),
        ("sptensor\n2\n4 4\n", 3, "the file ends before the number of nonzeros"),
        ("sptensor\n2\n4 4\n1 1 5\n", 4, "'1 1 5' where the header's number of nonzeros should be"),
        ("sptensor\n2\n4 4\n3\n1 1 5\n", 4, "the header declares 3 nonzeros, the file holds 1"),
        ("sptensor\n2\n4 4\n1\n1 1 5\n1 2 6\n", 4, "the header declares 1 nonzeros, the file holds 2"),
        ("ktensor\n3\n", 1, "a ktensor of the Tensor Toolbox"),
        ("%%MatrixMarket matrix coordinate real general\n3 3 1\n1 1 5\n", 1, "a Matrix Market file"),
        ("BZh91AY&SY", None, "compressed by bzip2"),
    ],
)
def test_the_first_wrong_line_is_named(tmp_path: Path, text: str, line: int | None, cause: str) -> None:
    for name, data in (("x.tns", text.encode()), ("x.tns.gz", gzip.compress(text.encode()))):
        if line is None and "compressed" in cause and name.endswith("gz"):
            continue
        error = refusal(write(tmp_path, data, name))
        assert error.line == line
        assert error.cause.startswith(cause) or (len(cause) < 25 and cause in error.cause)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.tns").cause == "no such file"
    assert refusal(tmp_path / "none.npz").cause == "no such file"
    assert "Not a directory" in refusal(write(tmp_path, PLAIN) / "x.tns").cause
    refusal(tmp_path)  # a folder that is no store
    with pytest.raises(InputError, match="null byte"):
        read("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    for name in ("x.tns", "x.npz"):
        path = write(tmp_path, PLAIN, name)
        path.chmod(0)
        assert "Permission denied" in refusal(path).cause


def test_truncated_and_damaged_gzip(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    text = "".join(f"{i} {j} {v}\n" for i, j, v in rng.integers(1, 999, (5000, 3)).tolist())
    whole = gzip.compress(text.encode())
    for cut in (2, 11, 1000, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        error = refusal(write(tmp_path, whole[:cut], "x.tns.gz"))
        assert error.cause == "truncated gzip: the data stops before its end mark"
        assert error.line is not None
    assert error.line == 5001
    damaged = bytearray(whole)
    damaged[-6] ^= 1  # the checksum
    assert "damaged gzip" in refusal(write(tmp_path, bytes(damaged))).cause
    assert "damaged gzip" in refusal(write(tmp_path, whole + b"more")).cause
    # A wrong line comes before what is missing after it.
    early = gzip.compress((text[:200] + "\n1 x 1\n" + text).encode())
    line = text[:200].count("\n") + 2
    assert refusal(write(tmp_path, early[: len(early) // 2])).line in (line, line - 1)


def test_a_line_without_end_is_not_kept_in_memory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 2: a line of more than 512 bytes"):
        read_columns(write(tmp_path, "1 1 1\n1 1 " + "1" * 5000), block=SMALL)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_errors_and_results_do_not_depend_on_threads(tmp_path: Path, threads: int) -> None:
    lines = [f"{k % 7 + 1} {k + 1} {k / 3!r}" for k in range(3000)]
    columns, values = read_columns(write(tmp_path, "\n".join(lines)), threads=threads, block=SMALL)
    np.testing.assert_array_equal(columns, [np.arange(3000) % 7, np.arange(3000)])
    np.testing.assert_array_equal(values, np.arange(3000) / 3)
    for wrong in (2999, 2500, 1234, 1, 0):  # each time an earlier one
        lines[wrong] = "1 0 1"
        with pytest.raises(InputError) as caught:
            read_columns(write(tmp_path, "\n".join(lines)), threads=threads, block=SMALL)
        assert caught.value.line == wrong + 1


# ---- many lines that hold nothing

EMPTY = {"empty": b"\n", "blank": b" \t\n", "comments": b"#\n", "both": b"# a comment\n\n"}


@pytest.mark.parametrize("form", ["x.tns", "x.tns.gz"])
@pytest.mark.parametrize("lines", EMPTY)
@pytest.mark.in_turn
def test_lines_that_hold_nothing_cost_next_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, form: str
) -> None:
    """Compressed, a million of them take a kilobyte: none goes through Python, before a nonzero or after it."""
    looked_at: list[bytes] = []
    parsed: list[int] = []
    take, mark = Head._parse_line, parse.mark_blanks

    def marked(text: Any, start: int, stop: int, marks: Any) -> tuple[int, int]:
        parsed.append(stop - start)
        return mark(text, start, stop, marks)

    monkeypatch.setattr(Head, "_parse_line", lambda self, line: looked_at.append(line) or take(self, line))
    monkeypatch.setattr(parse, "mark_blanks", marked)
    nothing = EMPTY[lines] * 1_000_000
    text = b"\xef\xbb\xbf" + nothing + b"  3\n" + nothing + b"4 1 3\n" + nothing + b" 1 1 1 1.5\n" + nothing
    text += b"4 1 3 2.5\n" + nothing
    path = write(tmp_path, gzip.compress(text, 1) if form.endswith("gz") else text, form)
    assert read(path).values.tolist() == [1.5, 2.5]
    assert len(looked_at) == 3
    assert sum(parsed) < 8 * tns.BLOCK
    # Lines are counted all the same.
    write(tmp_path, gzip.compress(text + b"1 1 x\n", 1) if form.endswith("gz") else text + b"1 1 x\n", form)
    assert refusal(path).line == text.count(b"\n") + 1


def test_a_matrix_market_header_behind_comments(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, "\n# one %%MatrixMarket\n%%MatrixMarket matrix\n1 1 1\n"))
    assert error.line == 3
    assert "Matrix Market" in error.cause


def test_gzip_of_many_members_within_a_line(tmp_path: Path) -> None:
    """A line that comes byte by byte is not searched from its beginning for each of them."""
    one = gzip.compress(b" ", 1)
    path = write(tmp_path, gzip.compress(b"1 1 1 1.5") + one * 20_000 + gzip.compress(b"\n2 1 1 1\n"))
    assert read_columns(path, block=1 << 14)[1].tolist() == [1.5, 1.0]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("no_values", [False, True])
def test_indices_that_count_from_0(tmp_path: Path, no_values: bool, compact: bool) -> None:
    path = write(tmp_path, "0 0 7\n" + ("" if no_values else "2 4 7.5\n"))
    tensor: Any = read(path, index_base=0, no_values=no_values, compact=compact)
    used = [[0], [0], [7]] if no_values else [[0, 2], [0, 4]]
    if compact:
        assert [each.tolist() for each in tensor.labels] == used, "as the file has them"
    else:
        assert [sorted(set(column.tolist())) for column in tensor.columns] == used
    path = write(tmp_path, "1 1 8\n" + ("" if no_values else "3 5 8.5\n"))
    assert np.array_equal(read(path, no_values=no_values, compact=compact).columns, tensor.columns)


@pytest.mark.parametrize("base", [0, 1])
def test_a_header_and_the_caller_say_what_indices_count_from(tmp_path: Path, base: int) -> None:
    silent = write(tmp_path, "sptensor\n2\n3 4\n1\n1 2 5\n", "silent.tns")
    assert read(silent, index_base=base).indices.tolist() == [[1 - base, 2 - base]]  # type: ignore[union-attr]
    for word, said in (("zero", 0), ("one", 1)):
        path = write(tmp_path, f"sptensor indices-start-at-{word}\n2\n3 4\n1\n1 2 5\n")
        if said == base:
            assert read(path, index_base=base).indices.tolist() == [[1 - base, 2 - base]]  # type: ignore[union-attr]
            continue
        with pytest.raises(InputError, match=f"declares that indices count from {said}: remove index_base={base}"):
            read(path, index_base=base)
    with pytest.raises(InputError, match="index_base 2: expected 0 or 1"):
        read(silent, index_base=2)
