"""What is written, where, and that nothing is lost: names, keys, shapes, types, full disks, terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import (
    ERROR,
    TIMEOUT,
    Result,
    entries,
    environment,
    finish,
    in_process,
    on_ranks,
    python_line,
    random_tensor,
    refused,
    run_amped,
    run_partitioner,
    small_tns,
    succeeded,
)
from forms import exhaustive

import amped
from amped.errors import EXIT_INCOMPLETE, OutputError
from amped.runs import checkpoint
from partitioner.store.format import Store

RANK = 4
SHAPE = (9, 7, 5)
CPU = ["--device", "cpu"]


def names(folder: Path) -> set[str]:
    """Return the names of all files, however deep, hidden ones too."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}


# --------------------------------------------------------------------------------------------- what is in it


@pytest.mark.parametrize(
    ("precision", "ranks"),
    [("fp32", 1), ("fp64", 2), exhaustive("fp32", 3), exhaustive("fp64", 1), exhaustive("fp64", 3)],
)
def test_model(folder: Path, precision: str, ranks: int) -> None:
    path = small_tns(folder)
    arguments = ["cpd", path, "--rank", RANK, "--output", folder / "out", "--precision", precision, *CPU]
    result = run_amped(*arguments) if ranks == 1 else on_ranks(ranks, *arguments)
    assert result.code == 0, result.err
    assert names(folder) == {"small.tns", "out/model.npz", "out/run.json"}
    with np.load("out/model.npz", allow_pickle=False) as archive:
        model = {name: archive[name] for name in archive.files}
    assert set(model) == {"weights", "factor_0", "factor_1", "factor_2", "fits", "converged", "run"}
    assert model["weights"].shape == (RANK,)
    assert model["weights"].dtype == np.float64
    assert (np.diff(model["weights"]) <= 0).all()
    assert (model["weights"] >= 0).all()
    for mode, length in enumerate(SHAPE):
        factor = model[f"factor_{mode}"]
        assert factor.shape == (length, RANK)
        assert factor.dtype == {"fp32": np.float32, "fp64": np.float64}[precision]
        np.testing.assert_allclose(np.linalg.norm(factor.astype(float), axis=0), 1, rtol=1e-6)
    # The fit that is reported is the fit of the model that is written.
    indices, values = random_tensor()
    rest = amped.KruskalTensor.load("out/model.npz").full()
    rest[tuple(indices.T)] -= values
    fits = json.loads(Path("out/run.json").read_text())["fits"]
    assert fits[-1] == pytest.approx(1 - np.linalg.norm(rest) / np.linalg.norm(values), abs=1e-6)


def test_record_of_a_run(folder: Path) -> None:
    path = small_tns(folder)
    flags = ["--rank", RANK, "--seed", 3, "--tol", 1e-3, "--precision", "fp64", "--output", "out"]
    succeeded(run_amped("cpd", path, *flags, *CPU))
    text = Path("out/run.json").read_text()
    assert text.endswith("}\n")
    record = json.loads(text)
    contract = "fits iterations converged seconds ranks device precision seed versions".split()
    assert [key for key in contract if key not in record] == []
    assert all(isinstance(fit, float) for fit in record["fits"])
    assert record["iterations"] == len(record["fits"]) >= 2
    assert record["converged"] is True
    assert record["seconds"] > 0
    assert (record["ranks"], record["device"], record["precision"], record["seed"]) == (1, "cpu", "fp64", 3)
    assert (record["rank"], record["tensor"], record["init"]) == (RANK, path.name, None)
    assert record["versions"]["numpy"] == np.__version__
    assert record["versions"]["amped"] == amped.__version__
    assert record["versions"]["python"].startswith("3.")


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_mttkrp_archive(folder: Path, precision: str) -> None:
    path = small_tns(folder)
    succeeded(run_amped("mttkrp", path, "--rank", RANK, "--output", "m", "--precision", precision, *CPU))
    assert names(folder) == {"small.tns", "m"}  # exactly the requested name
    with np.load("m", allow_pickle=False) as archive:
        assert archive.files == ["mode_0", "mode_1", "mode_2"]
        for mode, length in enumerate(SHAPE):
            assert archive[f"mode_{mode}"].shape == (length, RANK)
            assert archive[f"mode_{mode}"].dtype == {"fp32": np.float32, "fp64": np.float64}[precision]


