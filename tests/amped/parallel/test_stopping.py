"""Signals that end a command line: its exit code, one line on standard error, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

import pytest
from command import TIMEOUT, environment, mpirun_line, python_line, signalled_line, small_tns
from forms import exhaustive

from amped.errors import EXIT_INCOMPLETE, EXIT_INTERRUPTED, EXIT_STOPPED
from partitioner.host import signals
from partitioner.host.interruptible import LOCK, Caller, Scratch
from partitioner.host.signals import Interrupts, Stopped

CODES = {
    signal.SIGINT: (EXIT_INTERRUPTED, "interrupted"),
    signal.SIGTERM: (EXIT_STOPPED, "stopped by SIGTERM"),
    signal.SIGUSR1: (EXIT_STOPPED, "stopped by SIGUSR1"),
    signal.SIGHUP: (EXIT_STOPPED, "stopped by SIGHUP"),
}
SLOW = ["--key", "md5(repeat(a::VARCHAR, 4000))", "--key", "b", "--key", "c"]
KEYS = ["--key", "a", "--key", "b", "--key", "c"]


@pytest.fixture
def scratch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    found = folder / "scratch"
    found.mkdir()
    monkeypatch.setenv("TMPDIR", str(found))
    return found


def until(there: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait for what a process is to do."""
    deadline = time.monotonic() + TIMEOUT
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def held(pipe: Path, text: bytes) -> Iterator[Callable[[], bool]]:
    """Make a pipe that has some text, and never ends; yield a function that returns whether it is read."""
    os.mkfifo(pipe)
    writer = -1

    def is_read() -> bool:
        nonlocal writer
        if writer < 0:
            with suppress(OSError):  # nobody reads yet
                writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                os.write(writer, text)
        return writer >= 0

    try:
        yield is_read
    finally:
        if writer >= 0:
            os.close(writer)


def told(line: Sequence[str], there: Callable[[], object], *numbers: int) -> tuple[int, list[str]]:
    """Run a command and send it signals once something is there; return its exit code, and what it says on errors."""
    process = subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    )
    try:
        until(there, process)
        for number in numbers:
            process.send_signal(number)
        _, err = process.communicate(timeout=TIMEOUT)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in err, err
    return process.returncode, [text for text in err.splitlines() if text.startswith("amped")]


def check(number: int, found: tuple[int, list[str]], saved: str = "nothing was saved") -> None:
    code, words = CODES[signal.Signals(number)]
    assert found == (code, [f"amped: {words}; {saved}"])


@pytest.mark.parametrize(
    ("verb", "number"), [("cpd", signal.SIGINT), ("table", signal.SIGTERM), exhaustive("cpd", signal.SIGHUP)]
)
def test_while_duckdb_computes(folder: Path, scratch: Path, verb: str, number: int) -> None:
    rows = [f"{n},{n % 7},{n % 5}" for n in range(1, 200_000)]
    (folder / "t.csv").write_text("\n".join(["a,b,c", *rows]))
    line = [verb, "t.csv", *SLOW, "--output", "out", *(["--rank", 2] if verb == "cpd" else [])]
    check(number, told(python_line(*line), lambda: list(folder.rglob("amped-table-*/*")), number))
    assert sorted(os.listdir(folder)) == ["scratch", "t.csv"]
    assert not os.listdir(scratch)


