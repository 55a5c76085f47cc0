"""A further kind of model: a method, a model and a request outside the package, run by the command line and a call."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from command import run_amped, small_tns, succeeded
from numpy.typing import NDArray

import amped
from amped.api.sessions import session
from amped.cli.decompose import decompose
from amped.cli.job import Job, VerbSession
from amped.cli.requests import Ranked
from amped.cli.run_requests import PlacedMethod, RunRequest
from amped.files import write_npz
from amped.methods.als import CpAls
from amped.operators.sources.protocols import DescribedSource
from amped.operators.sparse.tuning import Budget
from amped.options import Options
from amped.run import VERBS, Verb
from amped.runs.assembly import place, solving_bytes
from amped.runs.run import RunParams
from partitioner.tensors.labels import Labelled


class Balanced(Labelled):
    """A sum of components whose weights are spread over the modes."""

    converged = False

    def __init__(self, factors: list[NDArray[Any]], fits: tuple[float, ...]) -> None:
        self.factors, self.fits = factors, fits
        self.series, self.run = dict[str, tuple[float, ...]](), dict[str, Any]()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(factor) for factor in self.factors)

    def save(self, path: str | os.PathLike[str], *, replace: bool = True) -> None:
        write_npz(path, {f"factor_{mode}": factor for mode, factor in enumerate(self.factors)}, replace)

    def score(self, X: Any, *, value: str | None = None, where: str | None = None) -> float:
        return self.fits[-1]


class BalancedAls(CpAls):
    """CP-ALS with another model."""

    name = "balanced"

    def model(self) -> Any:
        found = super().model()
        spread = found.weights ** (1 / len(found.factors))
        return Balanced([factor * spread for factor in found.factors], found.fits)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BalancedRequest(Ranked, RunRequest[Balanced]):
    NAME: ClassVar[str] = "balanced"

    @property
    def tolerance(self) -> float:
        return self.tol or 0.0

    @property
    def size(self) -> str:
        return f"balanced{self.rank}"

    @property
    def facts_of_verb(self) -> dict[str, Any]:
        return {}

    def has_rank(self, rank: object) -> bool:
        return bool(rank == self.rank)

    def place(self, job: Job, source: DescribedSource) -> PlacedMethod[Balanced]:
        solving = solving_bytes(job.machine, self.options, len(source.shape))
        return PlacedMethod(BalancedAls(place(source, self.rank, job.machine, self.options, solving)))


def balanced(request: BalancedRequest, session: VerbSession) -> int:
    """Decompose a tensor into components of balanced weights."""
    return decompose(request, session)


HOW = {"device": "cpu", "precision": "fp64", "threads": 1}


def test_a_request_is_all_that_the_command_line_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERBS, "balanced", Verb(__name__, "BalancedRequest", "amped balanced x.tns --rank 3"))
    path = small_tns(folder)
    flags = ["--rank", 3, "--device", "cpu", "--precision", "fp64", "--threads", 1, "--checkpoint", "c"]
    succeeded(run_amped("balanced", path, *flags, "--max-iters", 2, "--output", "part"))
    result = succeeded(run_amped("balanced", path, *flags, "--max-iters", 4, "--output", "out", "--resume"))
    assert "resumed after iteration 2" in result.out
    record = json.loads(Path("out/run.json").read_text())
    expected = amped.cp_als(path, 3, max_iters=4, tol=0, **HOW)  # type: ignore[arg-type]
    assert record["fits"] == list(expected.fits)
    with np.load("out/model.npz") as found:
        lengths = [np.linalg.norm(found[f"factor_{mode}"], axis=0) for mode in range(3)]
    np.testing.assert_allclose(lengths, np.tile(expected.weights ** (1 / 3), (3, 1)))


def test_a_call_runs_it_with_side_outputs_as_any_other(folder: Path) -> None:
    with session(small_tns(folder), Options(**HOW), None, 0) as call:  # type: ignore[arg-type]
        solving = solving_bytes(call.machine, call.options, 3)
        method = BalancedAls(place(call.source, 3, call.machine, call.options, solving))
        model: Any = call.decomposed(method, RunParams(2, 0.0), None, Budget())
    assert isinstance(model, Balanced)
    assert model.run["method"] == "balanced"
    assert len(model.run["fits"]) == 2
