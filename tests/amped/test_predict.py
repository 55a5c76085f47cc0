"""Values of models at coordinates: indices, labels, tables and parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, succeeded

import amped
from amped.models import explained
from partitioner.tensors import lowrank
from partitioner.tensors.labels import Labels, as_labels

SHAPE = (5, 4, 3)


def cp(rank: int = 2) -> amped.KruskalTensor:
    rng = np.random.default_rng(0)
    return amped.KruskalTensor(rng.random(rank), [rng.normal(size=(n, rank)) for n in SHAPE])


def tucker() -> amped.TuckerTensor:
    rng = np.random.default_rng(0)
    return amped.TuckerTensor(
        rng.random((2, 3, 2)), [rng.random((n, r)) for n, r in zip(SHAPE, (2, 3, 2), strict=True)]
    )


def dense(model: Any) -> np.ndarray:
    """Return the elements of a model, by definition."""
    head, factors = model
    if head.ndim == 1:
        return np.einsum("r,ir,jr,kr->ijk", head, *factors)
    return np.einsum("abc,ia,jb,kc->ijk", head, *factors)


@pytest.fixture(params=[cp, tucker])
def model(request: pytest.FixtureRequest) -> Any:
    return request.param()


def test_indices(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explained, "BLOCK", 7)
    whole, order = dense(model), np.random.default_rng(1).permutation(np.argwhere(np.ones(SHAPE)))
    at = np.concatenate([order, order[:9]]).astype(np.uint8)
    np.testing.assert_allclose(model.predict(at), whole[tuple(at.T)], rtol=1e-13)
    np.testing.assert_allclose(model.predict(tuple(at.T)), whole[tuple(at.T)], rtol=1e-13)
    tensor = amped.SparseTensor(order[:8], np.ones(8), SHAPE)
    np.testing.assert_allclose(model.predict(tensor), whole[tuple(tensor.columns)], rtol=1e-13)
    assert model.predict(np.empty((0, 3), int)).shape == (0,)


def test_labels(model: Any) -> None:
    pandas = pytest.importorskip("pandas")
    whole = dense(model)
    model.labels = [list("edcba"), np.arange(4) * 10, np.array(["2026-01-01", "2026-01-02", "2026-01-03"], "M8[D]")]
    columns = ["a", "e", "a"], [30, 0, 30], np.array(["2026-01-03", "2026-01-01", "2026-01-03"], "M8[ns]")
    expected = [whole[4, 3, 2], whole[0, 0, 0], whole[4, 3, 2]]
    np.testing.assert_allclose(model.predict(columns), expected, rtol=1e-13)
    frame = pandas.DataFrame({f"mode {mode}": column for mode, column in enumerate(columns)})
    np.testing.assert_allclose(model.predict(frame), expected, rtol=1e-13)
    arrow = pytest.importorskip("pyarrow").table(frame)
    np.testing.assert_allclose(model.predict(arrow), expected, rtol=1e-13)
    with pytest.raises(amped.InputError, match=r"no column 'mode 2', but mode 0, mode 1$"):
        model.predict(arrow.drop_columns(["mode 2"]))
    with pytest.warns(amped.InputWarning, match=r"1 of mode 0 \('z'\), 1 of mode 1 \(7\)"):
        found = model.predict((["a", "z", "a"], [30, 0, 7], columns[2]))
    np.testing.assert_allclose(found, [expected[0], np.nan, np.nan], rtol=1e-13)


def test_sparse_tensors_are_matched_by_names_and_labels(model: Any) -> None:
    whole = dense(model)
    own = [as_labels(list("edcba")), as_labels(["n", "m", "n", "p"]), as_labels([7, 8, 9])]  # n stands for two indices
    model.labelled(Labels(own, ["a", "b", "c"]))
    tensor = amped.SparseTensor([[0, 2, 4], [2, 1, 0], [1, 2, 2]], np.ones(3), (3, 4, 5))
    tensor.labelled(Labels([own[2], own[1], own[0]], ["c", "b", "a"]))
    expected = whole[tuple(tensor.columns[::-1])]
    np.testing.assert_allclose(model.predict(tensor), expected, rtol=1e-13)
    tensor.labelled(Labels([as_labels([9, 7, 6]), own[1], own[0]], ["c", "b", "a"]))  # 6 is unknown
    with pytest.warns(amped.InputWarning, match=r"know: 1 of c \(6\)$") as warnings:
        found = model.predict(tensor)
    assert [each.filename for each in warnings] == [__file__]
    for value, (c, b, a) in zip(found, tensor.columns.T, strict=True):
        np.testing.assert_allclose(value, whole[a, b, {0: 2, 1: 0}[c]] if c < 2 else np.nan, rtol=1e-13)
    tensor.labelled(Labels([as_labels(list("xyz")), own[1], own[0]], ["c", "b", "a"]))
    with pytest.raises(amped.InputError, match="coordinates: c: labels are texts, the model's numbers"):
        model.predict(tensor)


@pytest.mark.parametrize(
    ("coordinates", "cause"),
    [
        ([0, 1, 2], "shape"),
        ([[0, 1]], "shape"),
        ([[0.0, 1, 2]], "float64"),
        ([[0, 1, 3]], "outside the length 3 of mode 2"),
        ([[-1, 1, 2]], "index -1"),
        (([0], [1]), "2 arrays"),
        (([0], [1], [2, 2]), "one label per element"),
        (([0], ["x"], [2]), "expected indices"),
        ({"mode 0": [0]}, "no column 'mode 1'"),
        ([[0, 1, 2], [3]], "coordinates"),
        (np.ma.masked_less(np.eye(3, dtype=int), 1), "mask"),
    ],
)
def test_wrong_coordinates(coordinates: Any, cause: str) -> None:
    with pytest.raises(amped.InputError, match=cause):
        cp().predict(coordinates)


def test_lazy_frames() -> None:
    polars = pytest.importorskip("polars")
    model = cp().labelled([list("abcde"), range(4), range(3)])
    frame = polars.DataFrame({"mode 0": ["a", "e"], "mode 1": [1, 3], "mode 2": [2, 0]})
    np.testing.assert_array_equal(model.predict(frame.lazy()), model.predict(frame))


def test_labels_of_another_type() -> None:
    model = cp().labelled([list("abcde"), range(4), [1, 1, 2]])
    with pytest.raises(amped.InputError, match="mode 1: labels are texts, the model's numbers"):
        model.predict((["a"], ["b"], [2]))
    with pytest.raises(amped.InputError, match="label 1 stands for 2 indices"):
        model.predict((["a"], [1], [1]))
    assert model.predict((["a"], [1], [2])).shape == (1,)


def test_parts(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowrank, "BLOCK", 6)  # three rows of products
    whole = dense(model)
    np.testing.assert_allclose(model.full(), whole, rtol=1e-12)
    np.testing.assert_allclose(model.reconstruct(), whole, rtol=1e-12)
    np.testing.assert_allclose(
        model.reconstruct(-1, [2, 0, 2], slice(None, None, 2)), whole[-1][[2, 0, 2], ::2], rtol=1e-12
    )
    np.testing.assert_allclose(model.reconstruct([True, False, True, False, True]), whole[::2], rtol=1e-12)
    assert model.reconstruct(1, 2, 0) == pytest.approx(whole[1, 2, 0])
    assert model.reconstruct(slice(0, 0)).shape == (0, 4, 3)
    for wrong in [(5,), (0, 0, 0, 0), (0.5,), ("a",)]:
        with pytest.raises(amped.InputError):
            model.reconstruct(*wrong)


def test_part_that_exceeds_memory() -> None:
    model = amped.KruskalTensor(np.ones(1), [np.ones((1 << 20, 1))] * 3)
    with pytest.raises(amped.InputError, match="bytes of host memory"):
        model.reconstruct(slice(1, None))
    assert model.reconstruct(7, slice(5), 3).tolist() == [1.0] * 5


def write(path: Path, at: np.ndarray, values: np.ndarray | None = None, base: int = 1) -> Path:
    rows = at + base if values is None else zip(*(at.T + base), values.tolist(), strict=True)
    path.write_text("".join(" ".join(map(str, row)) + "\n" for row in rows))
    return path


def test_files_of_indices(model: Any, folder: Path) -> None:
    model.save("model.npz")
    at = np.random.default_rng(1).integers(0, SHAPE, (30, 3))
    expected = dense(model)[tuple(at.T)]
    np.savez("at.npz", indices=at)
    write(folder / "values.tns", at, expected + 0.5)
    for path, flags in [
        (write(folder / "at.tns", at), []),
        (write(folder / "zero.tns", at, base=0), ["--index-base", 0]),
        ("values.tns", []),
        ("at.npz", []),
    ]:
        result = succeeded(run_amped("predict", "model.npz", "--at", path, *flags, "--output", "out.npz", "--force"))
        assert ("RMSE 0.5 against" in result.out) == (path == "values.tns")
        with np.load("out.npz") as found:
            np.testing.assert_array_equal(found["indices"], at)
            np.testing.assert_allclose(found["values"], expected, rtol=1e-13)
    printed = np.loadtxt(succeeded(run_amped("predict", "model.npz", "--at", "at.tns")).out.splitlines())
    np.testing.assert_array_equal(printed[:, :3], at + 1)
    np.testing.assert_allclose(printed[:, 3], expected, rtol=1e-13)


def test_table(folder: Path) -> None:
    Path("seen.csv").write_text("who,day,n\na,2026-01-01,1\na,2026-01-02,2\nb,2026-01-01,3\nb,2026-01-02,5\n")
    fit = ["--key", "who", "--key", "day(day)", "--value", "n", "--rank", 1, "--device", "cpu", "--output", "model"]
    succeeded(run_amped("cpd", "seen.csv", *fit, "--quiet"))
    Path("new.csv").write_text("day,who\n2026-05-02,b\n2026-05-01,c\n2026-05-01,a\n2026-05-01,a\n")
    result = run_amped("predict", "model", "--at", "new.csv", "--output", "out.csv")
    assert result.code == 0
    assert "1 of who ('c')" in result.err
    expected = amped.load("model").reconstruct()
    lines = Path("out.csv").read_text().splitlines()
    assert lines[0] == "who,day(day),predicted"
    assert lines[1:] == [f"a,1,{float(expected[0, 0])!r}", f"b,2,{float(expected[1, 1])!r}", "c,1,nan"]


def test_models_of_a_store_read_its_table(folder: Path) -> None:
    """The report, residuals and scores of a table's store compute the keys; predictions of a frame name them."""
    pandas = pytest.importorskip("pandas")
    Path("seen.csv").write_text("who,date,n\na,2026-01-01,1\na,2026-01-02,2\nb,2026-01-01,3\nb,2026-01-02,5\n")
    keys = ["--key", "who", "--key", "date::VARCHAR AS day", "--value", "n"]
    succeeded(run_amped("table", "seen.csv", *keys, "--output", "store"))
    succeeded(run_amped("cpd", "store", "--rank", 1, "--device", "cpu", "--output", "model", "--quiet"))
    succeeded(run_amped("report", "model", "--tensor", "seen.csv", "--output", "r.html"))
    Path("late.csv").write_text("who,date,n\na,2026-01-09,1\n")
    refused(run_amped("residuals", "model", "late.csv"), "late.csv: labels", "1 of day ('2026-01-09'); --unknown drop")
    refused(run_amped("residuals", "model", "late.csv", "--unknown", "drop"), "late.csv: no nonzero", "no label of day")
    np.save("x.npy", np.ones((3, 3)))
    refused(run_amped("residuals", "model", "x.npy"), "x.npy: is 3 x 3, the model 2 x 2: all lengths must agree")
    model = amped.load("model")
    with pytest.raises(amped.InputError, match=r"no column 'day', .*: add one, .* computed as date::VARCHAR"):
        model.predict(pandas.read_csv("seen.csv"))
    with pytest.raises(amped.InputError, match="are a path: read the file"):
        model.predict("seen.csv")


