"""The recorded command makes the same model again."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import finish, mpirun_line, python_line, run_amped, small_tns, succeeded, write_factors
from forms import exhaustive
from hypothesis import given, settings
from hypothesis import strategies as st

from amped.cli.record import UNRELATED, command
from amped.cli.run_requests import RunRequest
from amped.methods.driver import MethodState
from amped.run import arguments
from amped.runs.checkpoint import Origin

NAMES = st.sampled_from(["t.tns", "-t.tns", "--rank", "a b'c\"d.tns", "two\nlines.tns", "$HOME/`x`.tns", "sub/-t.tns"])
TEXTS = st.sampled_from(["carrier", "-delay", "--key", "hour(time)", "a = 'x y'", "0", "False", "None", "1\n+ 1"])
REALS = st.sampled_from(["0", "0.0", "-0", "1e-5", "0.01", "1e-300", "0.1", "3"])
COUNTS = st.sampled_from(["0", "1", "2", "5", "10"])
POSITIVE = st.sampled_from(["1", "2", "50"])
MODES = st.sampled_from(["0", "0,2", "1"])
SIZES = st.sampled_from(["1", "0,0,0", "9,7,5"])


def flagged(flag: str, values: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[list[str]]:
    """Nothing, or a flag with a value if it has one."""
    one = st.just([flag]) if values is None else values.map(lambda value: [f"{flag}={value}"])
    return st.just(list[str]()) | one


def several(flag: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(values, max_size=3).map(lambda found: [f"{flag}={value}" for value in found])


SHARED = [
    flagged("--tol", REALS), flagged("--max-iters", POSITIVE), flagged("--deterministic"), flagged("--no-values"),
    flagged("--compact"), flagged("--dense"), flagged("--shape", SIZES), flagged("--index-base", st.sampled_from("01")),
    several("--key", TEXTS), flagged("--value", TEXTS), flagged("--where", TEXTS),
    flagged("--missing", st.sampled_from(["drop", "keep"])), flagged("--device", st.sampled_from(["auto", "cpu"])),
    flagged("--precision", st.sampled_from(["fp32", "fp64"])), flagged("--kernel", st.sampled_from(["auto", "elem"])),
    flagged("--threads", POSITIVE), flagged("--device-memory", st.sampled_from(["1", "800M", "16G"])),
    flagged("--workspace", POSITIVE), flagged("--placement", st.sampled_from(["auto", "stream"])),
    flagged("--quiet"), flagged("--force"), flagged("--output", NAMES), flagged("--metrics", NAMES),
]  # fmt: skip
CPD = [
    st.just(["--rank=3"]), flagged("--seed", COUNTS) | flagged("--init", NAMES | st.sampled_from(["nvecs", "tucker"])),
    flagged("--loss", st.sampled_from(["gaussian", "poisson"])),
    flagged("--method", st.sampled_from(["als", "mu", "pdnr", "pqnr"])), flagged("--inner-iters", COUNTS),
    flagged("--mu-iters", COUNTS), flagged("--kappa", REALS), flagged("--kappa-tol", REALS), flagged("--eps", REALS),
    flagged("--nonnegative") | flagged("--nonnegative-modes", MODES), flagged("--ridge", REALS | SIZES),
    flagged("--fixed-modes", MODES), flagged("--starts", POSITIVE), flagged("--report"),
]  # fmt: skip
TUCKER = [
    flagged("--rank", SIZES) | flagged("--error", REALS),
    flagged("--seed", COUNTS) | flagged("--init", NAMES | st.sampled_from(["nvecs", "random"])),
    flagged("--method", st.sampled_from(["hooi", "hosvd", "sthosvd"])),
]  # fmt: skip


def lines(verb: str, own: list[Any]) -> st.SearchStrategy[list[str]]:
    """Command lines of a verb, with a name that is not taken for a flag."""
    flags = st.tuples(*own, *SHARED).map(lambda found: [word for words in found for word in words])
    names = NAMES.map(lambda name: f"./{name}" if name.startswith("-") else name)
    return st.tuples(names, flags).map(lambda both: [verb, both[0], *both[1]])


def request_of(line: list[str]) -> RunRequest:
    args = arguments(line)
    found = args.request.of(args)
    assert isinstance(found, RunRequest)
    return found


def said(request: RunRequest) -> dict[str, Any]:
    """All that a request says of the model."""
    named = {"tensor": request.tensor, "form": request.form, "options": request.options}
    named |= {each.name: getattr(request, each.name) for each in fields(request) if each.name not in UNRELATED}
    return named | {"seed": request.first_seed}


@settings(max_examples=30)
@given(lines("cpd", CPD) | lines("tucker", TUCKER), st.integers(1, 4))
def test_the_recorded_command_says_the_same(line: list[str], ranks: int) -> None:
    """Also where a flag's value is 0, is text like a flag's, or has what a shell would take for its own."""
    request = request_of(line)
    origin = Origin({}, request.first_seed, request.init, {})
    text = command(request, ranks, origin, MethodState({}, {}, request.iterations))
    assert text is not None
    words = shlex.split(text)
    start = [] if ranks == 1 else ["mpirun", "-n", str(ranks)]
    assert words[: len(start) + 1] == [*start, "amped"]
    again = said(request_of(words[len(start) + 1 :]))
    assert again == said(request)
    assert list(map(repr, again.values())) == list(map(repr, said(request).values()))  # 0 and False are equal


@pytest.mark.parametrize(
    ("line", "origin", "state", "flags"),
    [
        ("", (2, None), (50, 0, False), "--seed 2"),  # the best of several starts, or a run that was resumed
        ("--starts 3 --seed 1", (0, None), (50, 0, False), ""),
        ("", (0, "nvecs"), (50, 0, False), "--init nvecs"),  # it was resumed without --init
        ("--max-iters 9", (0, None), (4, 0, False), "--max-iters 4"),  # stopped
        ("--max-iters 9", (0, None), (4, 0, True), "--max-iters 9"),  # converged
    ],
)
def test_where_the_run_began_and_ended(line: str, origin: Any, state: Any, flags: str) -> None:
    request = request_of(["cpd", "t.tns", "--rank", "3", *line.split()])
    iterations, mode, converged = state
    found = command(request, 1, Origin({}, *origin, {}), MethodState({}, {}, iterations, mode, converged))
    assert found is not None
    assert sorted(found.split()) == sorted(f"amped cpd t.tns --rank 3 {flags}".split())


def test_no_command_stops_within_an_iteration() -> None:
    request = request_of(["cpd", "t.tns", "--rank", "3"])
    for done in ((4, 1), (0, 2), (0, 0)):
        assert command(request, 1, Origin({}, 0, None, {}), MethodState({}, {}, *done)) is None


def again(folder: Path, name: str, other: str) -> None:
    """Run the command that is recorded beside a model; its model is the same, bit for bit."""
    words = shlex.split(json.loads((folder / name / "run.json").read_text())["command"])
    at = words.index("amped")
    ranks = int(words[at - 1]) if at else 1
    start = mpirun_line(ranks) if at else []
    result = finish([*start, *python_line(*words[at + 1 :], "--output", other)], cwd=folder)
    assert result.code == 0, result.err
    one, two = (dict(np.load(folder / each / "model.npz")) for each in (name, other))
    assert one.keys() == two.keys()
    assert all(array.tobytes() == two[key].tobytes() for key, array in one.items())


COMMON = ["--rank", 3, "--device", "cpu", "--deterministic", "--threads", 1]


@pytest.mark.parametrize("ranks", [1, exhaustive(2)])
def test_the_best_of_three_starts_is_made_again(folder: Path, ranks: int) -> None:
    path = small_tns(folder, "-a b.tns").name
    line = ["cpd", f"./{path}", *COMMON, "--starts", 3, "--seed", 4, "--tol", 0, "--max-iters", 4, "--output", "one"]
    start = mpirun_line(ranks) if ranks > 1 else []
    assert finish([*start, *python_line(*line)], cwd=folder).code == 0
    again(folder, "one", "two")


def test_a_resumed_run_is_made_again(folder: Path) -> None:
    path = small_tns(folder)
    write_factors(folder / "-start.npz", (9, 7, 5), 3)
    line = ["cpd", path, *COMMON, "--tol", 0, "--nonnegative-modes", 0, "--checkpoint", "c", "--output", "one"]
    succeeded(run_amped(*line, "--max-iters", 2, "--init=-start.npz"))
    succeeded(run_amped(*line, "--max-iters", 5, "--resume"))
    again(folder, "one", "two")


def test_a_tucker_model_is_made_again(folder: Path) -> None:
    line = ["tucker", small_tns(folder), "--rank", "2,2,2", *COMMON[2:], "--tol", 0, "--index-base", 0, "--seed", 2]
    succeeded(run_amped(*line, "--max-iters", 3, "--output", "one"))
    again(folder, "one", "two")
