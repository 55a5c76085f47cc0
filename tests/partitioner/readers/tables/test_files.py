"""Text of tables: types, missing values and names as the files have them."""

from __future__ import annotations

import gzip
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partitioner.errors import InputError, InputWarning
from partitioner.readers import read
from partitioner.tensors.sparse import SparseTensor

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

ROWS = 21_000  # more than DuckDB looks at to find the types of columns


def csv(folder: Path, text: str) -> Path:
    path = folder / "x.csv"
    path.write_text(text)
    return path


def labels_of(path: Path, keys: list[str], **how: Any) -> list[list[Any]]:
    found = read(path, keys=keys, **how)
    assert isinstance(found, SparseTensor)
    assert found.labels is not None
    return [each.tolist() for each in found.labels]


R = "x,country,day\n1,NA,2024-01-02\nNA,FR,NA\n2,NA,2024-01-03\n"


def test_na_is_a_missing_number_or_date_and_a_text(tmp_path: Path) -> None:
    path = csv(tmp_path, R)
    with pytest.warns(InputWarning, match="1 of 3 rows are dropped: 1 without x, 1 without day"):
        assert labels_of(path, ["x", "day"])[0] == [1, 2]
    found = labels_of(path, ["country", "x"], missing="keep")
    assert found[0] == ["FR", "NA"]
    assert np.array_equal(found[1], [1, 2, np.nan], equal_nan=True)
    with pytest.warns(InputWarning, match="1 of 3 rows are dropped: 1 without x"):
        assert read(path, keys=["country", "country"], value="x").nnz == 1
    with pytest.warns(InputWarning, match="2 of 3 rows are dropped: 2 without nullif"):
        assert labels_of(path, ["nullif(country, 'NA')", "country"])[0] == ["FR"]


@pytest.mark.parametrize("mark", ["NA", "N/A", "NULL", "null", "None", "#N/A", r"\N"])
def test_marks_of_missing_numbers(tmp_path: Path, mark: str) -> None:
    path = csv(tmp_path, f"y,x\na,1\nb,{mark}\n")
    found = labels_of(path, ["y", "x"], missing="keep")
    assert np.array_equal(found[1], [1, np.nan], equal_nan=True)
    assert labels_of(path, ["y", "x::VARCHAR"], missing="keep")[1] == ["1", None]


