"""``cpd`` with constraints: flags, records, checkpoints, and what is refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import (
    finish,
    mpirun_line,
    on_ranks,
    python_line,
    refused,
    run_amped,
    small_tns,
    succeeded,
    write_factors,
)
from forms import exhaustive

import amped
from amped.errors import EXIT_STOPPED
from amped.runs import checkpoint

RANK = 4
SHAPE = (9, 7, 5)
COMMON = ["--rank", RANK, "--tol", 0, "--precision", "fp64", "--device", "cpu", "--threads", 1]
KINDS: list[list[object]] = [
    ["--nonnegative"],
    ["--nonnegative-modes", "0,2", "--ridge", "0.25"],
    ["--nonnegative", "--fixed-modes", "0", "--init", "start.npz", "--ridge", "0.5,0,2"],
]


@pytest.fixture
def path(folder: Path) -> Path:
    write_factors(folder / "start.npz", SHAPE, RANK)
    return small_tns(folder)


def record(folder: str) -> dict[str, Any]:
    """Return what a run has recorded."""
    found: dict[str, Any] = json.loads((Path(folder) / "run.json").read_text())
    return found


@pytest.mark.parametrize("flags", KINDS)
def test_the_same_as_the_python_call(path: Path, flags: list[object]) -> None:
    succeeded(run_amped("cpd", path, *COMMON, *flags, "--max-iters", 5, "--output", "out"))
    how: list[dict[str, Any]] = [
        {"nonnegative": True},
        {"nonnegative": (0, 2), "ridge": 0.25},
        {"nonnegative": True, "fixed_modes": (0,), "init": "start.npz", "ridge": (0.5, 0, 2)},
    ]
    model = amped.cp_als(
        path, RANK, tol=0, max_iters=5, precision="fp64", device="cpu", threads=1, **how[KINDS.index(flags)]
    )
    assert record("out")["fits"] == list(model.fits)
    assert all(np.array_equal(a, b) for a, b in zip(amped.load("out").factors, model.factors, strict=True))


def test_what_is_recorded(path: Path) -> None:
    for flags, norm in (([], 2), (["--ridge", 1], 2), (["--nonnegative-modes", 1], 1)):
        succeeded(run_amped("cpd", path, *COMMON, *flags, "--max-iters", 3, "--output", "out", "--force"))
        found = record("out")
        assert found["norm"] == norm
        sums = [np.linalg.norm(factor, norm, axis=0) for factor in amped.load("out").factors]
        np.testing.assert_allclose(sums, 1, atol=1e-12)
        assert ("nonnegative" in found) == (norm == 1)
        assert ("objectives" in found) == ("--ridge" in flags)
    assert found["nonnegative"] == [1]


def test_an_objective_is_measured(path: Path) -> None:
    succeeded(
        run_amped("cpd", path, *COMMON, "--ridge", 1, "--max-iters", 3, "--metrics", "m.jsonl", "--output", "out")
    )
    events = [json.loads(line) for line in Path("m.jsonl").read_text().splitlines()]
    told = [event["objective"] for event in events if event["event"] == "iteration"]
    assert told == record("out")["objectives"]
    assert len(told) == 3


# ------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("flags", KINDS)
def test_a_resumed_run_is_the_uninterrupted_one(path: Path, flags: list[object]) -> None:
    line = ["cpd", path, *COMMON, *flags]
    succeeded(run_amped(*line, "--max-iters", 9, "--output", "whole"))
    succeeded(run_amped(*line, "--max-iters", 4, "--output", "out", "--checkpoint", "c"))
    if "--init" in flags:  # what was fixed is in the checkpoint
        at = line.index("--init")
        del line[at : at + 2]
    succeeded(run_amped(*line, "--max-iters", 9, "--output", "out", "--checkpoint", "c", "--resume"))
    whole, rest = record("whole"), record("out")
    assert (rest["fits"], rest.get("objectives")) == (whole["fits"], whole.get("objectives"))  # to the last bit
    for one, two in zip(amped.load("whole").factors, amped.load("out").factors, strict=True):
        assert np.array_equal(one, two)


def test_a_checkpoint_tells_constraints_apart(path: Path) -> None:
    line = ["cpd", path, *COMMON, "--max-iters", 2, "--output", "out"]
    plain, constrained = ["--checkpoint", "p"], ["--nonnegative", "--ridge", 1, "--checkpoint", "c"]
    succeeded(run_amped(*line, *plain))
    succeeded(run_amped(*line, *constrained, "--force"))
    resume = [*line[:-4], "--max-iters", 4, "--output", "new", "--resume"]
    refused(run_amped(*resume, "--nonnegative", *plain), "was made with nonnegative none, this run has [0, 1, 2]")
    refused(run_amped(*resume, "--checkpoint", "c"), "was made with nonnegative [0, 1, 2], this run has none")
    refused(
        run_amped(*resume, "--nonnegative", "--ridge", 2, "--checkpoint", "c"),
        "was made with ridge [1.0, 1.0, 1.0], this run has [2.0, 2.0, 2.0]",
    )
    succeeded(run_amped(*resume, *constrained))


STOPPED = """
import os, signal, sys
from amped.operators.sparse import operator as sparse
from amped import run
healthy, calls = sparse.SparseOperator.mttkrp, 0

def mttkrp(self, mode, *solve, **how):
    global calls
    calls += 1
    if calls == int(sys.argv[1]) and self.machine.comm.rank == self.machine.comm.size - 1:
        os.kill(os.getpid(), signal.SIGUSR1)
    return healthy(self, mode, *solve, **how)

