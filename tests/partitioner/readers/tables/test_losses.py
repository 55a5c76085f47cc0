"""Warnings about information lost in text: labels that are one number, and dates with day and month swapped."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from partitioner.errors import InputWarning
from partitioner.readers import ReadOptions, read
from partitioner.readers.tables.table import TablePart
from partitioner.tensors.sparse import SparseTensor

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")


def warnings_of(folder: Path, values: str, keys: list[str], value: str | None = None) -> list[str]:
    """Return the warnings of a table of a column `c`, without the file's name."""
    path = folder / "x.csv"
    path.write_text("c,v\n" + "".join(f"{each},{k % 2}\n" for k, each in enumerate(values.split("|"))))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", InputWarning)
        read(path, keys=keys, value=value)
    told = [str(each.message) for each in found if issubclass(each.category, InputWarning)]
    assert all(each.startswith(f"{path}: ") and "\n" not in each for each in told)
    return [each.removeprefix(f"{path}: ") for each in told]


@pytest.mark.parametrize(
    ("values", "kind", "some"),
    [
        ("250.0|250.00|3.5", "DOUBLE", "250.0 and 250.00: 250.0"),
        ("1e5|100000.0", "DOUBLE", "100000.0 and 1e5: 100000.0"),
        ("TRUE|true", "BOOLEAN", "TRUE and true: true"),
        ("9007199254740993.0|9007199254740992.0", "DOUBLE", "9007199254740992.0 and 9007199254740993.0"),
        ("1.5|99999999999999999999999999999999999999999", "DOUBLE", "99999999999999999999999999999999999999999: 1e+41"),
    ],
)
@pytest.mark.parametrize("value", [None, "sum(v)"])
def test_texts_that_become_one_label(tmp_path: Path, values: str, kind: str, some: str, value: str | None) -> None:
    (told,) = [each for each in warnings_of(tmp_path, values, ["c", "v"], value) if "key 'c'" in each]
    assert told.startswith(f"key 'c': read as {kind}, which does not preserve texts ({some}")
    remedy = re.search("use (.*)$", told)
    assert remedy is not None
    assert warnings_of(tmp_path, values, [remedy[1], "v"], value) == []


@pytest.mark.parametrize("values", ["250.00|3.50", "1|2|10", "-0.5|1e-7", "true|false", "2024-01-01|2024-1-1", "a|b"])
def test_texts_that_are_kept(tmp_path: Path, values: str) -> None:
    assert warnings_of(tmp_path, values, ["c", "v"]) == []


@pytest.mark.parametrize(
    ("values", "taken", "other", "day"),
    [
        ("04/01/2024|04/02/2024|04/12/2024", "%d/%m/%Y", "%m/%d/%Y", "2024-04-01"),
        ("04.01.2024|04.02.2024", "%d.%m.%Y", "%m.%d.%Y", "2024-04-01"),
        ("04/01/2024 10:00:00|04/02/2024 11:00:00", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "2024-04-01"),
        ("01/04/24|02/04/24", "%y/%m/%d", "%d/%m/%y", "2024-04-01"),
    ],
)
def test_dates_that_may_be_others(tmp_path: Path, values: str, taken: str, other: str, day: str) -> None:
    (told,) = warnings_of(tmp_path, values, ["date_trunc('day', c)", "v"])
    remedy = f"strptime(c::VARCHAR, '{other}')"
    assert told.startswith(f"column c: dates such as {values.split('|')[0]} are read as {taken}, but may be {other}")
    assert told.endswith(f"use {remedy}")
    assert warnings_of(tmp_path, values, [remedy, "v"]) == []
    tensor = read(tmp_path / "x.csv", keys=[f"{remedy}::DATE", "v"])
    assert isinstance(tensor, SparseTensor)
    assert tensor.labels is not None
    assert tensor.labels[0][0] == np.datetime64(day)


@pytest.mark.parametrize(
    "values", ["04/01/2024|04/13/2024", "04/01/2024|13/01/2024", "01/01/2024|02/02/2024", "2024-04-01|2024-04-02"]
)
def test_dates_of_which_there_is_no_doubt(tmp_path: Path, values: str) -> None:
    assert warnings_of(tmp_path, values, ["c", "v"]) == []


def test_dates_that_are_not_used(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, "04/01/2024|04/02/2024", ["v", "v"]) == []


def test_each_of_several_files_is_looked_at(tmp_path: Path) -> None:
    for name, days in (("a.csv", "01/13/2024"), ("b.csv", "01/03/2024")):
        (tmp_path / name).write_text(f"d,v\n{days},1\n{days},2\n")
    form = ReadOptions(key=("d", "v"), more=(str(tmp_path / "b.csv"),))
    with pytest.warns(InputWarning, match=r"column d of .*b\.csv: dates such as 01/03/2024 are read as %d/%m/%Y"):
        TablePart(tmp_path / "a.csv", form)
