"""Scans: CP decompositions with several numbers of components, each from several starts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from partitioner.array_types import Floats
from partitioner.tensors.interop import factors_of

from ..backend.device import Device
from ..backend.exchange import Machine
from ..backend.ops.phi import interleaved
from ..errors import InputError
from ..methods.constraints import ConstraintParams, Constraints
from ..methods.driver import held_out_errors
from ..methods.gcp import GENERAL
from ..methods.multi_run.als import AlsRuns
from ..methods.multi_run.apr import AprRuns
from ..methods.starts import Decomposition
from ..models.kruskal import KruskalTensor
from ..models.matching import factor_match
from ..models.scanned import ScannedRank, near, suggestion
from ..operators.sources.protocols import DescribedSource
from ..operators.sparse.tuning import Budget
from ..options import Options
from ..parallel.stopping import NEVER, NeverStop, Stop
from ..report.console import RunReporter
from .assembly import (
    counts,
    decomposition,
    max_shared_rank,
    multi_run_als,
    multi_run_apr,
    prepare_runs,
)
from .compression import consistent, consistent_with_gaps, prepare_consistency
from .gcp import generalised
from .loss_elements import LossRun, LossWork
from .observed_runs import observed_decomposition
from .observing import ObservedSource
from .run import Run, RunParams, agreed
from .scan_result import Scan, ScanParams
from .scan_sources import Part, ScanSources

MAX_CORE_SIZE = 1 << 20  # elements of a core whose consistency is computed
MAX_MODEL_BYTES = 1 << 30  # bytes of models that are computed at once
HALF_STARTS = 3  # maximum number of starts for halves
DRAWS = 5  # draws of held-out elements
DISTURBANCE = 0.2  # relative change of each entry of a start, well above the errors of estimates from useful data


class _Run(NamedTuple):
    """The result of one start."""

    model: KruskalTensor
    explained: float
    iterations: int
    seconds: float


def scanned(
    source: DescribedSource,
    machine: Machine,
    options: Options,
    params: ScanParams,
    report: Callable[[ScannedRank], object],
    stop: Stop | NeverStop = NEVER,
    observed: ObservedSource | None = None,
) -> Scan:
    """Scan numbers of components; call `report` with the figures for each. Collective.

    With `observed`, models are fitted to these elements only, and `source` is the source of `observed`.

    If `stop`, called between iterations, returns True, the scan ends with the results so far.
    """
    scanner = _Scanner(source, machine, options, params, stop, observed)
    tried, models = list[ScannedRank](), list[KruskalTensor]()
    for ranks in scanner.batches():
        if scanner.stopped():
            break
        for figures, best in scanner.results(ranks):
            tried.append(figures)
            models.append(best.labelled(source.labels))
            report(figures)
            if scanner.stopped():
                break
    return Scan(tuple(tried), tuple(models), suggestion(tried), scanner.seconds)


def prepare_scan(device: Device, params: ScanParams, options: Options) -> None:
    """Start compiling code for a GPU that runs at once need besides that of the tensor; return immediately."""
    shared = [rank for rank in params.ranks if rank <= max_shared_rank(device)]
    if params.method == "als" and shared:
        prepare_runs(device, max(shared), options.dtype, params.nonnegative)


Key = tuple[int, int]  # the number of components, and the number of the start


class _Scanner:
    """Decomposes a tensor, and its halves if requested, for several numbers of components. Collective."""

    def __init__(
        self,
        source: DescribedSource,
        machine: Machine,
        options: Options,
        params: ScanParams,
        stop: Stop | NeverStop,
        observed: ObservedSource | None,
    ) -> None:
        self._stop, self._was_stopped = stop, False
        self._options, self._params = options, params
        self._silent = RunReporter(machine.comm, enabled=False)
        self._sources = ScanSources(source, machine, options, params, observed)
        self._machine, self._whole = self._sources.machine, self._sources.whole
        work = "runs", "halves", "diagnostics", *(["holdout"] if params.holdout else [])
        self.seconds = dict.fromkeys(work, 0.0)

    def stopped(self) -> bool:
        """Return whether to end the scan. Collective."""
        self._was_stopped = self._was_stopped or self._stop()
        return self._was_stopped

    def batches(self) -> list[tuple[int, ...]]:
        """Return the numbers of components to compute at once: all, unless their models are large."""
        params, rows = self._params, sum(self._whole.source.shape)
        nbytes = rows * sum(params.ranks) * params.starts * self._options.dtype.itemsize
        return [params.ranks] if nbytes <= MAX_MODEL_BYTES else [(rank,) for rank in params.ranks]

    def results(self, ranks: Sequence[int]) -> Iterator[tuple[ScannedRank, KruskalTensor]]:
        """Decompose with these numbers of components; yield the figures and the best model for each."""
        starts = self._params.starts
        with self._timed("runs"):
            whole = self._runs(self._whole, ranks, starts)
        with self._timed("halves"):
            halves = [self._runs(half, ranks, min(HALF_STARTS, starts)) for half in self._sources.halves]
        draws = self._evaluated(whole) if self._params.holdout else []
        for rank in ranks:
            runs, evaluated = ([each.get(rank, []) for each in parts] for parts in (halves, draws))
            if whole.get(rank):
                with self._timed("diagnostics"):
                    result = self._result(
                        rank, whole[rank], runs if all(runs) else [], evaluated if all(evaluated) else []
                    )
                yield result

    def _evaluated(self, whole: dict[int, list[_Run]]) -> list[dict[int, list[_Run]]]:
        """Return a run for each draw of held-out elements and each number of components, without these elements.

        They start near the best model of all elements, as random starts often end in different local optima.
        """
        with self._timed("holdout"):
            draws = list[dict[int, list[_Run]]]()
            for number in range(DRAWS):
                part = self._sources.without_held_out(number)
                draws.append({rank: self._near_best(part, number, runs) for rank, runs in whole.items() if runs})
            return draws

    def _near_best(self, part: Part, number: int, runs: Sequence[_Run]) -> list[_Run]:
        """Return a run of a part that starts near the best model of `runs`, far enough to forget held-out elements."""
        if self.stopped():
            return []
        model = max(runs, key=lambda run: run.explained).model
        factors, random = factors_of(model), np.random.default_rng(self._params.seed + number)
        assert factors is not None
        start = [factor * random.uniform(1 - DISTURBANCE, 1 + DISTURBANCE, factor.shape) for factor in factors]
        return list(self._single_runs(part, model.rank, [self._run_params(0)._replace(init=start)]).values())

    @contextmanager
    def _timed(self, work: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[work] += time.perf_counter() - began

    def _result(
        self, rank: int, runs: Sequence[_Run], halves: Sequence[Sequence[_Run]], draws: Sequence[Sequence[_Run]]
    ) -> tuple[ScannedRank, KruskalTensor]:
        """Return the figures of the runs of one number of components, and the best model."""
        began = time.perf_counter()
        explained = tuple(each.explained for each in runs)
        best, equals = int(np.argmax(explained)), near(explained)
        matches = [factor_match(runs[best].model.host_factors, runs[k].model.host_factors) for k in equals if k != best]
        match = self._match_of_halves(halves)
        consistency = None if self.stopped() else self._consistency(runs[best].model)
        computing = sum(each.seconds for part in (runs, *halves, *draws) for each in part)
        errors = [-max(each.explained for each in part) for part in draws]
        figures = ScannedRank(
            rank,
            explained,
            explained[best],
            len(equals),
            float(np.mean(matches)) if matches else None,
            match,
            consistency,
            sum(each.iterations for each in runs),
            computing + time.perf_counter() - began,
            float(np.mean(errors)) if errors else None,
            float(np.std(errors, ddof=1) / np.sqrt(len(errors))) if errors else None,
            "RMSE" if self._params.least_squares else "deviance",
        )
        return figures, runs[best].model

    def _runs(self, part: Part, ranks: Sequence[int], starts: int) -> dict[int, list[_Run]]:
        """Return the completed runs for each number of components; those with few components run at once."""
        if self.stopped():
            return {}
        shared = [] if part.observed is not None else self._small(ranks, starts)
        small = {(rank, start): rank for rank in shared for start in range(starts)}
        runs = self._multi_run(part, small) if len(small) > 1 else {}
        if not runs:
            small = {}
        for rank in ranks:
            if (rank, 0) not in small and not self.stopped():
                runs |= self._single_runs(part, rank, [self._run_params(start) for start in range(starts)])
        return {rank: [runs[rank, start] for start in range(starts) if (rank, start) in runs] for rank in ranks}

    def _small(self, ranks: Sequence[int], starts: int) -> list[int]:
        """Return the numbers of components whose runs are faster at once."""
        if self._params.method == "als":
            return [rank for rank in ranks if rank <= max_shared_rank(self._machine.device)]
        if self._params.method != "mu":
            return []
        kernel = interleaved(self._machine.device)
        if kernel is None or self._options.kernel != "auto":
            return []
        models = {rank: kernel.models(rank, self._options.dtype) for rank in ranks}
        runs = Counter(models[rank] for rank in ranks for _ in range(starts))
        return [rank for rank in ranks if models[rank] > 1 and 2 * runs[models[rank]] >= models[rank]]

    def _multi_run(self, part: Part, ranks: dict[Key, int]) -> dict[Key, _Run]:
        """Compute runs at once; empty if memory is too small."""
        began = time.perf_counter()
        try:
            method = self._multi_method(part.source, ranks)
        except InputError:  # too little memory; another error is raised again by the single runs
            return {}
        self._prepare_consistency(ranks.values())
        placing, runs = (time.perf_counter() - began) / len(ranks), dict[Key, _Run]()
        with self._stop.listening():
            for key, run in method.run(ranks, self._run_params(0).rule, self.stopped):
                runs[key] = self._ended(part, run, placing + method.seconds[key])
        return runs

    def _multi_method(self, source: DescribedSource, ranks: dict[Key, int]) -> AlsRuns[Key] | AprRuns[Key]:
        """Place a tensor for several runs at once."""
        params, machine, options = self._params, self._machine, self._options
        if params.poisson:
            return multi_run_apr(source, ranks, machine, options, params.poisson, self._seed)
        columns = min(machine.device.together, sum(ranks.values()))
        budget = Budget(params.rule[0] * -(-sum(ranks.values()) // columns))
        return multi_run_als(source, ranks, columns, machine, options, budget, self._constraints, self._seed)

    def _single_runs(self, part: Part, rank: int, starts: Sequence[RunParams]) -> dict[Key, _Run]:
        """Compute the runs of one number of components one after another."""
        runs, began = dict[Key, _Run](), time.perf_counter()
        method = self._method(part, rank)
        self._prepare_consistency([rank])
        for number, params in enumerate(starts):
            if number:
                method.restart()
            run = Run(method, part.source, params, self._silent, stop=self.stopped)
            run.begin()
            with self._stop.listening():
                run.iterate()
            if self.stopped():
                break
            runs[rank, number] = self._ended(part, method, time.perf_counter() - began)
            began = time.perf_counter()
        return runs

    def _ended(self, part: Part, method: Decomposition[KruskalTensor], seconds: float) -> _Run:
        # Not the best iteration on held-out elements, as the start is not independent of them.
        merit = -held_out_errors(method.state)[-1] if part.held_out else method.merit()
        explained = part.explained(self._machine.comm.bcast(merit))
        model = agreed(method.model(), method.operator.machine)
        if self._params.method in GENERAL:  # the model's scores depend on its loss
            model.run = {"method": method.name, **method.facts}
        return _Run(model, explained, method.state.iterations, seconds)

    def _run_params(self, start: int) -> RunParams:
        return RunParams(*self._params.rule, self._params.seed + start)

    @property
    def _constraints(self) -> Constraints:
        params = self._params
        nonnegative = params.nonnegative or params.loss.nonnegative
        return ConstraintParams(nonnegative, 0.0, ()).of(len(self._whole.source.shape))

    def _seed(self, key: Key) -> int:
        return self._run_params(key[1]).seed

    def _method(self, part: Part, rank: int) -> Decomposition[KruskalTensor]:
        params, machine, options = self._params, self._machine, self._options
        evaluations = params.rule[0] * params.starts
        source, observed, held_out = part.source, part.observed, part.held_out
        if params.method in GENERAL:
            work = LossWork(params.loss, rank, evaluations, method=params.method)
            return generalised(LossRun(source, observed, machine, options, work, self._constraints), held_out)
        if params.poisson and observed is not None:
            work = LossWork.of_counts(params.poisson, rank, evaluations)
            return generalised(LossRun(source, observed, machine, options, work))
        if observed is not None:
            budget = Budget(evaluations)
            return observed_decomposition(
                observed, rank, machine, options, budget, self._constraints, held_out=held_out
            )
        if params.poisson:
            return counts(source, rank, machine, options, params.poisson, Budget(evaluations))
        return decomposition(source, rank, machine, options, Budget(evaluations), self._constraints)

    def _has_consistency(self, rank: int) -> bool:
        """Return whether models have a core consistency: cores are not large, and columns can be independent."""
        shape = self._whole.source.shape
        return self._params.least_squares and rank ** len(shape) <= MAX_CORE_SIZE and rank <= min(shape)

    def _prepare_consistency(self, ranks: Iterable[int]) -> None:
        """Start compiling the code of core consistencies; runs come first, whose code has been requested by then."""
        for rank in filter(self._has_consistency, dict.fromkeys(ranks)):
            prepare_consistency(self._whole.source, self._machine, self._options, rank)

    def _consistency(self, model: KruskalTensor) -> float | None:
        """Return the core consistency, if there is one."""
        if not self._has_consistency(model.rank):
            return None
        factors = factors_of(model)
        assert factors is not None
        if (observed := self._whole.observed) is not None:
            return consistent_with_gaps(observed.source, self._machine, self._options, factors)
        return consistent(self._whole.source, self._machine, self._options, factors)

    def _match_of_halves(self, halves: Sequence[Sequence[_Run]]) -> float | None:
        """Return the factor match between the best models of the halves, in the shared modes; None without halves."""
        if not halves:
            return None
        shared = list[list[Floats]]()
        for runs in halves:
            model = max(runs, key=lambda each: each.explained).model
            shared.append([factor for mode, factor in enumerate(model.host_factors) if mode != self._sources.mode])
        return factor_match(*shared)