@pytest.mark.parametrize(
    ("verb", "ranks", "name"),
    [
        case if case in (("cpd", 2, "t.csv"), ("partition", 1, "t.tns")) else exhaustive(*case)
        for case in product(["cpd", "partition"], [1, 2], ["t.csv", "t.tns"])
    ],
)
def test_while_a_file_does_not_go_on(folder: Path, scratch: Path, verb: str, ranks: int, name: str) -> None:
    """Also where the reader waits within a library."""
    number = signal.SIGTERM if ranks == 1 else signal.SIGUSR1  # mpirun itself ends at others
    line = [verb, name, *(KEYS if name == "t.csv" else [])]
    line += ["--rank", 2] if verb == "cpd" else []
    start = signalled_line(ranks) if ranks > 1 else []
    with held(folder / name, b"a,b,c\n1,2,3\n" if name == "t.csv" else b"1 2 3 1.0\n") as is_read:
        code, words = told([*start, *python_line(*line, "--output", "out")], is_read, number)
    assert (code, words) == (EXIT_STOPPED, [f"amped: stopped by {signal.Signals(number).name}; nothing was saved"])
    assert sorted(os.listdir(folder)) == ["scratch", name]
    assert not [left for left in os.listdir(scratch) if left.startswith("amped")]


@pytest.mark.parametrize("verb", ["info", *map(exhaustive, ["plan", "mttkrp", "ttm", "scan", "tucker"])])
def test_every_verb_ends_while_it_reads(folder: Path, verb: str) -> None:
    more = {"ttm": ["--mode", 0, "--rank", 2], "scan": [], "info": [], "tucker": ["--rank", "2,2,2"]}
    line = [verb, "t.tns", *more.get(verb, ["--rank", 2])]
    with held(folder / "t.tns", b"1 2 3 1.0\n") as is_read:
        check(signal.SIGINT, told(python_line(*line), is_read, signal.SIGINT))


def test_two_signals_are_one(folder: Path, scratch: Path) -> None:
    with held(folder / "t.csv", b"a,b,c\n1,2,3\n") as is_read:
        line = python_line("cpd", "t.csv", *KEYS, "--rank", 2)
        check(signal.SIGINT, told(line, is_read, signal.SIGINT, signal.SIGINT))
    assert os.listdir(scratch) == []


STARTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            os.kill(os.getpid(), signal.SIGUSR1)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("module", ["amped.run", exhaustive("partitioner")])
def test_while_the_command_line_is_imported(folder: Path, module: str) -> None:
    """Which takes longer than some jobs."""
    (folder / "sitecustomize.py").write_text(STARTING)
    path = f"PYTHONPATH={folder}:{environment()['PYTHONPATH']}"
    line = ["env", path, sys.executable, "-m", module, "t.tns", "--output", "store"]
    check(signal.SIGUSR1, told(line, lambda: True))


SCANNING = """
import os, signal, sys
from amped import run
from amped.methods import driver
from amped.runs import scanning
healthy, calls = driver.run, 0

def counted(*arguments):
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.SIGUSR1)
    return healthy(*arguments)

driver.run = counted
scanning._Scanner._small = lambda *_: []
sys.exit(run.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("ranks", [exhaustive(1), 2])
def test_a_scan_keeps_what_it_has_found(folder: Path, ranks: int) -> None:
    """It stops in the first of two starts of the second number of components."""
    (folder / "driver.py").write_text(SCANNING)
    line = ["scan", small_tns(folder), "--rank", "2,3", "--starts", 2, "--tol", 0, "--max-iters", 5, "--no-halves"]
    start = mpirun_line(ranks) if ranks > 1 else []
    line = [*start, *python_line(*line, "--output", "found.json", "--device", "cpu", script=folder / "driver.py")]
    saved = "1 of 2 numbers of components were tried; written to found.json"
    check(signal.SIGUSR1, told(line, lambda: True), saved)
    assert [each["rank"] for each in json.loads(Path("found.json").read_text())["tried"]] == [2]


def test_a_decomposition_says_on_standard_error_what_it_saved(folder: Path) -> None:
    path = small_tns(folder)
    line = ["cpd", path, "--rank", 2, "--tol", 0, "--max-iters", 10**7, "--output", "out", "--metrics", "m.jsonl"]
    there = Path("m.jsonl")
    begun = lambda: there.exists() and '"iteration": 5' in there.read_text()  # noqa: E731
    check(
        signal.SIGTERM,
        told(python_line(*line), begun, signal.SIGTERM, signal.SIGTERM, signal.SIGTERM),
        "model in out/model.npz",
    )
    assert sorted(os.listdir("out")) == ["model.npz", "run.json"]


PYTHON = """
import amped, os, signal, sys, threading, time
import pandas

