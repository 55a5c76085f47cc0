"""A rank that raises, is killed or stops answering ends the whole job, soon and with an error."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command import Result, environment, finish, mpirun_line, python_line, small_tns
from forms import exhaustive, in_turn

import amped
from amped.errors import EXIT_FAILURE, EXIT_STOPPED
from amped.methods.initial import initial_factors
from amped.operators.sources.sparse import TensorSource
from amped.options import Options
from amped.parallel import step_timeout, watchdog
from amped.parallel.mpi import SingleComm
from amped.parallel.progress import Recorder
from amped.runs.assembly import bring_up, place
from partitioner.host.worth import NEVER, SETTING

RANKS = 3
PROMISED = 30.0  # seconds to the end of a job with a fault, on a machine that is not busy
PATIENCE = 300.0  # seconds: about twenty times what a job takes
SLACK = 0.1  # seconds of work: a beat is due after 0.01, and comes later where the interpreter switches late
SHORT = 5.0  # seconds: in place of the watchdog's usual ones, where it is to wait in vain

# Runs the command line, or a call of Python; one rank comes to grief in its fifth MTTKRP, in the second iteration.
DRIVER = """
import os, resource, signal, sys, time
import amped
from amped.operators.sources import sparse as source
from amped.operators.sparse import operator as sparse
from amped import run
from amped.parallel import step_timeout, watchdog
from amped.parallel.mpi import world
from amped.parallel.progress import CURRENT

KIND, BAD = sys.argv[1], int(sys.argv[2])
if KIND in ("stop", "loop", "idle", "wait"):
    watchdog.SILENCE_SECONDS = step_timeout.LEAST_SECONDS = float(os.environ["SHORT_SECONDS"])
healthy, calls = sparse.SparseOperator.mttkrp, 0

def come_to_grief():
    print(f"FAULT {KIND}", flush=True)
    if KIND == "raise":
        raise RuntimeError("injected fault")
    if KIND == "memory":
        raise MemoryError("injected fault")
    if KIND == "exit":
        os._exit(0)
    if KIND in ("loop", "idle", "doze"):
        while True:
            time.sleep(0.1 * (KIND != "loop"))  # all but `loop` leave the cores to others
    if KIND == "wait":
        with CURRENT.collective("nowhere", 8):
            time.sleep(10**6)
    if KIND == "disk":  # from now on every write beyond some bytes of a file fails
        return resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    if KIND in ("pause", "none"):
        return time.sleep(4 * (KIND == "pause"))
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[KIND])

def mttkrp(self, mode, *solve):
    global calls
    calls += 1
    if world().rank == BAD and calls == 5:
        come_to_grief()
    return healthy(self, mode, *solve)

sparse.SparseOperator.mttkrp = mttkrp

if KIND == "read":
    def read(*_, **__):
        raise RuntimeError("injected fault")
    source.read = read

if sys.argv[3] == "cp_als":
    amped.cp_als(sys.argv[4], 3, tol=0, max_iters=10**6, device="cpu", deadline=float(sys.argv[5]))
