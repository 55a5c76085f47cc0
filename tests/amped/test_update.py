"""Updates of models with new data: `KruskalTensor.update`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import PRECISIONS
from updates import cp_stream, full, online_em, with_weights

import amped
from amped.backend.known_losses import loss_of
from amped.models.pseudo_data import optimal_values
from amped.runs import updating
from partitioner.tensors.labels import Labels, as_labels

CLOSE = {"fp32": 2e-4, "fp64": 1e-8}
CPU: dict[str, Any] = {"device": "cpu", "precision": "fp64"}


def array_of(shape: tuple[int, ...], seed: int = 0, signed: bool = True) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape) if signed else rng.poisson(2.0, shape).astype(float)
    return np.where(rng.random(shape) < 0.6, values, 0.0)


def model_of(shape: tuple[int, ...], rank: int = 3, **given: Any) -> amped.KruskalTensor:
    return amped.cp_als(array_of(shape, 1), rank, **{**CPU, "max_iters": 3, **given})


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("sweeps", [1, 3])
@pytest.mark.parametrize("long", [0, 2])
@pytest.mark.in_turn
def test_new_slices_are_those_of_cp_stream(
    device: str, precision: str, mode: int, new: int, sweeps: int, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updating, "LONG", long)
    shape = (6, 5, 7)
    model, data = model_of(shape, 2), array_of((*shape[:mode], new, *shape[mode + 1 :]), 2)
    slices = np.moveaxis(data, mode, -1)
    slices[0] = slices[:, 1] = 0  # rows without elements
    found = model.update(data, mode, sweeps=sweeps, device=device, precision=precision)
    own = np.moveaxis(model.full(), mode, -1), np.moveaxis(data, mode, -1)
    matrices = with_weights(model)
    last = matrices.pop(mode)
    factors = [*matrices, np.vstack([last, np.zeros((new, 2))])]
    current = range(shape[mode], shape[mode] + new)
    want = cp_stream(factors, np.concatenate(own, axis=-1), current, sweeps, np.ones(shape[mode] + new))
    scale = abs(own[1]).max()
    np.testing.assert_allclose(np.moveaxis(found.full(), mode, -1), full(want), atol=CLOSE[precision] * scale, rtol=0)
    assert found.factors[0].dtype == {"fp32": np.float32, "fp64": np.float64}[precision]
    assert found.run["updates"] == 1
    assert model.shape == shape


@pytest.mark.parametrize("share", [0.05, 0.6, 1.0])
@pytest.mark.parametrize("sweeps", [1, 4])
def test_replaced_counts_are_taken_out_of_the_model(share: float, sweeps: int) -> None:
    """However many counts decrease, the model has their sums, and no negative entry."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(2.0, (8, 7, 6)).astype(float)
    model = amped.cp_apr(counts, 3, max_iters=50, **CPU)
    changed = np.where(rng.random(counts.shape) < share, rng.poisson(0.5, counts.shape), counts)
    found = model.update(changed, elements="replace", sweeps=sweeps, **CPU)
    assert min(factor.min() for factor in found.factors) >= 0
    np.testing.assert_allclose(found.full().sum(), changed.sum(), rtol=1e-9)
    for mode in range(3):
        others = tuple(m for m in range(3) if m != mode)
        np.testing.assert_allclose(found.full().sum(axis=others), changed.sum(axis=others), rtol=0.05)


@pytest.mark.parametrize("loss", ["gaussian", "poisson"])
def test_a_slice_without_elements_among_others(loss: str) -> None:
    """In a tensor so large that an update reads only the rows of its elements."""
    counts = np.random.default_rng(0).poisson(1.0, (50, 40, 4)).astype(float)
    model = amped.cp(counts, 2, loss=loss, max_iters=3, **CPU)
    stream = amped.SparseTensor([[1, 2, 0], [3, 4, 0], [5, 6, 2]], [1.0, 2.0, 3.0], (50, 40, 3))
    found = model.update(stream, 2, step=1, **CPU)
    assert found.shape == (50, 40, 7)
    assert not found.full()[:, :, 5].any()


def test_an_exact_model_stays_exact() -> None:
    rng = np.random.default_rng(3)
    factors = [rng.normal(size=(n, 2)) for n in (5, 6, 9)]
    exact = amped.KruskalTensor(np.ones(2), [factors[0], factors[1], factors[2][:5]])
    found = exact.update(full(factors)[:, :, 5:], 2, **CPU)
    np.testing.assert_allclose(found.full(), full(factors), atol=1e-10)


