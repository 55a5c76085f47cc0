"""What a verb of the command line was asked for: the parsed flags, read once and never written."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from . import checkpoint
from .errors import InputError
from .files import check_file, check_folder, factors_in, read_npz
from .operators.placement import check_rank
from .options import Options

MODEL, RUN = "model.npz", "run.json"

R = TypeVar("R", bound="Request")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What all verbs take.

    Attributes
    ----------
    tensor : Path
    options : Options
    metrics : Path or None
        A file of JSON lines to write.
    deadline : float or None
        Seconds after which a run that does not go on is ended.
    no_verify, force, quiet : bool
    """

    tensor: Path
    options: Options
    metrics: Path | None
    deadline: float | None
    no_verify: bool
    force: bool
    quiet: bool

    @classmethod
    def of(cls: type[R], args: argparse.Namespace) -> R:
        """Return what the command line says; raise `InputError` if its options do not go together."""
        given = vars(args)
        options = Options(**{field.name: given[field.name] for field in fields(Options)})
        own = {field.name: given[field.name] for field in fields(cls) if field.name != "options"}
        return cls(options=options, **own)

    @property
    def appends(self) -> bool:
        """Whether metrics are added to those of an earlier run."""
        return False

    def check(self) -> None:
        """Raise `InputError` if something is wrong that can be known before the tensor is read; on rank 0."""
        if self.metrics is not None and not self.appends:
            check_file(self.metrics, self.force)


@dataclass(frozen=True, kw_only=True)
class Ranked(Request):
    """What verbs take that need factor matrices: `rank` is the number of their columns."""

    rank: int

    def check(self) -> None:
        """See `Request`."""
        check_rank(self.rank)
        super().check()


@dataclass(frozen=True, kw_only=True)
class Started(Ranked):
    """What verbs take that begin with factor matrices: random ones from `seed`, or `init`, a file or "nvecs"."""

    seed: int
    init: str | None

    def check(self) -> None:
        """See `Request`."""
        check_rank(self.rank)
        if self.seed < 0:
            raise InputError(f"--seed {self.seed}: at least 0")
        if self.init not in (None, "nvecs"):
            assert self.init is not None
            factors_in(read_npz(self.init), self.init)
        super().check()


@dataclass(frozen=True, kw_only=True)
class Cpd(Started):
    """See the flags of ``cpd``."""

    max_iters: int
    tol: float
    output: Path | None
    checkpoint: Path | None
    every: int | None
    resume: bool

    @property
    def appends(self) -> bool:
        """See `Request`."""
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
            for flag, given in (("every", self.every), ("resume", self.resume)):
                if given:
                    raise InputError(f"--{flag} needs --checkpoint DIR")
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


@dataclass(frozen=True, kw_only=True)
class Mttkrp(Started):
    """See the flags of ``mttkrp``."""

    mode: str
    repeat: int
    output: Path | None

    def check(self) -> None:
        """See `Request`."""
        if self.repeat < 1:
            raise InputError(f"--repeat {self.repeat}: at least 1")
        super().check()
        if self.output is not None:
            check_file(self.output, self.force)
            if not self.output.parent.is_dir():
                raise InputError("its folder does not exist", path=self.output)


@dataclass(frozen=True, kw_only=True)
class Plan(Ranked):
    """See the flags of ``plan``; `ranks` is the number of processes, None those started."""

    ranks: int | None

    def check(self) -> None:
        """See `Request`."""
        super().check()
        if self.ranks is not None and self.ranks < 1:
            raise InputError(f"--ranks {self.ranks}: at least 1")
