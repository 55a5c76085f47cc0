"""The requests of verbs that decompose a tensor: what each kind of decomposition adds is in the module of its verb."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic

from partitioner.flags import flag, path, real_number, whole_number

from ..backend.device import Device
from ..errors import InputError
from ..files import Outputs
from ..methods.initial import Init
from ..methods.starts import Decomposition
from ..models.history import M
from ..models.record import MODEL, RUN, recorded
from ..operators.sources.protocols import DescribedSource
from ..report.metrics import Metrics
from ..runs import checkpoint
from .job import Job
from .requests import Seeded

FACTS = "made_from"  # in `RUN`: the facts of the checkpoints that a run wrote


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunRequest(Seeded, ABC, Generic[M]):
    """What verbs take that decompose a tensor, into a model of the type `M`."""

    NAME: ClassVar[str]  # of the verb
    random: ClassVar[str | None] = None  # what `--init` may call a random start
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
        return None if self.init == self.random else self.init

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

    def prepare(self, device: Device) -> None:
        """Begin to compile what the method needs, and return at once."""

    @abstractmethod
    def place(self, job: Job, source: DescribedSource) -> tuple[Decomposition[M], Init | None]:
        """Place the tensor; return the method, and the start if one was computed. Collective."""

    def write_report(
        self, job: Job, model: M, source: DescribedSource, record: dict[str, Any], folder: Path | None
    ) -> bool:
        """Write the requested report, if any, of a model in a folder; return whether it failed. Collective."""
        return False

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


TENSORS = ".tns .npz .npy .h5 .hdf5 .nc .nc4 .netcdf .zarr .csv .tsv .json .jsonl .ndjson .parquet .pq".split()


def tensor_stem(path: str | os.PathLike[str]) -> str:
    """Return a tensor's file name without the endings that say its format."""
    name = Path(os.path.abspath(path)).name.replace(":", "-")
    for ending in (".gz", ".zst", ".zip", *TENSORS):
        name = name.removesuffix(ending)
    return name
