"""How many components: decompositions into several numbers of them, each from several starts."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.interop import factors_of
from partitioner.tensors.sparse import SparseTensor
from partitioner.validate import whole

from ..backend.exchange import Machine
from ..backend.ops.phi import interleaved
from ..errors import InputError
from ..methods.constraints import ConstraintParams, Constraints
from ..methods.multi_run.als import AlsRuns
from ..methods.multi_run.apr import AprRuns
from ..methods.poisson import Poisson
from ..methods.starts import Decomposition
from ..models.kruskal import KruskalTensor
from ..models.matching import factor_match
from ..models.scanned import ScannedRank, Suggestion, near, suggestion
from ..operators.placement import MAX_DENSE_RANK
from ..operators.sources.protocols import DescribedSource
from ..operators.sparse.tuning import Budget
from ..options import Options
from ..parallel.mpi import together
from ..parallel.stopping import NEVER, NeverStop, Stop
from ..report.console import RunReporter
from ..report.scan_picture import draw
from .assembly import (
    as_counts,
    counts,
    counts_together,
    decomposition,
    decompositions,
    open_tensor,
    widest,
)
from .compression import consistent
from .run import Run, RunParams
from .scan_parts import check_counts, deviance_of, halves_of

LOSSES = "gaussian", "poisson"
MOST_OF_A_CORE = 1 << 20  # numbers of a core whose consistency is told
MOST_HELD = 1 << 30  # bytes of the models of several numbers of components
HALF_STARTS = 3  # of models of halves, at most


def ranks_of(name: str, given: Any) -> tuple[int, ...]:
    """Return numbers of components: of text such as "1-4,6", a number, or a sequence of numbers."""
    parts = given.split(",") if isinstance(given, str) else [given] if isinstance(given, int) else list(given)
    found = list[int]()
    for part in parts:
        first, dash, last = part.strip().partition("-") if isinstance(part, str) else (part, "", "")
        try:
            low, high = int(first), int(last if dash else first)
        except ValueError:
            raise InputError(f"{name} {given!r}: expected numbers such as 1-8 or 2,4,8") from None
        if low > high:
            raise InputError(f"{name} {given!r}: {low} is above {high}")
        found += [whole(name, rank, 1, MAX_DENSE_RANK) for rank in range(low, min(high, MAX_DENSE_RANK + 1) + 1)]
    if not found:
        raise InputError(f"{name} {given!r}: expected at least one number")
    return tuple(dict.fromkeys(found))


class ScanParams(NamedTuple):
    """What is to be tried."""

    ranks: tuple[int, ...]
    starts: int = 5
    seed: int = 0
    loss: str = "gaussian"
    nonnegative: bool = False
    max_iters: int = 200
    tol: float = 1e-6
    halves: bool = True  # whether halves of the tensor are decomposed, too


class Scan(NamedTuple):
    """What was tried, and the number of components that it suggests.

    Attributes
    ----------
    tried : tuple of ScannedRank
        One for each number of components, in the order that was asked for.
    models : tuple of KruskalTensor
        The best model of each.
    suggestion : Suggestion
        `rank`, or None, and the `reason`.
    seconds : dict
        Of the `runs`, of those of `halves`, and of the other `diagnostics`.
    """

    tried: tuple[ScannedRank, ...]
    models: tuple[KruskalTensor, ...]
    suggestion: Suggestion
    seconds: dict[str, float]

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw what each number of components explains, and how stable it is, as ``.png``, ``.svg`` or ``.pdf``.

        Raises
        ------
        InputError
            If Matplotlib is not installed, or the file cannot be written.
        """
        draw(self.tried, self.suggestion, path)


class _Run(NamedTuple):
    """A model from one start."""

    model: KruskalTensor
    explained: float
    iterations: int
    seconds: float


def scanned(
    source: DescribedSource,
    machine: Machine,
    options: Options,
    asked: ScanParams,
    tell: Callable[[ScannedRank], object],
    stop: Stop | NeverStop = NEVER,
) -> Scan:
    """Decompose a tensor as asked; `tell` hears of each number of components. Collective.

    Once `stop`, called between iterations, returns True, what was found so far is told and returned.
    """
    scanner = _Scanner(source, machine, options, asked, stop)
    tried, models = list[ScannedRank](), list[KruskalTensor]()
    for ranks in scanner.batches():
        if scanner.stopped():
            break
        for found, best in scanner.tried(ranks):
            tried.append(found)
            models.append(best.labelled(source.labels))
            tell(found)
    return Scan(tuple(tried), tuple(models), suggestion(tried), scanner.seconds)