def test_store(folder: Path) -> None:
    path = small_tns(folder)
    printed = succeeded(run_partitioner(path, "--output", "store")).out
    assert "9 x 7 x 5, 80 nonzeros" in printed
    assert "store: 3 sorted copies" in printed
    columns = {f"store/mode{mode}.index{index}.npy" for mode in range(3) for index in range(3)}
    values = {f"store/mode{mode}.values.npy" for mode in range(3)}
    assert names(folder) == {"small.tns", "store/manifest.json"} | columns | values
    manifest = json.loads(Path("store/manifest.json").read_text())
    assert (manifest["version"], manifest["shape"], manifest["nnz"]) == (4, list(SHAPE), 80)
    kept, read = Store("store").tensor(), amped.read(path)
    assert np.array_equal(kept.columns, read.columns)
    assert np.array_equal(kept.values, read.values)


# -------------------------------------------------------------------------------------------- where it goes


@pytest.mark.parametrize("name", ["events.tns", "events.tns.gz", "events.npz", "events", "events.v2.tns"])
def test_default_name(folder: Path, name: str) -> None:
    indices, values = random_tensor()
    np.savez("t.npz", indices=indices, values=values)
    if name == "events":
        succeeded(run_partitioner("t.npz", "--output", name))
    elif name.endswith(".npz"):
        Path("t.npz").rename(name)
    else:
        small_tns(folder, name)
    stem = "events.v2-rank4" if "v2" in name else "events-rank4"
    for expected in (stem, f"{stem}-2", f"{stem}-3"):
        result = succeeded(run_amped("cpd", name, "--rank", RANK, "--max-iters", 2, *CPU))
        assert result.out.splitlines()[-1].endswith(f"model in {expected}/model.npz")
        assert {p.name for p in (folder / expected).iterdir()} == {"model.npz", "run.json"}


def test_default_folder_is_the_current_one_not_the_tensor_s(folder: Path) -> None:
    (folder / "data").mkdir()
    small_tns(folder / "data")
    succeeded(run_amped("cpd", "data/small.tns", "--rank", RANK, "--max-iters", 2, *CPU))
    assert names(folder) == {"data/small.tns", "small-rank4/model.npz", "small-rank4/run.json"}


def test_output_folder_is_made_with_those_above_it(folder: Path) -> None:
    path = small_tns(folder)
    succeeded(run_amped("cpd", path, "--rank", RANK, "--max-iters", 2, "--output", "a/b/c", *CPU))
    assert names(folder / "a") == {"b/c/model.npz", "b/c/run.json"}


def test_other_files_of_the_output_folder_stay(folder: Path) -> None:
    path = small_tns(folder)
    (folder / "out").mkdir()
    (folder / "out" / "notes.txt").write_text("precious")
    for force in ([], ["--force"]):
        succeeded(run_amped("cpd", path, "--rank", RANK, "--max-iters", 2, "--output", "out", *force, *CPU))
        assert names(folder / "out") == {"model.npz", "run.json", "notes.txt"}
    assert (folder / "out" / "notes.txt").read_text() == "precious"


def test_force_replaces(folder: Path) -> None:
    path = small_tns(folder)
    other = small_tns(folder, "other.tns", shape=(4, 6, 3), nonzeros=20)
    commands: list[tuple[Callable[..., Result], list[object]]] = [
        (run_amped, ["cpd", "--rank", RANK, "--max-iters", 2, "--output", "out", "--metrics", "m.jsonl", *CPU]),
        (run_amped, ["mttkrp", "--rank", RANK, "--output", "out.npz", *CPU]),
        (run_partitioner, ["--output", "store"]),
    ]
    for run, flags in commands:
        verb, rest = ([flags[0]], flags[1:]) if run is run_amped else ([], flags)
        succeeded(run(*verb, path, *rest))
        again = run(*verb, path, *rest)
        assert again.code == 2
        assert "--force" in again.err
        succeeded(run(*verb, other, *rest, "--force"))
    assert amped.KruskalTensor.load("out/model.npz").shape == (4, 6, 3)
    assert json.loads(Path("out/run.json").read_text())["tensor"] == other.name
    assert json.loads(Path("m.jsonl").read_text().splitlines()[0])["shape"] == [4, 6, 3]
    with np.load("out.npz") as archive:
        assert archive["mode_1"].shape == (6, RANK)
    assert Store("store").shape == (4, 6, 3)


# --------------------------------------------------------------------------------------------- a full disk


