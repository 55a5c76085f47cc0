"""How many components: what is planted is suggested."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, succeeded
from densecases import low_rank
from forms import exhaustive

import amped
from amped.errors import InputError
from amped.models.matching import factor_match
from amped.models.scanned import ScannedRank, near, suggestion
from amped.runs import scanning
from amped.runs.scan_result import ranks_of

HOW: dict[str, Any] = {"device": "cpu", "precision": "fp64"}


def sparse(array: np.ndarray) -> amped.SparseTensor:
    return amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape)


@pytest.mark.parametrize(("rank", "noise", "seed"), [(2, 0.5, 5), exhaustive(3, 0.1, 1), exhaustive(4, 0.2, 3)])
def test_the_planted_number_is_suggested(rank: int, noise: float, seed: int) -> None:
    array = low_rank((24, 18, 12), rank, noise, seed)
    found = amped.scan(array, range(1, rank + 3), **HOW)
    assert found.suggestion.rank == rank, found.suggestion.reason
    tried = found.tried[rank - 1]
    assert tried.match == pytest.approx(1, abs=0.02)
    assert tried.halves == pytest.approx(1, abs=0.1)
    assert tried.consistency == pytest.approx(100, abs=5)
    best = found.models[rank - 1]
    assert tried.squared == pytest.approx(1 - (1 - best.fits[-1]) ** 2, rel=1e-9)
    assert len(tried.explained) == 5
    assert all(each.seconds > 0 for each in found.tried)


@pytest.mark.exhaustive
def test_counts_of_groups(device: Any) -> None:
    how = HOW | {"device": device}
    rng = np.random.default_rng(0)
    rates = np.zeros((20, 16, 12))
    for k in range(3):
        rates[k * 6 : k * 6 + 7, k * 5 : k * 5 + 6, k * 4 : k * 4 + 4] += 4
    tensor = sparse(rng.poisson(rates + 0.02).astype(float))
    found = amped.scan(tensor, "1-5", starts=3, loss="poisson", **how)
    assert found.suggestion.rank == 3, found.suggestion.reason
    assert [each.consistency for each in found.tried] == [None] * 5
    squares = [each.squared for each in found.tried]
    assert squares == sorted(squares)
    assert 0 < squares[0] < squares[2] < 1
    other = amped.scan(tensor, (3,), starts=2, nonnegative=True, **how).models[0]
    assert all((factor >= 0).all() for factor in other.factors)
    assert factor_match(other.factors, found.models[2].factors) > 0.95


def test_what_cannot_be_told_is_left_out() -> None:
    array = low_rank((2, 2, 3), 1)
    found = amped.scan(array, (1, 3), starts=1, **HOW)
    assert found.tried[0].match is None
    assert found.tried[1].consistency is None, "three columns of two rows"
    assert amped.scan(array, (1,), halves=False, **HOW).tried[0].halves is None
    odd = np.zeros((6, 3, 2))
    odd[1::2] = 1
    assert amped.scan(sparse(odd), (1,), **HOW).tried[0].halves is None, "a half has nothing"


def test_matches() -> None:
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((n, 4)) for n in (7, 6, 5)]
    order = [2, 0, 3, 1]
    signs = np.array([1, -1, 1, -1])
    assert factor_match(factors, [f[:, order] * signs * (m + 1) for m, f in enumerate(factors)]) == pytest.approx(1)
    assert factor_match(factors, [f[:, :2] for f in factors]) == pytest.approx(1)
    assert factor_match([np.eye(4)] * 2, [np.roll(np.eye(4), 1, axis=1), np.eye(4)]) == 0
    # Taken greedily, the most alike pair would leave the others with nothing.
    one, other = np.array([[1.0, 0.8], [0.0, 0.6]]), np.array([[0.9, 0.1], [0.43, 1.0]])
    best = max(
        np.mean([abs(u @ v) / np.linalg.norm(u) / np.linalg.norm(v) for u, v in zip(one.T, pair, strict=True)])
        for pair in (other.T, other.T[::-1])
    )
    assert factor_match([one], [other]) == pytest.approx(best)


def test_reasons() -> None:
    def tried(rank: int, squared: float, match: float | None = 1.0, **more: Any) -> ScannedRank:
        whole = {"reached": 2, "halves": 1.0, "consistency": 90.0, "iterations": 5, "seconds": 1.0} | more
        return ScannedRank(rank, (squared, squared), squared, match=match, **whole)

    few = [tried(1, 0.5), tried(2, 0.8)]
    assert suggestion(few).rank == 2
    assert suggestion(few).reason.endswith("no larger number was tried")
    for third, why in (
        (tried(3, 0.801), "with 3, hardly more is explained than with 2"),
        (tried(3, 0.9, 0.5), "with 3, components differ between starts (match 0.50; at least 0.9 is needed)"),
        (tried(3, 0.9, None), "with 3, only one start reaches the best fit"),
        (tried(3, 0.9, halves=0.4), "with 3, components differ between halves of the tensor (match 0.40;"),
        (tried(3, 0.9, consistency=-5.0), "with 3, core consistency is -5 % (at least 50 % is needed)"),
    ):
        found = suggestion([*few, third])
        assert found.rank == 2
        assert why in found.reason
    assert suggestion([tried(1, 0.5, 0.2)]).rank is None
    passed = "match 1.00 from 2 of 2 starts, match 1.00 in halves of the tensor, core consistency 90 %"
    assert f"passes every test ({passed})" in suggestion(few).reason
    assert suggestion([tried(1, 1 - 1e-11), tried(2, 1 - 1e-15)]).rank == 1, "what is left is rounding"
    assert near([0.9, 0.899, 0.7]) == [0, 1]


def test_the_reason_names_the_tests_that_failed() -> None:
    def tried(rank: int, squared: float, match: float | None, halves: float, consistency: float) -> ScannedRank:
        return ScannedRank(rank, (squared,) * 5, squared, 5, match, halves, consistency, 5, 1.0)

    for each, failed in (
        (tried(2, 0.8, 1.0, 0.7, 90.0), "components differ between halves of the tensor (match 0.70;"),
        (tried(2, 0.8, 1.0, 1.0, -5.0), "core consistency is -5 %"),
        (tried(2, 0.01, 1.0, 1.0, 90.0), "hardly more is explained than with none"),
        (
            tried(2, 0.8, 0.3, 1.0, 90.0),
            "components differ between starts (match 0.30; at least 0.9 is needed); more st",
        ),
        (tried(2, 0.8, None, 1.0, 90.0), "only one start reaches the best fit; more starts may help"),
        (
            tried(2, 0.8, 1.0, 0.7, 9.0),
            "halves of the tensor (match 0.70; at least 0.9 is needed) and core consistency",
        ),
    ):
        found = suggestion([each, tried(3, 0.99, 0.1, 0.1, -900.0)])
        assert found.rank is None
        assert found.reason.startswith("no number of components passes every test; the best trade-off is 2")
        assert failed in found.reason
        assert ("more starts" in found.reason) == (each.match != 1.0)
        assert ("match 1.00 from 5 of 5 starts" in found.reason) == (each.match == 1.0)


UNUSUAL: dict[str, np.ndarray] = {
    "one value": np.full((4, 5, 3), 0.1),
    "one nonzero": np.eye(4)[:, :, None] * np.eye(4)[1],
    "a zero half": np.ones((6, 3, 2)),
    "a constant half": np.arange(1.0, 25.0).reshape(4, 3, 2),
    "order 2": np.arange(12.0).reshape(3, 4),
    "modes of length 1": np.arange(1.0, 7.0).reshape(1, 6, 1),
    "one element": np.ones((1, 1, 1)),
    "a vector": np.full((5, 1), 3.0),
    "some of one value": np.where(np.arange(60).reshape(5, 4, 3) % 7 < 3, 2.0, 0.0),
}
UNUSUAL["a zero half"][1::2] = 0
UNUSUAL["a constant half"][::2] = 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "how"),
    [
        case if UNUSUAL[case[0]].ndim == 3 and "loss" not in case[1] else exhaustive(*case)
        for case in product(UNUSUAL, [{}, {"loss": "poisson"}, {"nonnegative": True}, {"starts": 1}])
    ],
    ids=str,
)
def test_unusual_tensors(name: str, how: dict[str, Any]) -> None:
    """Ranks above every mode's length, too: all numbers are finite, and a constant is explained by one component."""
    array = UNUSUAL[name]
    for given in [sparse(array)] + [array] * (how.get("loss") is None):
        found = amped.scan(given, (1, 7), **({"starts": 2, "max_iters": 10} | how | HOW))
        for each in found.tried:
            numbers = [*each.explained, each.squared, each.match, each.halves, each.consistency]
            assert all(np.isfinite(number) for number in numbers if number is not None)
            assert max(each.explained) <= 1
        if np.ptp(array) == 0:
            assert found.tried[0].squared == pytest.approx(1, abs=1e-9)
            assert found.suggestion.rank == 1, found.suggestion.reason


