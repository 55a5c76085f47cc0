"""Callbacks and reports of the Python functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amped
from amped import InputError, InputWarning
from amped.runs.callback import ModelView, takes_view

ARRAY = np.random.default_rng(0).random((6, 5, 4))
HOW: dict[str, Any] = {"tol": 0, "max_iters": 5, "device": "cpu", "precision": "fp64", "threads": 1}
FUNCTIONS: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "cp_als": (amped.cp_als, 2, "fit"),
    "cp_apr": (amped.cp_apr, 2, "loglikelihood"),
    "tucker": (amped.tucker, (2, 2, 2), "fit"),
}
every_function = pytest.mark.parametrize(("function", "rank", "metric"), FUNCTIONS.values(), ids=FUNCTIONS)


@every_function
def test_a_view_gives_the_model_after_each_iteration(function: Callable[..., Any], rank: Any, metric: str) -> None:
    seen, views = list[tuple[int, float, Any]](), list[ModelView]()

    def watch(iteration: int, number: float, view: ModelView) -> None:
        assert (view.iteration, view.rank, view.shape) == (iteration, rank if rank == 2 else [2, 2, 2], ARRAY.shape)
        assert view.series[metric][-1] == number
        assert len(view.series[metric]) == iteration
        seen.append((iteration, number, view.model()))
        views.append(view)

    function(ARRAY, rank, callback=watch, **HOW)
    assert [iteration for iteration, _, _ in seen] == [1, 2, 3, 4, 5]
    for iteration, _, model in seen:
        short = function(ARRAY, rank, **HOW | {"max_iters": iteration})
        np.testing.assert_array_equal(model.full(), short.full())
        assert model.run == short.run
    assert views[0].model() is seen[0][2], "what was copied remains"


def test_an_expired_view_gives_no_model() -> None:
    views = list[ModelView]()
    amped.cp_als(ARRAY, 2, callback=lambda *each: None, **HOW)
    amped.cp_als(ARRAY, 2, callback=lambda _iteration, _fit, view: views.append(view), **HOW)
    assert len(views[1].series["fit"]) == 2
    with pytest.raises(InputError, match=r"this view has expired: call its method model\(\) within the callback"):
        views[1].model()


@every_function
def test_true_stops_with_the_model_so_far(function: Callable[..., Any], rank: Any, metric: str) -> None:
    stopped = function(ARRAY, rank, callback=lambda iteration, _: iteration == 3, **HOW)
    np.testing.assert_array_equal(stopped.full(), function(ARRAY, rank, **HOW | {"max_iters": 3}).full())
    assert not stopped.converged
    assert stopped.run["iterations"] == 3


def test_only_true_stops() -> None:
    for value in (None, 1, 0.5, "no", [1], False, np.False_):
        assert len(amped.cp_als(ARRAY, 2, callback=lambda *_, value=value: value, **HOW).fits) == 5
    assert len(amped.cp_als(ARRAY, 2, callback=lambda *_: np.True_, **HOW).fits) == 1


def test_a_stopped_run_resumes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how = HOW | {"checkpoint": "c", "every": 9}
    amped.cp_als(ARRAY, 2, callback=lambda iteration, _: iteration == 2, verbose=True, **how)
    assert "after iteration 2: stopped by the callback" in capsys.readouterr().out
    rest = amped.cp_als(ARRAY, 2, resume=True, **how)
    np.testing.assert_array_equal(rest.full(), amped.cp_als(ARRAY, 2, **HOW).full())


@every_function
def test_an_exception_carries_the_model(function: Callable[..., Any], rank: Any, metric: str) -> None:
    def fail(iteration: int, _: float) -> None:
        if iteration == 2:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        function(ARRAY, rank, callback=fail, **HOW)
    model: Any = caught.value.model  # type: ignore[attr-defined]
    np.testing.assert_array_equal(model.full(), function(ARRAY, rank, **HOW | {"max_iters": 2}).full())
    assert caught.value.__notes__ == ["the model after iteration 2 is the attribute `model` of this exception"]


def test_which_callbacks_take_a_view() -> None:
    def with_default(iteration: int, fit: float, log: Any = None) -> None: ...

    assert takes_view(lambda iteration, fit, view: None)
    assert not takes_view(with_default)
    for two in (lambda *each: None, lambda iteration, fit: None, lambda iteration, fit, *, key=0: None, dict.fromkeys):
        assert not takes_view(two)


def test_a_scan_stops() -> None:
    how = {"starts": 2, "max_iters": 3, "device": "cpu"}
    whole, seen = amped.scan(ARRAY, "1-4", **how), list[int]()

    def watch(tried: Any) -> bool:
        seen.append(tried.rank)
        return bool(tried.rank == 2)

    short = amped.scan(ARRAY, "1-4", callback=watch, **how)
    assert seen == [each.rank for each in short.tried] == [1, 2]
    without_times = [[each._replace(seconds=0.0) for each in found.tried[:2]] for found in (short, whole)]
    assert without_times[0] == without_times[1]
    assert [model.rank for model in short.models] == [1, 2]


def test_a_report(folder: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    for function in (amped.cp_als, amped.cp_apr):
        function(ARRAY, 2, report=Path("r.html"), **HOW)
        text = Path("r.html").read_text()
        assert "argest residuals" in text
        assert "numpy" in text, "versions"
        assert list(folder.iterdir()) == [folder / "r.html"]
    with pytest.raises(InputError, match=r"nowhere/r\.html: its folder does not exist"):
        amped.cp_als(ARRAY, 2, report="nowhere/r.html", **HOW)
    with pytest.raises(InputError, match="same: is both metrics and report"):
        amped.cp_als(ARRAY, 2, checkpoint="c", metrics="same", report="same", **HOW)
    with pytest.raises(InputError, match="report is of type int: expected a path"):
        amped.cp_als(ARRAY, 2, report=3, **HOW)


def test_a_report_that_fails_is_a_warning(folder: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")

    def occupy(*_: object) -> None:
        Path("r.html").mkdir(exist_ok=True)

    with pytest.warns(InputWarning, match=r"r\.html: .*; the report is not written") as caught:
        model = amped.cp_als(ARRAY, 2, report="r.html", callback=occupy, **HOW)
    assert caught[0].filename == __file__
    assert len(model.fits) == 5