def test_slices_of_zeros() -> None:
    """A day without events is data, too."""
    data = np.concatenate([array_of((5, 6, 1), 1), np.zeros((5, 6, 2))], axis=2)
    model = model_of((5, 6, 3))
    found = model.update(iter([data[:, :, :1], data[:, :, 1:2], data[:, :, 2:]]), 2, **CPU)
    np.testing.assert_allclose(found.full(), model.update(data, 2, step=1, **CPU).full(), atol=1e-10)
    assert not found.factors[2][4:].any()


@pytest.mark.parametrize("long", [0, 2])
def test_forgetting_weighs_earlier_slices(tmp_path: Path, long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "LONG", long)
    model, data, forgetting = model_of((5, 6, 4)), array_of((5, 6, 2), 2), 0.7
    first = model.update(data[:, :, :1], 2, forgetting=forgetting, sweeps=1, **CPU)
    first.save(tmp_path / "model.npz")
    second = amped.load(tmp_path / "model.npz").update(data[:, :, 1:], 2, forgetting=forgetting, sweeps=1, **CPU)
    factors, weights = with_weights(model), np.ones(4)
    for k in range(2):
        array = np.concatenate([full(factors), data[:, :, k : k + 1]], axis=2)
        weights = np.append(forgetting * weights, 1.0)
        factors = [*factors[:2], np.vstack([factors[2], np.zeros((1, 3))])]
        factors = cp_stream(factors, array, [4 + k], 1, weights)
    np.testing.assert_allclose(second.full(), full(factors), atol=1e-8)
    assert second.slice_weights is not None
    np.testing.assert_allclose(second.slice_weights.weights, weights)
    again = model.update(data, 2, forgetting=forgetting, sweeps=1, step=1, **CPU)
    np.testing.assert_allclose(again.full(), full(factors), atol=1e-8)
    with pytest.raises(amped.InputError, match="forget slices of mode 2"):
        second.update(array_of((1, 6, 6)), 0, **CPU)


@pytest.mark.parametrize("long", [0, 2])
@pytest.mark.parametrize("elements", ["add", "replace"])
def test_elements_of_known_slices(elements: str, long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "LONG", long)
    model = model_of((5, 4, 6))
    places = np.array([[0, 0, 0], [1, 2, 3], [2, 2, 3], [4, 3, 5]])
    new = amped.SparseTensor(places, [3.0, -2.0, 1.0, 5.0], (5, 4, 6))
    array = model.full()
    at = tuple(places.T)
    array[at] = new.values + (array[at] if elements == "add" else 0)
    found = model.update(new, elements=elements, sweeps=2, **CPU)
    want = cp_stream(with_weights(model), array, range(6), 2, np.ones(6))
    np.testing.assert_allclose(found.full(), full(want), atol=1e-8)


def test_no_sweep_raises_the_objective() -> None:
    model, data = model_of((6, 5, 7)), array_of((6, 5, 2), 2)
    array = np.concatenate([model.full(), data], axis=2)
    errors = [np.linalg.norm(array - model.update(data, 2, sweeps=k, **CPU).full()) for k in range(1, 8)]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(errors))
    batch = amped.cp_als(array, 3, init=model.update(data, 2, sweeps=1, **CPU).factors, max_iters=100, tol=0, **CPU)
    longest = model.update(data, 2, sweeps=100, **CPU)
    assert abs(np.linalg.norm(array - longest.full()) / np.linalg.norm(array) - (1 - batch.fits[-1])) < 1e-3


@pytest.mark.parametrize("long", [0, 2])
def test_models_with_a_non_negative_mode(long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "LONG", long)
    model = model_of((6, 5, 4), nonnegative=[1])
    found = model.update(array_of((6, 5, 2), 2), 2, **CPU)
    model.run["constraints"] = {"1": ["nonnegative"]}
    np.testing.assert_array_equal(found.full(), model.update(array_of((6, 5, 2), 2), 2, **CPU).full())
    assert found.factors[1].min() >= 0 > found.factors[0].min()
    np.testing.assert_allclose([np.abs(factor).sum(axis=0) for factor in found.factors], 1)


def test_non_negative_models_stay_so() -> None:
    model = model_of((6, 5, 4), nonnegative=True)
    data = array_of((6, 5, 2), 2)
    found = model.update(data, 2, sweeps=3, **CPU)
    assert min(factor.min() for factor in found.factors) >= 0
    projected = model.transform(data, 2, **CPU)
    before = np.linalg.norm(data - full([*model.factors[:2], projected]))
    after = np.linalg.norm(data - full([*found.factors[:2], (found.factors[2] * found.weights)[4:]]))
    assert after < before
    np.testing.assert_allclose([np.abs(factor).sum(axis=0) for factor in found.factors], 1)
    assert found.nonnegative_modes == (0, 1, 2)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("long", [0, 2])
