"""What the logger ``amped`` records, and which loggers of libraries stay quiet."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import in_process, small_tns

import amped
from partitioner.host.quiet import quieten

ARRAY = np.random.default_rng(0).random((6, 5, 4))
HOW: dict[str, Any] = {"tol": 0, "max_iters": 2, "device": "cpu"}


def test_stages_and_iterations(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.INFO, "amped"):
        model = amped.cp_als(ARRAY, 2, **HOW)
    assert {record.name for record in caplog.records} == {"amped"}
    assert {record.levelname for record in caplog.records} == {"INFO"}
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "X: 6 x 5 x 4, dense, float64"
    assert lines.count("loading") == 1
    fits = [f"iteration {number}  fit {fit:.6f}" for number, fit in enumerate(model.fits, 1)]
    assert [line.split("  change")[0] for line in lines if line.startswith("iteration ")] == fits
    (stages,) = [line for line in lines if line.startswith("stages: ")]
    assert "iterate " in stages
    assert lines[-1].endswith("(not converged: the limit of 2 iterations (max_iters) is reached)")
    assert capsys.readouterr() == ("", ""), "logging is not printing"


def test_all_functions_log(caplog: pytest.LogCaptureFixture) -> None:
    calls = amped.cp_apr, lambda X, _, **how: amped.tucker(X, (2, 2, 2), **how)
    for function in calls:
        with caplog.at_level(logging.INFO, "amped"):
            function(ARRAY, 2, **HOW)
        assert sum(line.startswith("iteration ") for line in caplog.messages) == 2
        caplog.clear()
    with caplog.at_level(logging.INFO, "amped"):
        amped.scan(ARRAY, "1-2", starts=1, **HOW)
    assert caplog.messages[-1].startswith("suggested: ")


def test_nothing_is_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "amped"):
        amped.cp_als(ARRAY, 2, verbose=True, **HOW)
    assert not caplog.records


def test_loggers_of_libraries_keep_levels_that_a_program_has_set() -> None:
    mine, other = logging.getLogger("amped.test.mine"), logging.getLogger("amped.test.other")
    mine.setLevel(logging.DEBUG)
    quieten(mine.name)
    quieten(other.name)
    assert (mine.level, other.level) == (logging.DEBUG, logging.WARNING)


def test_a_program_that_logs_everything_gets_records_of_amped_only(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    script = folder / "script.py"
    script.write_text(
        "import logging\n"
        "logging.basicConfig(level=logging.DEBUG, format='%(name)s')\n"
        "import amped\n"
        "from partitioner.host.jit import load_compiler\n"
        "model = amped.cp_als('small.tns', 2, max_iters=2, device='cpu')\n"
        "load_compiler()\n"
        "import numba\n"
        "numba.njit(lambda x: x + 1)(1)\n"
        "model.plot('x.png')\n"
    )
    small_tns(folder)
    done = in_process(script=script, cwd=folder)
    assert done.code == 0, done.err
    assert set(done.err.splitlines()) == {"amped"}
