"""New data on known components: `KruskalTensor.transform`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constrained import signed_tensor
from oracle import PRECISIONS, random_factors
from scipy.optimize import nnls

import amped
from partitioner.build import partition
from partitioner.readers import ReadOptions
from partitioner.tensors.labels import Labels
from partitioner.tensors.relabel import places

SHAPE, RANK = (8, 7, 6), 4
ACCURACY = {"fp32": 1e-5, "fp64": 1e-10}


def model_of(shape: tuple[int, ...] = SHAPE, norm: int = 2) -> amped.KruskalTensor:
    weights = np.arange(1.0, RANK + 1)
    return amped.KruskalTensor(weights, random_factors(2, shape, RANK)).arranged(norm)


def unfolded(dense: np.ndarray, mode: int) -> np.ndarray:
    return np.moveaxis(dense, mode, 0).reshape(dense.shape[mode], -1)


def design_of(model: amped.KruskalTensor, mode: int) -> np.ndarray:
    """Return the columns that rows of a mode multiply: one for each component."""
    others = [f.astype(np.float64) for m, f in enumerate(model.factors) if m != mode]
    product = others[0]
    for factor in others[1:]:
        product = (product[:, None] * factor[None]).reshape(-1, product.shape[1])
    return product


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 5, 40])
@pytest.mark.parametrize("norm", [1, 2])
def test_the_nearest_rows(device: str, precision: str, mode: int, length: int, norm: int) -> None:
    shape = (*SHAPE[:mode], length, *SHAPE[mode + 1 :])
    dense, tensor = signed_tensor(7, shape)
    model, how = model_of(norm=norm), {"device": device, "precision": precision}
    design, data = design_of(model, mode), unfolded(dense, mode)
    plain, signed = model.transform(tensor, mode, **how), np.linalg.lstsq(design, data.T, rcond=None)[0].T
    assert plain.dtype == {"fp32": np.float32, "fp64": np.float64}[precision]
    np.testing.assert_allclose(plain, signed, rtol=0, atol=10 * ACCURACY[precision] * abs(signed).max())
    found = model.transform(tensor, mode, nonnegative=True, **how)
    want = np.array([nnls(design, row)[0] for row in data])
    assert found.min() >= 0
    np.testing.assert_allclose(found, want, rtol=0, atol=100 * ACCURACY[precision] * abs(want).max())


def test_a_model_s_own_tensor_gives_its_own_rows(device: str) -> None:
    model = model_of()
    full = model.full()
    tensor = amped.SparseTensor(np.argwhere(full), full[full != 0], SHAPE)
    for nonnegative in (False, True):
        rows = model.transform(tensor, 1, nonnegative=nonnegative, device=device, precision="fp64")
        np.testing.assert_allclose(rows, model.factors[1] * model.weights, atol=1e-7)


def test_a_ridge(device: str) -> None:
    dense, tensor = signed_tensor(8, SHAPE)
    model = model_of()
    design = design_of(model, 2)
    want = np.linalg.solve(design.T @ design + 0.5 * np.eye(RANK), design.T @ unfolded(dense, 2).T).T
    found = model.transform(tensor, 2, ridge=0.5, device=device, precision="fp64")
    np.testing.assert_allclose(found, want, atol=1e-10)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_rows_without_nonzeros_and_components_that_are_zero(device: str, nonnegative: bool) -> None:
    model = model_of()
    model.factors[0][:, 2] = 0
    tensor = amped.SparseTensor([[1, 4, 2], [0, 4, 3]], [2.0, 3.0], (8, 9, 6))
    rows = model.transform(tensor, 1, nonnegative=nonnegative, device=device)
    assert np.all(np.isfinite(rows))
    assert np.all(np.delete(rows, 4, axis=0) == 0)
    assert np.all(rows[:, 2] == 0)
    assert np.any(rows[4])


def test_long_columns_of_small_numbers(device: str) -> None:
    """Unit 1-norm columns of long modes are far below what is stored."""
    shape = (3000, 5000, 4)
    model = model_of(shape, 1)
    rng = np.random.default_rng(0)
    tensor = amped.SparseTensor(rng.integers(0, shape, (5000, 3)), rng.random(5000), shape)
    rows = model.transform(tensor, 2, device=device)
    others = [f.astype(np.float64) for f in model.factors[:2]]
    right = np.zeros((4, RANK))
    i, j, k = tensor.columns
    np.add.at(right, k, tensor.values[:, None] * others[0][i] * others[1][j])
    want = right @ np.linalg.inv(np.prod([f.T @ f for f in others], axis=0))
    np.testing.assert_allclose(rows, want, rtol=1e-4)


def labelled(tensor: amped.SparseTensor, seed: int) -> amped.SparseTensor:
    """The same tensor, each mode's indices in another order, with labels that say which they are."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(length) for length in tensor.shape]
    columns = [np.argsort(order)[column] for order, column in zip(orders, tensor.columns, strict=True)]
    found = amped.SparseTensor(np.stack(columns, 1), tensor.values, tensor.shape)
    found.labels = Labels([np.array([f"l{k}" for k in order], "T") for order in orders], ["a", "b", "c"])  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_labels_are_matched(mode: int) -> None:
    how: dict[str, Any] = {"device": "cpu", "precision": "fp64"}
    _, tensor = signed_tensor(8, SHAPE)
    first, second = labelled(tensor, 1), labelled(tensor, 2)
    model = amped.cp_als(first, 3, max_iters=3, tol=0, **how)
    core = amped.tucker(first, (3, 3, 3), max_iters=3, tol=0, **how)
    for each in (model, core):
        want, found = each.transform(first, mode, **how), each.transform(second, mode, **how)
        assert first.labels is not None
        assert second.labels is not None
        order = places(first.labels[mode], second.labels[mode])
        np.testing.assert_allclose(found, want[order], atol=1e-10)
        assert each.score(second) == pytest.approx(each.score(first), abs=1e-12)
        assert each.score(first) == pytest.approx(each.fits[-1], abs=1e-9)
    assert model.residuals(first, 3).entries[0].labels == model.residuals(second, 3).entries[0].labels


