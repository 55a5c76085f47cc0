"""How many components: decompositions into several numbers of them, each from several starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.coo import SparseTensor
from partitioner.dense import DenseTensor

from .assembly import AnySource, begin, counts, decomposition, open_tensor
from .backend.exchange import Machine
from .compression import consistent
from .decomp.constraints import Wanted
from .decomp.driver import Rule, run
from .decomp.poisson import Poisson
from .decomp.starts import Restartable
from .models.kruskal import KruskalTensor
from .models.matching import factor_match
from .models.scanned import Suggestion, Tried, near, suggested
from .operators.tuning import Budget
from .options import Options
from .parallel.mpi import on_root

MOST_OF_A_CORE = 1 << 20  # numbers of a core whose consistency is told
HALF_STARTS = 3  # of models of halves, at most


class Asked(NamedTuple):
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
    tried : tuple of Tried
        One for each number of components, in the order that was asked for.
    models : tuple of KruskalTensor
        The best model of each.
    suggestion : Suggestion
        `rank`, or None, and the `reason`.
    """

    tried: tuple[Tried, ...]
    models: tuple[KruskalTensor, ...]
    suggestion: Suggestion


class _Run(NamedTuple):
    """A model from one start."""

    model: KruskalTensor
    explained: float
    iterations: int


def scanned(
    source: AnySource, machine: Machine, options: Options, asked: Asked, tell: Callable[[Tried], object]
) -> Scan:
    """Decompose a tensor as asked; `tell` hears of each number of components. Collective."""
    scanner = _Scanner(source, machine, options, asked)
    halves = scanner.halves() if asked.halves else []
    tried, models = list[Tried](), list[KruskalTensor]()
    for rank in asked.ranks:
        found, best = scanner.tried(rank, halves)
        tried.append(found)
        models.append(best.labelled(source.labels))
        tell(found)
    return Scan(tuple(tried), tuple(models), suggested(tried))


class _Scanner:
    """Decomposes one tensor again and again."""

    def __init__(self, source: AnySource, machine: Machine, options: Options, asked: Asked) -> None:
        self._source, self._machine, self._options, self._asked = source, machine, options, asked

    def tried(self, rank: int, halves: Sequence[AnySource]) -> tuple[Tried, KruskalTensor]:
        """Decompose into so many components; return what that tells, and the best model."""
        began, asked = time.perf_counter(), self._asked
        runs = self._runs(self._source, rank, asked.starts)
        explained = tuple(each.explained for each in runs)
        best, again = int(np.argmax(explained)), near(explained)
        others = [factor_match(runs[best].model.factors, runs[k].model.factors) for k in again if k != best]
        found = Tried(
            rank,
            explained,
            explained[best],
            len(again),
            float(np.mean(others)) if others else None,
            self._match_of_halves(halves, rank),
            self._consistency(runs[best].model),
            sum(each.iterations for each in runs),
            time.perf_counter() - began,
        )
        return found, runs[best].model

    def _runs(self, source: AnySource, rank: int, starts: int) -> list[_Run]:
        asked, found = self._asked, list[_Run]()
        method, rule = self._method(source, rank), Rule(asked.max_iters, asked.tol)
        unexplained = _deviances(source, self._machine) if asked.loss == "poisson" else None
        for number in range(starts):
            if number:
                method.restart()
            begin(method, source, asked.seed + number)
            run(method, rule)
            merit = self._machine.comm.bcast(method.merit())
            explained = 1 - (1 - merit) ** 2 if unexplained is None else unexplained(merit)
            model = method.model()
            assert isinstance(model, KruskalTensor)
            found.append(_Run(model, explained, method.state.iterations))
        return found

    def _method(self, source: AnySource, rank: int) -> Restartable:
        asked, budget = self._asked, Budget(self._asked.max_iters * self._asked.starts)
        if asked.loss == "poisson":
            return counts(source, rank, self._machine, self._options, Poisson(asked.tol), budget)
        constraints = Wanted(asked.nonnegative, 0.0, ()).of(len(source.shape))
        return decomposition(source, rank, self._machine, self._options, budget, constraints)

    def _consistency(self, model: KruskalTensor) -> float | None:
        """Return the core consistency; None of a large core, or where columns cannot be independent."""
        rank, order = model.rank, len(model.factors)
        if self._asked.loss == "poisson" or rank**order > MOST_OF_A_CORE or rank > min(model.shape):
            return None
        factors = [model.factors[0] * model.weights, *model.factors[1:]]
        return consistent(self._source, self._machine, self._options, factors)

    def halves(self) -> list[AnySource]:
        """Return two tensors: one has the even indices of the longest mode, the other the odd ones."""
        whole, comm = self._source.tensor(), self._machine.comm
        parts = None if whole is None else _halves(whole, int(np.argmax(self._source.shape)))
        if not comm.bcast(parts is not None):
            return []
        return [open_tensor(parts[k] if parts else None, self._machine, self._options) for k in range(2)]

    def _match_of_halves(self, halves: Sequence[AnySource], rank: int) -> float | None:
        """Return how alike the models of halves are in the modes that they share."""
        if not halves:
            return None
        mode, best = int(np.argmax(self._source.shape)), list[list[NDArray[Any]]]()
        for half in halves:
            runs = self._runs(half, rank, min(HALF_STARTS, self._asked.starts))
            model = max(runs, key=lambda each: each.explained).model
            best.append([factor for m, factor in enumerate(model.factors) if m != mode])
        return factor_match(*best)


def _halves(tensor: SparseTensor | DenseTensor, mode: int) -> list[SparseTensor | DenseTensor] | None:
    """Return the halves of a tensor; None if one of them would have nothing."""
    if isinstance(tensor, DenseTensor):
        array = np.moveaxis(tensor.array(), mode, 0)
        parts = [np.moveaxis(array[k::2], 0, mode) for k in range(2)]
        return [DenseTensor(np.ascontiguousarray(part)) for part in parts] if all(map(np.any, parts)) else None
    found, length = list[SparseTensor | DenseTensor](), tensor.shape[mode]
    for k in range(2):
        inside = tensor.columns[mode] % 2 == k
        if not inside.any():
            return None
        columns = tensor.columns[:, inside]
        columns[mode] //= 2
        shape = [(length - k + 1) // 2 if m == mode else n for m, n in enumerate(tensor.shape)]
        found.append(SparseTensor.from_columns(columns, tensor.values[inside], shape))
    return found


def _deviances(source: AnySource, machine: Machine) -> Callable[[float], float]:
    """Return what turns a log-likelihood into the share of the deviance that a model explains. Collective.

    Nothing is explained by one rate for all elements, everything by the counts themselves.
    """

    def bounds() -> tuple[float, float]:
        tensor = source.tensor()
        assert isinstance(tensor, SparseTensor)
        values = tensor.values.astype(np.float64)
        total = values.sum()
        constant = total * np.log(total / np.prod([float(n) for n in tensor.shape])) - total
        return float(constant), float(values @ np.log(values) - total)

    low, high = machine.comm.bcast(on_root(machine.comm, bounds))  # type: ignore[misc]
    return lambda likelihood: (likelihood - low) / (high - low)