def interrupt():
    while not os.listdir(os.environ["TMPDIR"]):
        time.sleep(0.02)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
frame = pandas.DataFrame({"a": range(10**6), "b": 1, "c": 2})
frame.to_csv("t.csv", index=False)
keys = ["md5(repeat(a::VARCHAR, 4000))", "b", "c"]
try:
    amped.read("t.csv", keys=keys) if sys.argv[1] == "read" else amped.from_frame(frame, keys)
except KeyboardInterrupt:
    print("interrupted", os.listdir(os.environ["TMPDIR"]))
"""


@pytest.mark.parametrize("how", ["read", exhaustive("from_frame")])
def test_python_calls_raise_keyboard_interrupt(folder: Path, scratch: Path, how: str) -> None:
    (folder / "driver.py").write_text(PYTHON)
    line = [sys.executable, "driver.py", how]
    done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT, env=environment(), check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted []\n"), done.stderr


def test_folders_of_killed_processes_are_removed(scratch: Path) -> None:
    for name, locked in (("amped-table-dead", True), ("amped-table-new", False), ("other-dead", True)):
        (scratch / name).mkdir()
        if locked:
            (scratch / name / LOCK).touch()
    first = Scratch("amped-table-", scratch)
    second = Scratch("amped-table-", scratch)
    kept = {"amped-table-new", "other-dead", *(os.path.basename(each.name) for each in (first, second))}
    assert set(os.listdir(scratch)) == kept
    first.close()
    second.close()
    assert set(os.listdir(scratch)) == {"amped-table-new", "other-dead"}


def test_a_call_in_another_thread_returns_or_raises() -> None:
    caller = Caller(lambda: None)
    assert caller.call(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        caller.call(lambda: 1 // 0)
    assert not caller.stuck


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (*CODES, signal.SIGALRM)]
    with pytest.raises(Stopped), Interrupts():
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in (*CODES, signal.SIGALRM)] == before
    assert not signals.raising()


def test_a_signal_that_is_lost_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What raises in a callback, as of a garbage collector, is printed and lost."""
    monkeypatch.setattr(signals, "AGAIN_SECONDS", 0.05)

    def lose() -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        while True:
            time.sleep(0.01)

    with pytest.raises(Stopped), Interrupts():
        lose()


def test_shielded_work_is_done_first() -> None:
    done = []

    def work(interrupts: Interrupts) -> None:
        with interrupts.shielded():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGINT)
            done.append("shielded")
        done.append("more")

    with pytest.raises(Stopped) as caught, Interrupts() as interrupts:
        work(interrupts)
    assert caught.value.signal == signal.SIGUSR1
    assert done == ["shielded"]


def test_a_second_interrupt_raises_though_one_is_noted() -> None:
    with Interrupts() as interrupts, interrupts.listening():
        with interrupts.shielded():
            signal.raise_signal(signal.SIGINT)
        assert interrupts.received == signal.SIGINT
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("verb", "stdout", "code"), [
    ("partition", ">/dev/full", EXIT_INCOMPLETE), ("info", ">&-", 0),
    exhaustive("partition", ">&-", 0), exhaustive("mttkrp", ">&-", 0),
])  # fmt: skip
def test_standard_output_that_takes_nothing(folder: Path, verb: str, stdout: str, code: int) -> None:
    more = {"partition": ["--output", "store"], "mttkrp": ["--rank", 2]}.get(verb, [])
    line = " ".join(python_line(verb, small_tns(folder), *more))
    done = subprocess.run(f"{line} {stdout} <&-", shell=True, stderr=-1, text=True, env=environment(), check=False)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == (code != 0)
