"""Runs on two hosts, over TCP: results, hosts that are lost, folders that only one host sees, the script for Slurm."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest
from command import (
    ROOT,
    TIMEOUT,
    Result,
    entries,
    environment,
    mpirun_line,
    python_line,
    refused_on_ranks,
    run_amped,
    run_partitioner,
    succeeded,
)  # fmt: skip
from forms import exhaustive
from hosts import Hosts, kill, processes, two_hosts

from amped.runs.checkpoint import names_in

TENSOR = ROOT / "amped" / "data" / "uber393k_4d.tns.gz"
SHAPE = (183, 24, 874, 1247)
FLAGS = "--rank 4 --device cpu --precision fp64 --threads 1 --tol 0".split()
FEW = [*FLAGS, "--max-iters", "5"]
SCRIPT = ROOT / "launch" / "slurm" / "multi-node.sbatch"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts that know each other's names."""
    with two_hosts(tmp_path / "hosts") as made:
        yield made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tensor as a store that one process has made."""
    path = tmp_path_factory.mktemp("single") / "uber.store"
    succeeded(run_partitioner(TENSOR, "--output", path))
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The fits of five iterations by one process."""
    folder = tmp_path_factory.mktemp("single")
    succeeded(run_amped("cpd", TENSOR, *FEW, "--output", folder))
    return fits(folder)


def fits(folder: Path) -> list[float]:
    """Return the fits of a run that wrote its model to a folder."""
    return list(json.loads((folder / "run.json").read_text())["fits"])


def partition_line(*arguments: object) -> list[str]:
    """Return the command line of the partitioner."""
    return [sys.executable, "-m", "partitioner", *map(str, arguments)]


def until(done: Callable[[], object], what: str) -> None:
    """Wait until something is so; fail after twenty times what it takes."""
    deadline = time.monotonic() + TIMEOUT
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_the_same_results(hosts: Hosts, tmp_path: Path, alone: list[float], store: Path) -> None:
    """Of a file and of a store, by the partitioner and by CP-ALS, as on one host."""
    succeeded(hosts.run(2, *python_line("cpd", TENSOR, *FEW, "--output", tmp_path / "of-file")))
    succeeded(hosts.run(2, *partition_line(TENSOR, "--output", tmp_path / "store")))
    assert entries(tmp_path / "store") == entries(store)
    succeeded(hosts.run(1, *python_line("cpd", store, *FEW, "--output", tmp_path / "of-store")))
    for name in ("of-file", "of-store"):
        np.testing.assert_allclose(fits(tmp_path / name), alone, rtol=0, atol=1e-9)


def test_hosts_that_do_not_know_each_others_names(tmp_path: Path) -> None:
    """The watchdog connects them all the same: without it a line would say so."""
    with two_hosts(tmp_path / "hosts", named=False) as hosts:
        result = hosts.run(1, *python_line("cpd", TENSOR, *FEW, "--output", tmp_path / "model"))
    assert result.code == 0, result.err
    assert "amped:" not in result.err


def test_a_tensor_that_one_host_sees(hosts: Hosts, tmp_path: Path, store: Path) -> None:
    """A file, and a store: rank 0's host or the other one."""
    away = tmp_path / "away"
    away.mkdir()
    (away / "t.tns").write_bytes(gzip.decompress(TENSOR.read_bytes()))
    hosts.hide(hosts.second, away)
    output = ["--output", tmp_path / "model"]
    told = f"rank 0 on {hosts.first} sees a file of 5,692,963 bytes, rank 1 on {hosts.second} nothing"
    refused_on_ranks(hosts.run(1, *python_line("cpd", away / "t.tns", *FEW, *output)), "t.tns", told)
    hosts.hide(hosts.first, store.parent)
    told = f"rank 0 on {hosts.first} sees nothing (No such file or directory), rank 1 on {hosts.second} a folder"
    refused_on_ranks(hosts.run(1, *python_line("cpd", store, *FEW, *output)), store, told, "all hosts see")


