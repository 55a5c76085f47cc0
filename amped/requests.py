"""What a verb of the command line was asked for: the parsed flags, read once and never written."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TypeVar

from partitioner.flags import flag, path, real, seconds, whole
from partitioner.readers import Form

from . import checkpoint
from .errors import InputError
from .files import check_file, check_folder, factors_in, read_npz
from .models.kruskal import MODEL
from .operators.placement import check_rank
from .options import Options

RUN = "run.json"

R = TypeVar("R", bound="Request")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Request:
    """What all verbs take, how to read the tensor, and how to compute."""

    tensor: Path
    options: Options
    form: Form
    metrics: Path | None = flag(None, "write times and fits as JSON lines", type=path, metavar="FILE.jsonl")
    deadline: float | None = flag(
        None, "end a run that does not go on for so long (by what it has taken)", type=seconds, metavar="S"
    )
    no_verify: bool = flag(False, "do not check stores against their checksums")
    force: bool = flag(False, "overwrite what exists")
    quiet: bool = flag(False, "print errors, and what info and plan are asked for, alone")

    @classmethod
    def of(cls: type[R], args: argparse.Namespace) -> R:
        """Return what the command line says; raise `InputError` if its options do not go together."""
        given = vars(args)
        options = Options(**{field.name: given[field.name] for field in fields(Options)})
        own = {field.name: given[field.name] for field in fields(cls) if field.name not in ("options", "form")}
        return cls(options=options, form=Form.of(args), **own)

    @property
    def appends(self) -> bool:
        """Whether metrics are added to those of an earlier run."""
        return False

    def check(self) -> None:
        """Raise `InputError` if something is wrong that can be known before the tensor is read; on rank 0."""
        if self.metrics is not None and not self.appends:
            check_file(self.metrics, self.force)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ranked(Request):
    """What verbs take that need factor matrices."""

    rank: int = flag(MISSING, "columns of the factor matrices, 1 to 1024", type=whole, metavar="R")

    def check(self) -> None:
        check_rank(self.rank)
        super().check()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Started(Ranked):
    """What verbs take that begin with factor matrices."""

    seed: int = flag(0, "of the random start (0)", type=whole, group="start")
    init: str | None = flag(
        None, "start from factor_0 ... of a file, or from eigenvectors", metavar="FILE.npz|nvecs", group="start"
    )

    def check(self) -> None:
        super().check()
        if self.seed < 0:
            raise InputError(f"--seed {self.seed}: at least 0")
        if self.init not in (None, "nvecs"):
            assert self.init is not None
            factors_in(read_npz(self.init), self.init)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Cpd(Started):
    """What ``cpd`` takes."""

    max_iters: int = flag(50, "iterations at most (50)", type=whole, metavar="N")
    tol: float = flag(1e-5, "stop when the fit changes less (1e-5); 0 runs all iterations", type=real)
    output: Path | None = flag(None, "folder of model.npz and run.json (TENSOR-rankR)", type=path, metavar="DIR")
    checkpoint: Path | None = flag(None, "write checkpoints there", type=path, metavar="DIR")
    every: int | None = flag(None, "iterations between checkpoints (1)", type=whole, metavar="K")
    resume: bool = flag(False, "go on from the checkpoint, if there is one")

    @property
    def appends(self) -> bool:
        return self.resume

    def check_into(self, folder: Path) -> None:
        """Check, as `check` does, a run that is to write its model into `folder`."""
        if self.max_iters < 1:
            raise InputError(f"--max-iters {self.max_iters}: at least 1")
        if not self.tol >= 0:
            raise InputError(f"--tol {self.tol}: at least 0")
        if self.every is not None and self.every < 1:
            raise InputError(f"--every {self.every}: at least 1")
        if self.checkpoint is None:
            for name, given in (("every", self.every), ("resume", self.resume)):
                if given:
                    raise InputError(f"--{name} needs --checkpoint DIR")
        self.check()
        # Going on with a run replaces what it wrote when it last ended.
        there = checkpoint.names_in(self.checkpoint) if self.checkpoint is not None else []
        for name in (MODEL, RUN):
            check_file(folder / name, self.force or (self.resume and bool(there)))
        if self.checkpoint is None:
            return
        if there and not (self.resume or self.force):
            advice = "exists already; --resume goes on from it, --force replaces it"
            raise InputError(advice, path=self.checkpoint / there[0])
        check_folder(self.checkpoint)
        checkpoint.check_free(self.checkpoint)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Mttkrp(Started):
    """What ``mttkrp`` takes."""

    mode: str = flag("all", "a mode, counted from 0, or all")
    repeat: int = flag(1, "repeat, and report the median time", type=whole, metavar="K")
    output: Path | None = flag(None, "write mode_0, mode_1, ...", type=path, metavar="FILE.npz")

    def check(self) -> None:
        if self.repeat < 1:
            raise InputError(f"--repeat {self.repeat}: at least 1")
        super().check()
        if self.output is not None:
            check_file(self.output, self.force)
            if not self.output.parent.is_dir():
                raise InputError("its folder does not exist", path=self.output)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan(Ranked):
    """What ``plan`` takes."""

    ranks: int | None = flag(None, "plan for this many processes (those started)", type=whole, metavar="P")

    def check(self) -> None:
        super().check()
        if self.ranks is not None and self.ranks < 1:
            raise InputError(f"--ranks {self.ranks}: at least 1")