def test_labels_that_are_not_known_are_told_of() -> None:
    _, tensor = signed_tensor(8, SHAPE)
    first = labelled(tensor, 1)
    model = amped.cp_als(first[:, 2:, :], 2, max_iters=2, device="cpu")
    with pytest.warns(amped.InputWarning, match=r"X: dropped nonzeros .*: \d+ for b \('l\d', 'l\d'\)"):
        found = model.transform(first, 0, device="cpu")
    np.testing.assert_allclose(found, model.transform(first[:, 2:, :], 0, device="cpu"), atol=1e-6)
    with pytest.raises(amped.InputError, match="X: labels that the model does not know: 2 of b"):
        model.score(first)
    with pytest.warns(amped.InputWarning, match=r"X: dropped nonzeros .*: \d+ for b \('l\d', 'l\d'\)"):
        score = model.score(first, unknown="drop")
    assert score == pytest.approx(model.score(first[:, 2:, :]))
    with pytest.warns(amped.InputWarning, match="X: dropped nonzeros"):
        residuals = model.residuals(first, unknown="drop")
    assert residuals.entries == model.residuals(first[:, 2:, :]).entries
    with pytest.raises(amped.InputError, match="X: labels that the model does not know: 2 of b"):
        model.transform(first, 0, unknown="error", device="cpu")
    for method in (model.score, model.residuals, lambda X, **how: model.transform(X, 0, **how)):
        with pytest.raises(amped.InputError, match="unknown is 'skip': expected 'error' or 'drop'"):
            method(first, unknown="skip")
    wrong = amped.SparseTensor(first.indices, first.values, first.shape)
    wrong.labels = [range(8), range(7), range(6)]
    with pytest.raises(amped.InputError, match="X: b: labels are numbers, the model's texts"):
        model.transform(wrong, 0, device="cpu")


def test_slices_of_a_dense_tensor_with_unknown_labels_are_dropped() -> None:
    array = np.random.default_rng(0).random((4, 5, 3))
    labels = [list("abcd"), list("vwxyz"), [1, 2, 3]]
    whole = amped.DenseTensor(array).labelled(labels)
    known = amped.DenseTensor(array[:, [4, 0, 2]]).labelled([labels[0], ["z", "v", "x"], labels[2]])
    model = amped.cp_als(known, 2, max_iters=2, device="cpu", precision="fp64")
    with pytest.raises(amped.InputError, match="labels that the model does not know: 2 of mode 1"):
        model.score(whole)
    with pytest.warns(amped.InputWarning, match=r"X: dropped elements .*: 24 for mode 1 \('w', 'y'\)"):
        assert model.score(whole, unknown="drop") == pytest.approx(model.score(known))
    fewer = amped.DenseTensor(array[:, :3]).labelled([labels[0], ["v", "w", "x"], labels[2]])
    with pytest.raises(amped.InputError, match="mode 1: has 2 of the model's 3 labels; a dense tensor needs all"):
        model.score(fewer, unknown="drop")