@pytest.mark.exhaustive
def test_a_store_that_one_host_sees(hosts: Hosts, tmp_path: Path, store: Path) -> None:
    """Read by CP-ALS, and written by the partitioner, of which nothing is left."""
    hosts.hide(hosts.second, store.parent)
    told = f"rank 0 on {hosts.first} sees a folder, rank 1 on {hosts.second} nothing"
    refused_on_ranks(hosts.run(1, *python_line("cpd", store, *FEW, "--output", tmp_path / "model")), store, told)

    before = sorted(store.parent.iterdir())
    result = hosts.run(1, *partition_line(TENSOR, "--output", store.parent / "another"))
    assert result.code == 2, result.err
    lines = [line for line in result.err.splitlines() if "amped-partition:" in line]
    assert len(lines) == 1, result.err
    assert f"another: rank 1 on {hosts.second} does not see this folder of rank 0's" in lines[0]
    assert "Traceback" not in result.err
    assert sorted(store.parent.iterdir()) == before


@pytest.mark.exhaustive
def test_what_rank_0_reads_on_a_folder_that_the_other_host_sees(hosts: Hosts, tmp_path: Path) -> None:
    """A start, and a checkpoint, without which the run would start again."""
    away = tmp_path / "away"
    away.mkdir()
    np.savez(away / "start.npz", **{f"factor_{n}": np.ones((length, 4)) for n, length in enumerate(SHAPE)})
    saved = ["--checkpoint", away / "checkpoint"]
    succeeded(run_amped("cpd", TENSOR, *FLAGS, "--max-iters", 2, *saved, "--output", tmp_path / "first"))
    hosts.hide(hosts.first, away)
    output = ["--output", tmp_path / "model"]
    result = hosts.run(1, *python_line("cpd", TENSOR, *FEW, "--init", away / "start.npz", *output))
    refused_on_ranks(result, "start.npz", f"on {hosts.first}, rank 0's host")
    result = hosts.run(1, *python_line("cpd", TENSOR, *FEW, *saved, "--resume", *output))
    refused_on_ranks(result, f"rank 1 on {hosts.second} sees iteration-2 there", f"rank 0 on {hosts.first} no checkp")


