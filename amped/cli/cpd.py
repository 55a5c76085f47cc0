"""The verb ``cpd``: CP decompositions, and their report."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from partitioner.flags import flag, path, real_number, whole_number
from partitioner.validate import whole

from ..backend.device import Device
from ..errors import InputError
from ..methods import als, apr, gcp
from ..methods.stopping import expected_iterations
from ..models.kruskal import KruskalTensor
from ..operators.sources.protocols import DescribedSource
from ..runs.assembly import counts, decomposition
from ..runs.compression import cp_start
from ..runs.gcp import LossTraits, generalised
from ..runs.holding_out import PATIENCE, SEED, HoldoutParams, fraction
from ..runs.loss_elements import LossRun, LossWork
from ..runs.observed_runs import observed_decomposition
from ..runs.observing import ObservedParams
from ..runs.starting import AlsRequest, choose
from ..runs.stochastic import full_gradient_note
from .decompose import decompose
from .job import Job, VerbSession
from .requests import Masked, Modelled
from .run_requests import PlacedMethod, RunRequest


def fraction_or_path(text: str) -> float | Path:
    """Parse a number, or the name of a file."""
    try:
        return real_number(text)
    except argparse.ArgumentTypeError:
        return path(text)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CpdRequest(Masked, Modelled, RunRequest[KruskalTensor]):
    """The flags of ``cpd``."""

    NAME: ClassVar[str] = "cpd"
    named_starts: ClassVar[tuple[str | None, ...]] = None, "nvecs", "tucker"
    init: str | None = flag(
        None,
        "start from a file, eigenvectors, or a Tucker core (random)",
        metavar="FILE.npz|nvecs|tucker",
        group="start",
    )
    starts: int = flag(1, "best of K random starts, seeds --seed, +1, ... (1)", type=whole_number, metavar="K")
    weights: Path | None = flag(
        None, "weight of each element, at least 0; those of weight 0 are missing", type=path, metavar="FILE"
    )
    holdout: float | Path | None = flag(
        None,
        "keep the iteration that predicts held-out elements best: a fraction of the observed ones, or those of a file",
        type=fraction_or_path,
        metavar="F|FILE",
    )
    holdout_seed: int = flag(SEED, "number of the random draw of --holdout (0)", type=whole_number, metavar="K")
    patience: int | None = flag(
        None,
        f"with --holdout: stop after K iterations without improvement ({PATIENCE})",
        type=whole_number,
        metavar="K",
    )

    def check(self) -> None:
        if self.constraint_params.fixed_modes and self.init is None and not self.resume:
            raise InputError("--fixed-modes needs --init with the matrices to keep")
        if self.init == "tucker" and (self.chosen_method != "als" or self.nonnegative or self.nonnegative_modes):
            raise InputError("--init tucker yields negative entries: it needs --method als without --nonnegative")
        self._check_holdout()
        if self.accelerate and self.chosen_method != "als":
            raise InputError(f"--accelerate on requires --method als instead of {self.chosen_method}")
        if self.starts < 1:
            raise InputError(f"--starts {self.starts}: at least 1")
        if self.starts > 1 and (self.init is not None or self.checkpoint is not None):
            reason = "--init gives one start" if self.init is not None else "--checkpoint keeps the state of one start"
            raise InputError(f"--starts {self.starts}: {reason}")
        super().check()

    def _check_holdout(self) -> None:
        if self.holdout is None:
            for name, value in (("holdout-seed", self.holdout_seed), ("patience", self.patience)):
                if value:
                    raise InputError(f"--{name} needs --holdout")
            return
        if isinstance(self.holdout, float):
            fraction("--holdout", self.holdout)
        whole("--holdout-seed", self.holdout_seed, 0)
        whole("--patience", PATIENCE if self.patience is None else self.patience, 1)

    @property
    def tolerance(self) -> float:
        return super().tolerance if self.tol is None else self.tol

    @property
    def size(self) -> str:
        return f"rank{self.rank}"

    @property
    def observed(self) -> ObservedParams:
        """Which elements are observed."""
        return ObservedParams(self.mask, None if self.weights is None else os.fspath(self.weights))

    @property
    def inputs(self) -> dict[str, Path | None]:
        holdout = self.holdout if isinstance(self.holdout, Path) else None
        return {**super().inputs, "--weights": self.weights, "--holdout": holdout}

    @property
    def iterations_without_improvement(self) -> int | None:
        if self.holdout is None:
            return None
        return PATIENCE if self.patience is None else self.patience

    @property
    def start_count(self) -> int:
        return self.starts

    @property
    def facts_of_verb(self) -> dict[str, object]:
        return {"loss": self.loss_function.name}

    @property
    def traits(self) -> LossTraits:
        traits = super().traits
        masked = self.mask is not None or self.weights is not None
        return LossTraits(masked, traits.special or self.holdout is not None)

    @property
    def iterations(self) -> int:
        return gcp.MAX_ITERS if self.general and self.max_iters is None else super().iterations

    def has_rank(self, rank: object) -> bool:
        return bool(rank == self.rank)

    def prepare(self, device: Device) -> None:
        dtype = self.options.dtype
        if device.on_host:  # compiled CPU code also depends on the tensor
            return
        if self.counts:
            apr.prepare(device, dtype)
        elif self.chosen_method == gcp.Gcp.name:
            gcp.prepare(device)
        elif not self.general:
            als.prepare(device, self.rank, dtype, bool(self.constraint_params.nonnegative))

    def place(self, job: Job, source: DescribedSource) -> PlacedMethod[KruskalTensor]:
        options, split = self.options, None
        if self.holdout is not None:
            elements = os.fspath(self.holdout) if isinstance(self.holdout, Path) else self.holdout
            split = job.hold_out(self.observed, HoldoutParams(elements, self.holdout_seed))
        observed = split.fitted if split else job.observe(self.observed)
        machine, source = job.machine, job.source  # observed elements may need another machine
        if self.counts:
            poisson = self.poisson()
            if observed is not None:
                work = LossWork.of_counts(poisson, self.rank, self.iterations * self.starts, self.init)
                return PlacedMethod(generalised(LossRun(source, observed, machine, options, work)))
            budget = job.budget(self.iterations * poisson.inner_iters * self.starts)
            return PlacedMethod(counts(source, self.rank, machine, options, poisson, budget, self.init))
        constraints = self.constraint_params.of(len(source.shape), source.labels)
        if self.general:
            loss, method = self.loss_function, self.chosen_method
            how = self.stochastic(self.first_seed, self.iterations)
            if how and (note := full_gradient_note(source, loss, method)):
                job.display.note(note)
            work = LossWork(loss, self.rank, self.iterations * self.starts, self.init, method, stochastic=how)
            held_out = split.held_out if split else None
            return PlacedMethod(generalised(LossRun(source, observed, machine, options, work, constraints), held_out))
        expected = expected_iterations(self.iterations, self.tol) * self.starts
        budget = job.budget(self.iterations * self.starts, expected)
        start = cp_start(source, machine, options, self.rank, self.first_seed) if self.init == "tucker" else None
        if observed is not None:
            held_out = split.held_out if split else None
            terms = budget, constraints, self.init, held_out, self._als_request.accelerates
            return PlacedMethod(observed_decomposition(observed, self.rank, machine, options, *terms), start)
        choice = choose(source, self.rank, self._als_request, not constraints, job.comm)
        accelerate = self._als_request.accelerates
        als = decomposition(source, self.rank, machine, options, budget, constraints, self.init, accelerate)
        return PlacedMethod(als, start, choice)

    @property
    def _als_request(self) -> AlsRequest:
        guess = self.init is not None or self.starts > 1
        return AlsRequest(self.max_iters, self.tol, self.seed, guess, self.checkpoint is not None, self.accelerate)


def cpd(request: CpdRequest, session: VerbSession) -> int:
    """Compute a CP decomposition: CP-ALS, CP-APR for counts, or any other loss."""
    return decompose(request, session)
