"""Tables in memory: columns that are not used do no harm, and an index has columns, too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import amped
from partitioner.errors import InputError, InputWarning
from partitioner.readers import ReadOptions, read_frame
from partitioner.tensors.sparse import SparseTensor

pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

BASE: dict[str, Any] = {"a": ["x", "y"], "b": ["u", "v"]}


def union() -> Any:
    kinds, offsets = pyarrow.array([0, 1], pyarrow.int8()), pyarrow.array([0, 0], pyarrow.int32())
    return pyarrow.UnionArray.from_dense(kinds, offsets, [pyarrow.array([1]), pyarrow.array(["a"])])


FOREIGN: dict[str, Callable[[], Any]] = {
    "interval": lambda: pandas.DataFrame({**BASE, "z": pandas.interval_range(0, 2)}),
    "period": lambda: pandas.DataFrame({**BASE, "z": pandas.period_range("2024-01", periods=2, freq="M")}),
    "complex": lambda: pandas.DataFrame({**BASE, "z": np.array([1j, 2j])}),
    "Sparse": lambda: pandas.DataFrame({**BASE, "z": pandas.arrays.SparseArray([0, 1])}),
    "Object": lambda: polars.DataFrame({**BASE, "z": polars.Series([object(), object()], dtype=polars.Object)}),
    "Int128": lambda: polars.DataFrame({**BASE, "z": polars.Series([1, 2], dtype=polars.Int128)}),
    "dense_union": lambda: pyarrow.table({**BASE, "z": union()}),
    "halffloat": lambda: pyarrow.table({**BASE, "z": np.array([1, 2], np.float16)}),
    "Union": lambda: pyarrow.table({**BASE, "z": union()}).to_reader(),
}


def labels(tensor: SparseTensor) -> list[list[Any]]:
    assert tensor.labels is not None
    return [each.tolist() for each in tensor.labels]


@pytest.mark.parametrize("kind", FOREIGN)
def test_columns_of_types_that_duckdb_does_not_know(kind: str) -> None:
    tensor = read_frame(FOREIGN[kind](), ReadOptions(key=("a", "upper(b)")))
    assert labels(tensor) == [["x", "y"], ["U", "V"]]
    with pytest.raises(InputError, match=kind) as error:
        read_frame(FOREIGN[kind](), ReadOptions(key=("a", "z")))
    assert "\n" not in str(error.value)
    assert kind == "Union" or "the table: column z is of type" in str(error.value)
    with pytest.raises(InputError, match="key 'zz': no column zz; nearest: z"):
        read_frame(FOREIGN[kind](), ReadOptions(key=("a", "zz")))


def test_functions_that_take_no_text() -> None:
    """DuckDB finds times in the text of a file, but not in that of a frame."""
    frame = pandas.DataFrame({"a": ["x", "y"], "t": ["2024-01-01 05:00", "2024-01-02 06:00"]})
    with pytest.raises(InputError, match=r"hour\(\) takes no text: convert the column, as in column::TIMESTAMP"):
        amped.from_frame(frame, ["a", "t", "hour(t)"])
    assert amped.from_frame(frame, ["a", "t", "hour(t::TIMESTAMP)"]).shape == (2, 2, 24)


def test_objects_of_several_types() -> None:
    frame = pandas.DataFrame({**BASE, "z": pandas.Series([1, "b"], dtype=object), "d": [{"p": 1}, {"q": 2}]})
    read_frame(frame, ReadOptions(key=("a", "b")))
    with pytest.warns(
        InputWarning, match="the table: column z holds values of several types, which are converted to text"
    ):
        assert labels(read_frame(frame, ReadOptions(key=("a", "z"))))[1] == ["1", "b"]
    with pytest.raises(InputError, match="key 'd': is MAP"):
        read_frame(frame, ReadOptions(key=("a", "d")))


def test_bins_of_cut_are_labels_in_their_order() -> None:
    frame = pandas.DataFrame({"a": ["x", "y"], "z": pandas.cut([1, 10], [0, 2, 10])})
    assert labels(read_frame(frame, ReadOptions(key=("a", "z"))))[1] == ["(0, 2]", "(2, 10]"]


def test_levels_of_an_index_are_columns() -> None:
    events = pandas.DataFrame({"a": ["p", "p", "q", "q"], "b": ["x", "y", "x", "x"], "w": [1, 2, 3, 4]})
    grouped = events.groupby(["a", "b"])
    for given, value, expected in (
        (grouped.size(), None, [1, 1, 2]),
        (grouped.size(), "value", [1, 1, 2]),
        (grouped.size(), "count(*)", [1, 1, 1]),
        (grouped["w"].sum(), None, [1, 2, 7]),
        (grouped["w"].sum(), "2 * w", [2, 4, 14]),
        (grouped[["w"]].sum(), "w", [1, 2, 7]),
        (events.set_index("a"), "w", [1, 2, 7]),
        (events.set_index(["b", "a"]), "w", [1, 2, 7]),
    ):
        tensor = read_frame(given, ReadOptions(key=("a", "b"), value=value))
        assert labels(tensor) == [["p", "q"], ["x", "y"]]
        assert tensor.values.tolist() == expected


def test_levels_without_names_are_numbered() -> None:
    index = pandas.MultiIndex.from_tuples([("p", "x"), ("q", "y")])
    tensor = read_frame(pandas.Series([1.5, 2], index=index), ReadOptions(key=("level_0", "level_1")))
    assert labels(tensor) == [["p", "q"], ["x", "y"]]
    assert tensor.values.tolist() == [1.5, 2]


def test_an_index_whose_values_repeat() -> None:
    frame = pandas.DataFrame({"a": [1, 2], "b": [3, 4], "c": [5, 6]}, index=[7, 7])
    assert labels(read_frame(frame[["c", "a", "b"]], ReadOptions(key=("a", "b"), value="c"))) == [[1, 2], [3, 4]]


def test_frames_are_left_as_they_are() -> None:
    frame = pandas.DataFrame({"a": np.arange(4), "b": np.arange(4)})
    before = frame.copy()
    read_frame(frame, ReadOptions(key=("a", "b")))
    pandas.testing.assert_frame_equal(frame, before)


def test_what_may_be_any_column() -> None:
    frame = pandas.DataFrame({**BASE, "n": [1, 2]})
    wide = pandas.DataFrame({"z": [1j, 2j], **BASE, "n": [1, 2]})
    key = "(SELECT max(other.n) FROM events AS other WHERE other.b = events.b)"
    assert labels(read_frame(wide, ReadOptions(key=("a", key)))) == [["x", "y"], [1, 2]]
    whole = ReadOptions(key=("#1", "events::VARCHAR"))
    assert labels(read_frame(frame, whole))[1] == ["{'a': x, 'b': u, 'n': 1}", "{'a': y, 'b': v, 'n': 2}"]
    keys = "a", "(SELECT count(*) FROM events)", "(SELECT max(COLUMNS('n')) FROM events)"
    assert labels(read_frame(frame, ReadOptions(key=keys))) == [["x", "y"], [2], [2]]
    assert labels(read_frame(frame, ReadOptions(key=("'k'", "1")))) == [["k"], [1]]


@pytest.mark.parametrize(
    ("key", "name", "expected"),
    [("upper(a) AS big", "big", ["X", "Y"]), ('a as "the a"', "the a", ["x", "y"]), ("a as b", "a as b", ["p", "q"]),
     ("cast(a AS VARCHAR)", "cast(a AS VARCHAR)", ["x", "y"]), ('"c d" AS "q""t"', 'q"t', ["r", "s"])],
)  # fmt: skip
def test_keys_may_have_names(key: str, name: str, expected: list[str]) -> None:
    frame = pandas.DataFrame({**BASE, "a as b": ["p", "q"], "c d": ["r", "s"]})
    tensor = read_frame(frame, ReadOptions(key=(key, "b")))
    assert labels(tensor)[0] == expected
    assert tensor.labels is not None
    assert tensor.labels.names == (name, "b")
    expression = key if name == key else key[: key.lower().rindex(" as ")]
    assert tensor.labels.keys == (expression, "b")


def test_a_mapping_names_keys() -> None:
    tensor = amped.from_frame(pandas.DataFrame(BASE), {'the "big" a': "upper(a)", "b": "b"})
    assert tensor.labels is not None
    assert tensor.labels.names == ('the "big" a', "b")
    assert labels(tensor) == [["X", "Y"], ["u", "v"]]


def test_levels_of_a_series_are_its_keys() -> None:
    series = pandas.DataFrame({**BASE, "n": [2.0, 3.0]}).set_index(["a", "b"])["n"]
    tensor = amped.from_frame(series)
    assert tensor.labels is not None
    assert tensor.labels.names == ("a", "b")
    assert tensor.todense().tolist() == [[2, 0], [0, 3]]
    with pytest.raises(InputError, match="specifies the column of each mode"):
        amped.from_frame(pandas.DataFrame(BASE))


class Cudf:
    """A frame, Series or index of pandas with the part of cuDF's interface that is used."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in ("columns", "names", "shape", "name", "index", "iloc"):
            raise AttributeError(name)
        found = getattr(self._held, name)
        return Cudf(found) if name in ("index", "iloc") else found

    def __getitem__(self, key: Any) -> Any:
        return Cudf(self._held[key])

    def get_level_values(self, level: Any) -> Any:
        return Cudf(self._held.get_level_values(level))

    def to_arrow(self) -> Any:
        return pyarrow.Array.from_pandas(self._held)

    def to_frame(self, name: str) -> Any:
        return CudfFrame(self._held.to_frame(name))