def test_counts_are_those_of_online_em(device: str, precision: str, long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "LONG", long)
    model = amped.cp_apr(array_of((5, 6, 4), 1, False), 3, max_iters=5, **CPU)
    data = array_of((5, 6, 2), 2, False)
    data[1] = data[:, 2] = 0
    found = model.update(data, 2, sweeps=1, forgetting=0.5, device=device, precision=precision)
    factors = with_weights(model)
    want = online_em([*factors[:2], factors[2]], data, 0.5 * model.weights, 10)
    dense = np.concatenate([full([*want[:2], factors[2]]), full(want)], axis=2)
    np.testing.assert_allclose(found.full(), dense, atol=CLOSE[precision] * dense.max(), rtol=0)
    assert found.loss == "poisson"
    np.testing.assert_allclose(found.full()[:, :, 4:].sum(), data.sum(), rtol=1e-4)


def labelled(array: np.ndarray, labels: list[Any], names: list[str] | None = None) -> amped.SparseTensor:
    tensor = amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape)
    tensor.labels = Labels(map(as_labels, labels), names or ["day", "who", "size"])
    return tensor


@pytest.mark.parametrize("long", [0, 2])
def test_new_labels_in_several_modes(long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "LONG", long)
    days = [np.datetime64("2026-01-01") + k for k in range(3)]
    first = labelled(array_of((3, 4, 2), 1, False), [days, list("abcd"), [1, 2]])
    model = amped.cp_als(first, 2, **CPU, max_iters=3)
    later = [days[2], days[2] + 1]
    data = labelled(array_of((3, 2, 2), 2, False), [list("bxa"), later, [2, 3]], ["who", "day", "size"])
    found = model.update(data, 0, sweeps=2, **CPU)
    assert found.shape == (4, 5, 3)
    assert found.labels is not None
    assert found.labels[1].tolist() == list("abcdx")
    assert found.labels[0].tolist()[-1] == later[1].item()
    assert found.labels.names == ("day", "who", "size")
    matrices = with_weights(model)
    long = [np.vstack([f, np.zeros((1, 2))]) for f in matrices]
    moved, dense = full(long), array_of((3, 2, 2), 2, False)
    for place in np.ndindex(*dense.shape):
        at = [2, 3][place[1]], [1, 4, 0][place[0]], [1, 2][place[2]]
        moved[at] += dense[place]
    order = [long[1], long[2], long[0]]
    want = cp_stream(order, np.moveaxis(moved, 0, -1), [2, 3], 2, np.ones(4))
    np.testing.assert_allclose(np.moveaxis(found.full(), 0, -1), full(want), atol=1e-8)


def test_steps_items_and_calls_agree(tmp_path: Path) -> None:
    model, data = model_of((5, 6, 3)), array_of((5, 6, 4), 2)
    one = model
    for k in range(4):
        one = one.update(data[:, :, k : k + 1], 2, **CPU)
    np.save(tmp_path / "slice.npy", data[:, :, 1:2])
    items = [data[:, :, :1], tmp_path / "slice.npy", amped.DenseTensor(data[:, :, 2:3]), data[:, :, 3:]]
    several, stepped = model.update(iter(items), 2, **CPU), model.update(data, 2, step=1, **CPU)
    np.testing.assert_allclose(several.full(), one.full(), atol=1e-10)
    np.testing.assert_allclose(stepped.full(), one.full(), atol=1e-10)
    assert one.run["updates"] == several.run["updates"] == stepped.run["updates"] == 4


def test_metrics_have_a_line_for_each_update(tmp_path: Path) -> None:
    """Those of a resumed call follow; otherwise a file that exists is refused."""
    model, data, file = model_of((4, 5, 6)), array_of((4, 5, 3), 2), tmp_path / "m.jsonl"
    how: dict[str, Any] = {"metrics": file, "checkpoint": tmp_path / "saved", "step": 1, **CPU}

    def interrupted() -> Iterator[np.ndarray]:
        yield data
        raise KeyError("an interruption")

    with pytest.raises(KeyError):
        model.update(interrupted(), 2, **how)
    first = file.read_text().splitlines()
    with pytest.raises(amped.InputError, match=r"m\.jsonl: exists already; remove it, or name another file"):
        model.update(iter([data, data]), 2, **{**how, "checkpoint": None})
    model.update(iter([data, data]), 2, resume=True, **how)
    lines = file.read_text().splitlines()
    assert lines[: len(first)] == first
    events = [json.loads(line) for line in lines]
    assert [(each["event"], each["update"]) for each in events] == [("update", number) for number in range(1, 7)]
    assert [each["nonzeros"] for each in events] == 2 * [np.count_nonzero(each) for each in np.moveaxis(data, 2, 0)]
    assert min(each["seconds"] for each in events) > 0