def limited(size: int) -> Callable[[], None]:
    """Return what makes every write past `size` bytes of a file fail, as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def wide_tensor(folder: Path) -> Path:
    """Write a tensor whose results take about 100 kB."""
    indices, values = random_tensor((3_000, 3, 3), 500)
    np.savez(folder / "wide.npz", indices=indices, values=values)
    return folder / "wide.npz"


@pytest.mark.parametrize("verb", ["cpd", "mttkrp", "partitioner"])
def test_a_disk_that_fills_up(folder: Path, verb: str) -> None:
    """One line, and no half file under any name."""
    path = wide_tensor(folder)
    flags: list[object] = ["--rank", RANK, *CPU] if verb != "partitioner" else []
    if verb == "partitioner":
        line = python_line(path, "--output", "out")
        line[1:3] = ["-m", "partitioner"]
        size = 1_000
    else:
        line = python_line(verb, path, *flags, "--output", "out")
        size = 10_000
        run_amped("mttkrp", path, *flags)  # compiles, so that the limited process need not store kernels
    result = finish(line, cwd=folder, preexec_fn=limited(size))
    assert result.code == 1, result.err
    assert len(result.err.splitlines()) == 1, result.err
    assert "out" in result.err
    assert "File too large" in result.err
    assert "model in" not in result.out
    left = names(folder) - {"wide.npz"}
    assert not left, left


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(folder: Path) -> None:
    path = wide_tensor(folder)
    flags = ["--rank", RANK, "--tol", 0, "--checkpoint", "c", *CPU]
    succeeded(run_amped("cpd", path, *flags, "--max-iters", 2, "--output", "a"))
    before = entries(folder / "c" / "iteration-2")
    line = ["cpd", path, *flags, "--max-iters", 4, "--resume", "--output", "b"]
    result = in_process(*line, cwd=folder, preexec_fn=limited(10_000))
    assert result.code == 1, result.err
    saving, model = result.err.splitlines()
    assert saving == "amped: c/iteration-3: cannot write: File too large; the run continues"
    assert model == "amped: error: b/model.npz: cannot write: File too large"
    assert sorted(os.listdir("c")) == ["iteration-2"]
    assert entries(folder / "c" / "iteration-2") == before
    succeeded(run_amped(*line))
    assert len(json.loads(Path("b/run.json").read_text())["fits"]) == 4


def test_looking_whether_a_file_can_be_written_leaves_none(folder: Path) -> None:
    """On a full disk it can be made, but stays empty."""
    path = small_tns(folder)
    line = ["mttkrp", path, "--rank", RANK, "--output", "out.npz", *CPU]
    result = in_process(*line, cwd=folder, preexec_fn=limited(0))
    refused(result, "out.npz", "cannot write")
    assert os.listdir(folder) == ["small.tns"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_partitioner_that_is_told_to_end_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    os.mkfifo(folder / "t.tns")
    line = python_line("t.tns", "--output", "store")
    line[1:3] = ["-m", "partitioner"]
    process, written = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment(), cwd=folder), -1
    try:
        deadline = time.monotonic() + TIMEOUT
        while os.listdir(folder) == ["t.tns"] or written < 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            with suppress(OSError):  # nobody reads yet
                written = written if written >= 0 else os.open(folder / "t.tns", os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.5)  # it reads then: a signal just before a system call is handled only after it
        process.send_signal(number)
        _, err = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
        if written >= 0:
            os.close(written)
    assert process.returncode > 0, err
    assert "Traceback" not in err
    assert os.listdir(folder) == ["t.tns"]


def test_a_side_output_that_fails_loses_no_model(folder: Path) -> None:
    """It is reported at once, and by the exit code."""
    path = small_tns(folder)
    flags = ["--rank", RANK, "--max-iters", 3, *CPU]
    result = in_process("cpd", path, *flags, "--output", "a", "--metrics", "/dev/full", "--force", cwd=folder)
    assert result.code == EXIT_INCOMPLETE, result.err
    assert result.err == "amped: /dev/full: cannot write: No space left on device; the run continues without metrics\n"
    assert "model in a/model.npz" in result.out
    assert names(folder / "a") == {"model.npz", "run.json"}
    result = in_process("mttkrp", path, *flags[:2], *CPU, "--output", "m.npz", "--metrics", "/dev/full", "--force")
    assert result.code == EXIT_INCOMPLETE, result.err
    assert Path("m.npz").exists()
    with open("/dev/full", "w") as full:
        line = python_line("cpd", path, *flags, "--output", "b")
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), check=False)
    assert done.returncode == EXIT_INCOMPLETE, done.stderr
    result = Result.of(done.returncode, "", done.stderr)
    assert result.err == "amped: standard output: No space left on device; the run continues without it\n"
    assert "iteration   1 " in result.progress, "standard error is not full"
    assert entries(folder / "a").keys() == entries(folder / "b").keys()


@pytest.mark.parametrize(("full", "kept"), [((1, 2), 3), ((3,), 2), ((1, 2, 3), 0)])
def test_a_checkpoint_that_fails_loses_no_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, full: tuple[int, ...], kept: int
) -> None:
    """The next one is tried; what is said in the end is whether the last state is saved."""
    writer = checkpoint.CheckpointWriter
    write = writer._write

    def write_or_fail(self: checkpoint.CheckpointWriter, taken: checkpoint.Checkpoint) -> None:
        if taken.name in {f"iteration-{n}" for n in full}:
            raise OutputError("cannot write: No space left on device", path=taken.name)
        write(self, taken)

    monkeypatch.setattr(writer, "_write", write_or_fail)
    monkeypatch.setattr(writer, "busy", property(writer.finish))  # the disk is fast enough
    flags = ["--rank", RANK, "--max-iters", 3, "--tol", 0, "--checkpoint", "c", "--output", "out", *CPU]
    result = run_amped("cpd", small_tns(folder), *flags)
    assert result.code == (0 if kept == 3 else EXIT_INCOMPLETE)
    assert result.err == f"amped: iteration-{full[0]}: cannot write: No space left on device; the run continues\n"
    assert names(folder / "out") == {"model.npz", "run.json"}
    assert checkpoint.names_in("c")[:1] == ([f"iteration-{kept}"] if kept else [])


def test_report_on_a_full_disk(folder: Path) -> None:
    """The work is not done for nothing, or is refused in a line; a traceback is neither."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            python_line("info", small_tns(folder)), stdout=full, stderr=subprocess.PIPE, text=True,
            env=environment(), timeout=TIMEOUT, check=False,
        )  # fmt: skip
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "No space left" in done.stderr


