"""How many components: decompositions into several numbers of them, each from several starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.coo import SparseTensor
from partitioner.dense import DenseTensor
from partitioner.foreign import factors_of
from partitioner.given import whole

from .assembly import AnySource, begin, counts, decomposition, open_tensor, refuse_dense, refuse_negative
from .backend.exchange import Machine
from .compression import consistent
from .decomp.constraints import Wanted
from .decomp.driver import Rule, run
from .decomp.poisson import Poisson
from .decomp.starts import Restartable
from .errors import InputError
from .models.kruskal import KruskalTensor
from .models.matching import factor_match
from .models.scanned import Suggestion, Tried, near, suggested
from .operators.placement import MAX_DENSE_RANK
from .operators.tuning import Budget
from .options import Options

LOSSES = "gaussian", "poisson"
MOST_OF_A_CORE = 1 << 20  # numbers of a core whose consistency is told
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
    tried, models = list[Tried](), list[KruskalTensor]()
    for rank in asked.ranks:
        found, best = scanner.tried(rank)
        tried.append(found)
        models.append(best.labelled(source.labels))
        tell(found)
    return Scan(tuple(tried), tuple(models), suggested(tried))


class _Part(NamedTuple):
    """A tensor, or a half of it."""

    source: AnySource
    explains: Callable[[float], float]  # what part of it a model explains, by the method's merit


class _Scanner:
    """Decomposes one tensor again and again, and its halves if it is asked for them; making one is collective."""

    def __init__(self, source: AnySource, machine: Machine, options: Options, asked: Asked) -> None:
        self._machine, self._options, self._asked = machine, options, asked
        needed = asked.halves or asked.loss == "poisson"
        whole = source.tensor() if needed else None  # read once
        self._whole = self._part(source, whole)
        self._mode = int(np.argmax(source.shape))
        self._halves = self._parts_of(whole) if asked.halves else []

    def _part(self, source: AnySource, tensor: SparseTensor | DenseTensor | None) -> _Part:
        """Return a part of which rank 0 has the tensor. Collective."""
        if self._asked.loss != "poisson":
            return _Part(source, lambda fit: 1 - (1 - fit) ** 2)
        refuse_negative(refuse_dense(source), self._machine.comm)
        bounds = self._machine.comm.bcast(_log_likelihoods(tensor) if isinstance(tensor, SparseTensor) else None)
        assert bounds is not None
        low, high = bounds
        return _Part(source, lambda likelihood: (likelihood - low) / (high - low))

    def _parts_of(self, whole: SparseTensor | DenseTensor | None) -> list[_Part]:
        """Return two halves: one has the even indices of the longest mode, the other the odd ones. Collective."""
        halves = None if whole is None else _halves(whole, self._mode)
        if not self._machine.comm.bcast(halves is not None):
            return []
        found = []
        for number in range(2):
            half = halves[number] if halves else None
            found.append(self._part(open_tensor(half, self._machine, self._options), half))
        return found

    def tried(self, rank: int) -> tuple[Tried, KruskalTensor]:
        """Decompose into so many components; return what that tells, and the best model."""
        began, asked = time.perf_counter(), self._asked
        runs = self._runs(self._whole, rank, asked.starts)
        explained = tuple(each.explained for each in runs)
        best, again = int(np.argmax(explained)), near(explained)
        others = [factor_match(runs[best].model.factors, runs[k].model.factors) for k in again if k != best]
        found = Tried(
            rank,
            explained,
            explained[best],
            len(again),
            float(np.mean(others)) if others else None,
            self._match_of_halves(rank),
            self._consistency(runs[best].model),
            sum(each.iterations for each in runs),
            time.perf_counter() - began,
        )
        return found, runs[best].model

    def _runs(self, part: _Part, rank: int, starts: int) -> list[_Run]:
        asked, found = self._asked, list[_Run]()
        method, rule = self._method(part.source, rank), Rule(asked.max_iters, asked.tol)
        for number in range(starts):
            if number:
                method.restart()
            begin(method, part.source, asked.seed + number)
            run(method, rule)
            explained = part.explains(self._machine.comm.bcast(method.merit()))
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
        factors = factors_of(model)
        assert factors is not None
        return consistent(self._whole.source, self._machine, self._options, factors)

    def _match_of_halves(self, rank: int) -> float | None:
        """Return how alike the models of halves are in the modes that they share; None without halves."""
        if not self._halves:
            return None
        shared = list[list[NDArray[Any]]]()
        for half in self._halves:
            runs = self._runs(half, rank, min(HALF_STARTS, self._asked.starts))
            model = max(runs, key=lambda each: each.explained).model
            shared.append([factor for mode, factor in enumerate(model.factors) if mode != self._mode])
        return factor_match(*shared)


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


def _log_likelihoods(tensor: SparseTensor) -> tuple[float, float]:
    """Return the log-likelihoods of one rate for all elements, which explains nothing, and of the counts themselves."""
    values = tensor.values.astype(np.float64)
    total = values.sum()
    constant = total * np.log(total / np.prod([float(n) for n in tensor.shape])) - total
    return float(constant), float(values @ np.log(values) - total)
