"""Text that is parsed by NumPy gives the nonzeros, lines and errors of the compiled parser."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path

import numpy as np
import pytest

from partitioner.errors import InputError
from partitioner.host.worth import SETTING
from partitioner.readers import read_sparse
from partitioner.readers.form import ReadOptions
from partitioner.readers.text.plain import parse, skip_lines

LIMITS = np.array([100, 100], np.uint64)
USUAL = {
    "one": b"1 2 3\n",
    "zeros": b"001 0000000002 007\n2 1 0\n",
    "decimals": b"1 2 3.5\n2 2 -1e-5\n3 1 .25\n4 4 5.\n5 5 +1E3\n",
    "long": b"1 1 0.1000000000000000055511151231257827\n2 1 123456789012345678901234567890\n",
    "blanks": b"  1\t2   3 \n\t2 2 4\r\n\n \n3 3 5\n",
    "nothing": b"",
    "empty lines": b"\n \r\n\n",
    "duplicates": b"3 1 1\n1 1 1\n3 1 2\n",
}
UNUSUAL = {
    "signs": b"+1 2 3\n",
    "comment": b"1 2 3\n# end\n",
    "short": b"1 2\n",
    "joined": b"1 2 3 4\n5 6\n",
    "text": b"1 x 3\n",
    "value": b"1 2 3x\n",
    "underscore": b"1 2 1_0\n",
    "nan": b"1 2 nan\n",
    "infinite": b"1 2 1e999\n",
    "zero": b"0 2 3\n",
    "beyond": b"101 2 3\n",
    "huge": b"99999999999 2 3\n",
    "decimal index": b"1.0 2 3\n",
    "control": b"1 2 3\x01\n",
}


@pytest.mark.parametrize("name", USUAL)
def test_the_usual_forms_are_parsed(name: str) -> None:
    found = parse(np.frombuffer(USUAL[name], np.uint8), 1, LIMITS)
    assert found is not None
    tokens = [line.split() for line in USUAL[name].decode().splitlines() if line.strip()]
    indices = np.array([[int(i) - 1 for i in line[:-1]] for line in tokens]).reshape(-1, 2)
    np.testing.assert_array_equal(found.columns.T, indices)
    np.testing.assert_array_equal(found.values, [float(line[-1]) for line in tokens])


@pytest.mark.parametrize("name", UNUSUAL)
def test_other_forms_are_left(name: str) -> None:
    assert parse(np.frombuffer(UNUSUAL[name], np.uint8), 1, LIMITS) is None


@pytest.mark.parametrize("text", [*USUAL.values(), *UNUSUAL.values()])
@pytest.mark.parametrize("form", [ReadOptions(), ReadOptions(index_base=0), ReadOptions(no_values=True)])
def test_both_parsers_agree(text: bytes, form: ReadOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = tmp_path / "x.tns", list[object]()
    path.write_bytes(b"# a comment\n\n1 1 1\n" + text)
    for wish in ("always", "never"):
        monkeypatch.setenv(SETTING, wish)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                tensor = read_sparse(path, form)
            facts = tensor.shape, tensor.columns.tobytes(), tensor.values.tobytes(), tensor.duplicates, tensor.zeros
            found.append((facts, [str(each.message) for each in said]))
        except InputError as error:
            found.append(str(error))
    assert found[0] == found[1]


def test_compressed_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "never")
    path = tmp_path / "x.tns.gz"
    path.write_bytes(gzip.compress(b"# a comment\n1 1 1\n2 2 0.5\n"))
    assert read_sparse(path).values.tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"1 2\n", (0, 0)),
        (b"# a\n1\n", (4, 1)),
        (b" \t\r\n\n%x\n 1\n", (8, 3)),
        (b"#\n", (2, 1)),
        (b"  # a\n#b\n", (9, 2)),
    ],
)
def test_lines_that_are_skipped(text: bytes, expected: tuple[int, int]) -> None:
    raw = b"#" + text + b"1 1\n"
    found = skip_lines(np.frombuffer(raw, np.uint8), 1, 1 + len(text))
    assert found == (1 + expected[0], expected[1])


def test_a_million_lines_are_skipped() -> None:
    text = b"# a comment\n" * (1 << 20)
    assert skip_lines(np.frombuffer(text, np.uint8), 0, len(text)) == (len(text), 1 << 20)