@pytest.mark.parametrize(
    ("last", "labels"),
    [("x", ["0", "1", "x"]), ("NA", [0, 1]), ("1.5", [0.0, 1.0, 1.5]), ("007", ["0", "007", "1"])],
)
def test_what_comes_late_decides_the_type(tmp_path: Path, last: str, labels: list[Any]) -> None:
    path = csv(tmp_path, "id,v\n" + "0,a\n1,b\n" * (ROWS // 2) + f"{last},a\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        assert labels_of(path, ["id", "v"])[0] == labels
    json = tmp_path / "x.jsonl"
    json.write_text('{"id": 0, "v": "a"}\n' * ROWS + '{"id": "x", "v": "b"}\n')
    assert labels_of(json, ["id", "v"])[0] == ["0", "x"]


def test_a_conversion_that_the_caller_wants_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Could not convert string .*x"):
        read(csv(tmp_path, "id,v\n0,a\nx,b\n"), keys=["id::INT", "v"])


@pytest.mark.parametrize(
    ("text", "key", "labels"),
    [
        ("250.0 250.00 3.5", "c::VARCHAR", ["250.0", "250.00", "3.5"]),
        ("007 7", "CAST(c AS TEXT)", ["007", "7"]),
        ("1e5 100000.0", "c::VARCHAR", ["100000.0", "1e5"]),
        ("TRUE true", "c::VARCHAR", ["TRUE", "true"]),
        ("04/01/2024 04/02/2024", "left(c::VARCHAR, 5)", ["04/01", "04/02"]),
        ("04/01/2024 04/02/2024", "day(strptime(c::VARCHAR, '%m/%d/%Y'))", list(range(1, 32))),
        ("18446744073709551615 18446744073709551614", "c::VARCHAR", ["18446744073709551614", "18446744073709551615"]),
    ],
)
@pytest.mark.parametrize("name", ["c", "my c"])
def test_text_is_what_is_written(tmp_path: Path, text: str, key: str, labels: list[Any], name: str) -> None:
    path = csv(tmp_path, f"{name},v\n" + "".join(f"{each},a\n" for each in text.split()))
    key = key.replace("c::", f'"{name}"::').replace("(c ", f'("{name}" ')
    assert labels_of(path, [key, "v"])[0] == labels


def test_a_column_may_be_a_text_and_a_number(tmp_path: Path) -> None:
    path = csv(tmp_path, "c,text of c\n1.0,a\n1.00,b\n")
    tensor = read(path, keys=["c::VARCHAR", "text of c"], value="c", where="c = 1")
    assert isinstance(tensor, SparseTensor)
    assert tensor.values.tolist() == [1, 1]


def values_of(path: Path) -> list[float]:
    tensor = read(path, keys=["k", "k"], value="v")
    assert isinstance(tensor, SparseTensor)
    return [float(each) for each in tensor.values]


@pytest.mark.parametrize("late", ["30000.8", "1e5", "-2.5e-3", "-7", "0.5"])
def test_late_numbers_are_not_rounded(tmp_path: Path, late: str) -> None:
    expected = [float(ROWS), float(late)]
    assert values_of(csv(tmp_path, "k,v\n" + "a,1\n" * ROWS + f"b,{late}\n")) == expected
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"k": "a", "v": 1}\n' * ROWS + f'{{"k": "b", "v": {late}}}\n')
    assert values_of(lines) == expected
    packed = tmp_path / "x.csv.gz"
    packed.write_bytes(gzip.compress(("k,v\n" + "a,1\n" * ROWS + f"b,{late}\n").encode()))
    assert values_of(packed) == expected


@pytest.mark.parametrize(
    ("first", "late", "label"),
    [
        ("2024-01-01", "2024-01-02 13:14:15", datetime(2024, 1, 2, 13, 14, 15)),
        ("2024-01-01", "2024-01-02T13:14:15+02:00", datetime(2024, 1, 2, 11, 14, 15)),
        ("2024-01-01 00:00:00", "2024-01-02 13:14:15+02", datetime(2024, 1, 2, 11, 14, 15)),
        ("10:11:12", "2024-01-02 10:00:00", "2024-01-02 10:00:00"),
        ("true", "0", "0"),
    ],
)
def test_late_labels_keep_all_that_is_written(tmp_path: Path, first: str, late: str, label: Any) -> None:
    path = csv(tmp_path, "d,k\n" + f"{first},a\n" * ROWS + f"{late},b\n")
    assert label in labels_of(path, ["d", "k"])[0]


def test_json_keeps_the_digits_of_large_integers(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    large = [str(2**66), str(2**66 + 1), str(2**192), str(2**192 + 1)]
    for some in (large[:2], large):
        path.write_text("".join(f'{{"k": "a", "i": {each}}}\n' for each in some))
        assert labels_of(path, ["i::VARCHAR", "k"])[0] == sorted(some)
    path.write_text("".join(f'{{"k": "a", "i": {each}}}\n' for each in large[:2]))
    with pytest.raises(InputError, match=r"more than 64 bits: use \(i\)::VARCHAR"):
        read(path, keys=["i", "k"])


def test_integers_that_are_rounded_inside_objects_are_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"k": "a", "n": {{"i": {2**66 + k}}}}}\n' for k in range(2)))
    with pytest.warns(InputWarning, match="column n: whole numbers of 17 digits or more .* write them as strings"):
        read(path, keys=["n.i", "k"])
    path.write_text("".join(f'{{"k": "a", "n": {{"i": "{2**66 + k}"}}}}\n' for k in range(2)))
    assert labels_of(path, ["n.i", "k"])[0] == [str(2**66), str(2**66 + 1)]


def test_json_of_late_decimals_in_objects_and_of_several_kinds(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"k": "a", "n": {"i": 3}}\n' * ROWS + '{"k": "b", "n": {"i": 3.7}}\n')
    assert labels_of(path, ["n.i", "k"])[0] == [3, 3.7]
    path.write_text('{"k": "a", "n": 3}\n' * ROWS + '{"k": "b", "n": true}\n')
    assert labels_of(path, ["n", "k"])[0] == ["3", "true"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Sales 2024\nk,v\na,1\nb,2\n", 1),
        ("k,v\na,1\n" + "a,1,x\n" * 10, 1),
        ("\nTitle\n\nk,v\na,1\nb,2\n", 2),
    ],
)
def test_narrow_first_lines_are_refused(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(InputError, match=rf"x\.csv, line {line}: has fewer fields .*: remove or complete this line"):
        read(csv(tmp_path, text), keys=["k", "v"])


@pytest.mark.parametrize("start", ["\n\n", "# made by x\n", "sep=;\n", "\ufeff"])
def test_first_lines_that_hold_no_data_are_skipped(tmp_path: Path, start: str) -> None:
    assert labels_of(csv(tmp_path, start + "k;v;w\na;1;3\nb;2;3\n"), ["k", "v"]) == [["a", "b"], [1, 2]]


@pytest.mark.parametrize(("rows", "late"), [(5, "a,1,2"), (ROWS, "a,1,2"), (5, "a"), (ROWS, "a")])
def test_a_ragged_line_is_named(tmp_path: Path, rows: int, late: str) -> None:
    path = csv(tmp_path, "k,v\n" + "a,1\n" * rows + f"{late}\n" + "a,1\n")
    with pytest.raises(InputError, match=rf"line {rows + 2}\b.*{late.count(',') + 1} fields"):
        read(path, keys=["k", "v"])


def test_a_quote_may_come_late(tmp_path: Path) -> None:
    path = csv(tmp_path, "k,v\n" + "a,3\n" * ROWS + 'b,"1,234"\n')
    assert labels_of(path, ["k", "v"])[1] == ["1,234", "3"]
