"""Modes of tensors with labels are given by number or by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, succeeded

import amped
from amped.errors import InputError

RNG = np.random.default_rng(3)
ARRAY = np.einsum("ir,jr,kr->ijk", *(RNG.random((length, 2)) for length in (6, 5, 4))) + 0.05 * RNG.random((6, 5, 4))
X = amped.DenseTensor(ARRAY)
X.labels = {"sample": np.arange(6), "emission": np.arange(5.0), "excitation": list("abcd")}
START = [RNG.random((length, 2)) for length in ARRAY.shape]
HOW: dict[str, Any] = {"device": "cpu", "max_iters": 3, "tol": 0}
CONSTRAINTS = "nonnegative", "constraints"
INIT = HOW | {"init": START}


def same(one: amped.KruskalTensor, other: amped.KruskalTensor) -> None:
    assert one.run == other.run
    for factor, wanted in zip(one.factors, other.factors, strict=True):
        assert np.array_equal(factor, wanted)


RUNS: dict[str, Callable[[Any, Any], amped.KruskalTensor]] = {
    "nonnegative": lambda first, last: amped.cp_als(X, 2, nonnegative=[last, first], **HOW),
    "fixed": lambda first, last: amped.cp_als(X, 2, fixed_modes=[last, first], init=START, **HOW),
    "constraints": lambda first, last: amped.cp_als(X, 2, constraints={last: "unimodal", first: "simplex"}, **HOW),
    "loss": lambda first, last: amped.cp(X, 2, loss="huber:1", nonnegative=[first], fixed_modes=[last], **INIT),
}


@pytest.mark.parametrize("run", RUNS)
def test_constraints(run: str) -> None:
    same(RUNS[run]("sample", "excitation"), RUNS[run](0, 2))


def test_one_name() -> None:
    same(amped.cp_als(X, 2, nonnegative="sample", **HOW), amped.cp_als(X, 2, nonnegative=[0], **HOW))


def test_models() -> None:
    for model in (amped.cp_als(X, 2, **HOW), amped.tucker(X, (2, 2, 2), **HOW)):
        for mode, name in enumerate(("sample", "emission", "excitation")):
            assert np.array_equal(model.transform(X, name, device="cpu"), model.transform(X, mode, device="cpu"))
    model = amped.cp_als(X, 2, **HOW)
    assert model.frame("emission").equals(model.frame(1))


def test_update() -> None:
    model = amped.cp_als(X, 2, **HOW)
    more = amped.DenseTensor(ARRAY[:2]).labelled(
        {"sample": [6, 7], "emission": np.arange(5.0), "excitation": list("abcd")}
    )
    named, numbered = (model.update(more, mode, device="cpu") for mode in ("sample", 0))
    assert named.shape == (8, 5, 4)
    assert np.array_equal(named.factors[0], numbered.factors[0])


@pytest.mark.parametrize("names", [(0, 1, 2), ("sample", 1, "excitation")])
def test_names_of_modes_are_text(names: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="expected text"):
        amped.DenseTensor(ARRAY).labelled(dict(zip(names, X.labels or (), strict=True)))


def test_split() -> None:
    how: dict[str, Any] = {"starts": 1, "max_iters": 5, "device": "cpu"}
    named, numbered = (amped.scan(X, "1-2", split=split, **how) for split in ("excitation", 2))
    assert [each.halves for each in named.tried] == [each.halves for each in numbered.tried]
    assert [each.halves for each in amped.scan(X, "1-2", **how).tried] != [each.halves for each in named.tried]


@pytest.mark.parametrize(
    "call",
    [
        lambda: amped.cp_als(X, 2, nonnegative=["samples"], **HOW),
        lambda: amped.cp_als(X, 2, fixed_modes=["samples"], init=START, **HOW),
        lambda: amped.cp_als(X, 2, constraints={"samples": "unimodal"}, **HOW),
        lambda: amped.scan(X, "1-2", split="samples", starts=1, device="cpu"),
        lambda: amped.cp_als(X, 2, **HOW).transform(X, "samples"),
        lambda: amped.cp_als(X, 2, **HOW).frame("samples"),
    ],
)
def test_unknown_names(call: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=r"\w+: 'samples' is none of 'sample', 'emission', 'excitation'"):
        call()


def test_a_mode_given_twice() -> None:
    with pytest.raises(InputError, match="a mode is given by its name and by its number"):
        amped.cp_als(X, 2, constraints={"sample": "unimodal", 0: "simplex"}, **HOW)


def test_tensors_without_labels_have_numbered_names() -> None:
    same(amped.cp_als(ARRAY, 2, nonnegative=["mode 1"], **HOW), amped.cp_als(ARRAY, 2, nonnegative=[1], **HOW))


def test_flags(folder: Path) -> None:
    """The command line takes names, too."""
    rows = [f"{user},{item},{hour}" for user in "abc" for item in "xyz" for hour in (1, 2, 3, 4)]
    Path("seen.csv").write_text("\n".join(["user,item,hour", *rows]))
    keys = ["--key", "user", "--key", "upper(item) AS item", "--key", "hour"]
    fit = ["cpd", "seen.csv", *keys, "--rank", 2, "--max-iters", 3, "--device", "cpu", "--quiet", "--output"]
    for named, numbered in (
        (["--nonnegative-modes", "item,hour"], ["--nonnegative-modes", "1,2"]),
        (["--constraint", "item:simplex"], ["--constraint", "1:simplex"]),
    ):
        for flags, name in ((named, "named"), (numbered, "numbered")):
            succeeded(run_amped(*fit, name, *flags, "--force"))
        models = [amped.load(name) for name in ("named", "numbered")]
        assert np.array_equal(models[0].factors[1], models[1].factors[1])
        assert [models[0].run.get(name) for name in CONSTRAINTS] == [models[1].run.get(name) for name in CONSTRAINTS]
    succeeded(run_amped("plan", "seen.csv", *keys, "--rank", 2, "--nonnegative-modes", "item", "--device", "cpu"))
    scan = ["scan", "seen.csv", *keys, "--rank", 1, "--starts", 1, "--device", "cpu", "--split"]
    succeeded(run_amped(*scan, "item"))
    refused(run_amped(*scan, "items"), "--split: 'items' is none of 'user', 'item', 'hour'")
    refused(
        run_amped(*fit, "x", "--constraint", "day:simplex"), "--constraint: 'day' is none of 'user', 'item', 'hour'"
    )