sparse.SparseOperator.mttkrp = mttkrp
sys.exit(run.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("calls", "at", "ranks"), [(1, (0, 2), 1), exhaustive(5, (2, 2), 2)])
def test_a_run_stops_within_an_iteration(path: Path, folder: Path, calls: int, at: tuple[int, int], ranks: int) -> None:
    """Mode 0 is fixed: mode 1 is the first to be solved."""
    driver = folder / "driver.py"
    driver.write_text(STOPPED)
    start = [] if ranks == 1 else mpirun_line(ranks)
    line = ["cpd", path, *COMMON, *KINDS[2], "--deterministic", "--max-iters", 4]
    run = run_amped if ranks == 1 else partial(on_ranks, ranks)
    whole = run(*line, "--output", folder / "whole")
    assert whole.code == 0, whole.err
    line += ["--checkpoint", folder / "c", "--output", folder / "out"]
    first = finish([*start, *python_line(calls, *line, script=driver)])
    assert first.code == EXIT_STOPPED, first.err
    found, _ = checkpoint.load_newest(Path("c"))
    assert found is not None
    assert (found.state.iterations, found.state.mode) == at
    rest = run(*line, "--resume")
    assert rest.code == 0, rest.err
    assert record("out")["fits"] == record("whole")["fits"]


# ------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--nonnegative-modes", "0,3"], ["--nonnegative-modes: there is no mode 3", "0 to 2"]),
        (["--nonnegative-modes", "-1"], ["--nonnegative-modes", "-1"]),
        (["--nonnegative-modes", "all"], ["--nonnegative-modes: 'all' is none of 'mode 0', 'mode 1', 'mode 2'"]),
        (["--nonnegative", "--nonnegative-modes", "1"], ["not allowed with"]),
        (["--ridge", "-1"], ["--ridge -1.0", "at least 0"]),
        (["--ridge", "nan"], ["--ridge nan"]),
        (["--ridge", "1,2"], ["--ridge: 2 numbers for a tensor of order 3"]),
        (["--fixed-modes", "1"], ["--fixed-modes needs --init"]),
        (["--fixed-modes", "1", "--resume", "--checkpoint", "c"], ["--fixed-modes 1: the start is random"]),
        (["--fixed-modes", "0,1,2", "--init", "start.npz"], ["--fixed-modes: all modes are fixed"]),
        (["--fixed-modes", "4", "--init", "start.npz"], ["--fixed-modes: there is no mode 4"]),
        (["--starts", "0"], ["--starts 0", "at least 1"]),
        (["--starts", "2", "--init", "start.npz"], ["--starts 2", "--init gives one start"]),
        (["--starts", "2", "--checkpoint", "c"], ["--starts 2", "--checkpoint keeps the state of one"]),
        (["--nonnegative", "--init", "signed.npz"], ["factor_2 of the start has negative entries"]),
    ],
)
def test_refused(path: Path, folder: Path, flags: list[object], parts: list[str]) -> None:
    factors = [np.ones((length, RANK)) for length in SHAPE]
    factors[2][1, 1] = -1e-9
    np.savez("signed.npz", **{f"factor_{mode}": factor for mode, factor in enumerate(factors)})
    refused(run_amped("cpd", path, *COMMON, *flags, "--output", "out"), *parts)


def test_refused_on_all_ranks(path: Path) -> None:
    flags = [*COMMON, "--fixed-modes", "1", "--nonnegative-modes", "5", "--init", "start.npz"]
    result = on_ranks(2, "cpd", path, *flags, "--output", "out")
    assert result.code == 2, result.err
    assert result.err.count("there is no mode 5") == 1


def test_a_model_is_there_to_go_on_from(path: Path) -> None:
    """A non-negative model is a start for another run: unit columns, and weights left out."""
    succeeded(run_amped("cpd", path, *COMMON, "--nonnegative", "--max-iters", 5, "--output", "a"))
    succeeded(run_amped("cpd", path, *COMMON, "--nonnegative", "--init", "a/model.npz", "--output", "b"))
    assert record("b")["fits"][-1] >= record("a")["fits"][-1] - 1e-3


@pytest.mark.parametrize("flags", [[], ["--nonnegative"], ["--ridge", 1]])
def test_the_best_of_some_starts(path: Path, flags: list[object]) -> None:
    line, each = ["cpd", path, *COMMON, *flags, "--max-iters", 12], []
    for seed in range(3, 7):
        succeeded(run_amped(*line, "--seed", seed, "--output", f"s{seed}"))
        each.append(record(f"s{seed}"))
    result = succeeded(run_amped(*line, "--seed", 3, "--starts", 4, "--output", "out", "--metrics", "m.jsonl"))
    best = (
        min(each, key=lambda r: r["objectives"][-1])
        if flags[:1] == ["--ridge"]
        else max(each, key=lambda r: r["fits"][-1])
    )
    found = record("out")
    assert (found["fits"], found["seed"]) == (best["fits"], best["seed"])
    assert len({r["fits"][-1] for r in each}) == 4
    assert f"best of 4 starts: seed {best['seed']}" in result.out
    for one, two in zip(amped.load("out").factors, amped.load(f"s{best['seed']}").factors, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9)
    events = [json.loads(text) for text in Path("m.jsonl").read_text().splitlines()]
    assert [event["seed"] for event in events if event["event"] == "seed"] == [3, 4, 5, 6]
