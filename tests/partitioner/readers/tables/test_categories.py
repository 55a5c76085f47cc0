"""Ordered categories: labels have their order, whichever library or file they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partitioner.readers import ReadOptions, read_frame, read_sparse
from partitioner.readers.tables.categories import merged, of_parquet

duckdb = pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

ORDER = ["low", "mid", "high", "never"]
VALUES, OTHERS = ["high", "low", None, "mid", "high"], list("xyxzy")
CODES = pyarrow.array([2, 0, None, 1, 2], pyarrow.int8())
FORM = ReadOptions(key=("a", "b"), missing="keep")


def categorical(ordered: bool = True) -> Any:
    return pandas.Categorical(VALUES, categories=ORDER, ordered=ordered)


def arrow(ordered: bool = True, order: Sequence[Any] = ORDER) -> Any:
    return pyarrow.table({"a": pyarrow.DictionaryArray.from_arrays(CODES, list(order), ordered=ordered), "b": OTHERS})


def enum(kind: str = "DataFrame") -> Any:
    return getattr(polars, kind)({"a": polars.Series(VALUES, dtype=polars.Enum(ORDER)), "b": OTHERS})


def relation() -> Any:
    values = ", ".join(f"({f'{a!r}' if a else 'NULL'}, {b!r})" for a, b in zip(VALUES, OTHERS, strict=True))
    kind = ", ".join(map(repr, ORDER))
    return duckdb.connect().sql(f"SELECT CAST(a AS ENUM({kind})) AS a, b FROM (VALUES {values}) AS t(a, b)")


class Stream:
    """What any library's table may be."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def dictionary_of_pandas() -> Any:
    kind = pandas.ArrowDtype(arrow().schema.field("a").type)
    return pandas.DataFrame({"a": pandas.array(arrow()["a"].combine_chunks(), dtype=kind), "b": OTHERS})


FRAMES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pandas.DataFrame({"a": categorical(), "b": OTHERS}),
    "pandas, without an order": lambda: pandas.DataFrame({"a": categorical(False), "b": OTHERS}),
    "an index of pandas": lambda: pandas.DataFrame({"b": OTHERS}, pandas.CategoricalIndex(categorical(), name="a")),
    "pandas, of Arrow's": dictionary_of_pandas,
    "Polars": enum,
    "Polars, lazy": lambda: enum("LazyFrame"),
    "Arrow": arrow,
    "Arrow, as it comes": lambda: arrow().to_reader(2),
    "another library": lambda: Stream(arrow()),
    "DuckDB": relation,
}


def labels(tensor: Any) -> list[Any]:
    assert tensor.labels is not None
    return list(tensor.labels[0].tolist())


@pytest.mark.filterwarnings("ignore::partitioner.errors.InputWarning")
@pytest.mark.parametrize("kind", FRAMES)
def test_frames(kind: str) -> None:
    tensor = read_frame(FRAMES[kind](), FORM)
    assert labels(tensor) == ["low", "mid", "high", None]
    assert tensor.columns[0].tolist() == [0, 1, 2, 2, 3]
    assert labels(read_frame(FRAMES[kind](), ReadOptions(key=("a", "b"), where="a <> 'low'"))) == ["mid", "high"]
    assert labels(read_frame(FRAMES[kind](), ReadOptions(key=("upper(a)", "b")))) == ["HIGH", "LOW", "MID"]


def write(kind: str, path: Path) -> None:
    if kind == "pandas":
        pandas.DataFrame({"a": categorical(), "b": OTHERS}).to_parquet(path)
    elif kind == "Polars":
        enum().write_parquet(path)
    else:
        parquet.write_table(pyarrow.concat_tables([arrow(), arrow()]), path, row_group_size=3)


@pytest.mark.parametrize("kind", ["pandas", "Polars", "Arrow"])
def test_parquet(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path / "a.parquet")
    assert labels(read_sparse(tmp_path / "a.parquet", FORM)) == ["low", "mid", "high", None]


def test_feather(tmp_path: Path) -> None:
    feather.write_feather(arrow(), tmp_path / "a.feather")
    assert labels(read_sparse(tmp_path / "a.feather", FORM)) == ["low", "mid", "high", None]


def test_without_an_order_labels_are_alphabetical(tmp_path: Path) -> None:
    parquet.write_table(arrow(ordered=False), tmp_path / "a.parquet")
    parquet.write_table(arrow(), tmp_path / "b.parquet", use_dictionary=False)  # the order is not in the file
    for name in "ab":
        assert labels(read_sparse(tmp_path / f"{name}.parquet", FORM)) == ["high", "low", "mid", None]
    assert labels(read_frame(arrow(ordered=False), FORM)) == ["high", "low", "mid", None]


def of(values: Any, codes: Sequence[int], name: str = "a") -> Any:
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array(codes, pyarrow.int8()), values, ordered=True)
    return pyarrow.table({name: column, "b": ["x"] * len(codes)})


