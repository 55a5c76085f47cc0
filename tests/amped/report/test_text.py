"""What a run says of its end, and of a full memory."""

from __future__ import annotations

import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
from command import run_amped, small_tns, succeeded

import amped
from amped.methods.driver import MethodState, StopRule
from amped.options import Options
from amped.report.text import end_line, figure, low_fit, out_of_memory, rate

CPU = ("--device", "cpu", "--rank", 3)


@pytest.mark.parametrize(
    ("state", "sent", "line"),
    [
        (
            MethodState({}, {"fit": [0.25]}, 9), None,
            "fit 0.250000 after 9 iterations (not converged: the limit of 9 iterations (max_iters) is reached)",
        ),
        (
            MethodState({}, {"fit": [0.25]}, 1, converged=True), None,
            "fit 0.250000 after 1 iteration (converged: the fit changed by less than tol=1e-05)",
        ),
        (MethodState({}, {"fit": [0.25]}, 1), None, "fit 0.250000 after iteration 1: stopped by the callback"),
        (
            MethodState({}, {"fit": [0.5, 0.5]}, 2, converged=True), None,
            "fit 0.500000 after 2 iterations (converged: the fit changed by less than tol=1e-05)",
        ),
        (MethodState({}, {"fit": [0.5]}, 1), signal.SIGUSR1, "fit 0.500000: stopped by SIGUSR1 after iteration 1"),
        (
            MethodState({}, {"fit": [0.5]}, 1, mode=2), signal.SIGUSR1,
            "fit 0.500000 after iteration 1: stopped by SIGUSR1 after iteration 1 and 2 modes of the next",
        ),
    ],
)  # fmt: skip
def test_why_a_run_has_ended(state: MethodState, sent: signal.Signals | None, line: str) -> None:
    assert end_line(state, sent, StopRule(9, 1e-5)) == line


def test_why_a_run_that_waits_for_several_small_changes_has_ended() -> None:
    state = MethodState({}, {"fit": [0.5] * 9}, 9, converged=True)
    line = "(converged: the fit changed by less than tol=1e-05 in each of the last 4 iterations)"
    assert end_line(state, None, StopRule(500, 1e-5), quiet=4).endswith(line)


def test_why_a_run_that_foresees_its_gain_has_ended() -> None:
    state = MethodState({}, {"fit": [0.5]}, 20, converged=True)
    line = "fit 0.500000 after 20 iterations (converged: 14 iterations gain less than tol=1e-05)"
    assert end_line(state, None, StopRule(500, 1e-5, forecast=True)) == line


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.25, "0.250000"), (0.0492101234, "0.0492101"), (0.9999, "0.999900"), (1 - 3.4e-9, "0.9999999966"),
        (1.0, "1.00000"), (1 - 1e-16, "1.000000"), (0.0, "0"), (-0.3, "-0.300000"), (3.4e-7, "3.4e-07"),
        (-2055718.266785, "-2,055,718"), (-12.345678, "-12.3457"), (1e20, "1e+20"), (float("nan"), "nan"),
    ],
)  # fmt: skip
def test_digits_that_mean_something(number: float, shown: str) -> None:
    assert figure(number) == shown


def test_rates() -> None:
    numbers = 3.4321, 999.6, 12345.0, 1.2345e6, 5.4321e9
    assert [rate(each) for each in numbers] == ["3.43", "1,000", "12,300", "1.23 million", "5,430 million"]


def test_convergence_at_a_fit_that_is_hardly_one() -> None:
    assert low_fit(True, [0.0, 2e-6], 1e-5)
    assert low_fit(True, [-0.5, -0.5], 1e-5)
    assert not low_fit(True, [0.1, 1e-4], 1e-5)
    assert not low_fit(False, [0.0, 2e-6], 1e-5)
    assert not low_fit(False, [], 1e-5)


def test_the_command_warns_of_it(folder: Path) -> None:
    path = small_tns(folder)
    lines = succeeded(run_amped("cpd", path, *CPU, "--tol", 0.9, "--output", "a")).out.splitlines()
    assert lines[-2].startswith("warning: the fit, ")
    assert "is below 10 times tol, 0.9" in lines[-2]
    assert "(converged: the fit changed by less than --tol 0.9)" in lines[-1]
    assert "warning" not in succeeded(run_amped("cpd", path, *CPU, "--tol", 1e-3, "--output", "b")).out


def test_the_python_interface_warns_of_it(folder: Path) -> None:
    path = small_tns(folder)
    with pytest.warns(UserWarning, match="below 10 times tol") as message:
        assert amped.cp_als(path, 3, tol=0.9, device="cpu").converged
    assert message[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        amped.cp_als(path, 3, tol=1e-3, device="cpu")


@pytest.mark.parametrize(
    ("on_host", "options", "has", "has_not"),
    [
        (True, {}, ["amped partition", "kernel='permuted'", "lower rank"], ["device_memory", "precision"]),
        (True, {"precision": "fp64"}, ["precision='fp32'"], ["device_memory"]),
        (True, {"placement": "stream"}, ["lower rank"], ["placement", "kernel"]),
        (True, {"kernel": "permuted"}, ["placement='stream'"], ["kernel"]),
        (False, {}, ["device_memory=858993459 to", "lower rank"], ["kernel"]),
    ],
)
def test_what_helps_where_memory_is_full(
    on_host: bool, options: dict[str, Any], has: list[str], has_not: list[str]
) -> None:
    line = out_of_memory(MemoryError("no room"), 1 << 30, on_host, Options(**options))
    assert line.startswith("no room; 1.0 GiB of ")
    assert all(word in line for word in has)
    assert not any(word in line for word in has_not)
