"""Comparing two models: which components match, and which labels gained or lost."""

from __future__ import annotations

import csv
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, succeeded
from tensors import labels_of

import amped
from amped import InputError, KruskalTensor
from amped.models.matching import factor_match
from amped.report import pictures

HOW: dict[str, Any] = {"device": "cpu", "precision": "fp64"}
SHAPE = (8, 7, 6)


def random_model(seed: int, rank: int = 4, shape: tuple[int, ...] = SHAPE) -> KruskalTensor:
    rng = np.random.default_rng(seed)
    return KruskalTensor(np.arange(rank, 0, -1.0), [rng.standard_normal((length, rank)) for length in shape])


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return abs(one @ other) / np.linalg.norm(one) / np.linalg.norm(other)


def month(seed: int, changed: bool) -> amped.SparseTensor:
    """Return counts of a month: four habits of weekdays, hours and places, one of which may have moved to the night."""
    rng = np.random.default_rng(0)
    hours = np.arange(24)
    peaks = [8, 17, 12, 2 if changed else 21]
    days = rng.dirichlet(np.full(7, 0.5), 4).T
    times = np.exp(-0.5 * ((hours[:, None] - peaks) / 1.5) ** 2)
    places = rng.dirichlet(np.full(40, 0.2), 4).T
    model = KruskalTensor(np.array([9000.0, 7000.0, 5000.0, 4000.0]), [days, times / times.sum(axis=0), places])
    counts = np.random.default_rng(seed).poisson(model.full())
    tensor = amped.SparseTensor(np.argwhere(counts), counts[counts > 0], counts.shape)
    names = ["weekday", "hour", "place"]
    labels = ["Mon Tue Wed Thu Fri Sat Sun".split(), hours, [f"place {n}" for n in range(40)]]
    return tensor.labelled(labels_of(*labels, names=names))


def test_two_months_with_one_changed_component(folder: Path) -> None:
    how = {"nonnegative": True, "starts": 3, "max_iters": 100, **HOW}
    models = [amped.cp_als(month(seed, bool(seed)), 4, **how) for seed in (0, 1)]
    found = models[0].compare(models[1])
    assert [pair.status for pair in found.pairs].count("same") == 3
    (changed,) = [pair for pair in found.pairs if pair.status == "changed"]
    by_mode = dict(zip([mode.name for mode in found.modes], changed.by_mode, strict=True))
    assert by_mode["hour"] < 0.2
    assert min(by_mode["weekday"], by_mode["place"]) > 0.95
    hours = changed.changes[1]
    gained = {change.label for change in hours if change.after > change.before}
    lost = {change.label for change in hours if change.after < change.before}
    assert gained <= {1, 2, 3}
    assert lost <= {20, 21, 22}
    assert 2 in gained
    assert 21 in lost
    same = models[0].compare(amped.cp_als(month(2, False), 4, **how))
    assert [pair.status for pair in same.pairs] == ["same"] * 4
    for number, model in enumerate(models):
        model.save(f"{number}.npz")
    text = succeeded(run_amped("compare", "0.npz", "1.npz", "--output", "changes.csv")).out
    assert text == f"{found}\n"
    assert "components: 3 the same, 0 similar, 1 changed, 0 only" in text
    rows = list(csv.DictReader(Path("changes.csv").read_text().splitlines()))
    moved = [row for row in rows if row["status"] == "changed" and row["mode"] == "hour"]
    assert {int(row["label"]) for row in moved} == gained | lost
    pairs = [(int(row["first"]), int(row["second"])) for row in rows]
    assert list(dict.fromkeys(pairs)) == [(pair.first + 1, pair.second + 1) for pair in found.pairs], "as printed"


@pytest.mark.parametrize("ranks", [(4, 4), (3, 5), (5, 3)])
def test_the_matching_is_the_best_of_all(ranks: tuple[int, int]) -> None:
    for seed in range(5):
        first, second = random_model(seed, ranks[0]), random_model(seed + 50, ranks[1])
        for mode, factor in enumerate(second.factors):  # similar to some components
            factor[:, :2] = first.factors[mode][:, 1:3] + 0.4 * factor[:, :2]
        alike = np.prod(
            [[[cosine(a, b) for b in g.T] for a in f.T] for f, g in zip(first.factors, second.factors, strict=True)], 0
        )
        small, wide = (alike, alike.T)[:: 1 if ranks[0] <= ranks[1] else -1]
        best = max(sum(small[range(len(small)), chosen]) for chosen in permutations(range(wide.shape[0]), len(small)))
        assert factor_match(first.factors, second.factors) == pytest.approx(best / len(small))
        found = first.compare(second)
        for pair in found.pairs:
            assert pair.congruence == pytest.approx(alike[pair.first, pair.second])
            assert pair.congruence == pytest.approx(np.prod(pair.by_mode))
            assert np.mean(pair.by_mode) >= 0.5
        assert {(1, 0), (2, 1)} <= {(pair.first, pair.second) for pair in found.pairs}
        numbers = [pair.first for pair in found.pairs], [pair.second for pair in found.pairs]
        for rank, mine, alone in zip(ranks, numbers, found.only, strict=True):
            assert sorted([*mine, *alone]) == list(range(rank))


