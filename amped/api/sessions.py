"""The session of a Python function that decomposes a tensor: side outputs, checkpoints and the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from partitioner.host.stages import STAGES
from partitioner.readers import PLAIN, ReadOptions

from ..backend.device import Device
from ..errors import InputError, warn
from ..files import Outputs, check_apart
from ..methods.driver import never
from ..methods.starts import Decomposition
from ..models.history import AnyModel, M
from ..operators.sparse.tuning import Budget
from ..options import Options
from ..parallel.mpi import Comm, on_root, world
from ..report import logs
from ..report.metrics import Metrics, versions
from ..report.record import init_name
from ..runs import checkpoint
from ..runs.assembly import Tensor, watched
from ..runs.callback import CallbackObserver, RunCallback
from ..runs.run import CheckpointParams, Run, RunParams
from ..runs.session import Session


class SideOutputs(NamedTuple):
    """The files that a decomposition writes while it runs; see `cp_als`."""

    checkpoint: str | None = None
    every: int | None = None
    resume: bool = False
    metrics: str | None = None
    report: str | None = None

    def claim(self, outputs: Outputs, rank: int | tuple[int, ...] | None, starts: int, X: Tensor) -> Metrics:
        """Claim the files and return the metrics; a `rank` of None is not known yet. Called on rank 0."""
        self._check_files(X)
        if self.report is not None:
            from ..report import page  # takes a tenth of the time to import amped

            page.check(self.report)
            outputs.file(Path(self.report), True)
        if self.checkpoint is None:
            if self.resume or self.every is not None:
                name, use = ("resume", "to continue from") if self.resume else ("every", "to write to")
                raise InputError(f"{name} needs checkpoint: the folder {use}")
            return self._metrics(None)
        if starts > 1:
            raise InputError(f"starts {starts}: checkpoint keeps the state of one start")
        folder = Path(self.checkpoint)
        checkpoint.claim(folder, outputs, self.resume, False, "resume=True continues from it; or name another folder")
        expected = list(rank) if isinstance(rank, tuple) else rank

        def has_rank(recorded: object) -> bool:
            return expected in (None, recorded)

        return self._metrics(lambda first: checkpoint.is_metrics_of(folder, first, has_rank, None))

    def _check_files(self, X: Tensor) -> None:
        """Raise `InputError` if two of the files, or one of them and the tensor's, are the same."""
        names = {"checkpoint": self.checkpoint, "metrics": self.metrics, "report": self.report}
        files = {name: None if path is None else Path(path) for name, path in names.items()}
        check_apart(files, {"X": Path(X) if isinstance(X, (str, os.PathLike)) else None})

    def _metrics(self, extends: Callable[[dict[str, Any]], bool] | None) -> Metrics:
        return opened_metrics(self.metrics, extends if self.resume else None)

    def params(self, seed: int, init: str | None) -> CheckpointParams | None:
        """Return the checkpoint parameters of a run with this seed or, if `init` is not None, this start."""
        if self.checkpoint is None:
            return None
        return CheckpointParams(Path(self.checkpoint), partial(_check_start, seed, init), self.every, self.resume)


def opened_metrics(path: str | os.PathLike[str] | None, extends: Callable[[dict[str, Any]], bool] | None) -> Metrics:
    """Return the metrics of a call, with a file if there is a path; see `Metrics` for `extends`."""
    return Metrics(None if path is None else Path(path), False, extends, "remove it, or name another file")


NO_SIDE_OUTPUTS = SideOutputs()


def _check_start(seed: int, init: str | None, origin: checkpoint.Origin, path: Path) -> None:
    """Raise `InputError` if the start differs from that of the run that wrote the checkpoint."""
    same = not origin.init and seed == origin.seed if init is None else origin.init in (init, "")
    if not same:
        original, start = _start_text(origin.seed, origin.init), _start_text(seed, init)
        raise InputError(f"its run began with {original}, not {start}: pass the same start, or resume=False", path=path)


def _start_text(seed: int, init: str | None) -> str:
    return f"seed {seed}" if init is None else f"init {init!r}" if init else "matrices as init"


class CallSession(Session):
    """The session of a Python function."""

    def __init__(self, comm: Comm, options: Options, side: SideOutputs) -> None:
        super().__init__(comm, options)
        self._side = side

    def claim(self, rank: int | tuple[int, ...] | None, starts: int, X: Tensor) -> None:
        """Claim the side outputs; `X` may be the name of a file. Collective."""
        side = self._side
        checkpoint.check_hosts(Path(side.checkpoint) if side.checkpoint and side.resume else None, self.comm)
        self.metrics = on_root(self.comm, lambda: side.claim(self.outputs, rank, starts, X)) or Metrics()
        if side.metrics is not None:
            STAGES.collect()  # discard the times of earlier calls

    def decomposed(
        self, method: Decomposition[M], params: RunParams, callback: RunCallback | None, budget: Budget
    ) -> M:
        """Run a method, with a callback after each iteration, and return the model. Collective."""
        checkpoints = self._side.params(params.seed, init_name(params.init))
        watcher = CallbackObserver(callback, self._so_far) if any(self.comm.allgather(callback is not None)) else None
        observers, stop = ([watcher], lambda: watcher.stopped) if watcher else ([], never)
        run = self.begin(method, params._replace(checkpoint=checkpoints), budget, observers, stop)
        run.iterate()
        with STAGES.of("write"):
            model = self._recorded(run, run.final_model())
        run.end(model.run)
        if self.reporter.enabled:
            self.reporter.model(model)
        self._write_report(model)
        return model

    def _so_far(self, run: Run[M]) -> M:
        return self._recorded(run, run.model())

    def _recorded(self, run: Run[M], model: M) -> M:
        """Return a run's model with its record."""
        path = self.source.path
        model.run = run.facts() | ({} if path is None else {"tensor": os.fspath(path)})
        if not run.seeded:
            model.run["seed"] = None
        return model

    def _write_report(self, model: AnyModel) -> None:
        """Write the requested report, on rank 0. A failure is a warning: the model is more important."""
        path = self._side.report
        if path is None:
            return
        from ..report import page

        tensor = page.compared_tensor(self.source, model)
        if self.comm.rank:
            return
        cause = page.failure(model, path, tensor, {"versions": versions()} | model.run)
        if cause is not None:
            warn(f"{cause}; the report is not written")


@contextmanager
def session(
    X: Tensor,
    options: Options,
    deadline: float | None,
    verbose: int,
    side: SideOutputs = NO_SIDE_OUTPUTS,
    rank: int | tuple[int, ...] | None = None,
    starts: int = 1,
    form: ReadOptions = PLAIN,
    prepare: Callable[[Device], object] | None = None,
) -> Iterator[CallSession]:
    """Claim the outputs of a call, connect the devices, and open the tensor. Collective.

    `prepare` starts compiling for a GPU, which compiles while the tensor is read.
    """
    comm = world()
    with closing(CallSession(comm, options, side)) as call:
        call.claim(rank, starts, X)
        with watched(comm, deadline) as aborts:
            logged = comm.bcast(logs.enabled())
            call.bring_up(aborts, not verbose, enabled=bool(verbose) or side.metrics is not None or logged)
            if prepare is not None and not call.machine.device.on_host:
                prepare(call.machine.device)
            call.read(X, form=form)
            yield call
