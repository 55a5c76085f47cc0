"""The script for one node under a real Slurm, which the test starts on this machine: as root, with munge and pmix."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import ROOT, TIMEOUT, environment, random_tensor, write_tns

SCRIPT = ROOT / "launch" / "slurm" / "one-node.sbatch"
ITERATIONS = 500
# What a person changes: the tensor, here also what is to be done with it.
CHANGES = {
    "tensor=/path/to/tensor.tns ": "tensor=tensor.tns ",
    "--rank 32": "--rank 4 --device cpu --precision fp64 --tol 0 --deterministic --threads 1 --max-iters {iterations}",
}
OPTIONS = "--partition=test --gpus-per-node=0 --ntasks-per-node=2 --cpus-per-task=1 --time=5".split()
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"}

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
TmpFS={folder}/tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
KillOnBadExit=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=test Nodes={host} Default=YES State=UP
"""


class Slurm:
    """A cluster of one node in a separate folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._env = environment(SLURM_CONF=str(folder / "slurm.conf"), AMPED_VENV=str(folder))
        for name in ("state", "spool", "tmp", "bin"):
            (folder / name).mkdir()
        (folder / "bin" / "activate").write_text(f"PATH={Path(sys.executable).parent}:$PATH\n")
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        ports = [s.getsockname()[1] for s in sockets]
        for s in sockets:
            s.close()
        facts = {"host": socket.gethostname().partition(".")[0], "ports": ports, "folder": folder}
        (folder / "slurm.conf").write_text(CONFIGURATION.format(**facts))

    def start(self) -> None:
        """Start the daemons; skip the test if they do not come up."""
        key = self._folder / "munge.key"
        key.write_bytes(secrets.token_bytes(256))
        key.chmod(0o400)
        files = [f"--{name}-file={self._folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._daemon("munged", "--foreground", "--force", f"--socket={self._folder}/munge.socket", *files)
        self._daemon("slurmctld", "-D")
        self._daemon("slurmd", "-D")
        deadline = time.monotonic() + 20
        while self.run("sinfo", "--noheader", "--format=%T") != "idle":
            if time.monotonic() > deadline:
                pytest.skip(f"Slurm does not start: {self.run('sinfo', '--noheader', '--format=%T')}")
            time.sleep(0.2)
        if "specific pmix" not in self.run("srun", "--mpi=list"):
            pytest.skip("this Slurm has no pmix (Debian: libpmix-dev)")

    def _daemon(self, *line: str) -> None:
        out = open(self._folder / f"{line[0]}.out", "wb")  # noqa: SIM115
        self._daemons.append(subprocess.Popen(line, stdout=out, stderr=out, env=self._env))

    def run(self, *line: object) -> str:
        """Run a command of Slurm's; return what it printed."""
        words = list(map(str, line))
        done = subprocess.run(words, env=self._env, cwd=self._folder, capture_output=True, text=True, timeout=TIMEOUT)
        return (done.stdout + done.stderr).strip()

    def submit(self, iterations: int = ITERATIONS) -> int:
        """Submit the script; return the number of the job."""
        text = SCRIPT.read_text()
        for old, new in CHANGES.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new.format(iterations=iterations))
        (self._folder / "job.sbatch").write_text(text)
        return int(self.run("sbatch", "--parsable", *OPTIONS, "job.sbatch"))

    def facts(self, job: int) -> dict[str, str]:
        """Return what Slurm knows of a job."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def log(self, job: int) -> str:
        """Return what a job has printed."""
        file = self._folder / f"amped-{job}.log"
        return file.read_text() if file.exists() else ""

    def wait(self, job: int) -> dict[str, str]:
        """Return what is known of a job that has ended."""
        deadline = time.monotonic() + TIMEOUT
        while (facts := self.facts(job))["JobState"] not in ENDED:
            assert time.monotonic() < deadline, f"{facts}\n{self.log(job)}"
            time.sleep(0.2)
        return facts

    def stop(self) -> None:
        """End the jobs and the daemons."""
        self.run("scancel", "--user=root")
        deadline = time.monotonic() + 15
        while self.run("squeue", "--noheader") and time.monotonic() < deadline:
            time.sleep(0.2)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    """A running Slurm."""
    missing = [name for name in "munged slurmctld slurmd srun sbatch".split() if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} (Debian: slurm-wlm munge libpmix-dev)")
    if os.geteuid() != 0:
        pytest.skip("only root can start Slurm's daemons")
    cluster = Slurm(tmp_path)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def fits_of_whole_job(slurm: Slurm, folder: Path, iterations: int) -> list[float]:
    """Return the fits of a job that nothing stops."""
    write_tns(folder / "tensor.tns", *random_tensor())
    job = slurm.submit(iterations)
    facts = slurm.wait(job)
    assert facts["JobState"] == "COMPLETED", slurm.log(job)
    assert facts["ExitCode"] == "0:0"
    return list(json.loads((folder / f"amped-{job}" / "run.json").read_text())["fits"])


def test_job(slurm: Slurm, tmp_path: Path) -> None:
    """One runs to its end."""
    assert len(fits_of_whole_job(slurm, tmp_path, 20)) == 20


@pytest.mark.exhaustive
def test_job_that_is_stopped(slurm: Slurm, tmp_path: Path) -> None:
    """It is queued again, and ends with the fits of one that was not stopped."""
    fits = fits_of_whole_job(slurm, tmp_path, ITERATIONS)
    assert len(fits) == ITERATIONS
    job = slurm.submit()
    deadline = time.monotonic() + TIMEOUT
    while "iteration   9 " not in slurm.log(job):
        assert time.monotonic() < deadline, slurm.log(job)
        time.sleep(0.02)
    slurm.run("scancel", "--signal=USR1", job)
    facts = slurm.wait(job)
    log = slurm.log(job)
    assert facts["JobState"] == "COMPLETED", log
    assert facts["Restarts"] == "1", log
    assert "stopped by SIGUSR1 after iteration" in log
    assert "resumed after iteration" in log
    assert json.loads((tmp_path / f"amped-{job}" / "run.json").read_text())["fits"] == fits
