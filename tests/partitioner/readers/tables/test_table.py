"""Tables: keys become labels, and rows are counted or summed, whatever the way."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from events import EVENTS, entries, sparse, write_csv
from forms import exhaustive
from tensors import files_of

from partitioner.build import partition
from partitioner.errors import InputError, InputWarning
from partitioner.readers import ReadOptions, read
from partitioner.readers.tables import table
from partitioner.readers.tables.database import Database
from partitioner.readers.tables.table import TablePart
from partitioner.store import packed

duckdb = pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")

NASTY = ["a,b", 'say "hi"', "two\nlines", "\N{GRINNING FACE}", "<b>&", "x" * 10_000, " ", "it's", "nul"]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "events.csv")


def test_rows_are_counted(csv: Path) -> None:
    tensor = sparse(read(csv, keys=["who", "what", "hour(t)"]))
    assert tensor.shape == (2, 2, 24)
    assert entries(tensor) == {("a", 3, 7): 1, ("b", 1, 5): 1, ("b", 3, 5): 3}
    assert tensor.labels is not None
    assert tensor.labels.names == ("who", "what", "hour(t)")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("cost", {("a", 3): 2, ("b", 1): 4, ("b", 3): 1}),
        ("what", {("a", 3): 3, ("b", 1): 1, ("b", 3): 9}),
        ("2 * cost", {("a", 3): 4, ("b", 1): 8, ("b", 3): 2}),
        ("sum(cost)", {("a", 3): 2, ("b", 1): 4, ("b", 3): 1}),
        ("max(cost)", {("a", 3): 2, ("b", 1): 4, ("b", 3): 1.5}),
        ("avg(what) + count(*)", {("a", 3): 4, ("b", 1): 2, ("b", 3): 6}),
        ("count(DISTINCT t)", {("a", 3): 1, ("b", 1): 1, ("b", 3): 3}),
        ("Count( * )", {("a", 3): 1, ("b", 1): 1, ("b", 3): 3}),
        ("cost > 0", {("a", 3): 1, ("b", 1): 1, ("b", 3): 2}),
        ("cost::DECIMAL(9, 2)", {("a", 3): 2, ("b", 1): 4, ("b", 3): 1}),
    ],
)
@pytest.mark.parametrize("fewer", [0, 4])
@pytest.mark.in_turn
def test_values(csv: Path, value: str, expected: dict[Any, float], fewer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ROWS_PER_CELL", fewer)  # 0: DuckDB always adds up where it may
    assert entries(sparse(read(csv, keys=["who", "what"], value=value))) == expected


def test_names_of_columns_that_hold_text_alone(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "events.csv", [("a", "x"), ("b", "y"), ("a", "y")], "who,what")
    assert sparse(read(path, keys=["who", "what"])).values.sum() == 3
    path.write_text("a,x\nb,y\n")
    assert sparse(read(path, keys=["column0", "upper(column1)"])).shape == (2, 2)


def test_words_of_sql_are_names_of_columns(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "events.csv", [("a", 1, 2, True)], "user,order,the sum,at")
    tensor = sparse(read(path, keys=["user", "Order"], value="the sum", where="at"))
    assert entries(tensor) == {("a", 1): 2}


def test_a_condition(csv: Path) -> None:
    tensor = sparse(read(csv, keys=["who", "what"], where="cost > 1 -- euros"))
    assert entries(tensor) == {("a", 3): 1, ("b", 1): 1, ("b", 3): 1}


def test_empty_bins_have_rows(csv: Path) -> None:
    tensor = sparse(read(csv, keys=["who", "date_trunc('day', t)", "hour(t)"]))
    assert tensor.shape == (2, 3, 24)
    assert tensor.labels is not None
    assert [str(day) for day in tensor.labels[1]] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    second = tensor.indices[tensor.indices[:, 1] == 1]
    assert not second.size


@pytest.mark.parametrize(
    ("key", "labels"),
    [
        ("what::TINYINT", [1, 3]),
        ("what::UBIGINT", [1, 3]),
        ("what::HUGEINT", [1, 3]),
        ("cost::FLOAT", [-1.0, 0.5, 1.5, 2.0, 4.0]),
        ("cost::DECIMAL(5, 1)", [-1.0, 0.5, 1.5, 2.0, 4.0]),
        ("what > 2", [False, True]),
        ("t::DATE", [datetime.date(2026, 1, day) for day in (1, 2, 3)]),
        ("t", [datetime.datetime.fromisoformat(row[2]) for row in sorted(EVENTS, key=lambda row: row[2])]),
        (
            "t + INTERVAL '1 microsecond'",
            [
                datetime.datetime.fromisoformat(row[2]) + datetime.timedelta(microseconds=1)
                for row in sorted(EVENTS, key=lambda row: row[2])
            ],
        ),
        ("t::TIME", [datetime.timedelta(hours=h, minutes=m) for h, m in ((5, 0), (5, 30), (5, 31), (5, 59), (7, 0))]),
        ("t::TIMESTAMPTZ::DATE", [datetime.date(2026, 1, day) for day in (1, 2, 3)]),
        ("to_hours(what)", [datetime.timedelta(hours=h) for h in (1, 2, 3)]),
        ("who::ENUM('b', 'a')", ["b", "a"]),
        ("([what])::VARCHAR", ["[1]", "[3]"]),
        ("dayname(t)", "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()),
        ("upper(who)", ["A", "B"]),
        ("round(cost)", [-1, 0, 2, 4]),
        ("who || ',' || what", ["a,3", "b,1", "b,3"]),
    ],
)
def test_kinds_of_labels(csv: Path, key: str, labels: list[Any]) -> None:
    tensor = sparse(read(csv, keys=[key, "who"]))
    assert tensor.labels is not None
    found = tensor.labels[0].tolist()
    if key == "round(cost)":
        assert found == [-1.0, 0.0, 2.0, 4.0] or found == [-1.0, 1.0, 2.0, 4.0]
    else:
        assert found == labels
    assert tensor.values.sum() == len(EVENTS)


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "csv.zst", "json", "parquet", "jsonl.gz"])
def test_kinds_of_files(tmp_path: Path, ending: str, csv: Path) -> None:
    path = tmp_path / f"copy.{ending}"
    whole = f"FROM '{csv}'"
    form = {"csv": "csv", "tsv": "csv", "json": "json", "jsonl": "json", "parquet": "parquet"}[ending.split(".")[0]]
    packed = {"gz": ", compression gzip", "zst": ", compression zstd"}.get(ending.split(".")[-1], "")
    tabs = ", delimiter '\t'" if ending == "tsv" else ""
    duckdb.connect().execute(f"COPY ({whole}) TO '{path}' (FORMAT {form}{packed}{tabs})").fetchall()
    expected = entries(sparse(read(csv, keys=["who", "what", "hour(t)"])))
    assert entries(sparse(read(path, keys=["who", "what", "hour(t::TIMESTAMP)"]))) == expected


def test_several_files_are_one_table(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", EVENTS[:2])
    write_csv(tmp_path / "b.csv", [row[::-1] for row in EVENTS[2:]], "cost,t,what,who")
    form = ReadOptions(key=("who", "what"), more=(str(tmp_path / "b.csv"),))
    store = partition(tmp_path / "a.csv", tmp_path / "store", form=form)
    assert entries(store.tensor()) == {("a", 3): 1, ("b", 1): 1, ("b", 3): 3}


@pytest.mark.parametrize("missing", ["drop", "keep"])
def test_missing_keys(tmp_path: Path, missing: str) -> None:
    rows = [("a", 1, 1.5), (None, 1, 2.5), ("a", None, 3.5), (None, None, "nan"), ("b", 2, None)]
    path = write_csv(tmp_path / "events.csv", rows, "who,what,cost")
    if missing == "drop":
        with pytest.warns(InputWarning, match="3 of 5 rows are dropped: 2 without who, 2 without what; missing='keep'"):
            tensor = sparse(read(path, keys=["who", "what"]))
        assert entries(tensor) == {("a", 1): 1, ("b", 2): 1}
        return
    tensor = sparse(read(path, keys=["who", "what"], missing="keep"))
    assert tensor.labels is not None
    assert tensor.labels[0].tolist() == ["a", "b", None]
    assert np.array_equal(tensor.labels[1], [1, 2, np.nan], equal_nan=True)
    assert tensor.columns.T.tolist() == [[0, 0], [0, 2], [1, 1], [2, 0], [2, 2]]
    with pytest.warns(InputWarning, match="2 of 5 rows are dropped: 2 without cost"):
        tensor = sparse(read(path, keys=["who", "what"], value="cost", missing="keep"))
    assert tensor.values.tolist() == [1.5, 3.5, 2.5]


def test_rows_may_be_counted_by_name(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "events.csv", [("a", 1), (None, 1)], "who,what")
    with pytest.warns(InputWarning, match="1 of 2 rows"):
        assert entries(sparse(read(path, keys=["who", "what"], value="count(*)"))) == {("a", 1): 1}


def test_more_labels_than_memory_has_room_for(csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Database.run

    def short(database: Database, sql: str) -> list[tuple[Any, ...]]:
        if "list(DISTINCT" in sql:
            raise duckdb.OutOfMemoryException("could not allocate")
        return run(database, sql)

    expected = entries(sparse(read(csv, keys=["who", "what"])))
    monkeypatch.setattr(Database, "run", short)
    assert entries(sparse(read(csv, keys=["who", "what"]))) == expected


def test_labels_of_rows_that_are_left_out_are_no_labels(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "events.csv", [("a", 1), ("gone", None), ("b", 2)], "who,what")
    with pytest.warns(InputWarning):
        tensor = sparse(read(path, keys=["who", "what"]))
    assert tensor.labels is not None
    assert tensor.labels[0].tolist() == ["a", "b"]


def test_nan_is_a_missing_key(tmp_path: Path) -> None:
    frame = pyarrow.table({"x": [1.0, float("nan"), 2.0, None], "y": [1, 1, 1, 1]})
    part = TablePart(frame, ReadOptions(key=("x", "y"), missing="keep"))
    assert part.lengths == (3, 1)
    assert np.isnan(part.outcome.labels[0][-1])  # type: ignore[index]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_any_text_is_a_label(tmp_path: Path, ending: str) -> None:
    path = write_csv(tmp_path / "events.csv", [(text, k % 2) for k, text in enumerate(NASTY)], "text,k")
    if ending == "parquet":
        path = tmp_path / "events.parquet"
        columns = {"text": NASTY, "k": [k % 2 for k in range(len(NASTY))]}
        duckdb.from_arrow(pyarrow.table(columns)).write_parquet(str(path))
    tensor = sparse(read(path, keys=["text", "k"]))
    assert tensor.labels is not None
    assert tensor.labels[0].tolist() == sorted(NASTY)
    store = partition(path, tmp_path / "store", form=ReadOptions(key=("text", "k")))
    labels = store.labels()
    assert labels is not None
    assert labels[0].tolist() == sorted(NASTY)


@pytest.mark.parametrize(
    "name", ["it's'; DROP TABLE x; --.csv", "a[1]*?.csv", "per%cent.csv", "-.csv", "\N{SNOWMAN}.csv"]
)
def test_any_file_name_is_a_name(tmp_path: Path, name: str) -> None:
    write_csv(tmp_path / "a1x.csv", [("other", 9)], "who,what")  # what a pattern would find
    path = write_csv(tmp_path / name)
    assert sparse(read(path, keys=["who", "what"])).shape == (2, 2)


def many(path: Path, rows: int = 5000) -> Path:
    """Write a table with few equal rows, and some missing keys."""
    random = np.random.default_rng(0)
    columns = {
        "user": [None if k % 100 == 7 else f"u{k}" for k in random.integers(0, 200, rows).tolist()],
        "host": [f"h{k}" for k in random.integers(0, 90, rows).tolist()],
        "day": np.datetime64("2026-01-01") + random.integers(0, 30, rows),
    }
    duckdb.from_arrow(pyarrow.table(columns)).write_parquet(str(path))
    return path


@pytest.mark.parametrize("missing", ["drop", "keep"])
@pytest.mark.filterwarnings("ignore::partitioner.errors.InputWarning")
def test_every_way_makes_the_same_store(tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = many(tmp_path / "events.parquet")
    form = ReadOptions(key=("user", "host", "day"), missing=missing)
    first = partition(path, tmp_path / "packed", form=form)
    monkeypatch.setattr(packed, "BITS", 3)
    partition(path, tmp_path / "columns", form=form)
    partition(path, tmp_path / "summed", form=ReadOptions(key=form.key, missing=missing, value="1::DOUBLE"))
    monkeypatch.setattr("partitioner.build.LEAST", 500)
    partition(path, tmp_path / "spilled", form=form, memory=1)
    for other in ("columns", "spilled"):
        assert files_of(tmp_path / other) == files_of(tmp_path / "packed")
    summed, packed_files = files_of(tmp_path / "summed"), files_of(tmp_path / "packed")
    for files, value in ((summed, "1::DOUBLE"), (packed_files, None)):
        assert json.loads(files.pop("manifest.json"))["labels"]["query"] == [value, None, missing]
    assert summed == packed_files
    tensor = sparse(read(path, keys=form.key, missing=missing))
    assert np.array_equal(tensor.columns, first.tensor().columns)
    assert np.array_equal(tensor.values, first.tensor().values)
    assert sorted(os.listdir(tmp_path)) == ["columns", "events.parquet", "packed", "spilled", "summed"]


@pytest.mark.parametrize("value", ["day(day) * 2 - 7", exhaustive("day(day) / 7"), "avg(day(day))"])
@pytest.mark.filterwarnings("ignore::partitioner.errors.InputWarning")
def test_every_way_sums_the_same(tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = many(tmp_path / "events.parquet")
    form = ReadOptions(key=("user", "host", "day"), value=value)
    made: list[int] = []
    write = packed.PackedTensor.write
    write_noted = lambda self, *how: (made.append(self.keys.size), write(self, *how))  # noqa: E731
    monkeypatch.setattr(packed.PackedTensor, "write", write_noted)
    first = partition(path, tmp_path / "packed", form=form)
    assert made == [first.nnz]
    monkeypatch.setattr("partitioner.readers.tables.table.HALF", 1)
    partition(path, tmp_path / "columns", form=form)
    assert made == [first.nnz]
    assert files_of(tmp_path / "columns") == files_of(tmp_path / "packed")
    tensor = sparse(read(path, keys=form.key, value=value))
    assert np.array_equal(tensor.columns, first.tensor().columns)
    assert np.array_equal(tensor.values, first.tensor().values)
    faulty = ReadOptions(key=form.key, value="CASE WHEN day(day) = 3 THEN 'inf'::DOUBLE ELSE 1 END")
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"value .*: a value is not finite"):
        partition(path, tmp_path / "none", form=faulty)
    with pytest.raises(InputError, match=r"events\.parquet: .*every value is zero"):
        partition(path, tmp_path / "none", form=ReadOptions(key=form.key, value="0"))
    assert not (tmp_path / "none").exists()


def test_packed_counts_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    write = packed.PackedTensor.write
    write_noted = lambda self, *how: (made.append(self.keys.size), write(self, *how))  # noqa: E731
    monkeypatch.setattr(packed.PackedTensor, "write", write_noted)
    path = many(tmp_path / "events.parquet")
    with pytest.warns(InputWarning):
        store = partition(path, tmp_path / "store", form=ReadOptions(key=("user", "host", "day")))
    assert made == [store.nnz]
    partition(path, tmp_path / "compact", form=ReadOptions(key=("user", "host", "day"), missing="keep", compact=True))
    assert len(made) == 1


def test_compact_leaves_out_empty_bins(tmp_path: Path, csv: Path) -> None:
    keys = ["who", "hour(t)"]
    stored = partition(csv, tmp_path / "store", form=ReadOptions(key=tuple(keys), compact=True)).tensor()
    for tensor in (stored, sparse(read(csv, keys=keys, compact=True))):
        assert tensor.shape == (2, 2)
        assert tensor.labels is not None
        assert tensor.labels[1].tolist() == [5, 7]
        assert tensor.labels.names == tuple(keys)


@pytest.mark.parametrize("ending", ["parquet", "csv", "csv.gz"])
def test_progress_tells_rows(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partitioner.readers.tables.database.INTERVAL", 0.001)
    told: list[tuple[int, int | None]] = []
    path = many(tmp_path / "events.parquet")
    if ending != "parquet":
        path = tmp_path / f"events.{ending}"
        duckdb.connect().execute(f"COPY (FROM '{tmp_path / 'events.parquet'}') TO '{path}'").fetchall()
    read(path, keys=["host", "day"], progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, None)
    assert told[-1] == (5000, 5000)
    assert all(0 <= done <= (total or 0) for done, total in told)
    totals = [total for _, total in told[1:] if total is not None]
    assert all(abs(total - 5000) < 500 for total in totals)


def test_what_is_spilled_is_removed(tmp_path: Path, csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    read(csv, keys=["who", "what"])
    for keys in (["nothing", "what"], ["who", "who::INT"]):
        with pytest.raises(InputError):
            read(csv, keys=keys)
    assert not os.listdir(tmp_path / "scratch")


def test_nothing_is_imported_for_other_files(tmp_path: Path) -> None:
    (tmp_path / "x.tns").write_text("1 1 1\n2 2 2\n")
    script = (
        "import sys, amped; amped.read('x.tns'); "
        "assert not {'duckdb', 'pyarrow', 'pandas', 'polars'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )


def test_without_duckdb_it_says_what_to_install(csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(InputError, match=r"pip install 'amped\[tables\]'"):
        read(csv, keys=["who", "what"])


NOTEBOOK = """
import sys, types
python = types.ModuleType("IPython")
python.get_ipython = lambda: types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules |= {"IPython": python, "ipykernel": types.ModuleType("ipykernel"), "ipywidgets": None}
from partitioner.readers import read
print(read(FILE, keys=["who", "what"]).nnz)
"""


def test_a_notebook_needs_no_widgets(csv: Path) -> None:
    """In a kernel of Jupyter's DuckDB refuses to look at progress where it cannot draw a bar."""
    source = NOTEBOOK.replace("FILE", repr(os.fspath(csv)))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
