"""Faulty tables and invalid requests: one line of error."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from events import sparse, write_csv

from partitioner.build import partition
from partitioner.errors import InputError, InputWarning
from partitioner.readers import ReadOptions, read, read_frame, read_sparse
from partitioner.readers.tables import table
from partitioner.readers.tables.database import LEAST, Database

duckdb = pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "events.csv")


def test_sql_sees_the_table_alone(tmp_path: Path, csv: Path) -> None:
    secret = write_csv(tmp_path / "secret.csv")
    seen_by_python = pyarrow.table({"x": [1]})  # noqa: F841
    for key in (
        f"(SELECT max(who) FROM '{secret}')",
        f"(SELECT content FROM read_text('{secret}'))",
        "(SELECT max(x) FROM seen_by_python)",
        "(SELECT 1 FROM 'https://example.org/a.csv')",
    ):
        with pytest.raises(InputError, match="key"):
            read(csv, keys=["who", key])
    with Database(None, 1) as database:
        database.allow([csv])
        for statement in ("INSTALL httpfs", "LOAD httpfs", f"COPY (SELECT 1) TO '{tmp_path / 'out.csv'}'"):
            with pytest.raises(duckdb.Error):
                database.run(statement)
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"keys": ["whoo", "what"]}, "key 'whoo': no column whoo; nearest: who"),
        ({"keys": ["hour(nothing_like_it)", "what"]}, "no column nothing_like_it; columns: who, what, t, cost"),
        ({"keys": ["hour(t", "what"]}, r"key 'hour\(t': syntax error"),
        ({"keys": ["hour(who)", "what"]}, r"key 'hour\(who\)': hour\(\) takes no text"),
        ({"keys": ["who::INT", "what"]}, "Could not convert string"),
        ({"keys": ["who, what", "what", "x; SELECT 1"]}, "syntax error"),
        ({"keys": ["who) FROM events WHERE (true", "what"]}, "expected one expression"),
        ({"keys": ["*", "what"]}, "expected one column"),
        ({"keys": ["count(*)", "what"]}, "key 'count"),
        ({"keys": ["who", "  "]}, "keys: an empty expression"),
        ({"keys": ["who + what", "what"]}, r"type casts\.$"),
        ({"keys": ["who"]}, "1 key: a tensor has 2 to 8 modes"),
        ({"keys": ["who"] * 9}, "9 keys: a tensor has 2 to 8 modes"),
        ({}, r"a table: amped.read\(path, keys=\[...\]\) or from_frame"),
        ({"keys": ["[what]", "who"]}, r"key '\[what\]': is BIGINT\[\]: a key must be a single value"),
        ({"keys": ["range(1000000000)", "who"]}, r"is BIGINT\[\]"),
        ({"keys": ["repeat(who, 2000000)", "what"]}, "a label of more than 1,048,576 bytes"),
        ({"keys": ["{'a': what}", "who"]}, "is STRUCT"),
        ({"keys": ["MAP {'a': what}", "who"]}, "is MAP"),
        ({"keys": ["18446744073709551615 + what", "who"]}, "a number needs more than 64 bits: use .*::VARCHAR"),
        ({"keys": ["who", "what"], "value": "who"}, "value 'who': has type text, expected a number"),
        ({"keys": ["who", "what"], "value": "t"}, "value 't': has type TIMESTAMP, expected a number"),
        ({"keys": ["who", "what"], "value": "costs"}, "value 'costs': no column costs; nearest: cost"),
        ({"keys": ["who", "what"], "value": "cost / 0"}, "a value is not finite"),
        ({"keys": ["who", "what"], "value": "sum(cost) / 0"}, "a value is not finite"),
        ({"keys": ["who", "what"], "value": "NULL::INT"}, "no row has a value: NULL::INT is missing in all 5"),
        ({"keys": ["who", "what"], "value": "0"}, "every value is zero"),
        ({"keys": ["who", "what"], "where": "cost > 99"}, "no row satisfies cost > 99"),
        ({"keys": ["who", "what"], "where": "cots > 1"}, "where 'cots > 1': no column cots; nearest: cost"),
        ({"keys": ["who", "what"], "where": "cost >"}, "where 'cost >': syntax error"),
        ({"keys": ["NULL::INT", "what"]}, "no row has all its keys: of 5, 5 without NULL::INT"),
        ({"keys": ["who", "what"], "no_values": True}, "no_values does not apply to tables"),
        ({"keys": ["who", "what"], "index_base": 0}, "index_base does not apply to tables"),
        ({"keys": ["who", "what"], "dense": True}, "dense does not apply to tables"),
        ({"keys": ["who", "what"], "shape": (9, 9)}, "shape does not apply to tables"),
        ({"keys": ["who", "what"], "missing": "ignore"}, "missing 'ignore': expected 'drop' or 'keep'"),
    ],
)
def test_what_is_wrong_is_said(csv: Path, how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read(csv, **how)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"), [("", "events.csv"), ("who,what,t,cost\n", "no rows"), ("who\n\0\x01\xff\n", "events.csv")]
)
def test_files_that_are_no_tables(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "events.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read(path, keys=["who", "what"])
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.csv", keys=["who", "what"])
    damaged = tmp_path / "events.parquet"
    damaged.write_bytes(b"PAR1" + bytes(99))
    with pytest.raises(InputError, match=r"events\.parquet"):
        read(damaged, keys=["who", "what"])


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.json", "t.parquet", "t.csv.gz"])
def test_empty_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=rf"{re.escape(name)}: the file is empty"):
        read(tmp_path / name, keys=["a", "b"])


def test_keys_are_for_tables(tmp_path: Path, csv: Path) -> None:
    store = partition(csv, tmp_path / "store", form=ReadOptions(key=("who", "what"))).path
    np.savez(tmp_path / "x.npz", indices=[[0, 0]], values=[1.0])
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    for path in (store, tmp_path / "x.npz", tmp_path / "x.npy"):
        with pytest.raises(InputError, match="a tensor, not a table"):
            read(path, keys=["who", "what"])


def test_a_file_of_another_name_is_a_table_where_it_has_keys(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "events.log")
    assert sparse(read(path, keys=["who", "what"])).shape == (2, 2)


def test_decimals_are_doubles_if_these_keep_all_digits() -> None:
    numbers = ["0.1", "1234567.89", "-2", None], ["12345678901234567890.1", "12345678901234567890.2", "1", "2"]
    few, many = (
        pyarrow.array([each and Decimal(each) for each in some], pyarrow.decimal128(38, 10)) for some in numbers
    )
    frame = pyarrow.table({"few": few, "many": many})
    labels = read_frame(frame, ReadOptions(key=("few", "many::VARCHAR"), missing="keep")).labels
    assert labels is not None
    assert labels[0].tolist()[:3] == [-2, 0.1, 1234567.89]
    assert len(labels[1]) == 4
    with pytest.raises(InputError, match=r"key 'many': a number has more digits than a double: use .*::VARCHAR"):
        read_frame(frame, ReadOptions(key=("few", "many")))


def test_no_option_is_named_that_there_is_not(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "events.csv", [("a", 1)] * 21_000 + [("b", 2, 3)], "who,what")
    with pytest.raises(InputError, match=r"line 21002 has 3 fields, expected 2: correct it$"):
        read(path, keys=["who", "what"])


def test_an_identifier_is_told_of(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "events.csv", [(f"id{k}", k % 2) for k in range(50)], "id,what")
    with pytest.warns(InputWarning, match="key 'id' has a different label in each of 50 rows: it may be an"):
        read(path, keys=["id", "what"])


def test_too_many_labels(csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_MODE_LENGTH", 2)
    with pytest.raises(InputError, match="key 't': 5 labels, a mode has at most 2"):
        read(csv, keys=["t", "what"])


def change(path: Path, column: str, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overwrite a table once its labels are known."""
    other = table.TablePart._take_labels

    def take(part: table.TablePart, *arguments: Any) -> None:
        other(part, *arguments)
        duckdb.from_arrow(pyarrow.table({"who": ["a", after], "what": [1, 2]})).write_parquet(str(path))

    monkeypatch.setattr(table.TablePart, "_take_labels", take)


