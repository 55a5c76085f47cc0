"""The command line as tests run it: in this process, as a subprocess, or under mpirun."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import compress
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import numpy as np
import pytest

import amped
from amped.parallel.mpi import LAUNCHER_RANKS, LAUNCHER_SIZES
from amped.run import main
from partitioner.__main__ import main as partition_main
from partitioner.host.worth import ALWAYS, SETTING

ROOT = Path(amped.__file__).parent.parent
ERROR = "amped: error: "
TIMEOUT = 240.0  # seconds, more than twenty times the slowest command

# Open MPI 5 (PRTE_) and 4 (OMPI_): allow root and more ranks than cores; no network on one node.
LAUNCH = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_btl": "^tcp,ofi,uct",
}


PROGRESS = re.compile(r"iteration +\d+ |compiling |compiled in |still ")
"""How lines of progress on standard error begin."""


@dataclass(frozen=True)
class Result:
    """The exit code and output of a command; lines of progress are apart from others on standard error."""

    code: int
    out: str
    err: str
    progress: str = ""

    @classmethod
    def of(cls, code: int, out: str, err: str) -> Result:
        """Return the result of a command that printed `err` on standard error."""
        lines = err.splitlines(keepends=True)
        shows = [PROGRESS.match(line) is not None for line in lines]
        rest, progress = ("".join(compress(lines, kept)) for kept in ([not each for each in shows], shows))
        return cls(code, out, rest, progress)


def _captured(function: Callable[[Sequence[str]], int], arguments: Sequence[object]) -> Result:
    out, err, hook = io.StringIO(), io.StringIO(), sys.excepthook
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = function([str(a) for a in arguments])
    except SystemExit as request:
        code = int(request.code or 0)
    finally:
        sys.excepthook = hook  # `main` sets its own
    return Result.of(code, out.getvalue(), err.getvalue())


def run_amped(*arguments: object) -> Result:
    """Run ``amped ARGUMENTS`` in this process."""
    return _captured(main, arguments)


def run_partitioner(*arguments: object) -> Result:
    """Run ``amped-partition ARGUMENTS`` in this process."""
    return _captured(partition_main, arguments)


def environment(**extra: str) -> dict[str, str]:
    """Return the environment of a subprocess that imports this amped, without variables of launchers.

    Subprocesses decide whether to compile, as for users: loading compiled code takes a third of a short run.
    """
    left_out = {*LAUNCHER_SIZES, *LAUNCHER_RANKS, "SLURM_STEP_NUM_TASKS"}
    left_out |= {SETTING} if os.environ.get(SETTING) == ALWAYS else set()  # set by conftest.py
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    paths = [str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    return {**LAUNCH, **kept, "PYTHONPATH": os.pathsep.join(paths), **extra}


def python_line(*arguments: object, script: object = None) -> list[str]:
    """Return the command line of ``python -m amped.run ARGUMENTS``, or of a script instead."""
    program = ["-m", "amped.run"] if script is None else [str(script)]
    return [sys.executable, *program, *map(str, arguments)]


def mpirun_line(ranks: int) -> list[str]:
    """Return the command line of mpirun; skip the test if it is not installed."""
    installed = Path(sys.executable).parent / "mpirun"  # of the wheel
    mpirun = str(installed) if installed.exists() else shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("no mpirun")
    return [mpirun, "-n", str(ranks)]


def signalled_line(ranks: int) -> list[str]:
    """Return `mpirun_line`; skip the test if mpirun keeps signals for itself."""
    line = mpirun_line(ranks)
    if not forwards_signals():
        pytest.skip("this mpirun does not forward SIGUSR1 to the ranks")
    return line


FORWARDED = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
open("ready", "w").close()
time.sleep(5)
"""


@cache
def forwards_signals() -> bool:
    """Return whether mpirun sends a signal that it receives to the ranks; those of some containers do not."""
    with tempfile.TemporaryDirectory() as folder:
        line = [*mpirun_line(2), sys.executable, "-c", FORWARDED]
        process = subprocess.Popen(line, cwd=folder, env=environment(), stdout=DEVNULL, stderr=DEVNULL)
        while process.poll() is None and not (Path(folder) / "ready").exists():
            time.sleep(0.02)
        time.sleep(0.2)  # until the other rank handles it, too
        process.send_signal(signal.SIGUSR1)
        return process.wait(TIMEOUT) == 7