def test_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    model, data = model_of((5, 6, 3)), array_of((5, 6, 4), 2)
    want = model.update(data, 2, step=1, **CPU)

    def slices(stop: int) -> Iterator[np.ndarray]:
        yield from (data[:, :, k : k + 1] for k in range(stop))
        if stop < 4:
            raise KeyError("the source has failed")

    how: dict[str, Any] = {"checkpoint": tmp_path / "saved", **CPU}
    with pytest.raises(KeyError):
        model.update(slices(3), 2, **how)
    with pytest.raises(amped.InputError, match="resume=True"):
        model.update(slices(4), 2, **how)
    found = model.update(slices(4), 2, resume=True, **how)
    np.testing.assert_allclose(found.full(), want.full(), atol=1e-10)
    assert found.run["updates"] == 4
    with pytest.raises(amped.InputError, match="other parameters"):
        model.update(slices(4), 2, resume=True, sweeps=5, **how)


def test_all_kinds_of_data(tmp_path: Path) -> None:
    pandas, xarray, sparse = (pytest.importorskip(name) for name in ("pandas", "xarray", "scipy.sparse"))
    rows = [("a", 1, 2.0), ("b", 2, 1.0), ("a", 3, 4.0), ("c", 1, 1.0), ("c", 2, 5.0)]
    table = pandas.DataFrame(rows, columns=["who", "day", "count"])
    model = amped.cp_als(amped.from_frame(table, ["who", "day"], "sum(count)"), 1, **CPU)
    later = pandas.DataFrame([("a", 4, 2.0), ("d", 4, 3.0)], columns=["who", "day", "count"])
    later.to_csv(tmp_path / "later.csv", index=False)
    found = [model.update(each, 1, **CPU) for each in (later, tmp_path / "later.csv")]
    coords = {"who": list("ad"), "day": [4]}
    found.append(model.update(xarray.DataArray([[2.0], [3.0]], coords, ("who", "day")), 1, **CPU))
    for each in found:
        assert each.labels is not None
        assert each.labels[0].tolist() == list("abcd")
        np.testing.assert_allclose(each.full(), found[0].full(), atol=1e-10)
    plain, matrix = model_of((4, 5), 2), array_of((4, 2), 2)
    np.testing.assert_allclose(
        plain.update(sparse.csr_array(matrix), 1, **CPU).full(), plain.update(matrix, 1, **CPU).full(), atol=1e-12
    )


@pytest.mark.parametrize(
    ("data", "given", "cause"),
    [
        (
            np.ones((5, 4, 1)),
            {"mode": 2},
            "5 x 4 x 1, the model 5 x 6 x .: all lengths except mode 2's must agree unless",
        ),
        (np.ones((5, 6, 1)), {}, "mode=N appends"),
        (np.ones((5, 6)), {"mode": 1}, "X is of order 2, the model of order 3"),
        (np.ones((5, 6, 1)), {"mode": 3}, r"mode 3 is outside 0\.\.2"),
        (np.ones((5, 6, 1)), {"mode": -1}, "mode"),
        (np.zeros((5, 6, 3)), {}, "X is empty: it has no nonzero element and no new slice"),
        (np.empty((5, 6, 0)), {"mode": 2}, "length|empty|shape|nonzero|element"),
        (np.full((5, 6, 1), np.nan), {"mode": 2}, "NaN"),
        (np.full((5, 6, 1), np.inf), {"mode": 2}, "infinite|finite"),
        (np.ones((5, 6, 1)), {"mode": 2, "forgetting": 0.0}, "forgetting is 0.0"),
        (np.ones((5, 6, 1)), {"mode": 2, "forgetting": 1.5}, "forgetting is 1.5"),
        (np.ones((5, 6, 3)), {"forgetting": 0.5}, "forgetting requires mode"),
        (np.ones((5, 6, 3)), {"step": 1}, "step requires mode"),
        (np.ones((5, 6, 1)), {"mode": 2, "elements": "change"}, "elements is 'change'"),
        (np.ones((5, 6, 1)), {"mode": 2, "resume": True}, "resume needs checkpoint"),
        (iter(()), {"mode": 2}, "iterator is empty"),
        (None, {"mode": 2}, "X is None"),
        ("missing.tns", {"mode": 2}, "missing.tns"),
    ],
)
def test_refused(data: Any, given: dict[str, Any], cause: str) -> None:
    with pytest.raises(amped.InputError, match=cause) as caught:
        model_of((5, 6, 3)).update(data, **given, **CPU)
    assert "\n" not in str(caught.value)


