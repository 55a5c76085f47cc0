"""Random kills: ``python tests/soak.py --kills 200 --ranks 2``. Prints figures as JSON; fails if a promise broke.

A run is started, a rank of it is killed, stopped or made to raise at any moment once MPI has connected it, or to hang
in an iteration, and the run is started again with --resume, until it ends; then comes the next. What is promised: the
job is over within 30 seconds and leaves no process, no checkpoint is damaged or lost, and the run ends with the fits of
one that nothing happened to.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

from command import environment, mpirun_line, random_tensor, write_tns  # noqa: E402

from amped.runs import checkpoint  # noqa: E402

PROMISED = 30.0  # seconds
KINDS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "raise": signal.SIGUSR2, "hang": signal.SIGVTALRM}
DRIVER = """
import faulthandler, os, signal, sys
from pathlib import Path

faulthandler.register(signal.SIGXCPU)

def harm(number, frame):
    while number == signal.SIGVTALRM:
        pass
    raise RuntimeError("injected fault")

signal.signal(signal.SIGUSR2, harm)
signal.signal(signal.SIGVTALRM, harm)
from amped import run
from amped.parallel import watchdog
world = run.world

def connected():
    comm = world()
    Path(sys.argv[1], f"rank-{comm.rank}").write_text(str(os.getpid()))
    return comm