def test_a_matrix() -> None:
    found = amped.scan(UNUSUAL["order 2"], (1, 2), starts=2, max_iters=10, **HOW)
    assert found.tried[1].squared == pytest.approx(1, abs=1e-6), "its rank is 2"
    head, *rows, suggested = str(found).splitlines()
    assert head.split()[:2] == ["components", "explained"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    assert suggested.startswith("suggested: ")


@pytest.mark.exhaustive
def test_single_precision_counts_are_explained_at_most_wholly() -> None:
    counts = sparse(np.random.default_rng(0).poisson(2, (2, 2, 2)) + 1.0)
    found = amped.scan(counts, (1, 9), starts=2, loss="poisson", device="cpu")
    assert max(e for each in found.tried for e in each.explained) <= 1


def test_counts_that_are_too_small_are_refused() -> None:
    with pytest.raises(InputError, match="values up to 2e-30 are too small for counts"):
        amped.scan(sparse(np.full((3, 4, 2), 2e-30)), (1, 2), loss="poisson", **HOW)


def test_negative_values_of_a_model_without_negative_numbers() -> None:
    array = -np.random.default_rng(0).random((5, 4, 3))
    found = amped.scan(array, (1, 2), nonnegative=True, starts=2, max_iters=10, **HOW)
    assert found.suggestion.rank is None
    assert "hardly more is explained than with none" in found.suggestion.reason


def test_the_verb_tells_a_table(folder: Path) -> None:
    np.save(folder / "x.npy", low_rank((12, 10, 8), 2, 0.05, 4))
    how = ["--rank", "1-3", "--starts", 3, "--device", "cpu", "--output", "found.json"]
    told = succeeded(run_amped("scan", "x.npy", *how)).out.splitlines()
    assert [line.split()[0] for line in told[-4:-1]] == ["1", "2", "3"]
    assert told[-1].startswith("suggested: 2; 2 is the largest number")
    found = json.loads((folder / "found.json").read_text())
    assert found["rank"] == 2
    assert [each["rank"] for each in found["tried"]] == [1, 2, 3]
    assert set(found["seconds"]) == {"runs", "halves", "diagnostics"}


@pytest.mark.parametrize("suffix", ["png", "svg", exhaustive("pdf")])
def test_pictures(folder: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    np.save(folder / "x.npy", low_rank((12, 10, 8), 2, 0.05, 4))
    how = ["--rank", "1-3", "--starts", 2, "--device", "cpu", "--plot", f"found.{suffix}"]
    succeeded(run_amped("scan", "x.npy", *how))
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert (folder / f"found.{suffix}").read_bytes().startswith(begins)
    refused(run_amped("scan", "x.npy", *how), "--force")


def test_a_picture_of_what_is_not_told(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    found = amped.scan(low_rank((6, 5, 4), 1), (1,), starts=1, halves=False, **HOW)
    left_out = found._replace(tried=tuple(each._replace(consistency=None) for each in found.tried))
    left_out.plot(folder / "one.svg")
    assert (folder / "one.svg").stat().st_size > 1000
    with pytest.raises(InputError, match=r"expected \.png"):
        found.plot(folder / "one.txt")


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--rank", "0-3"], "from 1 to"),
        (["--rank", "4-2"], "4 is above 2"),
        (["--rank", "many"], "such as 1-8"),
        (["--rank", "1-"], "such as 1-8"),
        (["--rank", "1-99999999999"], "from 1 to"),
        (["--starts", 0], "--starts 0"),
        (["--tol", "nan"], "--tol nan"),
        (["--loss", "poisson", "--nonnegative"], "--nonnegative"),
        (["--output", "no/such/folder.json"], "no/such"),
        (["--plot", "no/such/folder.png"], "no/such"),
        (["--plot", "found.txt"], "expected .png"),
    ],
)
def test_wrong_flags_are_refused(folder: Path, flags: list[Any], part: str) -> None:
    np.save(folder / "x.npy", np.ones((3, 3, 3)))
    refused(run_amped("scan", "x.npy", "--device", "cpu", *flags), part)


def test_metrics_of_a_scan(folder: Path) -> None:
    found = amped.scan(np.ones((4, 4, 4)), "1-2", starts=2, metrics=folder / "scan.jsonl", device="cpu")
    lines = [json.loads(line) for line in (folder / "scan.jsonl").read_text().splitlines()]
    tried = [line for line in lines if line["event"] == "tried"]
    assert [line["rank"] for line in tried] == [1, 2]
    assert tried[0]["squared"] == found.tried[0].squared
    assert lines[-1]["event"] == "end"
    assert lines[-1]["suggested"] == found.suggestion.rank


def test_numbers_of_components() -> None:
    assert ranks_of("ranks", "1-3,7, 2") == (1, 2, 3, 7)
    assert ranks_of("ranks", range(2, 4)) == (2, 3)
    assert ranks_of("ranks", 5) == ranks_of("ranks", np.int64(5)) == (5,)
    for wrong in ("", [], "a", [0], None, [1.5], True, "5000"):
        with pytest.raises(InputError, match="ranks"):
            ranks_of("ranks", wrong)


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ({"nonnegative": [0]}, r"nonnegative is \[0\]: expected True or False"),
        ({"halves": "no"}, "halves is 'no': expected True or False"),
        ({"callback": lambda: None}, "callback: it is called with the ScannedRank"),
        ({"split": 1.5}, "split 1.5: expected an integer"),
        ({"holdout": 0}, "holdout 0: expected a fraction"),
    ],
)
def test_wrong_arguments(how: dict[str, Any], cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        amped.scan(np.ones((3, 3, 3)), "1-2", **how)


@pytest.mark.parametrize("loss", ["gaussian", "poisson"])
@pytest.mark.exhaustive
def test_where_memory_has_no_room_for_several_runs(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed one after the other, with equal results."""
    tensor = sparse(np.round(np.abs(low_rank((14, 12, 10), 2, 0.1, 4)) * 3))
    how: dict[str, Any] = {"starts": 3, "loss": loss, "halves": False, "max_iters": 30, **HOW}
    wide = amped.scan(tensor, "1-3", **how)

    def refuse(*_: Any) -> None:
        raise InputError("device memory")

    monkeypatch.setattr(scanning, "multi_run_als", refuse)
    monkeypatch.setattr(scanning, "multi_run_apr", refuse)
    alone = amped.scan(tensor, "1-3", **how)
    for one, other in zip(wide.tried, alone.tried, strict=True):
        np.testing.assert_allclose(one.explained, other.explained, rtol=1e-9)
        assert one.iterations == other.iterations