def finish(line: Sequence[str], *, timeout: float = TIMEOUT, env: Mapping[str, str] = {}, **options: Any) -> Result:
    """Run a command line; raise an exception after `timeout` seconds."""
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=timeout, env=environment(**env), check=False, **options
    )
    return Result.of(done.returncode, done.stdout, done.stderr)


def in_process(*arguments: object, script: object = None, **options: Any) -> Result:
    """Run ``amped ARGUMENTS``, or a script, as a subprocess."""
    return finish(python_line(*arguments, script=script), **options)


def on_ranks(ranks: int, *arguments: object, **options: Any) -> Result:
    """Run ``amped ARGUMENTS`` under mpirun."""
    return finish([*mpirun_line(ranks), *python_line(*arguments)], **options)


def succeeded(result: Result) -> Result:
    """Fail with the command's messages unless it succeeded with nothing on standard error."""
    assert result.code == 0, f"exit code {result.code}\n{result.out}\n{result.err}"
    assert not result.err, result.err
    return result


def refused(result: Result, *parts: object, program: str = "amped") -> str:
    """Check that wrong input was rejected: exit code 2, one line that contains `parts`. Return the line."""
    assert result.code == 2, f"exit code {result.code}\n{result.out}\n{result.err}"
    assert result.err.startswith(f"{program}: error: "), result.err
    assert result.err.endswith("\n")
    assert result.err.count("\n") == 1, f"more than one line:\n{result.err}"
    _check_parts(result.err, parts)
    _check_no_success(result.out)
    return result.err


def refused_on_ranks(result: Result, *parts: object) -> str:
    """Like `refused`, for a run under mpirun, which prints additional lines."""
    assert result.code == 2, f"exit code {result.code}\n{result.out}\n{result.err}"
    lines = [line for line in result.err.splitlines() if "amped:" in line]
    assert len(lines) == 1, result.err
    assert lines[0].startswith(ERROR)
    assert "Traceback" not in result.err
    _check_parts(lines[0], parts)
    _check_no_success(result.out)
    return lines[0]


def _check_parts(line: str, parts: Sequence[object]) -> None:
    missing = [str(part) for part in parts if str(part).lower() not in line.lower()]
    assert not missing, f"{missing} not in: {line}"


def _check_no_success(out: str) -> None:
    for claim in ("iteration", "model in", "million nonzeros/s", "written", "Traceback"):
        assert claim not in out, out


def entries(folder: Path) -> dict[str, bytes | None]:
    """Return everything in a folder and its subfolders: the contents of files, None for folders."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def random_tensor(shape: Sequence[int] = (9, 7, 5), nonzeros: int = 80, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct indices (nnz, order), which reach the end of every mode, and values (nnz,)."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(int(np.prod(shape)) - 1, nonzeros - 1, replace=False)
    cells = np.append(cells, int(np.prod(shape)) - 1)
    return np.stack(np.unravel_index(cells, shape), axis=1), rng.uniform(0.5, 2.0, nonzeros)


def write_tns(path: Path, indices: np.ndarray, values: np.ndarray) -> Path:
    """Write a tensor as text, exactly."""
    rows = zip(indices + 1, values, strict=True)
    path.write_text(
        "".join(f"{' '.join(map(str, row))} {value!r}\n" for row, value in ((r, float(v)) for r, v in rows))
    )
    return path


def small_tns(folder: Path, name: str = "small.tns", **facts: Any) -> Path:
    """Write a small random tensor as text."""
    return write_tns(folder / name, *random_tensor(**facts))


def write_factors(path: Path, shape: Sequence[int], rank: int, seed: int = 1) -> list[np.ndarray]:
    """Write a start for ``--init``; return its factor matrices."""
    rng = np.random.default_rng(seed)
    factors = [rng.random((length, rank)) for length in shape]
    np.savez(path, **{f"factor_{n}": f for n, f in enumerate(factors)})
    return factors


def dense(shape: Sequence[int], indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a tensor as a dense array."""
    result = np.zeros(shape)
    np.add.at(result, tuple(indices.T), values)
    return result
