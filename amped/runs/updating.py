"""Updates of a CP model with new elements, slice after slice, with the factor matrices on the devices in between."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.exchange import Machine
from ..methods.incremental import EM_STEPS, FLOOR, MTTKRP, PHI, Incremental, IncrementalAls, IncrementalCounts
from ..models.extension import NewElements
from ..models.kruskal import KruskalTensor
from ..models.slice_weights import SliceWeights
from ..operators.sparse.listed import ListedProducts
from ..options import Options
from ..parallel.mpi import share
from .compiling import SAMPLES, Work, chosen
from .slice_rows import SliceRows

Matrix = NDArray[np.float64]


class UpdateParams(NamedTuple):
    """The parameters of updates; see `KruskalTensor.update`."""

    mode: int | None
    sweeps: int
    forgetting: float


class ModelFacts(NamedTuple):
    """What an update must know about a model on all ranks."""

    shape: tuple[int, ...]
    rank: int
    counts: bool  # whether its loss is that of counts
    nonnegative: tuple[int, ...]

    @classmethod
    def of(cls, model: KruskalTensor) -> ModelFacts:
        """Return the facts of a model."""
        return cls(model.shape, model.rank, model.loss == "poisson", model.nonnegative_modes)

    @property
    def norm(self) -> int:
        """The norm of the columns that is 1."""
        return 1 if self.nonnegative else 2


NO_FACTS = ModelFacts((), 0, False, ())


class _Size(NamedTuple):
    """The size of an update; see `TensorSize`."""

    shape: tuple[int, ...]
    nnz: int


class ModelUpdates:
    """A model on all ranks, to which elements are added. Its methods are collective.

    Parameters
    ----------
    model : KruskalTensor, optional
        On rank 0.
    params : UpdateParams
    machine : Machine
    options : Options
    """

    differences = True  # changed elements are differences from the model's values

    def __init__(self, model: KruskalTensor | None, params: UpdateParams, machine: Machine, options: Options) -> None:
        self._machine, self._options, self.params, self.comm = machine, options, params, machine.comm
        self.facts: ModelFacts = self.comm.bcast(NO_FACTS if model is None else ModelFacts.of(model))
        order = len(self.facts.shape)
        self._last = order - 1 if params.mode is None else params.mode
        self._modes = [*(m for m in range(order) if m != self._last), self._last]  # in the order of `ListedProducts`
        self._placed = False
        self.restart(model)

    def restart(self, model: KruskalTensor | None) -> None:
        """Continue from another model, of rank 0."""
        comm = self.comm
        self.shape: tuple[int, ...] = comm.bcast(() if model is None else model.shape)
        factors = [share(comm, None if model is None else model.host_factors[m]) for m in self._modes]
        weights = share(comm, None if model is None else model.weights)
        slice_weights = share(comm, None if model is None else _slice_weights(model, self._last))
        self._start = factors, weights, slice_weights
        self._placed = False

    def prepare(self, nnz: int, expected: int) -> None:
        """Place the matrices, unless they are, for about as many updates of `nnz` elements as are expected."""
        if self._placed:
            return
        self._placed = True
        facts, params = self.facts, self.params
        size = _Size(self.shape, nnz)
        repeats = expected * ((1 + params.sweeps) * EM_STEPS if facts.counts else 1 + params.sweeps)
        self._machine = chosen(self._machine, size, self._options, Work(facts.rank, repeats, SAMPLES))
        self._load(*self._start)

    def _load(self, factors: list[Floats], weights: Matrix, slice_weights: Matrix) -> None:
        """Place matrices, in the order of `self._modes`, and prepare the method."""
        facts = self.facts
        wide = [factor.astype(np.float64) for factor in factors]
        norms = [_norms(factor, facts.norm) for factor in wide[:-1]]
        rows = wide[-1] * (weights * np.prod(norms, axis=0))
        self._slices = SliceRows(rows, np.array(slice_weights))
        formula, lower = (PHI, FLOOR) if facts.counts else (MTTKRP, -np.inf)
        lengths = [*(len(each) for each in wide[:-1]), 1]
        self._products = ListedProducts(self._machine, self._options, lengths, facts.rank, formula, lower)
        for mode, (factor, norm) in enumerate(zip(wide[:-1], norms, strict=True)):
            self._products.set_rows(mode, factor / norm)
        nonnegative = [self._modes.index(mode) for mode in facts.nonnegative]
        self._method: Incremental = (
            IncrementalCounts(self._products) if facts.counts else IncrementalAls(self._products, nonnegative)
        )

    def add(self, new: NewElements | None) -> None:
        """Update the model with elements, of rank 0; see `prepare`."""
        comm, last = self.comm, self._last
        some = None if new is None else (new.lengths, self._current(new))
        lengths, places = comm.bcast(some or ((), np.arange(0)))
        self._lengthen(lengths)
        known, count = places[places < len(self._slices)], lengths[last] - len(self._slices)
        rows, earlier = self._slices.take(known)
        self._slices.forget(self.params.forgetting)
        earlier = earlier._replace(**{n: self.params.forgetting * v for n, v in earlier._asdict().items()})
        products, rank = self._products, self.facts.rank
        products.resize_last(len(known) + count)
        products.set_rows(products.order - 1, np.vstack([rows, np.zeros((count, rank))]))
        if new is None:
            products.load(None, None)
        else:
            columns = new.columns[self._modes]
            if len(known):
                columns[-1] = np.searchsorted(places, columns[-1])
            else:
                columns[-1] -= len(self._slices)
            products.load(columns, new.values)
        change = self._method.run(earlier, self.params.sweeps)
        current = products.host_rows(products.order - 1).astype(np.float64)
        self._slices.replace(known, current[: len(known)], current[len(known) :], earlier, change)
        self.shape = lengths

    def _current(self, new: NewElements) -> NDArray[np.int64]:
        """Return the slices of the last mode that an update changes in addition to the other matrices."""
        known, length, column = len(self._slices), new.lengths[self._last], new.columns[self._last]
        if self.params.mode is None:
            return np.arange(length)
        later = np.arange(known, length)
        if not column.size or column.min() >= known:
            return later  # without a search in all elements
        return np.union1d(column, later).astype(np.int64)

    def _lengthen(self, lengths: tuple[int, ...]) -> None:
        """Add rows of zeros for new labels in other modes than the growing one."""
        others = self._modes[:-1]
        if all(self.shape[m] == lengths[m] for m in others):
            return
        rows, weights = self._slices.settle()
        factors = [self._products.host_rows(mode) for mode in range(len(others))]
        longer = [
            np.vstack([factor, np.zeros((lengths[m] - len(factor), self.facts.rank), factor.dtype)])
            for m, factor in zip(others, factors, strict=True)
        ]
        self._load([*longer, rows], np.ones(self.facts.rank), weights)

    def model(self) -> KruskalTensor:
        """Return the model so far, without labels and record; the same on every rank."""
        rows, weights = self._slices.settle()
        order, dtype = len(self._modes), self._options.dtype
        factors = list[Floats]([np.empty(0)] * order)
        for mode, m in enumerate(self._modes[:-1]):
            factors[m] = share(self.comm, self._products.host_rows(mode))
        factors[self._last] = share(self.comm, rows).astype(dtype)
        model = KruskalTensor(np.ones(self.facts.rank), factors).arrange(norm=self.facts.norm)
        if not self.facts.nonnegative:
            model.signed()
        if (weights < 1).any():
            model.slice_weights = SliceWeights(self._last, weights)
        return model


def _slice_weights(model: KruskalTensor, mode: int) -> Matrix:
    """Return the weights of the slices of a mode."""
    own = model.slice_weights
    return np.ones(model.shape[mode]) if own is None or own.mode != mode else own.weights


def _norms(factor: Matrix, norm: int) -> Matrix:
    """Return the norms of columns, 1 for columns of zeros."""
    norms = np.linalg.norm(factor, axis=0) if norm == 2 else np.abs(factor).sum(axis=0)
    return np.where(norms > 0, norms, 1.0)