def test_a_model_is_the_same_as_itself_in_another_order_and_with_other_signs() -> None:
    first = random_model(1)
    order = [2, 0, 3, 1]
    second = KruskalTensor(first.weights[order], [factor[:, order].copy() for factor in first.factors])
    second.factors[0] *= -1
    second.factors[2] *= -3
    found = first.compare(second)
    assert [(pair.first, pair.second) for pair in found.pairs] == [(0, 1), (1, 3), (2, 0), (3, 2)]
    assert found.match == pytest.approx(1)
    assert {pair.status for pair in found.pairs} == {"same"}
    assert all(
        abs(change.before - change.after) < 1e-12 for pair in found.pairs for each in pair.changes for change in each
    )


def test_rows_are_matched_by_their_labels() -> None:
    first = random_model(2).labelled([list("abcdefgh"), range(7), [f"2024-01-0{day}" for day in range(1, 7)]])
    rows = [3, 1, 7, 0, 2, 5]
    factors = [first.factors[0][rows], first.factors[1], first.factors[2]]
    factors[0] = np.vstack([factors[0], np.zeros((1, 4))])
    factors[0][6, 0] = 5.0  # a label that the first model lacks
    second = KruskalTensor(first.weights, factors)
    second.labelled([["d", "b", "h", "a", "c", "f", "z"], range(7), [f"2024-02-0{day}" for day in range(1, 7)]])
    found = first.compare(second)
    assert found.skipped == ("mode 2: no label in common",)
    assert found.modes[0].only == (["e", "g"], ["z"])
    for pair in found.pairs:
        mine = first.factors[0][:, pair.first]
        theirs = np.zeros(9)
        theirs[rows], theirs[8] = second.factors[0][:6, pair.second], second.factors[0][6, pair.second]
        assert pair.by_mode[0] == pytest.approx(cosine(np.append(mine, 0), theirs))
    change = next(c for pair in found.pairs if pair.second == 0 for c in pair.changes[0] if c.label == "z")
    assert change.before == 0
    assert change.after != 0
    text = str(found)
    assert "mode 0: 1 label only in the second model (z)" in text
    assert "mode 0: 2 labels only in the first model (e, g)" in text
    assert "not compared: mode 2: no label in common" in text


def test_modes_are_matched_by_their_names() -> None:
    first = random_model(3).labelled(labels_of(range(8), range(7), range(6), names=["a", "b", "c"]))
    second = KruskalTensor(first.weights, [first.factors[m] for m in (2, 0, 1)])
    second.labelled(labels_of(range(6), range(8), range(7), names=["c", "a", "b"]))
    found = first.compare(second)
    assert [mode.name for mode in found.modes] == ["a", "b", "c"]
    assert found.match == pytest.approx(1)


@pytest.mark.parametrize("first", [True, False])
def test_labels_of_one_model_are_those_of_both(first: bool) -> None:
    labelled, other = random_model(3), random_model(4)
    labelled.labelled(labels_of(list("abcdefgh"), range(7), range(10, 16), names=["x", "y", "z"]))
    found = labelled.compare(other) if first else other.compare(labelled)
    assert [mode.name for mode in found.modes] == ["x", "y", "z"]
    assert found.modes[0].labels is not None
    assert found.modes[0].labels.tolist() == list("abcdefgh")
    assert {change.label for pair in found.pairs for change in pair.changes[2]} <= set(range(10, 16))


def test_pairs_that_are_not_drawn_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(pictures, "MOST", 3)
    model = random_model(5)
    figure = model.compare(model).plot()
    assert len(figure.axes) == 9
    assert figure.get_supxlabel() == "1 more pairs"
    assert random_model(5, 3).compare(random_model(5, 3)).plot().get_supxlabel() == ""