def test_a_reader_that_goes_away(folder: Path) -> None:
    """``amped info T | head -n 1`` ends without a traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            python_line("info", small_tns(folder)), stdout=writing, stderr=subprocess.PIPE, text=True,
            env=environment(), timeout=TIMEOUT, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) <= 1


# ------------------------------------------------------------------------------------------------ a terminal


def on_terminal(*arguments: object, apart: bool = False, **options: Any) -> Result:
    """Run amped with a terminal as its output; with `apart`, standard error goes elsewhere."""
    master, slave = pty.openpty()
    shown = bytearray()

    def watch() -> None:
        while True:
            try:
                data = os.read(master, 4096)
            except OSError:  # Linux says so when the last writer has closed
                return
            if not data:
                return
            shown.extend(data)

    env = environment(TERM="xterm-256color", COLUMNS="100", LINES="30")
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "CI"):
        env.pop(name, None)
    process = subprocess.Popen(
        python_line(*arguments),
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE if apart else slave,
        env=env,
        **options,
    )
    os.close(slave)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        _, err = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
        watcher.join(5)
        os.close(master)
    return Result.of(process.returncode, shown.decode().replace("\r\n", "\n"), (err or b"").decode())


def plain(text: str) -> str:
    """Return a terminal's text without its control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_terminal_shows_progress_and_ends_with_the_components(folder: Path) -> None:
    path = small_tns(folder)
    result = on_terminal("cpd", path, "--rank", RANK, "--tol", 0, "--max-iters", 5, *CPU, cwd=folder)
    assert result.code == 0, result.out
    fits = json.loads((folder / "small-rank4" / "run.json").read_text())["fits"]
    text = plain(result.out)
    assert "Traceback" not in text
    reason = "not converged: the limit of 5 iterations (--max-iters) is reached"
    end = f"fit {fits[-1]:.6f} after 5 iterations ({reason}); model in small-rank4/model.npz"
    components = text.split(end)[1]
    assert [line.split(":")[0] for line in components.splitlines() if line.startswith("comp")] == [
        f"component {number}" for number in range(1, RANK + 1)
    ]
    assert "small.tns: 9 x 7 x 5, 80 nonzeros" in text
    for number, fit in enumerate(fits, 1):
        assert f"iteration {number:3d}  fit {fit:.6f}" in text
    assert "iterating" in text  # the live bar was drawn ...
    assert result.out.count("\x1b[?25l") == result.out.count("\x1b[?25h")  # ... and the cursor given back


def test_terminal_quiet(folder: Path) -> None:
    result = on_terminal("cpd", small_tns(folder), "--rank", RANK, "--max-iters", 2, "--quiet", *CPU, cwd=folder)
    assert (result.code, result.out) == (0, "")


def test_terminal_error_leaves_the_cursor_and_goes_to_standard_error(folder: Path) -> None:
    for verb in ("cpd", "plan"):
        result = on_terminal(verb, "none.tns", "--rank", RANK, *CPU, apart=True, cwd=folder)
        assert result.code == 2
        assert result.err.splitlines() == [f"{ERROR}none.tns: no such file"]
        assert "none.tns" not in plain(result.out)
        assert result.out.count("\x1b[?25l") == result.out.count("\x1b[?25h")