def test_refused_labels_and_models() -> None:
    model = amped.cp_als(labelled(array_of((3, 4, 2), 1), [[1, 2, 3], list("abcd"), [1, 2]]), 2, **CPU, max_iters=1)
    with pytest.raises(amped.InputError, match="X has no labels"):
        model.update(np.ones((1, 4, 2)), 0, **CPU)
    with pytest.raises(amped.InputError, match="who: labels are numbers, the model's texts"):
        model.update(labelled(array_of((1, 2, 2), 1), [[4], [1, 2], [1, 2]]), 0, **CPU)
    constrained = amped.cp_als(array_of((5, 6, 3)), 1, constraints={1: "unimodal"}, max_iters=2, **CPU)
    with pytest.raises(amped.InputError, match="constraints"):
        constrained.update(np.ones((5, 6, 1)), 2, **CPU)
    tucker = amped.tucker(array_of((5, 6, 3)), (2, 2, 2), **CPU)
    with pytest.raises(amped.InputError, match="Tucker models"):
        tucker.update(np.ones((5, 6, 1)), 2)


@pytest.mark.parametrize("loss", ["bernoulli-logit", "rayleigh", "huber:0.5"])
def test_other_losses(loss: str) -> None:
    rng = np.random.default_rng(0)
    signal = full([np.abs(rng.normal(size=(n, 2))) + 0.1 for n in (8, 7, 24)])
    data = (rng.random(signal.shape) < signal / (1 + signal)).astype(float) if "logit" in loss else signal
    if loss == "rayleigh":
        data = signal * rng.rayleigh(0.8, signal.shape)
    if "huber" in loss:
        data = signal + 0.1 * rng.standard_normal(signal.shape)
    how: dict[str, Any] = {"loss": loss, "max_iters": 60, **CPU}
    model = amped.cp(data[:, :, :16], 2, **how)
    found = model.update(data[:, :, 16:], 2, step=4, **CPU)
    projected = amped.KruskalTensor(np.ones(2), [*model.factors[:2], model.transform(data, 2, **CPU)])
    projected.run = model.run
    assert found.loss == loss
    assert projected.score(data) - 1e-9 < found.score(data) < 1
    assert found.score(data) > 0.9 * amped.cp(data, 2, **how).score(data)
    with pytest.raises(amped.InputError, match="elements='replace'"):
        model.update(data[:, :, :16], **CPU)
    if loss == "bernoulli-logit":
        with pytest.raises(amped.InputError, match="a value is -1: loss 'bernoulli-logit' expects 0 or 1"):
            model.update(-data[:, :, 16:], 2, **CPU)


@pytest.mark.parametrize("optimal", ["rayleigh", "bernoulli-logit", "gamma", "huber:0.5", "negative-binomial:3"])
def test_the_model_is_optimal_for_values_that_stand_for_data(optimal: str) -> None:
    loss, model = loss_of(optimal), np.array([0.1, 0.7, 2.0, 5.0])
    values = optimal_values(loss, model)
    near = [np.asarray(loss.of(values, model * factor)) for factor in (0.99, 1.0, 1.01)]
    assert (near[1] <= near[0] + 1e-9).all()
    assert (near[1] <= near[2] + 1e-9).all()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_observed_elements(kind: str) -> None:
    rng = np.random.default_rng(0)
    factors = [rng.normal(size=(n, 2)) for n in (8, 7, 20)]
    data = full(factors)
    gaps = np.where(rng.random(data.shape) < 0.5, data, np.nan)

    def part(begin: int, end: int) -> Any:
        if kind == "dense":
            return gaps[:, :, begin:end]
        places = np.argwhere(~np.isnan(gaps[:, :, begin:end]))
        return amped.SparseTensor(places, gaps[:, :, begin:end][tuple(places.T)], (8, 7, end - begin), keep_zeros=True)

    model = amped.cp_als(part(0, 12), 2, mask="nan" if kind == "dense" else "stored", max_iters=100, tol=0, **CPU)
    found = model.update(iter([part(12, 16), part(16, 20)]), 2, sweeps=5, **CPU)
    assert np.linalg.norm(found.full() - data) < 0.05 * np.linalg.norm(data)
    assert found.run["mask"] == model.run["mask"]
    further = found.update(part(0, 20), elements="replace", **CPU)
    assert further.shape == (8, 7, 20)
