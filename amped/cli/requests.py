"""What a verb of the command line was asked for: the parsed flags, read once and never written."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from partitioner.flags import flag, flag_name, path, real_number, real_numbers, seconds, whole_number, whole_numbers
from partitioner.readers import ReadOptions

from ..errors import InputError
from ..files import Outputs, check_apart, check_npz
from ..methods.constraints import ConstraintParams, modes_of, ridge_of
from ..methods.poisson import Poisson
from ..models.loading import matrices_in
from ..operators.placement import MAX_DENSE_RANK, check_rank
from ..options import Options
from ..report.metrics import Metrics

R = TypeVar("R", bound="Request")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Request:
    """What all verbs take, how to read the tensor, and how to compute."""

    POSITIONAL: ClassVar[dict[str, Any]] = {
        "type": path,
        "metavar": "TENSOR",
        "help": ".tns, .tns.gz, .npz, a store; dense: .npy, .h5, .nc, .zarr; or a table: .csv, .json, .parquet",
    }
    COMPUTES: ClassVar[bool] = True  # whether it takes flags that say how to compute and how to read
    PRINTS: ClassVar[bool] = False  # whether what it prints is its result
    tensor: Path
    options: Options
    form: ReadOptions
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
        return cls(options=options, form=ReadOptions.of(args), **own)

    @property
    def facts(self) -> dict[str, str | None]:
        """What ranks must have in common: each flag and what it was given, as text."""
        own = {"tensor", "options", "form"}
        named = ((each, given) for given in (self, self.options, self.form) for each in fields(given))
        told = {flag_name(each): str(getattr(given, each.name)) for each, given in named if each.name not in own}
        return {"TENSOR": str(self.tensor), **told}

    @property
    def outputs(self) -> dict[str, Path | None]:
        """The files that it writes, by flag."""
        return {"--metrics": self.metrics}

    @property
    def inputs(self) -> dict[str, Path | None]:
        """The files that it reads, by flag."""
        return {"TENSOR": self.tensor}

    def check(self) -> None:
        """Raise `InputError` if something is wrong that can be known before the tensor is read; on rank 0."""
        check_apart(self.outputs, self.inputs)

    def claim(self, outputs: Outputs) -> Path | None:
        """Claim what it will write, but for metrics; return the place of the result. On rank 0, after `check`."""
        return None

    def open_metrics(self) -> Metrics:
        """Open the file of metrics, if there is to be one. On rank 0."""
        return Metrics(self.metrics, self.force)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ranked(Request):
    """What verbs take that need factor matrices."""

    rank: int = flag(
        MISSING, "columns of the factor matrices, 1 to 1024, of dense tensors to 4096", type=whole_number, metavar="R"
    )

    def check(self) -> None:
        check_rank(self.rank, MAX_DENSE_RANK)
        super().check()


TOLERANCES = {"gaussian": 1e-5, "poisson": 1e-4}
LOSSES = {"gaussian": ("als",), "poisson": ("mu", "pdnr", "pqnr")}  # and the methods for each, the first one by default
METHODS = tuple(method for methods in LOSSES.values() for method in methods)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Modelled(Ranked):
    """What verbs take that say of what kind the model is."""

    loss: str = flag("gaussian", "poisson: values are counts (gaussian)", choices=tuple(LOSSES))
    method: str | None = flag(None, "als; poisson: mu, or by rows pdnr, pqnr (mu)", choices=METHODS)
    inner_iters: int | None = flag(
        None, "poisson: updates of a mode, or of a row, in an iteration (10)", type=whole_number, metavar="K"
    )
    mu_iters: int | None = flag(
        None, "pdnr, pqnr: first iterations, which are mu's (3)", type=whole_number, metavar="K"
    )
    kappa: float | None = flag(None, "mu: added to zeros that should not be (0.01)", type=real_number)
    kappa_tol: float | None = flag(None, "mu: numbers below are such zeros (1e-10)", type=real_number)
    eps: float | None = flag(None, "poisson: the least that values are divided by (1e-10)", type=real_number)
    nonnegative: bool = flag(False, "no negative numbers in any factor matrix", group="sign")
    nonnegative_modes: tuple[int, ...] | None = flag(
        None, "none in those of these modes, e.g. 0,2", type=whole_numbers, metavar="MODES", group="sign"
    )
    ridge: tuple[float, ...] | None = flag(
        None, "add X to the diagonal of Gram matrices; or X,Y,...: one a mode", type=real_numbers, metavar="X"
    )
    fixed_modes: tuple[int, ...] | None = flag(
        None, "keep these modes' matrices as --init gives them", type=whole_numbers, metavar="MODES"
    )

    @property
    def counts(self) -> bool:
        """Whether values are counts."""
        return self.loss == "poisson"

    @property
    def tolerance(self) -> float:
        """When it has converged; see `StopRule`."""
        return TOLERANCES[self.loss]

    @property
    def wanted(self) -> ConstraintParams:
        """The constraints that it asks for."""
        nonnegative = self.nonnegative or modes_of("--nonnegative-modes", self.nonnegative_modes or ())
        given = ridge_of("--ridge", self.ridge or 0.0)
        ridge = given[0] if isinstance(given, tuple) and len(given) == 1 else given
        return ConstraintParams(nonnegative, ridge, modes_of("--fixed-modes", self.fixed_modes or ()))

    def poisson(self) -> Poisson:
        """Return what CP-APR is asked for."""
        names = "inner_iters", "mu_iters", "kappa", "kappa_tol", "eps", "method"
        return Poisson(self.tolerance, **{n: given for n in names if (given := getattr(self, n)) is not None})

    def check(self) -> None:
        if self.method is not None and self.method not in LOSSES[self.loss]:
            known = " or ".join(", ".join(LOSSES[self.loss]).rsplit(", ", 1))
            raise InputError(f"--method {self.method} does not go with --loss {self.loss}: {known} does")
        for name in ("inner_iters", "mu_iters", "kappa", "kappa_tol", "eps"):
            if getattr(self, name) is not None and not self.counts:
                raise InputError(f"--{name.replace('_', '-')} goes with --loss poisson")
        for name in ("kappa", "kappa_tol"):
            if getattr(self, name) is not None and self.method not in (None, "mu"):
                raise InputError(f"--{name.replace('_', '-')} goes with --method mu: zeros rise again by themselves")
        if self.mu_iters is not None and self.method in (None, "mu"):
            raise InputError("--mu-iters goes with --method pdnr or pqnr")
        if self.counts and (self.nonnegative or self.nonnegative_modes or self.ridge or self.fixed_modes):
            raise InputError("--nonnegative, --ridge and --fixed-modes go with --loss gaussian")
        self.wanted  # noqa: B018 - what is wrong with it
        if self.counts:
            self.poisson()
        super().check()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Seeded(Request):
    """What verbs take that begin with factor matrices."""

    named_starts: ClassVar[tuple[str | None, ...]] = None, "nvecs"
    seed: int | None = flag(None, "of the random start (0)", type=whole_number, group="start")
    init: str | None = flag(
        None,
        "start from factor_0 ... of a file, or from eigenvectors",
        metavar="FILE.npz|nvecs",
        group="start",
    )

    @property
    def first_seed(self) -> int:
        """The seed of the first start; `seed` is None without a flag, which says nothing of a checkpoint's seed."""
        return self.seed or 0

    def check(self) -> None:
        super().check()
        if self.first_seed < 0:
            raise InputError(f"--seed {self.seed}: at least 0")
        if self.init not in self.named_starts:
            assert self.init is not None
            matrices_in(self.init)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Started(Seeded, Ranked):
    """What verbs take that begin with factor matrices of equal ranks."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Repeated(Started):
    """What verbs take that compute a product again and again, and write it."""

    repeat: int = flag(1, "repeat, and report the median time", type=whole_number, metavar="K")
    output: Path | None = None  # a flag of each verb

    def check(self) -> None:
        if self.repeat < 1:
            raise InputError(f"--repeat {self.repeat}: at least 1")
        super().check()
        if self.output is not None:
            check_npz(self.output)

    @property
    def inputs(self) -> dict[str, Path | None]:
        return {**super().inputs, "--init": None if self.init in (None, "nvecs") else Path(str(self.init))}

    @property
    def outputs(self) -> dict[str, Path | None]:
        return {**super().outputs, "--output": self.output}

    def claim(self, outputs: Outputs) -> Path | None:
        if self.output is not None:
            outputs.file(self.output, self.force)
        return self.output
