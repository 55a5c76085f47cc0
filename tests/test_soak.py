"""Random kills, a few of those that tests/soak.py goes on with for as long as one likes."""

from __future__ import annotations

import json
import sys

from command import ROOT, finish, mpirun_line


def test_a_few_random_kills() -> None:
    mpirun_line(2)  # or there is nothing to kill
    line = [sys.executable, ROOT / "tests" / "soak.py", "--kills", 3, "--kinds", "kill", "raise"]
    result = finish(list(map(str, line)), timeout=300)
    assert result.code == 0, result.err
    figures = json.loads(result.out)
    assert figures["kill"] + figures["raise"] == 3
    assert figures["runs"] >= 1
