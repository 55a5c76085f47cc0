"""The verb ``scan``: compare numbers of components."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from partitioner.flags import flag, mode, path, real_number, whole_number
from partitioner.host.signals import NOTHING, Stopped
from partitioner.validate import real, whole

from ..backend.known_losses import loss_of
from ..errors import InputError
from ..files import Outputs, write_text
from ..models.scanned import ScannedRank, suggestion
from ..parallel.mpi import on_root
from ..parallel.stopping import Stop
from ..report.figures import check_picture
from ..report.scan_text import ScanTable
from ..runs.holding_out import fraction
from ..runs.scan_result import Scan, ScanParams, ranks_of
from ..runs.scanning import prepare_scan, scanned
from .job import Job, VerbSession
from .requests import TOLERANCES, Masked


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScanRequest(Masked):
    """The flags of ``scan``."""

    rank: str = flag("1-8", "numbers of components, such as 1-8 or 2,4,8 (1-8)", metavar="RANKS")
    starts: int = flag(5, "random starts for each number (5)", type=whole_number, metavar="K")
    seed: int = flag(0, "seed of the first start (0)", type=whole_number)
    loss: str = flag("gaussian", "loss: poisson for counts, bernoulli-logit, ...; see cpd (gaussian)", metavar="NAME")
    method: str | None = flag(None, "method of cpd (that of the loss)", choices=tuple(TOLERANCES))
    nonnegative: bool = flag(False, "constrain all factor matrices to be non-negative")
    max_iters: int | None = flag(
        None, "maximum number of iterations per start (200; lbfgs, newton: 300)", type=whole_number, metavar="N"
    )
    tol: float | None = flag(
        None,
        "stop when the fit changes by less than TOL (1e-6; lbfgs, newton: relative decrease, 1e-7); 0 disables it",
        type=real_number,
    )
    no_halves: bool = flag(False, "do not compare halves of the tensor")
    split: int | str | None = flag(
        None, "mode whose even and odd indices are the halves (the longest)", type=mode, metavar="MODE"
    )
    holdout: float | None = flag(
        None, "choose by the error on a held-out fraction of the observed elements", type=real_number, metavar="F"
    )
    output: Path | None = flag(None, "write the figures and the suggestion", type=path, metavar="FILE.json")
    plot: Path | None = flag(None, "draw the figures: .png, .svg or .pdf", type=path, metavar="FILE")

    @property
    def outputs(self) -> dict[str, Path | None]:
        return {**super().outputs, "--output": self.output, "--plot": self.plot}

    @property
    def params(self) -> ScanParams:
        """The parameters of the scan."""
        return ScanParams(
            ranks_of("--rank", self.rank), self.starts, self.seed, loss_of(self.loss), self.method, self.nonnegative,
            self.max_iters, self.tol, not self.no_halves, self.split, self.holdout,
        ).resolved(self.mask is not None)  # fmt: skip

    def check(self) -> None:
        for name, least in (("starts", 1), ("seed", 0), ("max_iters", 1)):
            if getattr(self, name) is not None:
                whole(f"--{name.replace('_', '-')}", getattr(self, name), least)
        if self.tol is not None:
            real("--tol", self.tol, "a number of at least 0")
        if self.params.poisson and self.nonnegative:
            raise InputError("--nonnegative requires another loss: models of counts are always non-negative")
        if self.holdout is not None:
            fraction("--holdout", self.holdout)
        if self.split is not None:
            if isinstance(self.split, int):
                whole("--split", self.split, 0)
            if self.no_halves:
                raise InputError("--split needs halves: leave out --no-halves")
        if self.plot is not None:
            check_picture(self.plot)
        super().check()

    def claim(self, outputs: Outputs) -> Path | None:
        for output in (self.output, self.plot):
            if output is not None:
                outputs.file(output, self.force)
        return self.output


def scan(request: ScanRequest, session: VerbSession) -> int:
    """Compare numbers of components: how much they explain, and how stable they are."""
    comm, stop = session.comm, session.stop
    with Job(request, session) as job:
        if not job.machine.device.on_host and request.mask is None and request.holdout is None:
            prepare_scan(job.machine.device, request.params, request.options)
        job.open()
        observed = job.observe_all(request.observed) if request.holdout else job.observe(request.observed)
        job.say_machine()
        table, rows = ScanTable(job.display), list[ScannedRank]()

        def report(tried: ScannedRank) -> None:
            rows.append(tried)
            table(tried)
            job.metrics.event("tried", **tried._asdict())

        try:
            result = scanned(
                job.source, job.machine, request.options, request.params, report, Stop(stop, comm), observed
            )
        except Stopped:
            result = Scan(tuple(rows), (), suggestion(rows), {})
            stop.saved = lambda: _saved(request, result)
            if comm.rank == 0:
                _write(request, job, result)
            raise
        with stop.listening(), stop.shielded():
            on_root(comm, lambda: _write(request, job, result))
            stop.saved = lambda: _saved(request, result)
            if result.tried:
                table.end(result.suggestion)
            stop.agreed(comm)  # a signal may have arrived since
            stop.report(comm)
        return job.exit_code(stop.exit_code)


def _write(request: ScanRequest, job: Job, result: Scan) -> None:
    """Write the requested files, if any number was tried."""
    if not result.tried:
        return
    if (output := request.output) is not None:
        write_text(output, json.dumps(facts(result), indent=1) + "\n", output in job.outputs.replaced)
    if (picture := request.plot) is not None:
        result.plot(picture)
    job.metrics.event("end", suggested=result.suggestion.rank, reason=result.suggestion.reason, seconds=result.seconds)


def _saved(request: ScanRequest, result: Scan) -> str:
    """Return what was tried and saved, as text."""
    tried = f"{len(result.tried)} of {len(request.params.ranks)} numbers of components were tried"
    paths = [str(path) for path in (request.output, request.plot) if path is not None and result.tried]
    return f"{tried}; " + (f"written to {' and '.join(paths)}" if paths else NOTHING)


def facts(result: Scan) -> dict[str, object]:
    """Return the result of a scan as an object for JSON."""
    tried = [each._asdict() for each in result.tried]
    return {"tried": tried, **result.suggestion._asdict(), "seconds": result.seconds}