sys.exit(run.main(sys.argv[3:]))
"""


class Job:
    """A run of the driver, under mpirun if it has several ranks."""

    def __init__(
        self, folder: Path, kind: str, bad: int, *flags: object, ranks: int = RANKS, call: float | None = None
    ) -> None:
        """Run ``cpd`` with `flags`, or `amped.cp_als` with the deadline `call`."""
        folder.mkdir(exist_ok=True)
        self.name = str(folder)  # in the command line of every process of the job, and of no other
        driver, tensor = folder / "driver.py", small_tns(folder)
        driver.write_text(DRIVER)
        arguments = [kind, bad, "cpd", tensor, "--rank", 3, "--tol", 0, "--max-iters", 10**6]
        arguments += ["--device", "cpu", "--output", folder / "out", *flags]
        if call is not None:
            arguments = [kind, bad, "cp_als", tensor, call]
        start = mpirun_line(ranks) if ranks > 1 else []
        line = [*start, sys.executable, str(driver), *map(str, arguments)]
        self._files = [open(folder / name, "w+") for name in ("stdout", "stderr")]  # noqa: SIM115
        # Files, not pipes: a pipe stays open as long as one process of the job is left.
        env = environment(SHORT_SECONDS=str(SHORT), **{SETTING: NEVER})
        self._process = subprocess.Popen(line, stdout=self._files[0], stderr=self._files[1], env=env)
        self._folder = folder

    def wait_for_the_fault(self) -> None:
        """Return when the rank has come to grief."""
        deadline = time.monotonic() + PATIENCE
        while "FAULT" not in (self._folder / "stdout").read_text():
            assert time.monotonic() < deadline, "the job did not get as far as the fault"
            assert self._process.poll() is None, (self._folder / "stderr").read_text()
            time.sleep(0.05)

    def wait(self) -> Result:
        """Return how the job ended."""
        code = self._process.wait(PATIENCE)
        return Result.of(code, *((self._folder / name).read_text() for name in ("stdout", "stderr")))

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to all ranks."""
        for process in self.left():
            if process.name() not in ("mpirun", "prterun"):
                process.send_signal(number)

    def left(self) -> list[psutil.Process]:
        """Return the processes of the job that are still there, stopped ones too."""
        return [p for p in psutil.process_iter(["cmdline"]) if any(self.name in a for a in p.info["cmdline"] or ())]

    def left_at_last(self) -> list[psutil.Process]:
        """Return what is left of the job, after as much time as it takes until nothing is."""
        deadline = time.monotonic() + PATIENCE / 4
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def end(self) -> None:
        """Leave nothing behind."""
        for process in self.left():
            process.kill()
        self._process.kill()
        self._process.wait()
        for file in self._files:
            file.close()


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """The jobs of a test, ended with it."""
    started: list[Job] = []
    yield started
    for job in started:
        job.end()


def check_end(job: Job) -> Result:
    """Check that a job with a fault ends, with an error and as a whole; return how."""
    job.wait_for_the_fault()
    result = job.wait()
    assert result.code != 0, result.out + result.err
    assert not job.left_at_last(), "processes are left behind"
    assert not (Path(job.name) / "out" / "model.npz").exists()
    return result


@pytest.mark.parametrize(("kind", "bad"), in_turn(["raise", "memory"], [0, 2]))
def test_a_rank_that_raises(tmp_path: Path, jobs: list[Job], kind: str, bad: int) -> None:
    jobs.append(Job(tmp_path, kind, bad))
    result = check_end(jobs[0])
    assert result.err.count(f"amped: rank {bad} failed") == 1
    assert "injected fault" in result.err
    assert ("--kernel permuted" in result.err) == (kind == "memory")  # what would fit
    assert f"amped: rank {bad} was in iteration 2, mode " in result.err
    assert ("Traceback" in result.err) == (kind == "raise")  # of a defect, not of a full memory


def test_the_usual_times_add_up_to_what_is_promised() -> None:
    """Until a fault is noticed, until the ranks are notified, and until they have ended."""
    notified = 2 * watchdog.BEAT_SECONDS + watchdog.ABORT_SECONDS + watchdog.LAST_WORDS_SECONDS
    assert max(watchdog.SILENCE_SECONDS, step_timeout.LEAST_SECONDS) + notified <= PROMISED
    assert watchdog.ENDING_SECONDS <= PROMISED


def test_rank_0_that_raises_while_the_others_wait_for_the_tensor(tmp_path: Path, jobs: list[Job]) -> None:
    jobs.append(Job(tmp_path, "read", 0))
    result = jobs[0].wait()
    assert result.code != 0
    assert result.err.count("amped: rank 0 failed") == 1
    assert not jobs[0].left_at_last()


@pytest.mark.parametrize(
    ("kind", "grid"),
    [exhaustive("kill", "all-gather"), ("exit", "all-gather"), ("kill", "3x1x1"), ("exit", "replicated")],
)
def test_a_rank_that_is_gone(tmp_path: Path, jobs: list[Job], kind: str, grid: str) -> None:
    """Killed, or ended with a code that says nothing is wrong; however ranks share the tensor."""
    jobs.append(Job(tmp_path, kind, 1, "--grid", grid))
    check_end(jobs[0])


@pytest.mark.parametrize("grid", ["3x1x1", *map(exhaustive, ["all-gather", "replicated"])])
def test_a_disk_that_is_full(tmp_path: Path, jobs: list[Job], grid: str) -> None:
    """A checkpoint that fails is one line, and the run continues; the model that fails is the last line."""
    folder = tmp_path / "checkpoints"
    flags = ["--max-iters", 4, "--checkpoint", folder, "--every", 1, "--grid", grid]
    jobs.append(Job(tmp_path / "job", "disk", 0, *flags))
    result = check_end(jobs[0])
    lines = [line for line in result.err.splitlines() if line.startswith("amped: ")]
    assert re.fullmatch(rf"amped: {folder}/iteration-\d: cannot write: File too large; the run continues", lines[0])
    assert lines[-1].startswith("amped: error: ")
    assert lines[-1].endswith("cannot write: File too large")
    assert len(lines) <= 4, result.err