@pytest.mark.parametrize("after", ["b", "c"])
@pytest.mark.parametrize("to_store", [False, True])
def test_a_table_that_changes_is_told_of(
    tmp_path: Path, after: str, to_store: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.parquet"
    duckdb.from_arrow(pyarrow.table({"who": ["a", "b"], "what": [1, 2]})).write_parquet(str(path))
    change(path, "who", after, monkeypatch)
    form = ReadOptions(key=("who", "what"))
    with pytest.raises(InputError, match=r"events\.parquet.*(changed while it was read|[Ee]rror)"):
        partition(path, tmp_path / "store", form=form) if to_store else read(path, keys=form.key)
    assert not (tmp_path / "store").exists()


def test_the_limit_of_memory_has_a_remedy() -> None:
    message = r"^needs more memory .* --memory BYTES\)$"
    with Database(LEAST, 1) as database, pytest.raises(InputError, match=message), database.naming(None):
        database.run("CREATE TEMP TABLE t AS SELECT lpad('x', 100000000, 'y') || i FROM range(9) AS r(i)")


def test_a_narrow_first_line_of_a_second_file_is_named(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text("k,v\na,1\n")
    second.write_text("Title\nk,v\na,1\nb,2\n")
    with pytest.raises(InputError, match=r"b\.csv, line 1: has fewer fields .*\(Title\)"):
        read_sparse(first, ReadOptions(key=("k", "v"), more=(str(second),)))