class _Part(NamedTuple):
    """A tensor, or a half of it."""

    source: DescribedSource
    explains: Callable[[float], float]  # what part of it a model explains, by the method's merit


Key = tuple[int, int]  # the number of components, and that of a start


class _Scanner:
    """Decomposes one tensor again and again, and its halves if it is asked for them; making one is collective."""

    def __init__(
        self, source: DescribedSource, machine: Machine, options: Options, asked: ScanParams, stop: Stop | NeverStop
    ) -> None:
        self._stop, self._was_stopped = stop, False
        self._machine, self._options, self._asked = machine, options, asked
        self._silent = RunReporter(machine.comm, enabled=False)
        if asked.loss == "poisson":
            source = as_counts(source, machine, options)
        needed = asked.halves or asked.loss == "poisson"
        whole = source.tensor() if needed else None  # read once
        self._whole = self._part(source, whole)
        self._mode = int(np.argmax(source.shape))
        self._halves = self._parts_of(whole) if asked.halves else []
        self.seconds = dict.fromkeys(("runs", "halves", "diagnostics"), 0.0)

    def _part(self, source: DescribedSource, tensor: SparseTensor | DenseTensor | None) -> _Part:
        """Return a part of which rank 0 has the tensor. Collective."""
        source.stay_on_device()
        if self._asked.loss != "poisson":
            return _Part(source, lambda fit: 1 - (1 - fit) ** 2)
        together(self._machine.comm, lambda: check_counts(source))
        dtype = self._options.dtype
        deviance = self._machine.comm.bcast(None if tensor is None else deviance_of(tensor, dtype))
        assert deviance is not None
        return _Part(source, deviance.explained)

    def _parts_of(self, whole: SparseTensor | DenseTensor | None) -> list[_Part]:
        """Return two halves: one has the even indices of the longest mode, the other the odd ones. Collective."""
        halves = None if whole is None else halves_of(whole, self._mode)
        if not self._machine.comm.bcast(halves is not None):
            return []
        found = []
        for number in range(2):
            half = halves[number] if halves else None
            found.append(self._part(open_tensor(half, self._machine, self._options), half))
        return found

    def stopped(self) -> bool:
        """Return whether the scan is to end. Collective."""
        self._was_stopped = self._was_stopped or self._stop()
        return self._was_stopped

    def batches(self) -> list[tuple[int, ...]]:
        """Return the numbers of components to be tried together: all, unless their models are large."""
        asked, rows = self._asked, sum(self._whole.source.shape)
        held = rows * sum(asked.ranks) * asked.starts * self._options.dtype.itemsize
        return [asked.ranks] if held <= MOST_HELD else [(rank,) for rank in asked.ranks]

    def tried(self, ranks: Sequence[int]) -> Iterator[tuple[ScannedRank, KruskalTensor]]:
        """Decompose into these numbers of components; yield what each tells, and its best model."""
        starts = self._asked.starts
        with self._timed("runs"):
            whole = self._runs(self._whole, ranks, starts)
        with self._timed("halves"):
            halves = [self._runs(half, ranks, min(HALF_STARTS, starts)) for half in self._halves]
        for rank in ranks:
            runs = [half.get(rank, []) for half in halves]
            if whole.get(rank):
                with self._timed("diagnostics"):
                    told = self._told(rank, whole[rank], runs if all(runs) else [])
                yield told

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - began

    def _told(
        self, rank: int, runs: Sequence[_Run], halves: Sequence[Sequence[_Run]]
    ) -> tuple[ScannedRank, KruskalTensor]:
        """Return what the runs of a number of components tell, and the best model."""
        began = time.perf_counter()
        explained = tuple(each.explained for each in runs)
        best, again = int(np.argmax(explained)), near(explained)
        others = [factor_match(runs[best].model.factors, runs[k].model.factors) for k in again if k != best]
        match = self._match_of_halves(halves)
        consistency = None if self.stopped() else self._consistency(runs[best].model)
        computing = sum(each.seconds for each in (*runs, *(run for half in halves for run in half)))
        found = ScannedRank(
            rank,
            explained,
            explained[best],
            len(again),
            float(np.mean(others)) if others else None,
            match,
            consistency,
            sum(each.iterations for each in runs),
            computing + time.perf_counter() - began,
        )
        return found, runs[best].model

    def _runs(self, part: _Part, ranks: Sequence[int], starts: int) -> dict[int, list[_Run]]:
        """Return the runs of each number of components, those that have ended before the scan is stopped.

        Those of few components are computed side by side.
        """
        if self.stopped():
            return {}
        small = {(rank, start): rank for rank in self._small(ranks, starts) for start in range(starts)}
        found = self._together(part, small) if len(small) > 1 else {}
        if not found:
            small = {}
        for rank in ranks:
            if (rank, 0) not in small and not self.stopped():
                found |= self._alone(part, rank, starts)
        return {rank: [found[rank, start] for start in range(starts) if (rank, start) in found] for rank in ranks}

    def _small(self, ranks: Sequence[int], starts: int) -> list[int]:
        """Return the numbers of components whose runs gain side by side."""
        if self._asked.loss != "poisson":
            return [rank for rank in ranks if rank <= widest(self._machine.device)]
        how = interleaved(self._machine.device)
        if how is None or self._options.kernel != "auto":
            return []
        models = {rank: how.models(rank, self._options.dtype) for rank in ranks}
        runs = Counter(models[rank] for rank in ranks for _ in range(starts))
        return [rank for rank in ranks if models[rank] > 1 and 2 * runs[models[rank]] >= models[rank]]

    def _together(self, part: _Part, ranks: dict[Key, int]) -> dict[Key, _Run]:
        began = time.perf_counter()
        try:
            several = self._several(part.source, ranks)
        except InputError:  # memory has no room for so many columns; if it is something else, it is told again
            return {}
        placing, found = (time.perf_counter() - began) / len(ranks), dict[Key, _Run]()
        with self._stop.listening():
            for key, method in several.run(ranks, self._params(0).rule, self.stopped):
                found[key] = self._ended(part, method, placing + several.seconds[key])
        return found

    def _several(self, source: DescribedSource, ranks: dict[Key, int]) -> AlsRuns[Key] | AprRuns[Key]:
        """Place a tensor for runs side by side."""
        asked, machine, options = self._asked, self._machine, self._options
        if asked.loss == "poisson":
            return counts_together(source, ranks, machine, options, Poisson(asked.tol), self._seed)
        columns = min(machine.device.together, sum(ranks.values()))
        budget = Budget(asked.max_iters * -(-sum(ranks.values()) // columns))
        return decompositions(source, ranks, columns, machine, options, budget, self._constraints, self._seed)

    def _alone(self, part: _Part, rank: int, starts: int) -> dict[Key, _Run]:
        found, began = dict[Key, _Run](), time.perf_counter()
        method = self._method(part.source, rank)
        for number in range(starts):
            if number:
                method.restart()
            run = Run(method, part.source, self._params(number), self._silent, stop=self.stopped)
            run.begin()
            with self._stop.listening():
                run.iterate()
            if self.stopped():
                break
            found[rank, number] = self._ended(part, method, time.perf_counter() - began)
            began = time.perf_counter()
        return found

    def _ended(self, part: _Part, method: Decomposition[KruskalTensor], seconds: float) -> _Run:
        explained = part.explains(self._machine.comm.bcast(method.merit()))
        return _Run(method.model(), explained, method.state.iterations, seconds)

    def _params(self, start: int) -> RunParams:
        return RunParams(self._asked.max_iters, self._asked.tol, self._asked.seed + start)

    @property
    def _constraints(self) -> Constraints:
        return ConstraintParams(self._asked.nonnegative, 0.0, ()).of(len(self._whole.source.shape))

    def _seed(self, key: Key) -> int:
        return self._params(key[1]).seed

    def _method(self, source: DescribedSource, rank: int) -> Decomposition[KruskalTensor]:
        asked, budget = self._asked, Budget(self._asked.max_iters * self._asked.starts)
        if asked.loss == "poisson":
            return counts(source, rank, self._machine, self._options, Poisson(asked.tol), budget)
        return decomposition(source, rank, self._machine, self._options, budget, self._constraints)

    def _consistency(self, model: KruskalTensor) -> float | None:
        """Return the core consistency; None of a large core, or where columns cannot be independent."""
        rank, order = model.rank, len(model.factors)
        if self._asked.loss == "poisson" or rank**order > MOST_OF_A_CORE or rank > min(model.shape):
            return None
        factors = factors_of(model)
        assert factors is not None
        return consistent(self._whole.source, self._machine, self._options, factors)

    def _match_of_halves(self, halves: Sequence[Sequence[_Run]]) -> float | None:
        """Return how alike the models of halves are in the modes that they share; None without halves."""
        if not halves:
            return None
        shared = list[list[NDArray[Any]]]()
        for runs in halves:
            model = max(runs, key=lambda each: each.explained).model
            shared.append([factor for mode, factor in enumerate(model.factors) if mode != self._mode])
        return factor_match(*shared)
