"""One run: what its observers hear, which start is kept, and when it stops."""

from __future__ import annotations

from collections.abc import Callable
from signal import Signals
from typing import Any

import numpy as np
import pytest

from amped.errors import InputError
from amped.methods.driver import Spans, never
from amped.options import Options
from amped.parallel.mpi import SingleComm
from amped.report.console import RunReporter
from amped.runs.assembly import bring_up, decomposition, open_tensor
from amped.runs.callback import CallbackObserver
from amped.runs.run import Run, RunObserver, RunParams
from partitioner.tensors.dense import DenseTensor

OPTIONS = Options(device="cpu", precision="fp64")
ARRAY = np.random.default_rng(3).random((5, 4, 3))


class Heard(RunObserver):
    """Records what it hears."""

    def __init__(self) -> None:
        self.calls = list[Any]()

    def began(self, run: Run) -> None:
        self.calls.append("began")

    def iterated(self, run: Run, spans: Spans, seconds: float) -> None:
        self.calls.append(run.method.state.iterations)

    def ended(self, run: Run, record: dict[str, Any], signal: Signals | None, result: str) -> None:
        self.calls.append((record, result))


def run_of(params: RunParams, *observers: RunObserver, stop: Callable[[], bool] = never) -> Run:
    comm = SingleComm()
    machine = bring_up(OPTIONS, comm)
    source = open_tensor(DenseTensor(ARRAY), machine, OPTIONS)
    method = decomposition(source, 2, machine, OPTIONS)
    return Run(method, source, params, RunReporter(comm, enabled=False), observers, stop)


def test_observers_hear_of_it_in_order() -> None:
    heard, called = Heard(), list[tuple[int, float]]()
    callback = CallbackObserver(lambda *each: called.append(each), lambda run: run.model())
    run = run_of(RunParams(3, 0), RunObserver(), heard, callback)
    run.begin()
    assert not run.iterate()
    run.end({"it": 1}, None, "written")
    assert heard.calls == ["began", 1, 2, 3, ({"it": 1}, "written")]
    facts = run.facts()
    assert called == list(enumerate(facts["fits"], 1))
    assert facts["iterations"] == 3
    assert run.model().rank == 2


def test_the_best_start_is_kept() -> None:
    fits = []
    for seed in (4, 5, 6):
        run = run_of(RunParams(3, 0, seed))
        run.begin()
        run.iterate()
        fits.append(run.facts()["fits"])
    run = run_of(RunParams(3, 0, 4, starts=3))
    run.begin()
    run.iterate()
    best = max(range(3), key=lambda number: fits[number][-1])
    assert run.facts()["seed"] == 4 + best
    assert run.facts()["fits"] == fits[best]


def test_it_stops_when_it_should() -> None:
    heard = Heard()
    run = run_of(RunParams(9, 0), heard, stop=lambda: 2 in heard.calls)
    run.begin()
    run.iterate()
    assert heard.calls == ["began", 1, 2]


def test_several_starts_need_random_ones() -> None:
    heard = Heard()
    run = run_of(RunParams(3, 0, init="nvecs", starts=2), heard)
    with pytest.raises(InputError, match="starts 2: init gives one start"):
        run.begin()
    assert not heard.calls