HELD = {
    "stop": "rank {} has not answered",
    "loop": "rank {} makes no progress",
    "idle": "rank {} makes no progress",
    "wait": "all others have waited for each",
}


@pytest.mark.parametrize(
    "cases",
    [
        [("stop", 0), ("idle", RANKS - 1)],
        exhaustive([("stop", 0), ("stop", RANKS - 1), ("loop", 0), ("loop", RANKS - 1), ("wait", 1)]),
    ],
    ids=["two", "all"],
)
def test_a_rank_that_is_held_up(tmp_path: Path, jobs: list[Job], cases: list[tuple[str, int]]) -> None:
    """Stopped, in a loop with its watchdog awake, or waiting for what does not come: jobs side by side, as each takes
    as long as the watchdog waits. For the first rank, whom all others watch, and for the last."""
    for kind, bad in cases:
        jobs.append(Job(tmp_path / f"{kind}-{bad}", kind, bad))
    for job, (kind, bad) in zip(jobs, cases, strict=True):
        result = check_end(job)
        assert HELD[kind].format(bad) in result.err, result.err
        told = re.findall(r"^amped: .* (?:in iteration 2, mode \d).*last collectives: #", result.err, re.M)
        assert len(told) >= RANKS - (kind == "stop"), result.err  # a stopped one may be woken up to be ended
        if kind in ("loop", "idle"):
            assert "come_to_grief (driver.py:" in result.err


def test_a_rank_that_takes_longer_is_no_fault(tmp_path: Path, jobs: list[Job]) -> None:
    """The others wait for it over several beats, and go on when it is done."""
    jobs.append(Job(tmp_path, "pause", 1, "--max-iters", 3))
    jobs[0].wait_for_the_fault()
    result = jobs[0].wait()
    assert result.code == 0, result.err
    assert "after 3 iterations" in result.out
    assert not jobs[0].left_at_last()


DEADLINE = 6.0
HOW: dict[str, dict[str, Any]] = {"ranks": {"ranks": 2}, "one process": {"ranks": 1}}


@pytest.mark.parametrize(
    "cases",
    [
        [("ranks", None), ("one process", DEADLINE)],
        exhaustive([(how, call) for how in HOW for call in (None, DEADLINE)]),
    ],
    ids=["two", "all"],
)
def test_a_deadline_that_was_given(tmp_path: Path, jobs: list[Job], cases: list[tuple[str, float | None]]) -> None:
    """On the command line or in a call, of several ranks or one, ends a run that does not go on."""
    for how, call in cases:
        jobs.append(Job(tmp_path / f"{how}-{call}", "doze", 0, "--deadline", DEADLINE, call=call, **HOW[how]))
    for job in jobs:
        result = check_end(job)
        assert "amped: rank 0 makes no progress: more than 6 s in one step: in iteration 2, mode " in result.err
        assert "come_to_grief (driver.py:" in result.err


@pytest.mark.exhaustive
def test_a_job_that_is_suspended_goes_on(tmp_path: Path, jobs: list[Job]) -> None:
    """As a whole, for longer than its deadline: by a scheduler, or in a terminal."""
    for how in HOW:
        jobs.append(Job(tmp_path / how, "none", 0, "--deadline", DEADLINE, **HOW[how]))
        jobs[-1].wait_for_the_fault()
    for number, seconds in ((signal.SIGSTOP, DEADLINE + 4), (signal.SIGCONT, 3), (signal.SIGUSR1, 0)):
        for job in jobs:
            job.tell(number)
        time.sleep(seconds)
    for job in jobs:
        result = job.wait()
        assert result.code == EXIT_STOPPED, result.err
        assert "stopped by SIGUSR1 after iteration" in result.out


