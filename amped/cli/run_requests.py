"""What the verbs that decompose a tensor were asked for."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from partitioner.flags import flag, path, real_number, whole_number, whole_numbers

from ..errors import InputError
from ..files import Outputs
from ..methods.hosvd import METHODS as COMPRESSIONS
from ..methods.hosvd import Compression
from ..models.kruskal import MODEL
from ..models.record import RUN, recorded
from ..report import page
from ..report.metrics import Metrics
from ..runs import checkpoint
from .requests import TOLERANCES, Modelled, Seeded

REPORT = "report.html"
BESIDE = Path()  # where a report is that is given no name: beside the model
FACTS = "made_from"  # in `RUN`: the facts of the checkpoints that a run wrote


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunRequest(Seeded, ABC):
    """What verbs take that decompose a tensor."""

    NAME: ClassVar[str]  # of the verb
    max_iters: int = flag(50, "iterations at most (50)", type=whole_number, metavar="N")
    tol: float | None = flag(None, "stop at changes (1e-5), or KKT violations (1e-4) below; 0: never", type=real_number)
    output: Path | None = flag(None, "folder of model.npz and run.json (as TENSOR)", type=path, metavar="DIR")
    checkpoint: Path | None = flag(None, "write checkpoints there", type=path, metavar="DIR")
    every: int | None = flag(None, "iterations between checkpoints (1)", type=whole_number, metavar="K")
    resume: bool = flag(False, "go on from the checkpoint, if there is one")

    @property
    def outputs(self) -> dict[str, Path | None]:
        files = {} if self.output is None else {MODEL: self.output / MODEL, RUN: self.output / RUN}
        return {**super().outputs, **files}

    def check(self) -> None:
        if self.max_iters < 1:
            raise InputError(f"--max-iters {self.max_iters}: at least 1")
        if self.tol is not None and not self.tol >= 0:
            raise InputError(f"--tol {self.tol}: at least 0")
        if self.every is not None and self.every < 1:
            raise InputError(f"--every {self.every}: at least 1")
        if self.checkpoint is None:
            for name, given in (("every", self.every), ("resume", self.resume)):
                if given:
                    raise InputError(f"--{name} needs --checkpoint DIR")
        super().check()

    @property
    @abstractmethod
    def size(self) -> str:
        """What a default folder's name says of the model."""

    @property
    @abstractmethod
    def tolerance(self) -> float:
        """When it has converged; see `StopRule`."""

    @property
    def iterations(self) -> int:
        """How many there are at most."""
        return self.max_iters

    @property
    def start(self) -> str | None:
        """What `init` names; None: random matrices."""
        return self.init

    @property
    def how_often(self) -> int:
        """From how many starts."""
        return 1

    @property
    @abstractmethod
    def asked(self) -> dict[str, Any]:
        """What records say of what was asked for."""

    @abstractmethod
    def has_rank(self, rank: Any) -> bool:
        """Tell whether a record's rank is the one that is asked for."""

    def claim(self, outputs: Outputs) -> Path:
        """See `Request`: the place is a folder."""
        if self.checkpoint is not None:
            advice = "--resume goes on from it, --force replaces it"
            checkpoint.claim(self.checkpoint, outputs, self.resume, self.force, advice)
        if self.output is None:
            return outputs.fresh(Path(f"{tensor_stem(self.tensor)}-{self.size}"), MODEL)
        replace = self.force or self._is_ours(self.output)
        other = "is not of the run that goes on; " if self.resume else ""
        outputs.folder(self.output)
        for name in (MODEL, RUN):
            outputs.file(self.output / name, replace, f"{other}--force replaces it")
        return self.output

    def _is_ours(self, folder: Path) -> bool:
        """Tell whether this run goes on from a checkpoint of the one that wrote the model in `folder`."""
        if not self.resume or self.checkpoint is None:
            return False
        with suppress(InputError):
            return recorded(folder).get(FACTS) == checkpoint.newest_facts(self.checkpoint) != {}
        return False

    def open_metrics(self) -> Metrics:
        """See `Request`: a run that goes on adds to its own."""

        def extends(first: dict[str, Any]) -> bool:
            assert self.checkpoint is not None
            return checkpoint.is_metrics_of(self.checkpoint, first, self.has_rank, str(self.tensor))

        return Metrics(self.metrics, self.force, extends if self.resume else None)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CpdRequest(Modelled, RunRequest):
    """What ``cpd`` takes."""

    NAME: ClassVar[str] = "cpd"
    named_starts: ClassVar[tuple[str | None, ...]] = None, "nvecs", "tucker"
    init: str | None = flag(None, "another start (random)", metavar="FILE.npz|nvecs|tucker", group="start")
    starts: int = flag(1, "keep the best of K starts: seeds --seed, +1, ...", type=whole_number, metavar="K")
    report: Path | None = flag(
        None, f"write a report for browsers (DIR/{REPORT})", type=path, nargs="?", const=BESIDE, metavar="FILE.html"
    )

    @property
    def outputs(self) -> dict[str, Path | None]:
        there = self.report if self.output is None or self.report is None else self.report_at(self.output)
        return {**super().outputs, "--report": None if there == BESIDE else there}

    def report_at(self, place: Path) -> Path:
        """Return the file of the report of a model in a folder."""
        assert self.report is not None
        return place / REPORT if self.report == BESIDE else self.report

    def claim(self, outputs: Outputs) -> Path:
        place = super().claim(outputs)
        if self.report is not None:
            replace = self.force or (self.output is not None and self._is_ours(self.output))
            outputs.file(self.report_at(place), replace)
        return place

    def check(self) -> None:
        if self.report is not None:
            page.check()
        if self.wanted.fixed_modes and self.init is None and not self.resume:
            raise InputError("--fixed-modes needs --init: the matrices to be kept")
        if self.init == "tucker" and (self.counts or self.nonnegative or self.nonnegative_modes):
            raise InputError("--init tucker: its matrices have negative numbers, which this model has not")
        if self.starts < 1:
            raise InputError(f"--starts {self.starts}: at least 1")
        if self.starts > 1 and (self.init is not None or self.checkpoint is not None):
            other = "--init gives one start" if self.init is not None else "--checkpoint keeps the state of one start"
            raise InputError(f"--starts {self.starts}: {other}")
        super().check()

    @property
    def tolerance(self) -> float:
        return super().tolerance if self.tol is None else self.tol

    @property
    def size(self) -> str:
        return f"rank{self.rank}"

    @property
    def how_often(self) -> int:
        return self.starts

    @property
    def asked(self) -> dict[str, Any]:
        return {"loss": self.loss}

    def has_rank(self, rank: Any) -> bool:
        return bool(rank == self.rank)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TuckerRequest(RunRequest):
    """What ``tucker`` takes."""

    NAME: ClassVar[str] = "tucker"
    named_starts: ClassVar[tuple[str | None, ...]] = None, "nvecs", "random"
    init: str | None = flag(None, "another start (random)", metavar="FILE.npz|nvecs|random", group="start")
    rank: tuple[int, ...] | None = flag(
        None, "columns of each mode's factor matrix", type=whole_numbers, metavar="R1,R2,...", group="size"
    )
    error: float | None = flag(
        None, "as few as leave out at most this part of the norm", type=real_number, metavar="E", group="size"
    )
    method: str = flag("hooi", "(hooi; hosvd and sthosvd do not iterate)", choices=COMPRESSIONS)

    def check(self) -> None:
        if self.rank is None and self.error is None:
            raise InputError("--rank R1,R2,... or --error E: one of them is needed")
        self.compression  # noqa: B018 - what is wrong with it
        super().check()

    @property
    def compression(self) -> Compression:
        """What is asked for."""
        return Compression(self.method, self.rank, self.error, self.start)

    @property
    def start(self) -> str | None:
        return None if self.init == "random" else self.init

    @property
    def tolerance(self) -> float:
        return TOLERANCES["gaussian"] if self.tol is None else self.tol

    @property
    def iterations(self) -> int:
        return self.max_iters if self.method == "hooi" else 1

    @property
    def size(self) -> str:
        return "tucker"

    @property
    def asked(self) -> dict[str, Any]:
        return {"error": self.error}

    def has_rank(self, rank: Any) -> bool:
        return self.rank is None or rank == list(self.rank)


TENSORS = ".tns .npz .npy .h5 .hdf5 .nc .nc4 .netcdf .zarr .csv .tsv .json .jsonl .ndjson .parquet .pq".split()


def tensor_stem(path: str | os.PathLike[str]) -> str:
    """Return a tensor's file name without the endings that say its format."""
    name = Path(os.path.abspath(path)).name.replace(":", "-")
    for ending in (".gz", ".zst", ".zip", *TENSORS):
        name = name.removesuffix(ending)
    return name