def test_columns_named_as_the_modes(folder: Path) -> None:
    """Such as those of the file that `residuals` writes; the keys of the table are expressions of other columns."""
    Path("seen.csv").write_text("who,date,n\na,2026-01-01,1\na,2026-01-02,2\nb,2026-01-01,3\nb,2026-01-02,5\n")
    fit = ["--value", "n", "--rank", 1, "--device", "cpu", "--quiet"]
    for key, name in (("day(date) AS day", "day"), ("day(date)", "day(date)")):
        succeeded(run_amped("cpd", "seen.csv", "--key", "who", "--key", key, *fit, "--output", f"{name} model"))
        succeeded(run_amped("residuals", f"{name} model", "seen.csv", "--output", f"{name}.csv"))
        lines = succeeded(run_amped("predict", f"{name} model", "--at", f"{name}.csv")).out.splitlines()
        assert lines[0] == f"who,{name},predicted"
        assert len(lines) == 5
    Path("wrong.csv").write_text("who,days\na,1\n")
    refused(run_amped("predict", "day model", "--at", "wrong.csv"), "--key 'day(date)': no column date")


def test_compact_indices(folder: Path) -> None:
    at = np.array([[10, 7], [20, 7], [20, 9]])
    write(folder / "x.tns", at, np.array([1.5, 2.5, 3.5]))
    succeeded(run_amped("cpd", "x.tns", "--compact", "--rank", 1, "--device", "cpu", "--output", "model", "--quiet"))
    found = np.loadtxt(succeeded(run_amped("predict", "model", "--at", write(folder / "at.tns", at))).out.splitlines())
    expected = amped.load("model").reconstruct()
    np.testing.assert_allclose(found[:, 2], [expected[0, 0], expected[1, 0], expected[1, 1]], rtol=1e-13)