def test_tables_by_the_keys_of_the_model(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    pandas = pytest.importorskip("pandas")
    rng, keys = np.random.default_rng(0), ["who", "what", "n % 4"]
    frame = pandas.DataFrame({"who": rng.choice(list("abcdef"), 900), "what": rng.choice(list("xyz"), 900)})
    frame["n"] = rng.integers(0, 99, 900)
    tensor = amped.from_frame(frame, keys)
    model = amped.cp_als(tensor, 2, max_iters=3, device="cpu")
    core = amped.tucker(tensor, (2, 2, 2), max_iters=3, device="cpu")
    frame.to_csv(tmp_path / "x.csv", index=False)
    later = frame[frame["who"].isin(["c", "a"]) & (frame["what"] != "y")]
    few = amped.from_frame(later, keys)
    assert few.shape == (2, 2, 4)
    where = "who IN ('a', 'c') AND what <> 'y'"

    def equal(model: Any, first: Any, second: Any, **how: Any) -> bool:
        return np.array_equal(model.transform(first, 0, device="cpu", **how), model.transform(second, 0, device="cpu"))

    for each in (model, core):
        assert equal(each, tmp_path / "x.csv", tensor)
        assert equal(each, later, few)
        assert equal(each, frame, few, where=where)
        assert equal(each, later, amped.from_frame(later, keys, "n"), value="n")
        assert each.score(frame) == pytest.approx(each.score(tensor))
        with pytest.raises(amped.InputError, match="value and where apply to tables only"):
            each.transform(tensor, 0, value="n", device="cpu")
    partition(tmp_path / "x.csv", tmp_path / "store", form=ReadOptions(key=tuple(keys)))
    assert equal(model, tmp_path / "store", tensor)
    partition(tmp_path / "x.csv", tmp_path / "few", form=ReadOptions(key=tuple(keys), where=where))
    assert equal(model, tmp_path / "few", few)
    plain = amped.cp_als(amped.SparseTensor(tensor.indices, tensor.values), 2, max_iters=1, device="cpu")
    with pytest.raises(amped.InputError, match=r"X: a table: amped\.from_frame|labels have no names"):
        plain.transform(frame, 0, device="cpu")


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 5, 40])
def test_rows_on_a_core(device: str, kind: str, mode: int, length: int) -> None:
    shape = (*SHAPE[:mode], length, *SHAPE[mode + 1 :])
    dense, tensor = signed_tensor(7, shape)
    rng = np.random.default_rng(5)
    ranks = (3, 2, 4)
    model = amped.TuckerTensor(
        rng.standard_normal(ranks), [rng.standard_normal(each) for each in zip(SHAPE, ranks, strict=True)]
    )
    design = np.moveaxis(model.core, mode, -1)
    for m in (m for m in range(3) if m != mode):
        at = [each for each in range(3) if each != mode].index(m)
        design = np.moveaxis(np.tensordot(design, model.factors[m], (at, 1)), -1, at)
    design = design.reshape(-1, ranks[mode])
    want = np.linalg.lstsq(design, unfolded(dense, mode).T, rcond=None)[0].T
    given = tensor if kind == "sparse" else dense
    found = model.transform(given, mode, device=device, precision="fp64")
    np.testing.assert_allclose(found, want, atol=1e-9 * abs(want).max())
    single = model.transform(given, mode, device=device)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, want, atol=1e-4 * abs(want).max())


def test_a_tucker_model_s_own_rows(device: str) -> None:
    model = amped.tucker(signed_tensor(9, SHAPE)[1], (3, 3, 3), max_iters=300, tol=0, device=device, precision="fp64")
    for mode in range(3):
        rows = model.transform(signed_tensor(9, SHAPE)[1], mode, device=device, precision="fp64")
        np.testing.assert_allclose(rows, model.factors[mode], atol=1e-5)
    with pytest.raises(amped.InputError, match=r"mode 3 is outside 0\.\.2"):
        model.transform(signed_tensor(9, SHAPE)[1], 3)
    with pytest.raises(amped.InputError, match="9 x 7 x 6, the model 8 x 7 x 6: all lengths except mode 1's must"):
        model.transform(signed_tensor(8, (9, 7, 6))[1], 1)


