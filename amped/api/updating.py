"""Updates of models with new data: the method `update`, on all ranks under ``mpirun``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from ..errors import InputError
from ..files import Outputs
from ..models.align import observed_or_all, tensor_for
from ..models.evaluation import COVERED
from ..models.extension import Elements, NewElements, new_elements, replacing
from ..models.kruskal import KruskalTensor
from ..options import OptionNames, Options, with_options
from ..parallel.calls import PLAIN, Argument, collective
from ..parallel.mpi import on_root, world
from ..report.metrics import Metrics
from ..runs.assembly import bring_up, watched
from ..runs.update_files import COUNT, UpdateCheckpoints, checksum
from ..runs.updating import ModelUpdates, UpdateParams
from .arguments import ARGUMENTS, argument_options, integer, one_of, optional
from .sessions import opened_metrics
from .updating_refits import RefitUpdates

UPDATE = "update"  # the event of the metrics
STREAMED = 64  # updates of a stream that the choice between compiled code and NumPy expects
NONNEGATIVE = "nonnegative"  # the constraint that updates keep
KEPT = "mask", "formulas", "nonnegative", "method", "norm", "key", "where", "value", "missing"
"""Entries of a model's record that hold for an updated model."""


def _forgetting(name: str, value: object) -> float:
    number = float(value) if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) else np.nan
    if not 0 < number <= 1:
        raise InputError(f"{name} is {value!r}: expected a number above 0 and up to 1, the weight of earlier slices")
    return number


AnyUpdates = ModelUpdates | RefitUpdates

UPDATE_ARGUMENTS = {
    **ARGUMENTS,
    "X": Argument(lambda _, value: value, lambda value: "new data", of_root=True),
    "model": PLAIN._replace(shown=None),
    "mode": optional(integer(0)),
    "elements": one_of("add", "replace"),
    "forgetting": Argument(_forgetting),
    "sweeps": integer(1),
    "step": optional(integer(1)),
    "every": integer(1),
}


class _Query(NamedTuple):
    """How new data is read, and what its elements mean."""

    elements: Elements
    step: int | None
    value: str | None
    where: str | None


@collective(UPDATE_ARGUMENTS, argument_options)
@with_options
def updated(
    model: KruskalTensor | None,
    X: object,
    mode: int | None = None,
    *,
    elements: Elements = "add",
    forgetting: float = 1.0,
    sweeps: int = 2,
    step: int | None = None,
    value: str | None = None,
    where: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 1,
    resume: bool = False,
    deadline: float | None = None,
    metrics: str | os.PathLike[str] | None = None,
    **options: Unpack[OptionNames],
) -> KruskalTensor:
    """See `KruskalTensor.update`. Under ``mpirun`` rank 0's `model` and `X` are used. Collective."""
    comm, query, params = world(), _Query(elements, step, value, where), UpdateParams(mode, sweeps, forgetting)
    with closing(Outputs()) as outputs, watched(comm, deadline) as aborts, ExitStack() as opened:
        on_root(comm, lambda: _check(model, query, params))
        saved = _Saved(None if checkpoint is None else Path(checkpoint), every, resume)
        files = on_root(comm, lambda: saved.files(model, query, params, outputs))
        events = on_root(comm, lambda: opened.enter_context(closing(saved.events(metrics)))) or Metrics()
        chosen_options = Options(**options)
        machine = bring_up(chosen_options, comm)
        aborts.append(machine.exchange.abort)
        refits = comm.bcast(model is not None and (model.loss not in COVERED or _fitted_mask(model) is not None))
        if refits:
            return _Updates(model, query, files, RefitUpdates(model, params, comm, dict(options)), events).run(X)
        return _Updates(model, query, files, ModelUpdates(model, params, machine, chosen_options), events).run(X)


def _check(model: KruskalTensor | None, query: _Query, params: UpdateParams) -> None:
    """Raise `InputError` for a model or parameters with which no update is possible."""
    if model is None:
        raise InputError("no model on rank 0")
    mode, own = params.mode, model.slice_weights
    if mode is not None and mode >= len(model.shape):
        raise InputError(f"mode {mode} is outside 0..{len(model.shape) - 1}")
    if mode is None and (params.forgetting < 1 or query.step is not None):
        raise InputError(
            f"{'forgetting' if params.forgetting < 1 else 'step'} requires mode: the one whose slices grow"
        )
    if own is not None and mode != own.mode:
        cause = f"earlier updates forget slices of mode {own.mode}"
        raise InputError(f"{cause}: update in this mode, or set model.slice_weights = None to weigh all slices equally")
    constraints = model.run.get("constraints") or {}
    if any(each != [NONNEGATIVE] for each in constraints.values()):
        raise InputError("the model has constraints, which updates do not keep: fit it again with init=model")


def _fitted_mask(model: KruskalTensor) -> str | None:
    """Return how the observed elements of a model's fit were chosen; None if all were observed."""
    mask = model.run.get("mask")
    return mask if isinstance(mask, str) else None


