"""What a person sees while a run goes on."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from command import run_amped, succeeded
from rich.console import Console

from amped.parallel.mpi import world
from amped.report import displays, notebook_progress, progress
from amped.report.console import RunReporter
from partitioner.host.stages import COMPILATIONS, STAGES


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass as the test says."""
    now = [100.0]
    monkeypatch.setattr("amped.report.progress.time.perf_counter", lambda: now[0])
    return now


def shown(live: progress.LiveDisplay) -> str:
    """The bars as they are now."""
    console = Console(file=io.StringIO(), width=150, force_terminal=True, color_system=None)
    console.print(live._bars.get_renderable())
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())  # type: ignore[attr-defined]


def test_reading_shows_its_speed_and_how_long_is_left(clock: list[float]) -> None:
    live = progress.LiveDisplay()
    try:
        live._bars.get_time = lambda: clock[0]
        for second in range(1, 11):
            clock[0] += 1
            live.reading(second * 50_000_000, 2_000_000_000)
            live.reading(second * 50_000_000 + 1, 2_000_000_000)  # too soon after it to be drawn
        assert re.search(r"reading .* 25% 500 MB, 50 MB/s 0:00:09 0:00:30", shown(live))
        clock[0] += 30
        live.reading(2_000_000_000, 2_000_000_000)
        assert "reading" not in shown(live)  # it is done
        live.reading(10**9, None)
    finally:
        live.close()


def test_rows_of_a_table_are_looked_at_twice(clock: list[float]) -> None:
    live = progress.LiveDisplay()
    try:
        live._bars.get_time = lambda: clock[0]
        live.rows(0, None)
        for rows, told in (
            (8_000_000, "80% 8.0 million rows, 2.0"),
            (0, "0% 0.0 million"),
            (6_000_000, "60% 6.0 .* 1.5"),
        ):
            clock[0] += 4
            live.rows(rows, 10_000_000)
            assert re.search(f"reading .* {told}", shown(live))
        live.rows(9_000_000, 9_000_000)
        assert "reading" not in shown(live)
    finally:
        live.close()


@pytest.mark.parametrize("display", [progress.Display, progress.PlainDisplay])
def test_nothing_is_shown_of_it_elsewhere(display: type[progress.Display], capsys: pytest.CaptureFixture[str]) -> None:
    with display() as silent:
        silent.reading(10**9, 2 * 10**9)
        silent.rows(10, 20)
    assert capsys.readouterr() == ("", "")


def test_what_is_done_before_iterations_is_shown() -> None:
    with progress.LiveDisplay() as live:
        teller = RunReporter(world(), live)
        with teller.loading():
            assert "loading" in shown(live)
            with STAGES.of("choose"):
                assert "choosing kernels" in shown(live)
                assert "loading" not in shown(live)
                with STAGES.of("compile"):
                    assert "compiling" in shown(live)
                assert "choosing kernels" in shown(live)
                assert "compiling" not in shown(live)
            with STAGES.of("pack"):
                assert "loading" in shown(live)
        assert not shown(live).strip()
        with STAGES.of("choose"):
            assert not shown(live).strip(), "not requested"


def test_what_is_left_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lines = progress.PlainDisplay()
    lines.iteration(1, 100, lambda: "fit 0.5")
    lines.iteration(2, 100, lambda: "fit 0.5", 12.4)
    assert capsys.readouterr().out.splitlines() == ["iteration   1  fit 0.5", "iteration   2  fit 0.5  about 12 s left"]


def test_compiling_is_told_once_in_logs(capsys: pytest.CaptureFixture[str]) -> None:
    teller = RunReporter(world(), progress.PlainDisplay())
    with teller.compiling():
        assert not capsys.readouterr().out
        for _ in range(3):
            COMPILATIONS.begin()
            COMPILATIONS.begin()  # what a function calls is compiled within
            COMPILATIONS.end()
            COMPILATIONS.end()
    first, last = capsys.readouterr().out.splitlines()
    assert first == progress.COMPILING
    assert re.fullmatch(r"compiled in \d+\.\d s", last)
    with teller.compiling():
        pass
    assert not capsys.readouterr().out


def test_compiling_is_a_bar_on_terminals() -> None:
    with progress.LiveDisplay() as live:
        with RunReporter(world(), live).compiling():
            COMPILATIONS.begin()
            assert "compiling (first use on this machine)" in shown(live)
            COMPILATIONS.end()
        assert "compiling" not in shown(live)


