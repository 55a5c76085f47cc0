"""Random kills, a few of those that tests/soak.py goes on with for as long as one likes."""

from __future__ import annotations

import json
import sys

import pytest
from command import ROOT, finish, mpirun_line
from forms import exhaustive


@pytest.mark.parametrize(("kills", "iterations"), [(1, 30), exhaustive(3, 300)])
def test_a_few_random_kills(kills: int, iterations: int) -> None:
    mpirun_line(2)  # or there is nothing to kill
    line = [sys.executable, ROOT / "tests" / "soak.py", "--kills", kills, "--kinds", "kill", "raise"]
    line += ["--iterations", iterations]
    result = finish(list(map(str, line)), timeout=300)
    assert result.code == 0, result.err
    figures = json.loads(result.out)
    assert figures["kill"] + figures["raise"] == kills
    assert figures["runs"] >= 1