def _refuse_sums(new: NewElements, shape: tuple[int, ...]) -> None:
    """Raise `InputError` if there are elements that a model, of a loss without sums, knows already."""
    known = np.all([column < length for column, length in zip(new.columns, shape, strict=True)], axis=0)
    if known.any():
        raise InputError("X has elements of known slices, which this loss cannot add up: pass elements='replace'")


class _Saved(NamedTuple):
    """Where checkpoints are, as requested."""

    folder: Path | None
    every: int
    resume: bool

    def events(self, path: str | os.PathLike[str] | None) -> Metrics:
        """Open the metrics. Called on rank 0."""
        return opened_metrics(path, _is_of_updates if self.resume else None)

    def files(
        self, model: KruskalTensor | None, query: _Query, params: UpdateParams, outputs: Outputs
    ) -> UpdateCheckpoints | None:
        """Reserve the files of checkpoints, if there are any. Called on rank 0."""
        if self.folder is None:
            if self.resume:
                raise InputError("resume needs checkpoint: the folder to continue from")
            return None
        assert model is not None
        return UpdateCheckpoints.claimed(
            self.folder, self.every, self.resume, checksum(model, (query, params)), outputs
        )


def _is_of_updates(first: dict[str, Any]) -> bool:
    """Return whether metrics with this first event may be continued."""
    return first.get("event") == UPDATE


class _Updates:
    """The updates of one call. Its methods are collective.

    Parameters
    ----------
    model : KruskalTensor, optional
        The first model, on rank 0.
    query : _Query
    files : UpdateCheckpoints, optional
        On rank 0.
    updates : AnyUpdates
    metrics : Metrics
        Has a file on rank 0, if one is requested.
    """

    def __init__(
        self,
        model: KruskalTensor | None,
        query: _Query,
        files: UpdateCheckpoints | None,
        updates: AnyUpdates,
        metrics: Metrics,
    ) -> None:
        self._model, self._query, self._files, self._updates, self._metrics = model, query, files, updates, metrics
        self._comm, self._count = updates.comm, 0
        self._labels, self._shape = (None, ()) if model is None else (model.labels, model.shape)
        self._done = 0
        if self._comm.bcast(files is not None and files.saved is not None):
            saved = files.saved if files is not None else None
            self._done = self._comm.bcast(saved.run[COUNT] if saved is not None else 0)
            updates.restart(saved)

    def run(self, X: object) -> KruskalTensor:
        """Update the model with all data."""
        comm = self._comm
        stream = X if isinstance(X, Iterator) else iter([X])
        several = comm.bcast(isinstance(X, Iterator) or self._query.step is not None)
        while comm.bcast((batches := on_root(comm, lambda: self._next(stream))) is not None):
            while comm.bcast((batch := on_root(comm, lambda: next(batches or iter(()), None))) is not None):
                self._add(batch, several)
        if not self._count:
            raise InputError("X has no data: the iterator is empty")
        model = self._labelled()
        if self._files is not None:
            self._files.write(model, self._count)
        return model

    def _next(self, stream: Iterator[Any]) -> Iterator[NewElements] | None:
        """Return the next data, in batches; None after the last one. Called on rank 0."""
        query, mode = self._query, self._updates.params.mode
        for each in stream:
            if each is None:
                raise InputError("X is None on rank 0: expected new data")
            fitted = None if self._model is None else _fitted_mask(self._model)
            keeps = query.elements == "replace" or fitted is not None
            tensor = tensor_for(each, self._labels, query.value, query.where, keeps)
            if fitted is not None:
                tensor = observed_or_all(tensor, None, fitted)[0]
            new = new_elements(tensor, self._shape, self._labels, mode, query.elements)
            if query.elements == "add" and fitted is None and not self._updates.differences:
                _refuse_sums(new, self._shape)
            if query.step is None or mode is None:
                return iter([new])
            return new.batches(mode, query.step, self._shape[mode])
        return None

    def _add(self, batch: NewElements | None, several: bool) -> None:
        """Update the model with a batch, unless a checkpoint includes it."""
        self._count += 1
        nnz = self._comm.bcast(0 if batch is None else len(batch.values))
        self._updates.prepare(nnz, STREAMED if several else 1)
        if self._count > self._done:
            began = time.perf_counter()
            if self._query.elements == "replace" and self._updates.differences:
                model = self._updates.model()
                batch = on_root(self._comm, lambda: None if batch is None else replacing(batch, model))
            self._updates.add(batch)
            self._metrics.event(UPDATE, update=self._count, nonzeros=nnz, seconds=time.perf_counter() - began)
            if self._comm.bcast(self._files is not None and self._count % self._files.every == 0):
                model = self._labelled(batch)
                if self._files is not None:
                    self._files.write(model, self._count)
        if batch is not None:
            self._labels, self._shape = batch.labels, batch.lengths

    def _labelled(self, batch: NewElements | None = None) -> KruskalTensor:
        """Return the model so far with its labels and record, on every rank."""
        model, first = self._updates.model(), self._model
        labels = self._labels if batch is None else batch.labels
        record = {} if first is None else {name: first.run[name] for name in KEPT if name in first.run}
        if first is not None:
            record |= {"loss": first.loss, "updates": first.run.get("updates", 0) + self._count}
        labels, model.run = self._comm.bcast((labels, record))
        return model.labelled(labels)
