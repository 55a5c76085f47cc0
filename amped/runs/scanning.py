"""Scans: CP decompositions with several numbers of components, each from several starts."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from ..methods.driver import HOLDOUT
from ..methods.held_out import HeldOut
from ..methods.multi_run.als import AlsRuns
from ..methods.multi_run.apr import AprRuns
from ..methods.poisson import Poisson
from ..methods.starts import Decomposition
from ..models.dataframe import dataframe
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
from ..report.notebook import scan_columns, scan_html
from ..report.scan_picture import draw
from .assembly import (
    as_counts,
    counts,
    decomposition,
    device_memory,
    max_shared_rank,
    multi_run_als,
    multi_run_apr,
    open_tensor,
)
from .compiling import Work, chosen
from .compression import consistent, consistent_with_gaps
from .holding_out import HoldoutParams, hold_out
from .observed_runs import observed_decomposition
from .observing import ObservedSource
from .run import Run, RunParams
from .scan_parts import check_counts, deviance_of, halves_of

LOSSES = "gaussian", "poisson"
MAX_CORE_SIZE = 1 << 20  # elements of a core whose consistency is computed
MAX_MODEL_BYTES = 1 << 30  # bytes of models that are computed at once
HALF_STARTS = 3  # maximum number of starts for halves
DRAWS = 5  # draws of held-out elements
DISTURBANCE = 0.2  # relative change of each entry of a start, well above the errors of estimates from useful data


def ranks_of(name: str, value: str | int | Iterable[Any]) -> tuple[int, ...]:
    """Return numbers of components from text such as "1-4,6", a number, or a sequence of numbers."""
    parts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else list(value)
    ranks = list[int]()
    for part in parts:
        first, dash, last = part.strip().partition("-") if isinstance(part, str) else (part, "", "")
        try:
            low, high = int(first), int(last if dash else first)
        except ValueError:
            raise InputError(f"{name} {value!r}: expected numbers such as 1-8 or 2,4,8") from None
        if low > high:
            raise InputError(f"{name} {value!r}: {low} is above {high}")
        ranks += [whole(name, rank, 1, MAX_DENSE_RANK) for rank in range(low, min(high, MAX_DENSE_RANK + 1) + 1)]
    if not ranks:
        raise InputError(f"{name} {value!r}: expected at least one number")
    return tuple(dict.fromkeys(ranks))


class ScanParams(NamedTuple):
    """The parameters of a scan; see `amped.scan`."""

    ranks: tuple[int, ...]
    starts: int = 5
    seed: int = 0
    loss: str = "gaussian"
    nonnegative: bool = False
    max_iters: int = 200
    tol: float = 1e-6
    halves: bool = True  # whether to compare halves of the tensor
    split: int | None = None  # the mode whose even and odd indices are the halves; by default the longest
    holdout: float | None = None  # fraction of the observed elements that are held out


class Scan(NamedTuple):
    """The result of a scan: the figures for each number of components, and the suggested number.

    Attributes
    ----------
    tried : tuple of ScannedRank
        One for each number of components, in the requested order.
    models : tuple of KruskalTensor
        The best model for each number of components.
    suggestion : Suggestion
        The suggested `rank`, or None, and the `reason`.
    seconds : dict
        Seconds by kind of work: `runs`, `halves`, `diagnostics` and, if elements were held out, `holdout`.

    Examples
    --------
    >>> found = amped.scan(np.random.default_rng(0).random((4, 4, 4)), "1-2", starts=2, max_iters=20)
    >>> found.to_frame()["rank"].tolist(), len(found.plot(panels=["explained"]).axes)
    ([1, 2], 1)
    """

    tried: tuple[ScannedRank, ...]
    models: tuple[KruskalTensor, ...]
    suggestion: Suggestion
    seconds: dict[str, float]

    def to_frame(self) -> Any:
        """Return the figures as a pandas DataFrame: one row for each number of components.

        Returns
        -------
        pandas.DataFrame
            ``rank``, ``explained`` by the best start, ``reached`` and ``starts``, ``match``, ``halves``,
            ``consistency``, ``holdout`` and ``holdout_error`` if elements were held out, ``iterations``, ``seconds``
            and ``suggested``; see ``tried``.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        return dataframe(scan_columns(self.tried, self.suggestion))

    def _repr_html_(self) -> str:
        return scan_html(self.tried, self.suggestion)

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        panels: Sequence[str] | None = None,
        ax: Any = None,
    ) -> Any:
        """Draw how much each number of components explains, and how stable it is.

        Parameters
        ----------
        path : path, optional
            ``.png``, ``.svg`` or ``.pdf``. Notebooks display the returned figure.
        panels : sequence of {"explained", "match", "consistency", "holdout"}, optional
            The panels, from top to bottom: R squared or explained deviance of each start; the match of the components
            between starts and between halves; the core consistency; the RMSE of held-out elements. By default all that
            were computed.
        ax : Axes or sequence of Axes, optional
            Where to draw, one per panel.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which notebooks display.

        Raises
        ------
        InputError
            If an argument is invalid, Matplotlib is not installed, or the file cannot be written.
        """
        return draw(self.tried, self.suggestion, path, panels, ax)


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


