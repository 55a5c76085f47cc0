"""Requests: the parsed and immutable flags of the verbs."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from partitioner.flags import (
    flag,
    flag_name,
    modes,
    path,
    real_number,
    real_numbers,
    seconds,
    whole_number,
)
from partitioner.readers import ReadOptions
from partitioner.tensors.observed import NAN, STORED
from partitioner.wording import alternatives

from ..backend.known_losses import loss_of
from ..backend.losses import Loss
from ..errors import InputError
from ..files import Outputs, check_apart, check_npz
from ..methods import gcp
from ..methods.constraints import ConstraintParams, modes_of, ridge_of
from ..methods.poisson import Poisson
from ..methods.proximal.fixed import masks_in
from ..methods.proximal.terms import from_texts
from ..methods.stochastic import SAMPLINGS, SamplingName, Stochastic
from ..methods.tucker_params import WHOLE
from ..models.align import observes_zeros
from ..models.loading import matrices_in
from ..operators.placement import MAX_DENSE_RANK, check_rank
from ..options import Options
from ..report.metrics import Metrics
from ..runs.gcp import APR_METHODS, LossTraits, check_method, default_method
from ..runs.observing import ObservedParams
from ..runs.stochastic import check_stochastic, stochastic_of

R = TypeVar("R", bound="Request")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Request:
    """The flags of all verbs: the tensor, how to read it, and how to compute."""

    POSITIONAL: ClassVar[dict[str, Any]] = {
        "type": path,
        "metavar": "TENSOR",
        "help": ".tns[.gz], .npz, .mtx, .mat, a store; dense: .npy, .h5, .nc, .zarr; or a table: .csv, .json, .parquet",
    }
    SECOND: ClassVar[dict[str, Any] | None] = None  # another positional argument, the field `other`
    COMPUTES: ClassVar[bool] = True  # whether the verb has the flags of `Options` and `ReadOptions`
    PRINTS: ClassVar[bool] = False  # whether its printed text is the result
    tensor: Path
    options: Options
    form: ReadOptions
    metrics: Path | None = flag(None, "write times and fits as JSON lines", type=path, metavar="FILE.jsonl")
    deadline: float | None = flag(
        None, "abort after S seconds without progress (default: from earlier iterations)", type=seconds, metavar="S"
    )
    no_verify: bool = flag(False, "do not verify the checksums of stores")
    force: bool = flag(False, "overwrite existing files")
    quiet: bool = flag(False, "print only errors, and the results of info and plan")

    @classmethod
    def of(cls: type[R], args: argparse.Namespace) -> R:
        """Return the request of a parsed command line; raise `InputError` if options conflict."""
        values = vars(args)
        options = Options(**{field.name: values[field.name] for field in fields(Options)})
        own = {field.name: values[field.name] for field in fields(cls) if field.name not in ("options", "form")}
        return cls(options=options, form=ReadOptions.of(args), **own)

    @property
    def facts(self) -> dict[str, str | None]:
        """The values of all flags as text, which must be equal on all ranks."""
        no_flags = {"tensor", "options", "form", "other"}
        flags = ((each, group) for group in (self.form, self.options, self) for each in fields(group))
        values = {flag_name(each): str(getattr(group, each.name)) for each, group in flags if each.name not in no_flags}
        second = {} if self.SECOND is None else {self.SECOND["metavar"]: str(vars(self)["other"])}
        return {"TENSOR": str(self.tensor), **second, **values}

    @property
    def outputs(self) -> dict[str, Path | None]:
        """The output files, by flag."""
        return {"--metrics": self.metrics}

    @property
    def inputs(self) -> dict[str, Path | None]:
        """The input files, by flag."""
        return {"TENSOR": self.tensor}

    def check(self) -> None:
        """Raise `InputError` for errors that can be found before the tensor is read. Called on rank 0."""
        check_apart(self.outputs, self.inputs)

    def claim(self, outputs: Outputs) -> Path | None:
        """Claim the outputs other than metrics; return the path of the result. Called on rank 0 after `check`."""
        return None

    def open_metrics(self) -> Metrics:
        """Open the metrics, with a file if one is requested. Called on rank 0."""
        return Metrics(self.metrics, self.force)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ranked(Request):
    """The flags of verbs with factor matrices of one rank."""

    rank: int = flag(
        MISSING, "number of components: 1 to 1024, for dense tensors to 4096", type=whole_number, metavar="R"
    )

    def check(self) -> None:
        check_rank(self.rank, MAX_DENSE_RANK)
        super().check()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Masked(Request):
    """The flags of verbs that may use the observed elements of a tensor only."""

    mask: str | None = flag(
        None,
        "observed elements: all but NaN, the stored ones, or those of a file (all)",
        metavar="nan|stored|FILE",
    )

    @classmethod
    def of(cls: type[R], args: argparse.Namespace) -> R:
        """See `Request`; explicit zeros are kept if they are observed."""
        request: Any = super().of(args)
        zeros = request.form.keep_zeros or observes_zeros(request.mask, None)
        return cast("R", replace(request, form=replace(request.form, keep_zeros=zeros)))

    @property
    def observed(self) -> ObservedParams:
        """Which elements are observed."""
        return ObservedParams(self.mask)

    @property
    def inputs(self) -> dict[str, Path | None]:
        mask = None if self.mask in (None, NAN, STORED) else Path(str(self.mask))
        return {**super().inputs, "--mask": mask}


def core_ranks(text: str) -> tuple[int | None, ...]:
    """Parse the ranks of a Tucker decomposition, separated by commas; None for modes that stay uncompressed."""
    return tuple(None if part in (WHOLE, "-") else whole_number(part) for part in text.split(","))


def any_rank(text: str) -> int | tuple[int | None, ...]:
    """Parse the rank of a CP decomposition, or the ranks of a Tucker decomposition."""
    return core_ranks(text) if "," in text else whole_number(text)


TOLERANCES = {
    "als": 1e-5,
    "mu": 1e-4,
    "pdnr": 1e-4,
    "pqnr": 1e-4,
    **{method: gcp.tolerance_of(method) for method in gcp.GENERAL},
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Modelled(Ranked):
    """The flags of verbs that choose a loss, a method and constraints."""

    loss: str = flag(
        "gaussian", "loss: poisson for counts, bernoulli-logit, gamma, huber:0.5, ... (gaussian)", metavar="NAME"
    )
    method: str | None = flag(
        None,
        "als; for poisson mu, or row by row pdnr, pqnr; for any loss lbfgs, newton, or from samples adam, adagrad, sgd "
        "(als, mu, lbfgs)",
        choices=tuple(TOLERANCES),
    )
    inner_iters: int | None = flag(
        None, "poisson: maximum updates of a mode or row per iteration (10)", type=whole_number, metavar="K"
    )
    mu_iters: int | None = flag(None, "pdnr, pqnr: initial iterations that use mu (3)", type=whole_number, metavar="K")
    kappa: float | None = flag(None, "mu: added to entries that should not be zero (0.01)", type=real_number)
    kappa_tol: float | None = flag(None, "mu: entries below this count as zero (1e-10)", type=real_number)
    eps: float | None = flag(None, "poisson: lower bound of divisors (1e-10)", type=real_number)
    sampling: SamplingName | None = flag(
        None, "adam, adagrad, sgd: elements that are sampled (stratified)", choices=SAMPLINGS
    )
    samples: int | None = flag(
        None, "adam, adagrad, sgd: nonzeros, and zeros, per step (1000, or 3 / N of the nonzeros)", type=whole_number,
        metavar="K",
    )  # fmt: skip
    steps: int | None = flag(None, "adam, adagrad, sgd: steps per epoch (1000)", type=whole_number, metavar="K")
    rate: float | None = flag(
        None, "adam, adagrad, sgd: size of a step (0.001; adagrad: 0.01)", type=real_number, metavar="X"
    )
    nonnegative: bool = flag(False, "constrain all factor matrices to be non-negative", group="sign")
    nonnegative_modes: tuple[int | str, ...] | None = flag(
        None, "constrain only these modes, e.g. 0,2, or by name", type=modes, metavar="MODES", group="sign"
    )
    ridge: tuple[float, ...] | None = flag(
        None,
        "als: add X to the diagonal of the Gram matrices; any loss: penalise squares; X,Y,...: one per mode",
        type=real_numbers,
        metavar="X",
    )
    fixed_modes: tuple[int | str, ...] | None = flag(
        None, "do not update the factor matrices of these modes; needs --init", type=modes, metavar="MODES"
    )

    fixed: Path | None = flag(
        None,
        "als: elements that keep the values of --init: arrays mask_0, mask_1, ... of True and False, of some modes",
        type=path,
        metavar="FILE.npz",
    )
    constraint: list[str] | None = flag(
        None,
        "als: constrain a mode, e.g. 1:unimodal or 0:l1:0.1; repeatable: bounds:LOW:HIGH, l1:X, l2:X, smooth:X[:2], "
        "unimodal, monotone[:decreasing], simplex[:rows], orthonormal, sparse:K, ball, nonnegative, fixed:columns:0,2",
        action="append",
        metavar="MODE:NAME",
    )

    @property
    def loss_function(self) -> Loss:
        """The loss."""
        return loss_of(self.loss)

    @property
    def traits(self) -> LossTraits:
        """What is requested in addition to the loss."""
        return LossTraits(special=bool(any(self.ridge or ()) or self.fixed_modes))

    @property
    def chosen_method(self) -> str:
        """The method, by default that of the loss."""
        return self.method or default_method(self.loss_function.name, self.traits)

    @property
    def counts(self) -> bool:
        """Whether the method is one of CP-APR."""
        return self.chosen_method in APR_METHODS

    @property
    def general(self) -> bool:
        """Whether the method minimises any loss."""
        return self.chosen_method in gcp.GENERAL

    @property
    def tolerance(self) -> float:
        """The tolerance of the stopping test; see `StopRule`."""
        return TOLERANCES[self.chosen_method]

    @property
    def constraint_params(self) -> ConstraintParams:
        """The requested constraints."""
        nonnegative = self.nonnegative or modes_of("--nonnegative-modes", self.nonnegative_modes or ())
        if self.loss_function.nonnegative and not self.counts:
            nonnegative = True
        numbers = ridge_of("--ridge", self.ridge or 0.0)
        ridge = numbers[0] if isinstance(numbers, tuple) and len(numbers) == 1 else numbers
        fixed = modes_of("--fixed-modes", self.fixed_modes or ())
        masks = () if self.fixed is None else masks_in(self.fixed)
        return ConstraintParams(nonnegative, ridge, fixed, from_texts(self.constraint or ()), masks)

    def stochastic(self, seed: int, epochs: int) -> Stochastic | None:
        """Return the parameters of a stochastic method; None for other methods."""
        return stochastic_of(self.chosen_method, self._given_stochastic, seed, epochs)

    @property
    def _given_stochastic(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("sampling", "samples", "steps", "rate")}

    def poisson(self) -> Poisson:
        """Return the parameters of CP-APR."""
        names = "inner_iters", "mu_iters", "kappa", "kappa_tol", "eps", "method"
        return Poisson(self.tolerance, **{n: value for n in names if (value := getattr(self, n)) is not None})

    def _check_constraints(self) -> None:
        if self.constraint is None and self.fixed is None:
            return
        if self.chosen_method != "als":
            raise InputError("--constraint and --fixed require --method als and the gaussian loss")

    def check(self) -> None:
        check_method(self.loss_function.name, self.chosen_method, self.traits)
        for name in ("inner_iters", "mu_iters", "kappa", "kappa_tol", "eps"):
            if getattr(self, name) is not None and not self.counts:
                raise InputError(f"--{name.replace('_', '-')} requires --method {alternatives(APR_METHODS)}")
        for name in ("kappa", "kappa_tol"):
            if getattr(self, name) is not None and self.method not in (None, "mu"):
                raise InputError(f"--{name.replace('_', '-')} requires --method mu")
        if self.mu_iters is not None and self.method in (None, "mu"):
            raise InputError("--mu-iters requires --method pdnr or pqnr")
        check_stochastic(self.chosen_method, self._given_stochastic)
        self.stochastic(0, gcp.MAX_ITERS)  # raises for invalid parameters
        self.constraint_params  # noqa: B018 - raises for invalid constraints
        self._check_constraints()
        if self.counts:
            self.poisson()
        super().check()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Seeded(Request):
    """The flags of verbs that start from factor matrices."""

    named_starts: ClassVar[tuple[str | None, ...]] = None, "nvecs"
    seed: int | None = flag(None, "seed of the random start (0)", type=whole_number, group="start")
    init: str | None = flag(
        None,
        "start from a file with factor_0 ..., or from eigenvectors (random)",
        metavar="FILE.npz|nvecs",
        group="start",
    )

    @property
    def first_seed(self) -> int:
        """The seed of the first start. `seed` is None without the flag, so that any checkpoint matches."""
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
    """The flags of verbs that start from factor matrices of one rank."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Repeated(Started):
    """The flags of verbs that time a product and write its result."""

    repeat: int = flag(1, "repetitions; the median time is reported (1)", type=whole_number, metavar="K")
    output: Path | None = None  # each verb has its flag

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
