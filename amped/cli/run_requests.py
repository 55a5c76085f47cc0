"""The base class of the requests of ``cpd`` and ``tucker``."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple

from partitioner.errors import one_line
from partitioner.flags import flag, on_or_off, path, real_number, whole_number

from ..backend.device import Device
from ..errors import InputError
from ..files import Outputs
from ..methods.initial import Init
from ..methods.starts import Decomposition
from ..models.history import M
from ..models.record import MODEL, RUN, recorded
from ..operators.sources.protocols import DescribedSource
from ..report import page
from ..report.metrics import Metrics
from ..runs import checkpoint
from ..runs.starting import AlsChoice
from .job import Job
from .requests import Seeded

TOL_HELP = (
    "stop when the fit changes by less than TOL (default: when 14 iterations gain less; with --max-iters 1e-5; "
    "poisson: KKT violation, 1e-4; lbfgs, newton: relative decrease of the objective, 1e-9; adam, adagrad, sgd: 1e-5); "
    "0 disables the test"
)
MAX_ITERS = 50
REPORT = "report.html"
BESIDE_MODEL = Path()  # `--report` without a file name
FACTS = "made_from"  # name in run.json of the facts in the checkpoints of the run


class PlacedMethod(NamedTuple, Generic[M]):
    """A placed tensor's method; the start if one was computed; and what was chosen for CP-ALS."""

    method: Decomposition[M]
    start: Init | None = None
    choice: AlsChoice | None = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunRequest(Seeded, ABC, Generic[M]):
    """The flags of verbs that decompose a tensor into a model of type `M`."""

    NAME: ClassVar[str]  # of the verb
    random: ClassVar[str | None] = None  # name of the random start in `--init`, if it has one
    max_iters: int | None = flag(
        None,
        "maximum number of iterations (50; CP-ALS without constraints up to 500 if they are short; any loss: 1000)",
        type=whole_number,
        metavar="N",
    )
    tol: float | None = flag(None, TOL_HELP, type=real_number)
    accelerate: bool | None = flag(
        None,
        "begin iterations at extrapolated matrices, on CPUs (on: als without --max-iters, --tol, "
        "--checkpoint, and tucker --nonnegative without --checkpoint)",
        type=on_or_off,
        metavar="on|off",
    )
    output: Path | None = flag(None, "folder for model.npz and run.json (named after TENSOR)", type=path, metavar="DIR")
    checkpoint: Path | None = flag(None, "folder for checkpoints", type=path, metavar="DIR")
    every: int | None = flag(
        None, "iterations between checkpoints (1, unless writing takes longer)", type=whole_number, metavar="K"
    )
    resume: bool = flag(False, "continue from the newest checkpoint, if there is one")
    report: Path | None = flag(
        None, f"write an HTML report (DIR/{REPORT})", type=path, nargs="?", const=BESIDE_MODEL, metavar="FILE.html"
    )

    @property
    def outputs(self) -> dict[str, Path | None]:
        files = {} if self.output is None else {MODEL: self.output / MODEL, RUN: self.output / RUN}
        report = self.report if self.output is None or self.report is None else self.report_at(self.output)
        beside = None if report == BESIDE_MODEL else report
        return {**super().outputs, **files, "--report": beside, "--checkpoint": self.checkpoint}

    def report_at(self, place: Path) -> Path:
        """Return the path of the report of a model in folder `place`."""
        assert self.report is not None
        return place / REPORT if self.report == BESIDE_MODEL else self.report

    def check(self) -> None:
        if self.report is not None:
            page.check()
        if self.max_iters is not None and self.max_iters < 1:
            raise InputError(f"--max-iters {self.max_iters}: at least 1")
        if self.tol is not None and not self.tol >= 0:
            raise InputError(f"--tol {self.tol}: at least 0")
        if self.every is not None and self.every < 1:
            raise InputError(f"--every {self.every}: at least 1")
        if self.checkpoint is None:
            for name, value in (("every", self.every), ("resume", self.resume)):
                if value:
                    raise InputError(f"--{name} needs --checkpoint DIR")
        super().check()
        if self.report not in (None, BESIDE_MODEL):
            page.check(self.report)

    @property
    @abstractmethod
    def size(self) -> str:
        """The description of the model in the name of the default folder."""

    @property
    @abstractmethod
    def tolerance(self) -> float:
        """The tolerance of the stopping test; see `StopRule`."""

    @property
    def iterations(self) -> int:
        """The maximum number of iterations."""
        return MAX_ITERS if self.max_iters is None else self.max_iters

    @property
    def start(self) -> str | None:
        """The start that `init` names; None for random matrices."""
        return None if self.init == self.random else self.init

    @property
    def start_count(self) -> int:
        """The number of starts."""
        return 1

    @property
    def set_by_checkpoint(self) -> dict[str, object]:
        """The flags, with their values, that a run without a checkpoint needs to give the same model."""
        return {}

    @property
    def iterations_without_improvement(self) -> int | None:
        """The iterations without improvement on held-out elements that end a run; see `StopRule`."""
        return None

    @property
    @abstractmethod
    def facts_of_verb(self) -> dict[str, object]:
        """The parameters of this verb in the record of the run."""

    @abstractmethod
    def has_rank(self, rank: object) -> bool:
        """Return whether the rank in a record equals the requested one."""

    def prepare(self, device: Device) -> None:
        """Start compiling the code of the method in the background."""

    @abstractmethod
    def place(self, job: Job, source: DescribedSource) -> PlacedMethod[M]:
        """Place the tensor. Collective."""

    def write_report(
        self, job: Job, model: M, source: DescribedSource, record: dict[str, Any], folder: Path | None
    ) -> bool:
        """Write the requested report, if any, of a model in a folder; return whether it failed. Collective."""
        if self.report is None:
            return False
        # For a small tensor the report includes the largest residuals and the deviance.
        tensor = page.compared_tensor(source, model)
        if folder is None:
            return False
        path = self.report_at(folder)
        if (cause := page.failure(model, path, tensor, record, path in job.outputs.replaced)) is not None:
            print(f"amped: {cause}; the model is written, its report is not", file=sys.stderr)
            return True
        job.display.note(f"report in {one_line(str(path))}")
        return False

    def claim(self, outputs: Outputs) -> Path:
        """See `Request`; returns the folder of the model."""
        if self.checkpoint is not None:
            advice = "--resume continues from it, --force replaces it"
            checkpoint.claim(self.checkpoint, outputs, self.resume, self.force, advice)
        replace = self.force or (self.output is not None and self._is_ours(self.output))
        if self.output is None:
            place = outputs.fresh(Path(f"{tensor_stem(self.tensor)}-{self.size}"), MODEL)
        else:
            place, reason = self.output, "does not belong to the resumed run; " if self.resume else ""
            outputs.folder(place)
            for name in (MODEL, RUN):
                outputs.file(place / name, replace, f"{reason}--force replaces it")
        if self.report is not None:
            outputs.file(self.report_at(place), replace)
        return place

    def _is_ours(self, folder: Path) -> bool:
        """Return whether this run resumes the run that wrote the model in `folder`."""
        if not self.resume or self.checkpoint is None:
            return False
        with suppress(InputError):
            return recorded(folder).get(FACTS) == checkpoint.newest_facts(self.checkpoint) != {}
        return False

    def open_metrics(self) -> Metrics:
        """See `Request`; a resumed run appends to its own metrics."""

        def extends(first: dict[str, Any]) -> bool:
            assert self.checkpoint is not None
            return checkpoint.is_metrics_of(self.checkpoint, first, self.has_rank, str(self.tensor))

        return Metrics(self.metrics, self.force, extends if self.resume else None)


TENSORS = (
    ".tns .npz .npy .h5 .hdf5 .nc .nc4 .netcdf .zarr .mat .mtx .csv .tsv .json .jsonl .ndjson .parquet .pq".split()
)


def tensor_stem(path: str | os.PathLike[str]) -> str:
    """Return the file name of a tensor without the extensions of its format."""
    name = Path(os.path.abspath(path)).name.replace(":", "-")
    for ending in (".gz", ".zst", ".zip", *TENSORS):
        name = name.removesuffix(ending)
    return name