class Job:
    """A run without end, of one rank on each of two separate hosts."""

    def __init__(self, folder: Path, hosts: Hosts) -> None:
        folder.mkdir(exist_ok=True)
        self.hosts, self.folder = hosts, folder
        line = ["cpd", TENSOR, *FLAGS, "--max-iters", 10**6, "--output", folder / "model"]
        line += ["--checkpoint", folder / "checkpoint", "--every", 5]
        self._out = open(folder / "out", "w")  # noqa: SIM115
        env = environment(**hosts.variables())
        told = {"stdout": self._out, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(hosts.mpirun(1, *python_line(*line)), env=env, **told)  # type: ignore[call-overload]

    @property
    def said(self) -> str:
        """What it has printed."""
        return (self.folder / "out").read_text()

    def started(self) -> bool:
        """Return whether there is a checkpoint."""
        assert self._process.poll() is None, self.said
        return names_in(self.folder / "checkpoint") != []

    def end(self) -> Result:
        """Return how it ended, with no process left on either host."""
        code = self._process.wait(TIMEOUT)
        self._out.close()
        until(lambda: not any(map(processes, self.hosts.names)), f"processes are left: {self.said}")
        assert not (self.folder / "model" / "model.npz").exists()
        return Result(code, self.said, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds", [("cut",), exhaustive(("cut", "second-dies", "first-dies", "second-ends"))], ids=["one", "all"]
)
def test_a_host_that_is_lost(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    """Its cable cut, or dead without a word, with mpirun or without, or with its connections closed: side by side."""
    with ExitStack() as stack:
        pairs = [stack.enter_context(two_hosts(tmp_path / kind / "hosts")) for kind in kinds]
        jobs = {kind: Job(tmp_path / kind, hosts) for kind, hosts in zip(kinds, pairs, strict=True)}
        for job in jobs.values():
            until(job.started, "no checkpoint")
        for kind, job in jobs.items():
            if kind != "second-ends":
                job.hosts.cut()
            if kind != "cut":
                kill(job.hosts.first if kind == "first-dies" else job.hosts.second)
        ended = {kind: job.end() for kind, job in jobs.items()}
    for kind in {"cut", "second-dies"} & {*kinds}:
        assert ended[kind].code == 1, ended[kind]
        assert "amped: rank 1 has not answered for 1" in ended[kind].out
        assert "; rank 0 ends: in iteration " in ended[kind].out
    check_resume(tmp_path / "cut", tmp_path / "whole")


def check_resume(lost: Path, whole: Path) -> None:
    """Check that a run goes on from where it was lost, to the fits of one that was not."""
    newest = max(int(path.name.split("-")[1]) for path in (lost / "checkpoint").glob("iteration-*"))
    line = ["cpd", TENSOR, *FLAGS, "--max-iters", newest + 2]
    saved = ["--checkpoint", lost / "checkpoint", "--resume"]
    resumed = succeeded(run_amped(*line, *saved, "--output", lost / "model"))
    assert f"resumed after iteration {newest} " in resumed.out
    succeeded(run_amped(*line, "--output", whole))
    np.testing.assert_allclose(fits(lost / "model"), fits(whole), rtol=0, atol=1e-7)


class SlurmScript:
    """The script for several nodes, with what a person changes; `srun` is a stub that calls mpirun on two hosts."""

    def __init__(self, folder: Path, hosts: Hosts, tensor: Path) -> None:
        self.folder, self._hosts, self.requeued = folder, hosts, folder / "requeued"
        (folder / "bin").mkdir()
        start = " ".join([*mpirun_line(2), "--map-by", "ppr:1:node"])
        self._command("srun", f'while [[ $1 == --* ]]; do shift; done\nexec {start} "$@"')
        self._command("mpirun", f'exec {mpirun_line(2)[0]} "$@"')
        self._command("scontrol", f'echo "$*" >>"{self.requeued}"')
        # Open MPI is not to find Slurm.
        path = f"{folder}/bin:{Path(sys.executable).parent}"
        (folder / "bin" / "activate").write_text(f"PATH={path}:$PATH\nexport PATH\n")
        self.text = SCRIPT.read_text()
        flags = "--rank 4 --device cpu --precision fp64 --tol 0 --deterministic --threads 1 --max-iters 2000"
        for old, new in {"/path/to/tensor.store ": f"{tensor} ", "--rank 32": flags}.items():
            assert self.text.count(old) == 1, old
            self.text = self.text.replace(old, new)

    def _command(self, name: str, text: str) -> None:
        """Write a command that the script calls."""
        hidden = 'unset "${!SLURM_@}"' if name != "scontrol" else ""  # Open MPI would look for Slurm's daemons
        (self.folder / "bin" / name).write_text(f"#!/bin/bash\n{hidden}\n{text}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def start(self) -> subprocess.Popen[str]:
        """Start the script on the first host."""
        (self.folder / "job.sbatch").write_text(self.text)
        given = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "1", "AMPED_VENV": str(self.folder)}
        return subprocess.Popen(
            self._hosts.on(self._hosts.first, "bash", self.folder / "job.sbatch"), cwd=self.folder, text=True,
            env=environment(**self._hosts.variables(**given)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to all ranks, by way of mpirun."""
        for process in map(psutil.Process, processes(self._hosts.first)):
            if process.name() == "prterun":
                os.kill(process.pid, number)


def test_the_slurm_script(hosts: Hosts, tmp_path: Path, store: Path) -> None:
    """Stopped by a signal it asks to be queued again; then it goes on to the end."""
    script = SlurmScript(tmp_path, hosts, store)
    job = script.start()
    until(lambda: names_in(tmp_path / "amped-7" / "checkpoint") or job.poll() is not None, "no checkpoint")
    script.tell(signal.SIGUSR1)
    said, _ = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 75, said
    assert "stopped by SIGUSR1 after iteration" in said
    assert script.requeued.read_text() == "requeue 7\n"
    script.text = script.text.replace("--max-iters 2000", "--max-iters 100")
    job = script.start()
    said, _ = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 0, said
    assert "2 ranks: CPU" in said
    assert "resumed after iteration" in said


@pytest.mark.exhaustive
def test_the_slurm_script_where_srun_has_no_pmix(hosts: Hosts, tmp_path: Path, store: Path) -> None:
    """Its comment names a line that takes the place of the last ones."""
    script = SlurmScript(tmp_path, hosts, store)
    line = next(each for each in script.text.splitlines() if "exec mpirun" in each).removeprefix("#").strip()
    script.text = script.text.partition("code=0\n")[0].replace("--max-iters 2000", "--max-iters 3") + line + "\n"
    job = script.start()
    said, _ = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 0, said
    assert "2 ranks: CPU" in said
    assert len(fits(tmp_path / "amped-7")) == 3