def test_wrong_files(folder: Path) -> None:
    cp().save("model.npz")
    at = np.array([[0, 1, 2], [4, 3, 2]])
    for path, *cause in [
        ("none.tns", "no such file"),
        (write(folder / "order.tns", np.ones((2, 5), int)), "has indices of 4 or 5 modes: the model has 3"),
        (write(folder / "far.tns", at + 1), "far.tns", "outside the length 5"),
    ]:
        refused(run_amped("predict", "model.npz", "--at", path), *cause)
    (folder / "x.csv").write_text("a,b\n1,2\n")
    refused(run_amped("predict", "model.npz", "--at", "x.csv"), "no names of key columns")
    np.save("x.npy", np.ones(SHAPE))
    refused(run_amped("predict", "model.npz", "--at", "x.npy"), "dense tensor")
    write(folder / "at.tns", at)
    refused(run_amped("predict", "model.npz", "--at", "at.tns", "--output", "at.tns", "--force"), "both")
    refused(run_amped("predict", "model.npz", "--at", "at.tns", "--output", "x.csv"), "exists already")


def test_outputs_of_another_kind_are_refused_before_anything_is_read(folder: Path) -> None:
    for at, output, cause in [
        ("at.csv", "x.npz", "labels are written to .csv or .tsv files"),
        ("at.csv", "x.tns", "labels are written to .csv or .tsv files"),
        ("at.tns", "x.parquet", ".txt, .tns, .csv, .tsv or .npz files"),
        ("at.tns", "x.tns.gz", ".txt, .tns, .csv, .tsv or .npz files"),
    ]:
        refused(run_amped("predict", "model.npz", "--at", at, "--output", output), cause)
        assert not Path(output).exists()


