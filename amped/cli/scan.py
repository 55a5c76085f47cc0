"""How many components: the verb ``scan``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partitioner.flags import flag, path, real_number, whole_number
from partitioner.host.signals import NOTHING, Stopped
from partitioner.validate import real, whole

from ..errors import InputError
from ..files import Outputs, write_text
from ..models.scanned import ScannedRank, suggestion
from ..parallel.mpi import on_root
from ..parallel.stopping import Stop
from ..report.scan_picture import check_picture
from ..report.scan_text import ScanTable
from ..runs.scanning import LOSSES, Scan, ScanParams, ranks_of, scanned
from .job import Job, VerbSession
from .requests import Request


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScanRequest(Request):
    """What the verb takes."""

    rank: str = flag("1-8", "numbers of components, such as 1-8 or 2,4,8 (1-8)", metavar="RANKS")
    starts: int = flag(5, "random starts of each (5)", type=whole_number, metavar="K")
    seed: int = flag(0, "of the first start (0)", type=whole_number)
    loss: str = flag("gaussian", "poisson: values are counts (gaussian)", choices=LOSSES)
    nonnegative: bool = flag(False, "no negative numbers in any factor matrix")
    max_iters: int = flag(200, "iterations of a start at most (200)", type=whole_number, metavar="N")
    tol: float = flag(1e-6, "stop when the fit changes less (1e-6)", type=real_number)
    no_halves: bool = flag(False, "do not decompose halves of the tensor")
    output: Path | None = flag(None, "write what was found", type=path, metavar="FILE.json")
    plot: Path | None = flag(None, "draw what was found: .png, .svg or .pdf", type=path, metavar="FILE")

    @property
    def outputs(self) -> dict[str, Path | None]:
        return {**super().outputs, "--output": self.output, "--plot": self.plot}

    @property
    def asked(self) -> ScanParams:
        """What is to be tried."""
        return ScanParams(
            ranks_of("--rank", self.rank), self.starts, self.seed, self.loss, self.nonnegative, self.max_iters,
            self.tol, not self.no_halves,
        )  # fmt: skip

    def check(self) -> None:
        for name, least in (("starts", 1), ("seed", 0), ("max_iters", 1)):
            whole(f"--{name.replace('_', '-')}", getattr(self, name), least)
        real("--tol", self.tol, "a number of at least 0")
        if self.loss == "poisson" and self.nonnegative:
            raise InputError("--nonnegative goes with --loss gaussian: counts have no negative numbers")
        if self.plot is not None:
            check_picture(self.plot)
        self.asked  # noqa: B018 - what is wrong with it
        super().check()

    def claim(self, outputs: Outputs) -> Path | None:
        for output in (self.output, self.plot):
            if output is not None:
                outputs.file(output, self.force)
        return self.output


def scan(request: ScanRequest, session: VerbSession) -> int:
    """Try several numbers of components: what they explain, and how stable they are."""
    comm, stop = session.comm, session.stop
    with Job(request, session) as job:
        source = job.open()
        job.say_machine()
        table, rows = ScanTable(job.display), list[ScannedRank]()

        def tell(tried: ScannedRank) -> None:
            rows.append(tried)
            table(tried)
            job.metrics.event("tried", **tried._asdict())

        try:
            found = scanned(source, job.machine, request.options, request.asked, tell, Stop(stop, comm))
        except Stopped:
            found = Scan(tuple(rows), (), suggestion(rows), {})
            stop.saved = lambda: _saved(request, found)
            if comm.rank == 0:
                _write(request, job, found)
            raise
        with stop.listening(), stop.shielded():
            on_root(comm, lambda: _write(request, job, found))
            stop.saved = lambda: _saved(request, found)
            if found.tried:
                table.end(found.suggestion)
            stop.agreed(comm)  # perhaps by now
            stop.report(comm)
        return job.exit_code(stop.exit_code)


def _write(request: ScanRequest, job: Job, found: Scan) -> None:
    """Write what was found, if anything."""
    if not found.tried:
        return
    if (output := request.output) is not None:
        write_text(output, json.dumps(facts(found), indent=1) + "\n", output in job.outputs.replaced)
    if (picture := request.plot) is not None:
        found.plot(picture)
    job.metrics.event("end", suggested=found.suggestion.rank, reason=found.suggestion.reason, seconds=found.seconds)


def _saved(request: ScanRequest, found: Scan) -> str:
    """Return what was saved, in words."""
    tried = f"{len(found.tried)} of {len(request.asked.ranks)} numbers of components were tried"
    places = [str(place) for place in (request.output, request.plot) if place is not None and found.tried]
    return f"{tried}; " + (f"written to {' and '.join(places)}" if places else NOTHING)


def facts(found: Scan) -> dict[str, Any]:
    """Return what was found, as JSON has it."""
    return {"tried": [each._asdict() for each in found.tried], **found.suggestion._asdict(), "seconds": found.seconds}