class _Part(NamedTuple):
    """The whole tensor or a part of it."""

    source: DescribedSource
    explained: Callable[[float], float]  # from the method's merit: the share that a model explains
    observed: ObservedSource | None = None
    held_out: HeldOut | None = None  # with it the merit, and `explained`, is the negative RMSE on these elements


def _mode_to_split(shape: Sequence[int], params: ScanParams) -> int:
    """Return the mode whose even and odd indices are the halves."""
    if params.split is None:
        return int(np.argmax(shape))
    if params.split >= len(shape):
        raise InputError(f"split: mode {params.split} is outside 0..{len(shape) - 1}")
    if shape[params.split] < 2:
        raise InputError(f"split: mode {params.split} has only one index")
    return params.split


Key = tuple[int, int]  # the number of components, and the number of the start


def _work(params: ScanParams) -> Work:
    """Return the work of all runs of CP-APR on the whole tensor, at most, as repetitions of the largest one."""
    most, inner = max(params.ranks), Poisson().inner_iters
    return Work(most, params.max_iters * inner * params.starts * sum(params.ranks) // most, "phi")


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
        self._machine, self._options, self._params = machine, options, params
        self._silent = RunReporter(machine.comm, enabled=False)
        self._mode = together(machine.comm, lambda: _mode_to_split(source.shape, params))
        if params.loss == "poisson":
            if observed is not None:
                raise InputError("loss 'poisson': mask and holdout need loss 'gaussian'")
            source = as_counts(source, machine, options)
            self._machine = chosen(machine, source, options, _work(params))
        is_needed = params.halves or params.loss == "poisson"
        whole = source.tensor() if is_needed else None  # read only once
        self._whole = self._part(source, whole, observed)
        self._halves = self._parts_of(whole) if params.halves else []
        work = "runs", "halves", "diagnostics", *(["holdout"] if params.holdout else [])
        self.seconds = dict.fromkeys(work, 0.0)

    def _part(
        self,
        source: DescribedSource,
        tensor: SparseTensor | DenseTensor | None,
        observed: ObservedSource | None = None,
    ) -> _Part:
        """Return a part, whose tensor is on rank 0 if it is needed. Collective."""
        source.stay_on_device()
        if observed is not None:
            squares = source.norm**2 or 1.0
            return _Part(source, lambda merit: 1 + merit / squares, observed)
        if self._params.loss != "poisson":
            return _Part(source, lambda fit: 1 - (1 - fit) ** 2)
        together(self._machine.comm, lambda: check_counts(source))
        dtype = self._options.dtype
        deviance = self._machine.comm.bcast(None if tensor is None else deviance_of(tensor, dtype))
        assert deviance is not None
        return _Part(source, deviance.explained)

    def _parts_of(self, whole: SparseTensor | DenseTensor | None) -> list[_Part]:
        """Return the halves with the even and the odd indices of the longest mode; none if one is zero. Collective."""
        halves = None if whole is None else halves_of(whole, self._mode)
        if not self._machine.comm.bcast(halves is not None):
            return []
        parts = []
        for number in range(2):
            half = halves[number] if halves else None
            source = open_tensor(half, self._machine, self._options)
            observed = None
            if (whole_observed := self._whole.observed) is not None:
                elements = source.sparse(None)
                terms = whole_observed.terms._replace(total=float(elements.nnz))
                source, observed = elements, ObservedSource(elements, elements, terms)
            parts.append(self._part(source, half, observed))
        return parts

    def _draw(self, number: int) -> _Part:
        """Return the tensor without a draw of held-out elements. Collective."""
        observed, holdout = self._whole.observed, self._params.holdout
        assert observed is not None
        params = HoldoutParams(holdout, self._params.seed + number)
        memory = device_memory(self._machine, self._options)
        split = hold_out(observed, params, self._machine.comm, memory)
        return _Part(split.fitted.source, lambda merit: merit, split.fitted, split.held_out)

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
            halves = [self._runs(half, ranks, min(HALF_STARTS, starts)) for half in self._halves]
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
                part = self._draw(number)
                draws.append({rank: self._near_best(part, number, runs) for rank, runs in whole.items() if runs})
            return draws

    def _near_best(self, part: _Part, number: int, runs: Sequence[_Run]) -> list[_Run]:
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
        matches = [factor_match(runs[best].model.factors, runs[k].model.factors) for k in equals if k != best]
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
        )
        return figures, runs[best].model

    def _runs(self, part: _Part, ranks: Sequence[int], starts: int) -> dict[int, list[_Run]]:
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
        if self._params.loss != "poisson":
            return [rank for rank in ranks if rank <= max_shared_rank(self._machine.device)]
        kernel = interleaved(self._machine.device)
        if kernel is None or self._options.kernel != "auto":
            return []
        models = {rank: kernel.models(rank, self._options.dtype) for rank in ranks}
        runs = Counter(models[rank] for rank in ranks for _ in range(starts))
        return [rank for rank in ranks if models[rank] > 1 and 2 * runs[models[rank]] >= models[rank]]

    def _multi_run(self, part: _Part, ranks: dict[Key, int]) -> dict[Key, _Run]:
        """Compute runs at once; empty if memory is too small."""
        began = time.perf_counter()
        try:
            method = self._multi_method(part.source, ranks)
        except InputError:  # too little memory; another error is raised again by the single runs
            return {}
        placing, runs = (time.perf_counter() - began) / len(ranks), dict[Key, _Run]()
        with self._stop.listening():
            for key, run in method.run(ranks, self._run_params(0).rule, self.stopped):
                runs[key] = self._ended(part, run, placing + method.seconds[key])
        return runs

    def _multi_method(self, source: DescribedSource, ranks: dict[Key, int]) -> AlsRuns[Key] | AprRuns[Key]:
        """Place a tensor for several runs at once."""
        params, machine, options = self._params, self._machine, self._options
        if params.loss == "poisson":
            return multi_run_apr(source, ranks, machine, options, Poisson(params.tol), self._seed)
        columns = min(machine.device.together, sum(ranks.values()))
        budget = Budget(params.max_iters * -(-sum(ranks.values()) // columns))
        return multi_run_als(source, ranks, columns, machine, options, budget, self._constraints, self._seed)

    def _single_runs(self, part: _Part, rank: int, starts: Sequence[RunParams]) -> dict[Key, _Run]:
        """Compute the runs of one number of components one after another."""
        runs, began = dict[Key, _Run](), time.perf_counter()
        method = self._method(part, rank)
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

    def _ended(self, part: _Part, method: Decomposition[KruskalTensor], seconds: float) -> _Run:
        # Not the best iteration on held-out elements, as the start is not independent of them.
        merit = -method.state.series[HOLDOUT][-1] if part.held_out else method.merit()
        explained = part.explained(self._machine.comm.bcast(merit))
        return _Run(method.model(), explained, method.state.iterations, seconds)

    def _run_params(self, start: int) -> RunParams:
        return RunParams(self._params.max_iters, self._params.tol, self._params.seed + start)

    @property
    def _constraints(self) -> Constraints:
        return ConstraintParams(self._params.nonnegative, 0.0, ()).of(len(self._whole.source.shape))

    def _seed(self, key: Key) -> int:
        return self._run_params(key[1]).seed

    def _method(self, part: _Part, rank: int) -> Decomposition[KruskalTensor]:
        params, budget = self._params, Budget(self._params.max_iters * self._params.starts)
        source, observed = part.source, part.observed
        if observed is not None:
            constraints, held_out = self._constraints, part.held_out
            return observed_decomposition(observed, rank, self._machine, self._options, constraints, held_out=held_out)
        if params.loss == "poisson":
            return counts(source, rank, self._machine, self._options, Poisson(params.tol), budget)
        return decomposition(source, rank, self._machine, self._options, budget, self._constraints)

    def _consistency(self, model: KruskalTensor) -> float | None:
        """Return the core consistency; None for a large core, or if columns cannot be linearly independent."""
        rank, order = model.rank, len(model.factors)
        if self._params.loss == "poisson" or rank**order > MAX_CORE_SIZE or rank > min(model.shape):
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
        shared = list[list[NDArray[Any]]]()
        for runs in halves:
            model = max(runs, key=lambda each: each.explained).model
            shared.append([factor for mode, factor in enumerate(model.factors) if mode != self._mode])
        return factor_match(*shared)