def test_progress_of_commands_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with displays.display(0, False, progress="stderr") as lines:
        lines.note("9 x 7 x 5")
        lines.iteration(1, 2, lambda: "fit 0.5")
        lines.compiling()
    assert capsys.readouterr() == ("9 x 7 x 5\n", f"iteration   1  fit 0.5\n{progress.COMPILING}\n")


def test_a_silent_log_shows_what_the_run_is_doing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SILENCE", 0.02)
    said = list[str]()
    with progress.PlainDisplay(progress="stderr") as lines:

        def shows(text: str) -> None:
            """Wait until a line appears; each is printed by another thread."""
            while not any(re.fullmatch(text, line) for line in said):
                time.sleep(0.01)
                said.extend(capsys.readouterr().err.splitlines())

        lines.reading(50_000_000, 2_000_000_000)
        shows(r"still reading after \d+ s: 50 of 2,000 MB")
        lines.rows(2_500_000, None)
        shows(r"still reading after \d+ s: 2\.5 million rows")
        lines.stage("sorting")
        shows(r"still sorting after \d+ s")
        lines.stage(None)
        shows(r"still computing after \d+ s")
        lines.iteration(6, 9, lambda: "fit 0.5")
        shows(r"still in iteration 7 after \d+ s")
        thread = lines._ticker._thread
    assert thread is not None
    thread.join()


def test_short_stages_without_lines_are_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line appears although no stage takes as long as the interval."""
    monkeypatch.setattr(progress, "SILENCE", 0.3)
    said = ""
    with progress.PlainDisplay(progress="stderr") as lines:
        for number in range(1000):
            lines.stage(f"stage {number}")
            time.sleep(0.01)
            if said := capsys.readouterr().err:
                break
    assert re.fullmatch(r"still stage \d+ after 0 s\n", said)


def test_a_command_that_waits_for_its_input_prints_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE", 0.02)
    printed, original = threading.Event(), progress.PlainDisplay._still
    pipe = folder / "x.tns"
    os.mkfifo(pipe)

    def still(display: progress.PlainDisplay) -> None:
        original(display)
        printed.set()

    def write() -> None:
        with open(pipe, "w") as file:  # waits for the reader
            printed.wait()
            file.write("1 1 1 2.5\n2 2 2 1.5\n")

    monkeypatch.setattr(progress.PlainDisplay, "_still", still)
    writer = threading.Thread(target=write)
    writer.start()
    result = run_amped("info", pipe)
    writer.join()
    assert "still reading after 0 s" in result.progress
    assert "2 x 2 x 2, 2 nonzeros" in succeeded(result).out


def test_the_thread_of_a_forgotten_display_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE", 0.02)
    lines = progress.PlainDisplay(progress="stderr")
    lines.stage("sorting")
    thread = lines._ticker._thread
    assert thread is not None
    del lines
    thread.join()


class Handle:
    """A display of a notebook: what it showed."""

    def __init__(self) -> None:
        self.shown = list[str]()

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(data["text/html"])

    def __call__(self, data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert display_id
        self.update(data, raw)
        return self


def test_a_bar_in_a_notebook(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    handle = Handle()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    monkeypatch.setattr(ipython, "get_ipython", lambda: SimpleNamespace(kernel=None), raising=False)
    monkeypatch.setattr(display, "display", handle, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(ipython, "display", display, raising=False)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook_progress, "MIN_INTERVAL", 0.0)
    with displays.display(0, False) as bar:
        bar.reading(50_000_000, 2_000_000_000)
        bar.compiling()
        bar.note("9 x 7 x 5")
        bar.iteration(6, 9, lambda: "fit <0.5>", 3.0)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [progress.COMPILING, "9 x 7 x 5", "iteration   6  fit <0.5>  about 3 s left"], "as in a log"
    assert 'value="50000000" max="2000000000"' in handle.shown[0]
    assert "<progress style" in handle.shown[1], "without an end"
    assert handle.shown[2].endswith("iteration 6 of at most 9  fit &lt;0.5&gt;  about 3 s left")
    assert handle.shown[3:] == [""], "removed at the end"


def test_there_is_no_bar_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = ModuleType("IPython")
    monkeypatch.setattr(ipython, "get_ipython", lambda: None, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    with displays.display(0, False) as plain:
        assert type(plain) is progress.PlainDisplay
