"""Columns by their exact names, whatever DuckDB calls them."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from forms import in_turn

import amped
from partitioner.errors import InputError
from partitioner.readers import ReadOptions, read, read_frame
from partitioner.readers.tables.database import Database
from partitioner.readers.tables.expressions import TableColumns
from partitioner.readers.tables.table import TablePart
from partitioner.tensors.sparse import SparseTensor

duckdb = pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")

Table = dict[str, list[Any]]
CASES = {"ID": ["a", "a", "b"], "id": ["x", "y", "x"], "Value": [1, 2, 3], "value": [10, 20, 30]}


def write(path: Path, table: Table) -> Path:
    """Write a table in the form that the name of a file says."""
    rows = list(zip(*table.values(), strict=True))
    records = [json.dumps(dict(zip(table, row, strict=True))) for row in rows]
    if path.suffix == ".parquet":
        from pyarrow.parquet import write_table

        write_table(pyarrow.table(table), path)
    elif path.suffix == ".feather":
        with (
            pyarrow.OSFile(str(path), "wb") as file,
            pyarrow.ipc.new_file(file, pyarrow.table(table).schema) as feather,
        ):
            feather.write_table(pyarrow.table(table))
    elif path.suffix == ".json":
        path.write_text("[" + ",".join(records) + "]")
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(records))
    else:
        with (gzip.open if path.suffix == ".gz" else open)(path, "wt", newline="") as file:
            csv.writer(file).writerows([table, *rows])
    return path


FILES = ["x.csv", "x.csv.gz", "x.parquet", "x.feather", "x.json", "x.jsonl"]
FRAMES: dict[str, Callable[[Table], Any]] = {
    "pandas": lambda table: pytest.importorskip("pandas").DataFrame(table),
    "polars": lambda table: pytest.importorskip("polars").DataFrame(table),
    "polars, lazy": lambda table: pytest.importorskip("polars").LazyFrame(table),
    "arrow": pyarrow.table,
    "arrow, as it comes": lambda table: pyarrow.table(table).to_reader(),
}


def tensor(folder: Path, source: str, table: Table, form: ReadOptions) -> SparseTensor:
    if source in FRAMES:
        return read_frame(FRAMES[source](table), form)
    path = write(folder / source, table)
    found = read(path, keys=form.key, value=form.value, where=form.where)
    assert isinstance(found, SparseTensor)
    return found


def rows(found: SparseTensor) -> dict[tuple[Any, ...], float]:
    """Return the values by labels."""
    assert found.labels is not None
    columns = [labels[column].tolist() for labels, column in zip(found.labels, found.columns, strict=True)]
    return dict(zip(zip(*columns, strict=True), found.values.tolist(), strict=True))


@pytest.mark.parametrize(("source", "way"), in_turn([*FILES, *FRAMES], range(4)))
def test_names_that_differ_in_case_only(tmp_path: Path, source: str, way: int) -> None:
    ways = {
        ("ID", "id", "value"): {("a", "x"): 10, ("a", "y"): 20, ("b", "x"): 30},
        ("id", "ID", "Value"): {("x", "a"): 1, ("y", "a"): 2, ("x", "b"): 3},
        ("upper(id)", "ID || id", "2 * value"): {("X", "ax"): 20, ("Y", "ay"): 40, ("X", "bx"): 60},
        ('"id"', "events.ID", "sum(Value)"): {("x", "a"): 1, ("y", "a"): 2, ("x", "b"): 3},
    }
    (first, second, value), expected = [*ways.items()][way]
    assert rows(tensor(tmp_path, source, CASES, ReadOptions(key=(first, second), value=value))) == expected
    kept = tensor(tmp_path, source, CASES, ReadOptions(key=("ID", "id"), where="Value > 1 AND value < 30"))
    assert rows(kept) == {("a", "y"): 1}
    for wrong in ("Id", "upper(Id)"):
        with pytest.raises(InputError, match=r"key '.*Id.*': may be column ID and id, as case is ignored"):
            tensor(tmp_path, source, CASES, ReadOptions(key=(wrong, "id")))


STRANGE_NAMES = [
    ["id", "ID", "ID_1", "id_1"],
    ["__key0", "place0", "label", "events", "rowid", "__value"],
    [" a b ", 'or"der', "select", "it's", "\N{LATIN CAPITAL LETTER A WITH DIAERESIS}", "\xe4"],
    ["a.b", "a", "hour(t)", "x,y"],
]


@pytest.mark.parametrize(("source", "names"), in_turn([*FILES, *FRAMES], STRANGE_NAMES))
def test_any_name_is_a_name(tmp_path: Path, source: str, names: list[str]) -> None:
    table = {name: [f"{k}", f"{k}x"] for k, name in enumerate(names)}
    for keys in (names, names[::-1]):
        found = tensor(tmp_path, source, table, ReadOptions(key=tuple(keys)))
        assert set(rows(found)) == {tuple(table[name][row] for name in keys) for row in (0, 1)}


def test_columns_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,a,b\nx,y,z\n")
    frame = pyarrow.table([["x"], ["y"], ["z"]], names=["a", "a", "b"])
    for make in (lambda: read(path, keys=["a", "b"]), lambda: read_frame(frame, ReadOptions(key=("a", "b")))):
        with pytest.raises(InputError, match="key 'a': 2 columns are called a: rename all but one"):
            make()
    assert rows(read(path, keys=["a_1", "b"])) == {("y", "z"): 1}  # type: ignore[arg-type]


def test_a_relation_of_which_duckdb_has_renamed_columns() -> None:
    relation = duckdb.from_arrow(pyarrow.table({"ID": ["a"], "id": ["x"]}))
    with pytest.raises(InputError, match="key 'id': may be column ID and id_1") as caught:
        read_frame(relation, ReadOptions(key=("ID", "id")))
    assert rows(read_frame(relation, ReadOptions(key=("ID", "id_1")))) == {("a", "x"): 1}
    del caught  # until here it keeps what the failed call has opened


def test_several_files_whose_columns_differ_in_case(tmp_path: Path) -> None:
    one = write(tmp_path / "a.csv", {"ID": ["a"], "v": ["p"]})
    other = write(tmp_path / "b.csv", {"id": ["b"], "v": ["q"]})
    both = write(tmp_path / "c.csv", {"id": ["c"], "ID": ["d"], "v": ["q"]})
    labels = TablePart(one, ReadOptions(key=("ID", "v"), more=(str(other),))).outcome.labels
    assert labels is not None
    assert labels[0].tolist() == ["a", "b"]
    for first, second in ((one, both), (both, one)):
        with pytest.raises(InputError, match=r"column .*: a file has several columns whose names differ only in case"):
            TablePart(first, ReadOptions(key=("ID", "v"), more=(str(second),)))


def test_parameters_of_a_lambda_are_no_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", {"x": ["a b"], "X": ["c"]})
    key = "list_transform(string_split(x, ' '), lambda X: X || '!')[1]"
    assert rows(read(path, keys=[key, "X"])) == {("a!", "c"): 1}  # type: ignore[arg-type]


def test_a_sum_of_many_terms_is_understood() -> None:
    columns, term = TableColumns(["v", "V"], ["v", "V_1"]), " + V"
    with Database(None, 1) as database:
        sql, _ = columns.expression(database, "--value", "v" + term * 30)
        assert sql.count("V_1") == 30
        sql, _ = columns.expression(database, "--value", "v" + " + v" * 200)
        assert sql.count("v") == 201
        for terms in (term * 200, " + v" * 900):
            with suppress(InputError):  # by the version of DuckDB; and no other error
                columns.expression(database, "--value", "v" + terms)
        with pytest.raises(InputError, match="--value: "):
            columns.expression(database, "--value", "v" + " + v" * 5000)


@pytest.mark.parametrize(
    ("key", "better"),
    [
        ("hour(ordered at)", 'hour("ordered at")'),
        ("upper(order)", 'upper("order")'),
        ("amount €", None),  # a column
        ("amount € + 1", '"amount €" + 1'),
    ],
)
def test_names_that_need_quotes(key: str, better: str | None) -> None:
    """The error has the expression with quotes, which is then valid."""
    pandas = pytest.importorskip("pandas")
    row = {"ordered at": [pandas.Timestamp(0)], "order": ["x"], "amount €": [1]}
    frame = pandas.DataFrame(row)
    if better is not None:
        with pytest.raises(InputError, match=f"syntax error.*: {re.escape(better)}$"):
            amped.from_frame(frame, [key, "order"])
    amped.from_frame(frame, [better or key, "order"])


def test_no_quotes_are_suggested_for_other_errors() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1], "b": [1]})
    with pytest.raises(InputError, match=r'syntax error at or near "3"$'):
        amped.from_frame(frame, ["a 3", "b"])
    for key in ("a +", "lower(a", "a)"):
        with pytest.raises(InputError, match=r"syntax error: it is unfinished, or has one \) too many$"):
            amped.from_frame(frame, [key, "b"])
