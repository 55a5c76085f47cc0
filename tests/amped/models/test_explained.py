"""What a model says of its components, and of a tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amped
from amped.errors import InputError
from amped.models.columns import readable_signs
from partitioner.tensors.labels import Labels

RNG = np.random.default_rng(0)
SHAPE, RANK = (6, 5, 4), 3


def model(positive: bool = False, labelled: bool = True) -> amped.KruskalTensor:
    factors = [RNG.standard_normal((n, RANK)) for n in SHAPE]
    found = amped.KruskalTensor(np.array([5.0, 3.0, 1.0]), [abs(f) for f in factors] if positive else factors)
    labels = [[f"row {k}" for k in range(6)], np.arange(5) * 1.5, np.array(["2024-01-01"], "M8[D]") + np.arange(4)]
    return found.labelled(Labels.of(labels, SHAPE)) if labelled else found


@pytest.mark.parametrize("positive", [False, True])
def test_shares_are_of_the_norm_or_the_sum_and_add_up(positive: bool) -> None:
    found = model(positive)
    shares, whole = found.shares(), found.full()
    assert shares.sum() == pytest.approx(1)
    for r in range(RANK):
        alone = amped.KruskalTensor(found.weights[[r]], [f[:, [r]] for f in found.factors]).full()
        want = alone.sum() / whole.sum() if positive else (alone * whole).sum() / (whole**2).sum()
        assert shares[r] == pytest.approx(want)
    assert not amped.KruskalTensor(np.zeros(2), [np.ones((3, 2))] * 2).shares().any()


def test_the_largest_numbers_come_first_with_their_labels() -> None:
    found = model()
    for component in found.top(3):
        column = [f[:, component.number] for f in found.factors]
        for mode, top in enumerate(component.top):
            rows = np.argsort(-abs(column[mode]))[:3]
            assert [number for _, number in top] == column[mode][rows].tolist()
            assert found.labels is not None
            assert [label for label, _ in top] == found.labels[mode][rows].tolist() or mode == 2
    assert [c.weight for c in found.top(1)] == [5, 3, 1]
    plain = model(labelled=False).top(100)[0].top
    assert [sorted(label for label, _ in top) for top in plain] == [list(range(n)) for n in SHAPE]
    some = amped.KruskalTensor(np.ones(1), [np.array([[0.0], [2], [0]]), np.ones((2, 1))])
    assert some.top(5)[0].top[0] == ((1, 2.0),), "zeros say nothing"
    with pytest.raises(InputError, match="count 0"):
        found.top(0)


def test_signs_leave_the_model_and_make_columns_positive() -> None:
    found = model()
    before = found.full()
    found.signed()
    assert np.allclose(found.full(), before)
    bulk = np.array([np.sum(f * abs(f), axis=0) / np.sum(f * f, axis=0) for f in found.factors])
    for r in range(RANK):
        assert (bulk[:, r] < 0).sum() <= 1
        if (bulk[:, r] < 0).any():
            assert bulk[:, r].min() == -abs(bulk[:, r]).min()
    assert readable_signs(np.array([[-1.0, -0.5], [-0.2, 0.9], [0.3, -0.1]]), np.ones((3, 2))).tolist() == [
        [-1, -1],
        [-1, 1],
        [1, -1],
    ]
    assert (readable_signs(np.array([[-1.0], [0.4], [0.1]]), np.ones((3, 1))) == [[-1], [1], [-1]]).all()


@pytest.mark.parametrize("kind", ["sparse", "dense", "array", "file"])
def test_the_score_is_the_fit(kind: str, tmp_path: Path) -> None:
    found = model()
    array = found.full() + 0.3 * RNG.standard_normal(SHAPE)
    array[abs(array) < 1] = 0
    tensor = {
        "sparse": amped.SparseTensor(np.argwhere(array), array[array != 0], SHAPE),
        "dense": amped.DenseTensor(array),
        "array": array,
        "file": tmp_path / "x.npy",
    }[kind]
    np.save(tmp_path / "x.npy", array)
    want = 1 - np.linalg.norm(array - found.full()) / np.linalg.norm(array)
    if kind != "file":
        assert found.score(tensor) == pytest.approx(want, rel=1e-12)
    for wrong in (array[1:], array[0]):
        with pytest.raises(InputError, match=r"X is .*, the model .*: all lengths must agree unless both have labels"):
            found.score(wrong)
    with pytest.raises(InputError, match="has only zeros"):
        found.score(np.zeros(SHAPE))


def test_residuals_name_what_is_explained_least() -> None:
    found = model()
    array = found.full()
    array[4, 2, 1] += 100
    array[0, 0, 3] -= 10
    for tensor in (array, amped.SparseTensor(np.argwhere(array), array[array != 0], SHAPE)):
        told = found.residuals(tensor, 2)
        first, second = told.entries
        assert first.labels == ("row 4", 3.0, np.datetime64("2024-01-02"))
        assert (first.value, first.value - first.expected) == (array[4, 2, 1], pytest.approx(100))
        assert second.value - second.expected == pytest.approx(-10)
        assert told.squared == pytest.approx(10100)
        assert [top[0][0] for top in told.labels] == ["row 4", 3.0, np.datetime64("2024-01-02")]
        assert told.labels[0][0][1] == pytest.approx(10000 / 10100)
        assert len(told.labels[1]) == 2


def test_a_frame_has_labels() -> None:
    pandas = pytest.importorskip("pandas")
    found = model()
    assert isinstance(frame := found.frame(0), pandas.DataFrame)
    assert frame.index.tolist() == [f"row {k}" for k in range(6)]
    assert np.array_equal(frame.to_numpy(), found.factors[0])
    assert found.frame(2).index[1] == pandas.Timestamp("2024-01-02")
    assert model(labelled=False).frame(1).index.tolist() == list(range(5))
    with pytest.raises(InputError, match="mode 3"):
        found.frame(3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["array", "file", "sparse"])
def test_what_is_not_finite_is_refused_after_the_fit_too(tmp_path: Path, bad: float, kind: str) -> None:
    array = np.random.default_rng(1).random(SHAPE)
    core = amped.TuckerTensor(np.ones((2, 2, 2)), [np.eye(n)[:, :2] for n in SHAPE])
    given: Any = amped.SparseTensor(np.argwhere(array > 0), array.reshape(-1), SHAPE)
    if kind == "sparse":
        given.values[3] = bad  # the caller can change its tensor
    else:
        array[1, 2, 3] = bad
        given = array
    if kind == "file":
        given = tmp_path / "x.npy"
        np.save(given, array)
    found = model(positive=True, labelled=False)
    calls = {
        "score": lambda: found.score(given),
        "residuals": lambda: found.residuals(given),
        "Tucker's score": lambda: core.score(given),
        "report": lambda: found.report(tmp_path / "r.html", given),
        "rows": lambda: found.transform(given, 0, device="cpu"),
        "rows of Tucker": lambda: core.transform(given, 0, device="cpu"),
    }
    place = r"value of nonzero 3 is|values up to" if kind == "sparse" else r"element \[1, 2, 3\] is"
    for call in calls.values():
        with pytest.raises(InputError, match=rf"({place}) -?(nan|inf): every (value|element) must be finite"):
            call()
    assert not (tmp_path / "r.html").exists()


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("value", [1e200, 1e-200])
def test_squares_beyond_double_precision_are_refused_after_the_fit(value: float) -> None:
    array = np.zeros((3, 3, 3))
    array[0, 1, 2] = value
    cp = amped.KruskalTensor(np.ones(2), [np.ones((3, 2))] * 3)
    tucker = amped.TuckerTensor(np.ones((2, 2, 2)), [np.ones((3, 2))] * 3)
    for given in (array, amped.SparseTensor([[0, 1, 2]], [value], (3, 3, 3))):
        for compare in (cp.score, cp.residuals, tucker.score):
            with pytest.raises(
                InputError, match=r"the norm of X, 1e[+-]200, is outside the range of .*: scale its values"
            ):
                compare(given)
