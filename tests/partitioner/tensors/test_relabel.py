"""Tensors renumbered to match labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tensors import labels_of

from partitioner.errors import InputError
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.labels import as_labels
from partitioner.tensors.relabel import places, relabelled, same_labels, shown
from partitioner.tensors.sparse import SparseTensor

DAYS = np.array(["2024-01-03", "2024-01-01", "NaT"], "M8[D]")


@pytest.mark.parametrize(
    ("known", "given", "want"),
    [
        (["b", "a", None], ["a", "c", None, "b"], [1, -1, 2, 0]),
        ([3, 1, 2], [1, 5, 3], [1, -1, 0]),
        ([3, 1, 2], [1.0, 2.5, 3.0], [1, -1, 0]),
        ([0.5, np.nan, 0.1], [np.nan, 0.1, 0.2], [1, 2, -1]),
        ([True, False], [0, 1, 2], [1, 0, -1]),
        (DAYS, np.array(["2024-01-01T00", "2024-01-03T01", "NaT"], "M8[h]"), [1, -1, 2]),
        (np.array([1, 2], "m8[h]"), np.array([120, 60], "m8[m]"), [1, 0]),
        ([""], ["", "x"], [0, -1]),
        ([2**62], [2**62, 1], [0, -1]),
        ([2**62 + 1, 2**62], np.array([2**62, 2**63], np.uint64), [1, -1]),
        ([2**53 + 1, 2**53], [2.0**53], [1]),
        (np.array(["9999-01-01"], "M8[D]"), np.array([0], "M8[ns]"), [-1]),
        (np.array(["2024", "2025"], "M8[Y]"), np.array(["2025-01-01T00"], "M8[h]"), [1]),
        (np.array([12, 1], "m8[M]"), np.array([1], "m8[Y]"), [0]),
        (np.array([1], "m8[Y]"), np.array([1], "m8[D]"), [-1]),
        (["a", "a", "b"], ["a", "a", "b"], [0, 1, 2]),
        (["a", "a", None, None, "b"], ["b", "c"], [4, -1]),
        (["a", "b"], ["c", "c", "b"], [-1, -1, 1]),
    ],
)
def test_places(known: Any, given: Any, want: list[int]) -> None:
    assert places(as_labels(known), as_labels(given)).tolist() == want


def test_other_kinds_are_refused() -> None:
    with pytest.raises(InputError, match="labels are texts, the model's numbers"):
        places(as_labels([1, 2]), as_labels(["1", "2"]))
    assert not same_labels(as_labels([1, 2]), as_labels(["1", "2"]))
    assert same_labels(as_labels([1, 2]), as_labels([1.0, 2.0]))
    assert not same_labels(as_labels([1, 2]), as_labels([2, 1]))


@pytest.mark.parametrize(
    ("known", "given", "whose"),
    [(["a", "a", "b"], ["b", "a", "a"], "the model"), (["a", "b"], ["a", "a"], "X"), ([1, 1], [1.0, 2.0], "the model")],
)
def test_a_label_of_several_indices_is_refused(known: list[Any], given: list[Any], whose: str) -> None:
    with pytest.raises(InputError, match=f"stands for 2 indices of {whose}: make labels unique"):
        places(as_labels(known), as_labels(given))


def test_labels_in_messages() -> None:
    """Dates are not shown as objects or ticks, and dots stand for further labels only."""
    with pytest.raises(InputError, match="label 2024-01-01 stands for 2 indices"):
        places(DAYS, np.array(["2024-01-01", "2024-01-01"], "M8[D]"))
    assert shown(DAYS[:2]) == "2024-01-03, 2024-01-01"
    assert shown(as_labels(["a", "b", "c"])) == "'a', 'b', 'c'"
    assert shown(np.array([1.5, 2, 3, 4])) == "1.5, 2.0, 3.0, ..."


def test_equal_labels_match_by_position() -> None:
    names = labels_of(["a", "a", None], [1, 2, 2])
    tensor = SparseTensor([[0, 1], [1, 0], [2, 2]], [1.0, 2.0, 3.0], (3, 3))
    tensor.labels = names
    assert relabelled(tensor, names, known=True)[0] is tensor
    other = labels_of(["a", "a", None], [2, 1, 3], names=["gene", "size"])
    with pytest.raises(InputError, match="size: label 2 stands for 2 indices of X"):
        relabelled(tensor, other)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("leave", [None, 0, 2])
def test_sparse_values_stay_with_their_labels(seed: int, leave: int | None) -> None:
    rng = np.random.default_rng(seed)
    wanted = labels_of(*([f"{name}{k}" for k in rng.permutation(5)] for name in "xyz"), names=["x", "y", "z"])
    mine = labels_of(*([f"{name}{k}" for k in rng.permutation(7)] for name in "xyz"))
    tensor = SparseTensor(rng.integers(0, 7, (40, 3)), rng.random(40), (7, 7, 7))
    tensor.labels = mine
    found, lost = relabelled(tensor, wanted, leave)
    before = {tuple(mine[m][i] for m, i in enumerate(row)): v for row, v in zip(tensor.indices, tensor.values)}  # noqa: B905
    kept = {row: v for row, v in before.items() if all(m == leave or row[m] in wanted[m].tolist() for m in range(3))}
    after = {tuple(found.labels[m][i] for m, i in enumerate(row)): v for row, v in zip(found.indices, found.values)}  # noqa: B905
    assert after == kept
    for m in range(3):
        assert found.labels[m].tolist() == (mine if m == leave else wanted)[m].tolist()
        outside = [row for row in before if m != leave and row[m] not in wanted[m].tolist()]
        assert lost[m][0] == len(outside)
        assert set(lost[m][1]) <= {row[m] for row in outside}
    assert found.labels.names == ("x", "y", "z")


def test_nothing_is_done_where_labels_are_the_same() -> None:
    tensor = SparseTensor([[0, 1], [1, 0]], [1.0, 2.0])
    tensor.labels = labels_of(["a", "b"], [1, 2])
    assert relabelled(tensor, labels_of(["a", "b"], [1, 2]))[0] is tensor
    assert relabelled(tensor, labels_of(["b", "a"], [1, 2]), leave=0)[0] is tensor


def test_what_is_wrong() -> None:
    tensor = SparseTensor([[0, 1], [1, 0]], [1.0, 2.0])
    tensor.labels = labels_of(["a", "b"], [1, 2])
    names = ["who", "size"]
    with pytest.raises(InputError, match=r"does not know: 1 of who \('b'\)"):
        relabelled(tensor, labels_of(["a"], [1, 2], names=names), known=True)
    with pytest.raises(InputError, match="no nonzero has labels that the model knows"):
        relabelled(tensor, labels_of(["x", "y"], [1, 2]))
    with pytest.raises(InputError, match="size: labels are numbers, the model's texts"):
        relabelled(tensor, labels_of(["a", "b"], ["1", "2"], names=names))
    with pytest.raises(InputError, match="a tensor of 2 modes, the model has 3"):
        relabelled(tensor, labels_of(["a", "b"], [1, 2], [1]))
    unused = SparseTensor([[0, 0]], [1.0], (2, 2))
    unused.labels = labels_of(["a", "b"], [1, 2])
    found, _ = relabelled(unused, labels_of(["a"], [2, 1]), known=True)
    assert (found.shape, found.indices.tolist()) == ((1, 2), [[0, 1]]), "labels without nonzeros may be strange"


def test_dense_ones_have_all_labels() -> None:
    array = np.arange(6.0).reshape(2, 3)
    tensor = DenseTensor(array)
    tensor.labels = labels_of(["a", "b"], [1, 2, 3])
    found, _ = relabelled(tensor, labels_of(["b", "a"], [3, 1, 2]))
    assert found.array().tolist() == [[5, 3, 4], [2, 0, 1]]
    assert found.labels[0].tolist() == ["b", "a"]
    with pytest.raises(InputError, match=r"does not know: 1 of mode 1 \(3\)"):
        relabelled(tensor, labels_of(["b", "a"], [1, 2]), known=True)
    found, dropped = relabelled(tensor, labels_of(["b"], [2, 1]))
    assert (found.array().tolist(), dropped) == ([[4, 3]], [(3, ["a"]), (2, [3])])
    with pytest.raises(InputError, match="mode 1: has 3 of the model's 4 labels"):
        relabelled(tensor, labels_of(["b", "a"], [1, 2, 3, 4]))