class Heart:
    """Beats in a thread, as the watchdog does, and keeps the most work between two beats, and all of it.

    Work is counted by the clock of the main thread, which stands still while others have its core.
    """

    def __init__(self) -> None:
        self.silence = self.work = 0.0
        main = threading.main_thread().ident
        assert main is not None
        self._clock = time.pthread_getcpuclockid(main)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def _beat(self) -> None:
        first = last = time.clock_gettime(self._clock)
        while not self._done.wait(0.01):
            now = time.clock_gettime(self._clock)
            self.silence, last = max(self.silence, now - last), now
        self.work = last - first

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.mark.parametrize("work", ["sort", "operator", *map(exhaustive, ["random", "nvecs"])])
def test_work_on_many_nonzeros_lets_the_watchdog_beat(work: str) -> None:
    """What holds the interpreter for half a second on a million nonzeros looks dead on thirty million."""
    rng = np.random.default_rng(0)
    shape = (3_000, 2_500, 2_200)
    columns = np.stack([rng.integers(0, length, 1_000_000, np.int32) for length in shape])
    values = rng.random(1_000_000)
    comm = SingleComm()
    if work == "sort":
        with Heart() as heart:
            amped.SparseTensor.from_columns(columns, values)
    else:
        source = TensorSource(amped.SparseTensor.from_columns(columns, values), comm)
        with Heart() as heart:
            if work == "operator":
                options = Options(device="cpu")
                place(source, 4, bring_up(options, comm), options)
            else:
                init = "nvecs" if work == "nvecs" else None
                initial_factors(source, 4, comm, np.dtype(np.float32), init=init)
    assert heart.silence < max(heart.work / 2, SLACK), "no call holds the interpreter for most of the work"


def test_a_recorder_knows_who_is_late_and_where() -> None:
    recorder = Recorder()
    assert recorder.overdue() == (False, False)
    with recorder.limited(0.0):
        time.sleep(0.01)
        assert recorder.overdue() == (True, False)
        recorder.iteration, recorder.mode = 3, 1
        with recorder.collective("all_reduce", 96):
            time.sleep(0.01)
            assert recorder.overdue() == (False, True)
            assert "waiting in a collective" in recorder.where()
        recorder.queued("all-gather", 1 << 20)
        assert "in iteration 3, mode 1, computing" in recorder.where()
    assert recorder.overdue() == (False, False)
    assert "#2 all-gather (1,048,576 bytes, iteration 3, mode 1), #1 all_reduce (96 bytes" in recorder.where()
    assert recorder.stack().startswith("stack (progress.py:")


OVERFLOWING = """
import sys
from amped import run
from amped.operators.products import Mttkrp
healthy = Mttkrp.run

def overflowing(self, shard, mode, at, *arguments, **named):
    healthy(self, shard, mode, at, *arguments, **named)
    at.out[0] = float("inf")

Mttkrp.run = overflowing
sys.exit(run.main(sys.argv[1:]))
"""


def test_numbers_that_are_not_finite(folder: Path) -> None:
    """Where, and why: in one line."""
    (folder / "driver.py").write_text(OVERFLOWING)
    line = python_line(
        "cpd", small_tns(folder), "--rank", 3, "--precision", "fp64", "--device", "cpu", script=folder / "driver.py"
    )
    result = finish(line)
    assert result.code == EXIT_FAILURE
    assert len(result.err.splitlines()) == 1, result.err
    assert "iteration 1, mode 0" in result.err
    assert "likely cause: values or initial factors so large" in result.err
    assert not (folder / "small-rank3" / "model.npz").exists()


RAISING = """
import amped, numpy as np
from amped.parallel import calls
from amped.parallel.mpi import world

calls.PATIENCE_SECONDS = {patience}

def watch(iteration, fit):
    if world().rank == {bad}:
        raise LookupError("of one rank")

try:
    amped.cp_als(np.ones((4, 3, 2)), 2, tol=0, max_iters=10**6, device="cpu", callback=watch)
except LookupError:
    pass
world().allgather(0)
"""


@pytest.mark.parametrize("bad", [0, exhaustive(1)])
def test_a_call_that_raises_on_one_rank_ends_the_job(folder: Path, bad: int) -> None:
    """Though its caller would go on: the other rank waits for it in the call."""
    (folder / "driver.py").write_text(RAISING.format(bad=bad, patience=SHORT))
    result = finish([*mpirun_line(2), sys.executable, str(folder / "driver.py")])
    assert result.code == EXIT_FAILURE
    assert f"amped: rank {bad} failed" in result.err
    assert "LookupError: of one rank" in result.err