def test_archives_of_original_indices(folder: Path) -> None:
    at = np.array([[10, 7], [20, 7], [20, 9]])
    write(folder / "x.tns", at, np.array([1.5, 2.5, 3.5]))
    succeeded(run_amped("cpd", "x.tns", "--compact", "--rank", 1, "--device", "cpu", "--output", "model", "--quiet"))
    write(folder / "at.tns", np.array([[20, 9], [5, 9]]))
    result = run_amped("predict", "model", "--at", "at.tns", "--output", "out.npz")
    assert result.code == 0
    assert "labels that the model does not know: 1 of mode 0 (6)" in result.err
    with np.load("out.npz") as found:
        assert found["indices"].tolist() == [[21, 10], [6, 10]]
        assert np.isnan(found["values"]).tolist() == [False, True]


def test_values_at_unknown_labels_have_no_error(folder: Path) -> None:
    write(folder / "x.tns", np.array([[10, 7], [20, 9]]), np.array([1.5, 2.5]))
    succeeded(run_amped("cpd", "x.tns", "--compact", "--rank", 1, "--device", "cpu", "--output", "model", "--quiet"))
    write(folder / "at.tns", np.array([[5, 9]]), np.array([0.5]))
    result = run_amped("predict", "model", "--at", "at.tns", "--output", "out.txt")
    assert result.code == 0
    assert "RMSE" not in result.out