def test_other_models() -> None:
    model = random_model(4)
    assert model.compare((model.weights, model.factors)).match == pytest.approx(1)
    with pytest.raises(InputError, match="a TuckerTensor is not a CP model"):
        model.compare(amped.TuckerTensor(np.ones((1, 1, 1)), [np.ones((length, 1)) for length in SHAPE]))
    with pytest.raises(InputError, match="a model of 3 modes and one of 2"):
        model.compare(random_model(4, shape=(8, 7)))
    with pytest.raises(InputError, match="no mode in common: mode 0: 8 and 1 indices without labels; mode 1: "):
        model.compare(random_model(4, shape=(1, 1, 1)))
    assert model.compare(random_model(4, shape=(8, 3, 6))).skipped == ("mode 1: 7 and 3 indices without labels",)


def test_frames_and_pictures(folder: Path) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    first, noise = random_model(5), random_model(6)
    factors = [(f + 0.3 * g)[:, 1:] for f, g in zip(first.factors, noise.factors, strict=True)]
    found = first.compare(KruskalTensor(np.ones(3), factors))
    assert len(found.pairs) == 3
    frame = found.to_frame()
    assert frame.columns.tolist()[:6] == ["first", "second", "status", "congruence", "share_first", "share_second"]
    assert frame["mode 1"].tolist() == [pair.by_mode[1] for pair in found.pairs]
    changes = found.changes_to_frame()
    assert len(changes) == sum(len(each) for pair in found.pairs for each in pair.changes)
    figure = found.plot("x.png")
    assert Path("x.png").stat().st_size > 1000
    assert len(figure.axes) == 3 * len(found.pairs)
    assert [line.get_label() for line in figure.axes[0].lines[::2]] == ["first", "second"]
    assert repr(found) == f"Comparison(pairs=3, match={found.match:.3f})"
    assert "factor match" in found._repr_html_()


def test_a_changed_component_is_matched_although_another_one_has_more_congruence() -> None:
    """The product over the modes is 0 if one mode has nothing in common; components that are unrelated are not 0."""
    shape = (8, 8, 8)
    units = np.eye(8)
    first = KruskalTensor(np.ones(1), [units[:, :1]] * 3)
    moved = [units[:, :1], units[:, 1:2], units[:, :1]]  # equal in two modes
    unlike = [0.3 * units[:, :1] + units[:, 3:4]] * 3
    factors = [np.hstack(pair) for pair in zip(unlike, moved, strict=True)]
    found = first.compare(KruskalTensor(np.ones(2), factors))
    assert first.shape == shape
    assert [(pair.first, pair.second, pair.status) for pair in found.pairs] == [(0, 1, "changed")]
    assert found.only == ((), (0,))


def test_curves_follow_the_order_of_labels_of_both_models() -> None:
    pytest.importorskip("matplotlib")
    first, second = (KruskalTensor(np.ones(1), [np.ones((3, 1)), np.ones((2, 1))]) for _ in range(2))
    first.labelled([[10, 12, 14], [0, 1]])
    second.labelled([[8, 10, 12], [0, 1]])
    line = first.compare(second).plot().axes[0].lines[0]
    assert np.all(np.diff(np.asarray(line.get_xdata(), float)) > 0)


def test_the_command(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    for number in (0, 1):
        random_model(6, rank=3 + number).save(f"{number}.npz")
    succeeded(run_amped("compare", "0.npz", "1.npz", "--top", 2, "--output", "c.csv", "--plot", "c.svg"))
    assert Path("c.svg").read_text().startswith("<?xml")
    refused(run_amped("compare", "0.npz", "1.npz", "--output", "c.csv"), "c.csv: exists already; --force replaces it")
    succeeded(run_amped("compare", "0.npz", "1.npz", "--output", "c.csv", "--force"))
    refused(run_amped("compare", "0.npz", "1.npz", "--output", "1.npz", "--force"), "1.npz: is both OTHER and --output")
    refused(run_amped("compare", "0.npz", "none.npz"), "none.npz")
    amped.TuckerTensor(np.ones((1, 1, 1)), [np.ones((length, 1)) for length in SHAPE]).save("t.npz")
    refused(run_amped("compare", "0.npz", "t.npz"), "t.npz: is a Tucker model: only CP models can be compared")
    refused(run_amped("compare", "0.npz", "1.npz", "--plot", "c.bmp"), "unknown picture format")
    refused(run_amped("compare", "0.npz"), "the following arguments are required: OTHER")
