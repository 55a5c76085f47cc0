"""Components in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amped import KruskalTensor
from amped.report.sentences import sentences

WEEK = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def said(column: list[float], labels: Any = None) -> str:
    """Return what is said of a column; the other mode has one index."""
    model = KruskalTensor(np.ones(1), [np.array(column)[:, None], np.ones((1, 1))])
    model.labels = None if labels is None else {"it": labels, "other": [0]}
    (sentence,) = sentences(model)
    share, _, it, _ = sentence.replace("; ", ": ").split(": ")[:4]
    assert share == f"{model.shares()[0]:.0%} of the model"
    return it


@pytest.mark.parametrize(
    ("column", "labels", "expected"),
    [
        ([1, 0, 5, 4], ["a", "b", "c", "d"], "c and d"),
        ([9, 8, 7, 6, 5, 0], list("fedcba"), "f, e, d, c and 1 more"),
        ([0, 2, 2, 2, 0, 3], None, "1 to 3 and 5"),
        ([0, 2, 2, 0], None, "1 and 2"),
        ([3, 0, 3, 0, 3, 0, 3, 0, 2.9], None, "0, 2, 4, 6 and 1 more"),
        ([1, 9, 8, 9], [20, 5, 15, 10], "5 to 15"),
        ([8, 0, 9, 0, 0, 0, 9], ["Friday", "Monday", "Saturday", "Tuesday", "Thursday", "Wednesday", "Sunday"],
         "Friday to Sunday"),
        ([2, 3, 2.5], ["a", "b", "c"], "all alike"),
        ([-2, -3, -2.5], ["a", "b", "c"], "all alike"),
        ([2, -3, 0], ["a", "b", "c"], "a against b"),
        ([0, 0], ["a", "b"], "nothing"),
        ([1], ["a"], "a"),
    ],
)  # fmt: skip
def test_a_mode_in_words(column: list[float], labels: Any, expected: str) -> None:
    assert said(column, labels) == expected


def test_small_shares_are_not_minus_nothing() -> None:
    model = KruskalTensor(np.array([1.0, -0.05]), [np.array([[1.0, 0.9], [0, 0.1]]), np.ones((1, 2))])
    assert -0.06 < model.shares()[1] < -0.005, "a negative share is shown"
    assert sentences(model)[1].startswith(f"{model.shares()[1]:.0%} of the model: ")
    model.weights[1] = -0.001
    assert -0.005 < model.shares()[1] < 0
    assert sentences(model)[1].startswith("less than 1% of the model: ")


def test_each_component_and_no_more_than_twelve() -> None:
    rng = np.random.default_rng(0)
    model = KruskalTensor(np.arange(15.0, 0, -1), [rng.random((7, 15)), rng.random((20, 15))])
    model.labels = {"weekday": WEEK, "place": [f"place {n}" for n in range(20)]}
    found = sentences(model)
    assert len(found) == 12
    assert [each.split("%")[0] for each in found] == [f"{share:.0%}"[:-1] for share in model.shares()[:12]]
    assert all("; place: " in each and "of the model: weekday: " in each for each in found)