def test_a_loaded_model_and_a_file(tmp_path: Path) -> None:
    _, tensor = signed_tensor(8, SHAPE)
    model = model_of()
    model.save(tmp_path / "m.npz")
    path = tmp_path / "x.npz"
    np.savez(path, indices=np.stack(tensor.columns, 1), values=tensor.values, shape=SHAPE)
    found = amped.load(tmp_path / "m.npz").transform(path, 0, device="cpu")
    assert np.array_equal(found, model.transform(tensor, 0, device="cpu"))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mode": 3}, r"mode 3 is outside 0\.\.2"),
    ({"mode": -1}, "mode -1"),
    ({"mode": 1}, "X is 9 x 7 x 6, the model 8 x 7 x 6: all lengths except mode 1's must agree"),
    (
        {"X": amped.SparseTensor([[0, 0]], [1.0], (8, 7))},
        "8 x 7, the model 8 x 7 x 6: all lengths except mode 0",
    ),
    ({"ridge": -1.0}, "ridge -1.0"),
    ({"X": 3}, "X is of type int"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_refused(change: dict[str, Any], message: str) -> None:
    _, tensor = signed_tensor(8, (9, 7, 6))
    with pytest.raises(amped.InputError, match=message):
        model_of().transform(**{"X": tensor, "mode": 0, "device": "cpu", **change})


@pytest.mark.parametrize("mode", [0, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_a_poisson_model(device: str, precision: str, mode: int) -> None:
    """Each row satisfies the KKT conditions of its likelihood: b >= 0, 1 - phi >= 0, and one of them is zero."""
    model = model_of(norm=1)
    shape = (*SHAPE[:mode], 12, *SHAPE[mode + 1 :])
    counts = np.random.default_rng(1).poisson(2.0, shape)
    np.moveaxis(counts, mode, 0)[3] = 0
    model.series = {"loglikelihood": (-1.0,)}
    assert (model.loss, model.nonnegative_modes) == ("poisson", (0, 1, 2))
    rows = model.transform(counts, mode, device=device, precision=precision)
    assert rows.dtype == {"fp32": np.float32, "fp64": np.float64}[precision]
    design, data = design_of(model, mode), unfolded(counts, mode)
    sums = design.sum(axis=0)
    phi = (data / np.maximum(rows @ design.T, 1e-10)) @ (design / sums)
    assert rows.min() >= 0
    assert not rows[3].any()
    violation = np.abs(np.minimum(rows * sums, 1 - phi))[np.arange(12) != 3].max()
    assert violation < {"fp32": 1e-4, "fp64": 1e-8}[precision]
    sparse = amped.SparseTensor(np.argwhere(counts), counts[counts > 0], shape)
    same = model.transform(sparse, mode, device=device, precision=precision)
    np.testing.assert_allclose(same, rows, rtol=1e-5, atol=1e-6)
    other = model.transform(sparse, mode, loss="gaussian", nonnegative=False, device=device, precision=precision)
    assert other.min() < 0


def test_a_poisson_projection_that_is_wrong() -> None:
    model = model_of(norm=1)
    with pytest.raises(amped.InputError, match="ridge requires loss 'gaussian'"):
        model.transform(np.ones(SHAPE), 0, loss="poisson", ridge=1.0, device="cpu")
    with pytest.raises(amped.InputError, match="loss 'l1' is unknown"):
        model.transform(np.ones(SHAPE), 0, loss="l1", device="cpu")
    with pytest.raises(amped.InputError, match="must not be negative"):
        model.transform(-np.ones(SHAPE), 0, loss="poisson", device="cpu")


def test_rows_are_non_negative_where_the_model_was_fitted_so() -> None:
    dense, _ = signed_tensor(7, SHAPE)
    model = amped.cp_als(abs(dense), 3, nonnegative=[0, 2], max_iters=5, device="cpu")
    assert model.nonnegative_modes == (0, 2)
    assert model.transform(dense, 0, device="cpu").min() >= 0
    assert model.transform(dense, 1, device="cpu").min() < 0
    assert model.transform(dense, 0, nonnegative=False, device="cpu").min() < 0