@pytest.mark.parametrize(("other", "wanted"), [
    (of(["q", "c"], [1, 0], "A"), ["z", "a", "q", "c"]),  # an order that both have; case is ignored, as in SQL
    (of(["q", "a"], [1, 0]), ["a", "q", "z"]),  # they contradict each other
    (of([3, 1, 2], [0, 1, 2]), ["z", "a", "q", "1", "2", "3"]),  # of another type
    (pyarrow.table({"a": ["q", "zz", "b"], "b": OTHERS[:3]}), ["z", "a", "q", "b", "zz"]),  # others come last
])  # fmt: skip
def test_several_files(tmp_path: Path, other: Any, wanted: list[str]) -> None:
    parquet.write_table(of(["z", "a", "q"], [2, 1, 0]), tmp_path / "a.parquet")
    parquet.write_table(other, tmp_path / "b.parquet")
    form = ReadOptions(key=("a", "b"), more=(str(tmp_path / "b.parquet"),))
    assert labels(read_sparse(tmp_path / "a.parquet", form)) == wanted


def test_parquet_with_columns_of_similar_names_and_groups_without_values(tmp_path: Path) -> None:
    column = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([None, None, 0, 1, 2], pyarrow.int8()), ["z", "a", "q"], ordered=True
    )
    table = pyarrow.table({"a.c": list("54321"), "a": column, "b": OTHERS})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    assert labels(read_sparse(tmp_path / "a.parquet", FORM)) == ["z", "a", "q", None]


def test_parquet_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(of(["z", "a"], [0, 1] * 50_000), tmp_path / "a.parquet", row_group_size=10_000)
    rows = []
    whole = parquet.ParquetFile.iter_batches

    def counted(file: Any, *arguments: Any, **options: Any) -> Any:
        for batch in whole(file, *arguments, **options):
            rows.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
    assert of_parquet([tmp_path / "a.parquet"], "a")[0].to_pylist() == ["z", "a"]
    assert rows == [1] * 10


@pytest.mark.parametrize(("values", "wanted"), [
    (["z", "a", "z"], ["z", "a"]),  # a category twice
    (["z", None, "a"], ["z", "a"]),
    ([b"z", b"m", b"a"], ["z", "m", "a"]),
    ([3.0, float("nan"), 2.0], [3.0, 2.0]),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::partitioner.errors.InputWarning")
def test_dictionaries_of_arrow(values: list[Any], wanted: list[Any]) -> None:
    assert labels(read_frame(of(pyarrow.array(values), [2, 1, 0, 0]), ReadOptions(key=("a", "b")))) == wanted


@pytest.mark.parametrize("name", ["place", "label", 'a "b" .c'])
def test_any_name_of_a_column(name: str) -> None:
    assert labels(read_frame(of(["z", "a", "q"], [2, 1, 0], name), ReadOptions(key=(name, "b")))) == ["z", "a", "q"]


def test_chunks_with_other_dictionaries() -> None:
    table = pyarrow.concat_tables([of(["z", "q"], [1, 0]), of(["q", "a"], [1, 0])])
    assert labels(read_frame(table, ReadOptions(key=("a", "b")))) == ["z", "q", "a"]


def test_orders_that_contradict_each_other_are_none() -> None:
    assert merged([]) is None
    assert merged([pyarrow.array(["b", "a"]), pyarrow.array(["a", "b"])]) is None
    assert merged([pyarrow.array(["c", "b"]), pyarrow.array(["b", "a"])]).to_pylist() == ["c", "b", "a"]


@pytest.mark.filterwarnings("ignore::partitioner.errors.InputWarning")
@pytest.mark.parametrize("order", [[30, 10, 20], [2.5, 0.5, 1.5], [True, False], ["10", "9", "8"]])
def test_categories_that_are_no_words(order: list[Any]) -> None:
    frame = pandas.DataFrame({
        "a": pandas.Categorical([*order, None], categories=order, ordered=True), "b": ["x"] * (len(order) + 1),
    })  # fmt: skip
    found = labels(read_frame(frame, ReadOptions(key=("a", "b"))))
    assert found == order
    kept = labels(read_frame(frame, FORM))
    assert [each for each in kept if each == each and each is not None] == [
        str(each) if isinstance(each, bool) else each for each in order
    ]


def test_dates_and_objects_of_several_types_keep_their_own_order() -> None:
    days = pandas.to_datetime(["2024-03-01", "2024-01-01"])
    frame = pandas.DataFrame({"a": pandas.Categorical(days, categories=days, ordered=True), "b": ["x", "y"]})
    found = read_frame(frame, ReadOptions(key=("a", "b"))).labels
    assert found is not None
    assert np.all(found[0][1:] > found[0][:-1]), "time bins"
    mixed = pandas.Categorical([1, "x"], categories=["x", 1], ordered=True)
    assert labels(read_frame(pandas.DataFrame({"a": mixed, "b": ["x", "y"]}), ReadOptions(key=("a", "b")))) == [
        "x",
        "1",
    ]