class CudfFrame(Cudf):
    pass


class CudfSeries(Cudf):
    pass


CudfFrame.__module__ = CudfSeries.__module__ = "cudf.core"
CudfFrame.__name__, CudfSeries.__name__ = "DataFrame", "Series"


def test_cudf(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in; see `test_cudf_on_a_gpu`."""
    cudf = ModuleType("cudf")
    cudf.__dict__.update(DataFrame=CudfFrame, Series=CudfSeries)
    monkeypatch.setitem(sys.modules, "cudf", cudf)
    check_cudf(CudfFrame, CudfSeries)


@pytest.mark.gpu
def test_cudf_on_a_gpu() -> None:
    cudf = pytest.importorskip("cudf")
    check_cudf(cudf.from_pandas, cudf.from_pandas)


def check_cudf(frame_of: Callable[[Any], Any], series_of: Callable[[Any], Any]) -> None:
    size = pandas.Categorical(["small", "large", "small"], ["small", "large"], ordered=True)
    rides = pandas.DataFrame({"place": ["park", "port", "park"], "size": size, "fare": [2.0, 3.0, 4.5]})
    rides.index = pandas.Index([8, 8, 9], name="hour")
    for keys in (["place", "hour"], {"place": "upper(place)", "size": "size"}):
        found, wanted = (amped.from_frame(each, keys, "fare") for each in (frame_of(rides), rides))
        assert labels(found) == labels(wanted)
        assert found.labels is not None
        assert found.labels.names == tuple(keys)
        assert np.array_equal(found.todense(), wanted.todense())
    series = rides.set_index("place", append=True)["fare"]
    found, wanted = amped.from_frame(series_of(series)), amped.from_frame(series)
    assert (labels(found), found.todense().tolist()) == (labels(wanted), wanted.todense().tolist())
    model = amped.cp_als(found, 1, device="cpu")
    assert model.score(frame_of(series.reset_index()), value="fare") == pytest.approx(model.score(found))
    with pytest.raises(InputError, match="selects the column of each mode"):
        amped.cp_als(frame_of(rides), 1, device="cpu")
