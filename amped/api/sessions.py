"""A decomposition by a Python function: its side outputs, and its run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from partitioner.host.stages import STAGES

from ..backend.exchange import Machine
from ..errors import InputError
from ..files import Outputs, check_apart
from ..methods.starts import Decomposition
from ..models.history import M
from ..operators.sources.protocols import DescribedSource
from ..operators.sparse.tuning import Budget
from ..options import Options
from ..parallel.mpi import Comm, on_root, world
from ..report.console import RunReporter, telling
from ..report.metrics import Metrics
from ..report.record import init_told
from ..runs import checkpoint
from ..runs.assembly import Tensor, opened
from ..runs.run import Callback, CheckpointParams, Reporting, Run, RunObserver, RunParams


class SideOutputs(NamedTuple):
    """What a decomposition writes while it runs. See `cp_als`."""

    checkpoint: str | None
    every: int
    resume: bool
    metrics: str | None

    def claim(self, outputs: Outputs, rank: Any, starts: int) -> Metrics:
        """Claim the files; return the metrics. A `rank` of None is not known yet. On rank 0."""
        if self.checkpoint is None:
            if self.resume:
                raise InputError("resume needs checkpoint: the folder to continue from")
            return self._metrics(None)
        if starts > 1:
            raise InputError(f"starts {starts}: checkpoint keeps the state of one start")
        folder = Path(self.checkpoint)
        check_apart({"checkpoint": folder, "metrics": None if self.metrics is None else Path(self.metrics)}, {})
        checkpoint.claim(folder, outputs, self.resume, False, "resume=True continues from it; or name another folder")
        wanted = list(rank) if isinstance(rank, tuple) else rank

        def has_rank(found: Any) -> bool:
            return wanted in (None, found)

        return self._metrics(lambda first: checkpoint.is_metrics_of(folder, first, has_rank, None))

    def _metrics(self, extends: Callable[[dict[str, Any]], bool] | None) -> Metrics:
        path = None if self.metrics is None else Path(self.metrics)
        return Metrics(path, False, extends if self.resume else None, "remove it, or name another file")

    def params(self, seed: int, init: str | None) -> CheckpointParams | None:
        """Return where checkpoints are, for a run that begins with a seed, or the start of this name."""
        if self.checkpoint is None:
            return None
        return CheckpointParams(Path(self.checkpoint), partial(_check_start, seed, init), self.every, self.resume)


def _check_start(seed: int, init: str | None, origin: checkpoint.Origin, path: Path) -> None:
    """Raise `InputError` if a call names another start than the one from which the checkpoint's run began."""
    same = not origin.init and seed == origin.seed if init is None else origin.init in (init, "")
    if not same:
        began, given = _start_text(origin.seed, origin.init), _start_text(seed, init)
        raise InputError(f"its run began with {began}, not {given}: pass the same start, or resume=False", path=path)


def _start_text(seed: int, init: str | None) -> str:
    return f"seed {seed}" if init is None else f"init {init!r}" if init else "matrices as init"


class Session(NamedTuple):
    """What a call computes with, and what it reports to."""

    comm: Comm
    machine: Machine
    source: DescribedSource
    reporter: RunReporter
    side: SideOutputs

    def decomposed(
        self, method: Decomposition[M], params: RunParams, callback: Callable[[int, float], None] | None, budget: Budget
    ) -> M:
        """Run a method; call back after each iteration; return the model. Collective."""
        reporter, path = self.reporter, self.source.path
        observers: list[RunObserver] = [] if callback is None else [Callback(callback)]
        if reporter.speaks:
            observers.insert(0, Reporting(reporter, "X" if path is None else str(path), budget))
        saved = self.side.params(params.seed, init_told(params.init))
        run = Run(method, self.source, params._replace(checkpoint=saved), reporter, observers)
        run.begin()
        run.iterate()
        with STAGES.of("write"):
            model = run.model()
        model.run = run.facts() | ({} if path is None else {"tensor": os.fspath(path)})
        if not run.seeded:
            model.run["seed"] = None
        run.end(model.run)
        if reporter.speaks:
            reporter.model(model)
        return model


@contextmanager
def session(
    X: Tensor, rank: Any, starts: int, side: SideOutputs, options: Options, deadline: float | None, verbose: int
) -> Iterator[Session]:
    """Claim what a call writes, bring up what it computes with, and open its tensor. Collective."""
    comm = world()
    with ExitStack() as stack:
        outputs = stack.enter_context(closing(Outputs()))
        checkpoint.check_hosts(Path(side.checkpoint) if side.checkpoint and side.resume else None, comm)
        metrics = on_root(comm, lambda: side.claim(outputs, rank, starts)) or Metrics()
        stack.callback(metrics.close)
        if side.metrics is not None:
            STAGES.collect()  # of calls before
        reporter = stack.enter_context(telling(comm, verbose, None if side.metrics is None else metrics))
        machine, source = stack.enter_context(opened(X, comm, options, deadline, reporter))
        yield Session(comm, machine, source, reporter, side)
