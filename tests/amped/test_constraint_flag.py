"""``--constraint``: what is computed, recorded, planned, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import refused, run_amped, small_tns, succeeded

import amped

COMMON = ["--rank", 3, "--tol", 0, "--precision", "fp64", "--device", "cpu", "--threads", 1]
FLAGS = ["--constraint", "1:unimodal", "--constraint", "0:l1:0.1", "--constraint", "0:nonnegative"]


@pytest.fixture
def path(folder: Path) -> Path:
    return small_tns(folder)


def test_the_same_as_the_python_call(path: Path) -> None:
    succeeded(run_amped("cpd", path, *COMMON, *FLAGS, "--max-iters", 4, "--output", "out"))
    model = amped.cp_als(
        path, 3, tol=0, max_iters=4, precision="fp64", device="cpu", threads=1,
        constraints={1: "unimodal", 0: ["l1:0.1", "nonnegative"]},
    )  # fmt: skip
    record = json.loads(Path("out/run.json").read_text())
    assert record["objectives"] == list(model.series["objective"])
    assert record["constraints"] == {"0": ["l1:0.1", "nonnegative"], "1": ["unimodal", "ball"], "2": ["ball"]}
    assert all(np.array_equal(a, b) for a, b in zip(amped.load("out").factors, model.factors, strict=True))


def test_a_resumed_run_and_its_plan(path: Path) -> None:
    line = ["cpd", path, *COMMON, *FLAGS]
    succeeded(run_amped(*line, "--max-iters", 6, "--output", "whole"))
    succeeded(run_amped(*line, "--max-iters", 3, "--output", "out", "--checkpoint", "c"))
    succeeded(run_amped(*line, "--max-iters", 6, "--output", "out", "--checkpoint", "c", "--resume"))
    whole, rest = (json.loads(Path(name, "run.json").read_text()) for name in ("whole", "out"))
    assert (rest["fits"], rest["objectives"]) == (whole["fits"], whole["objectives"])
    assert "No time estimate" in succeeded(run_amped("plan", path, "--rank", 3, "--device", "cpu", *FLAGS)).out


def test_observed_elements_and_their_plan(path: Path) -> None:
    flags = *FLAGS, "--mask", "stored"
    succeeded(run_amped("cpd", path, *COMMON, *flags, "--max-iters", 4, "--output", "out"))
    record = json.loads(Path("out/run.json").read_text())
    assert record["constraints"] == {"0": ["l1:0.1", "nonnegative"], "1": ["unimodal", "ball"], "2": ["ball"]}
    assert record["objectives"][-1] < record["objectives"][0]
    assert "80 elements are observed" in succeeded(run_amped("plan", path, "--rank", 3, "--device", "cpu", *flags)).out


def test_fixed_elements(path: Path) -> None:
    succeeded(run_amped("cpd", path, *COMMON, "--max-iters", 2, "--output", "start"))
    np.savez("masks.npz", mask_1=np.array([[True, False, False]]))
    flags = "--init", "start/model.npz", "--fixed", "masks.npz", "--constraint", "0:fixed:rows:2-3"
    succeeded(run_amped("cpd", path, *COMMON, *flags, "--max-iters", 3, "--output", "out"))
    names = json.loads(Path("out/run.json").read_text())["constraints"]
    assert names["0"] == ["fixed:rows:2-3"]
    assert names["1"][0].startswith("fixed:mask:1:")
    start, model = amped.load("start"), amped.load("out")
    assert any(np.array_equal(column, start.factors[1][:, 0]) for column in model.factors[1].T)
    refused(run_amped("cpd", path, *COMMON, *flags[2:]), "the start is random")
    refused(run_amped("cpd", path, *COMMON, *flags[:3], "start/model.npz"), "there is no array mask_0")
    refused(run_amped("cpd", path, *COMMON, *flags[:3], "none.npz"), "none.npz")


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (["--constraint", "unimodal"], "expected MODE:NAME"),
        (["--constraint", "1:unimodl"], "did you mean 'unimodal'"),
        (["--constraint", "7:unimodal"], "there is no mode 7"),
        (["--constraint", "1:unimodal", "--constraint", "1:orthonormal"], "exclude each other"),
        (["--constraint", "1:unimodal", "--loss", "poisson"], "require --method als"),
    ],
)
def test_refused(path: Path, flags: list[str], cause: str) -> None:
    refused(run_amped("cpd", path, *COMMON, *flags), cause)
