"""Text of tables: types, missing values and names as the files have them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partitioner.coo import SparseTensor
from partitioner.errors import InputError, InputWarning
from partitioner.readers import read

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
    with pytest.warns(InputWarning, match="1 of 3 rows are left out: 1 lack x, 1 lack day"):
        assert labels_of(path, ["x", "day"])[0] == [1, 2]
    found = labels_of(path, ["country", "x"], missing="keep")
    assert found[0] == ["FR", "NA"]
    assert np.array_equal(found[1], [1, 2, np.nan], equal_nan=True)
    with pytest.warns(InputWarning, match="1 of 3 rows are left out: 1 lack x"):
        assert read(path, keys=["country", "country"], value="x").nnz == 1
    with pytest.warns(InputWarning, match="2 of 3 rows are left out: 2 lack nullif"):
        assert labels_of(path, ["nullif(country, 'NA')", "country"])[0] == ["FR"]


@pytest.mark.parametrize("mark", ["NA", "N/A", "NULL", "null", "None", "#N/A", r"\N"])
def test_marks_of_missing_numbers(tmp_path: Path, mark: str) -> None:
    path = csv(tmp_path, f"y,x\na,1\nb,{mark}\n")
    found = labels_of(path, ["y", "x"], missing="keep")
    assert np.array_equal(found[1], [1, np.nan], equal_nan=True)
    assert labels_of(path, ["y", "x::VARCHAR"], missing="keep")[1] == ["1", None]


@pytest.mark.parametrize(
    ("last", "labels"),
    [("x", ["0", "1", "x"]), ("NA", [0, 1]), ("1.5", [0.0, 1.0, 1.5]), ("007", [0, 1, 7])],
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