run.world = connected  # before that mpirun may be left waiting for a rank that is killed
watchdog.START_SECONDS = 20.0  # all is on this machine
watchdog.SILENCE_SECONDS = float(os.environ["SOAK_SILENCE"])
sys.exit(run.main(sys.argv[2:]))
"""


class Soak:
    """One tensor, one reference, and the runs that are killed."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.ranks, self.args = folder, args.ranks, args
        self._random = random.Random(args.seed)
        self._until = time.monotonic() + args.seconds
        self.seconds: list[float] = []
        self.count: Counter[str] = Counter()
        write_tns(folder / "t.tns", *random_tensor((60, 50, 40), 20_000))
        (folder / "driver.py").write_text(DRIVER)
        began = time.monotonic()
        assert self._start("whole", self.ranks).wait(300) == 0, (folder / "log").read_text()
        self.length = time.monotonic() - began
        self.fits = self._fits("whole")

    def _start(self, name: str, ranks: int, *flags: object) -> subprocess.Popen[bytes]:
        pids = self.folder / "pids"
        shutil.rmtree(pids, ignore_errors=True)
        pids.mkdir()
        line = [*mpirun_line(ranks), sys.executable, self.folder / "driver.py", pids, "cpd", self.folder / "t.tns"]
        line += ["--rank", 8, "--tol", 0, "--precision", "fp64", "--device", self.args.device]
        line += ["--deterministic", "--threads", 1]
        line += ["--max-iters", self.args.iterations, "--output", self.folder / name, "--quiet", *flags]
        with open(self.folder / "log", "wb") as log:
            env = environment(SOAK_SILENCE=str(self.args.silence))
            return subprocess.Popen(list(map(str, line)), stdout=log, stderr=log, env=env)

    def _fits(self, name: str) -> list[float]:
        fits: list[float] = json.loads((self.folder / name / "run.json").read_text())["fits"]
        return fits

    @property
    def over(self) -> bool:
        """Whether the time for kills is over."""
        return time.monotonic() > self._until

    def run(self, number: int, kills: int) -> int:
        """Kill one run up to this many times until it ends; return how often it was killed."""
        name, done, ranks, changed, newest = f"run-{number}", 0, self.ranks, False, -1
        checkpoints = self.folder / f"{name}-checkpoint"
        while True:
            job = self._start(name, ranks, "--checkpoint", checkpoints, "--resume")
            moment = self._harm(job, ranks, checkpoints) if done < kills and not self.over else None
            done += moment is not None
            code = self._end(job, moment or time.monotonic())
            newest = self._look(checkpoints, newest)
            if code == 0:
                break
            if moment is None:
                self.count["failed"] += 1
                print((self.folder / "log").read_text(errors="replace"), file=sys.stderr, flush=True)
                return done
            if self._random.random() < 0.2:  # goes on elsewhere: then fits agree but for rounding
                ranks, changed = (1 if ranks > 1 else self.ranks), True
        self._compare(name, changed)
        shutil.rmtree(checkpoints)
        return done

    def _harm(self, job: subprocess.Popen[bytes], ranks: int, checkpoints: Path) -> float | None:
        """Let a rank come to grief at some moment; return which it was, None if the job was no longer there."""
        kinds = [k for k in self.args.kinds if ranks > 1 or k != "stop"] or ["kill"]  # one rank has none that notices
        kind, rank = self._random.choice(kinds), self._random.randrange(ranks)
        moment = time.monotonic() + self._random.uniform(0.0, 1.1 * self.length)
        pid, before = self.folder / "pids" / f"rank-{rank}", checkpoint.names_in(checkpoints)
        while (
            time.monotonic() < moment
            or not (pid.exists() and pid.read_text())
            or (kind == "hang" and checkpoint.names_in(checkpoints) == before)  # not before iterations have limits
        ):
            if job.poll() is not None:
                return None
            time.sleep(0.01)
        try:
            os.kill(int(pid.read_text()), KINDS[kind])
        except ProcessLookupError:
            return None
        self.count[kind] += 1
        print(f"{kind} rank {rank} of {ranks}", file=sys.stderr, flush=True)
        return time.monotonic()

    def _end(self, job: subprocess.Popen[bytes], harmed: float) -> int:
        """Wait for the end of a job that was harmed at some time, and for that of all its processes."""
        try:
            code = job.wait(max(PROMISED, 3 * self.length) + 30)
        except subprocess.TimeoutExpired:
            code = -1
            self._tell()
        took = time.monotonic() - harmed
        if code != 0:
            self.seconds.append(took)
        running = [p for p in self._ranks() if p.info["status"] != psutil.STATUS_STOPPED]
        if code == -1 and not running:
            # A rank that is stopped once MPI has ended has nobody left who would notice.
            self.count["left to mpirun"] += 1
        elif code == -1 or (code != 0 and took > PROMISED):
            self.count["hangs"] += 1
        deadline = time.monotonic() + 5
        while code != -1 and self._left() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.count["orphans"] += len(running) if code == -1 else len(self._left())
        for process in self._left():
            process.kill()
        return code

    def _tell(self) -> None:
        """Print what the processes of a job that hangs say, and where they are."""
        for process in self._ranks():
            process.send_signal(signal.SIGXCPU)
        time.sleep(1)
        print((self.folder / "log").read_text(errors="replace")[-6000:], file=sys.stderr, flush=True)

    def _left(self) -> list[psutil.Process]:
        mine = str(self.folder / "driver.py")
        return [p for p in psutil.process_iter(["cmdline", "status"]) if mine in (p.info["cmdline"] or ())]

    def _ranks(self) -> list[psutil.Process]:
        """Return the processes left that are ranks, of which this interpreter is the program."""
        return [p for p in self._left() if p.info["cmdline"][0] == sys.executable]

    def _look(self, checkpoints: Path, newest: int) -> int:
        """Check that no checkpoint is damaged or lost; return how far the newest is."""
        if not checkpoints.exists():
            self.count["lost"] += newest >= 0
            return newest
        for name in checkpoint.names_in(checkpoints):
            try:
                checkpoint.load(checkpoints / name)
            except ValueError as error:
                print(error, file=sys.stderr)
                self.count["corrupt"] += 1
        found, _ = checkpoint.load_newest(checkpoints)
        now = -1 if found is None else found.state.iterations
        self.count["lost"] += now < newest
        return now

    def _compare(self, name: str, changed: bool) -> None:
        fits = self._fits(name)
        same = np.allclose(fits, self.fits, rtol=0, atol=1e-6) if changed else fits == self.fits
        self.count["runs"] += 1
        self.count["other fits"] += not same

    def figures(self) -> dict[str, object]:
        """Return what was counted."""
        names = (*KINDS, "runs", "failed", "hangs", "left to mpirun", "orphans", "corrupt", "lost", "other fits")
        times = sorted(self.seconds) or [0.0]
        return {
            **{name: self.count[name] for name in names},
            "ranks": self.ranks,
            "seconds to exit": {"median": round(times[len(times) // 2], 2), "most": round(times[-1], 2)},
        }


def main() -> int:
    """Run the command line; return 1 if a promise broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run and no kill after that")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--each", type=int, default=8, help="kills of a run at most")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["kill", "stop", "raise"])
    parser.add_argument("--silence", type=float, default=15.0, help="of the watchdog, in seconds")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="amped-soak-"))
    soak, done, number = Soak(folder, args), 0, 0
    try:
        while done < args.kills and not soak.over:
            done += soak.run(number, min(args.each, args.kills - done))
            number += 1
    finally:
        print(json.dumps(soak.figures()), flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    return int(any(soak.count[name] for name in ("failed", "hangs", "orphans", "corrupt", "lost", "other fits")))


if __name__ == "__main__":
    sys.exit(main())
