"""Updates of a CP model with new elements, slice after slice, with the factor matrices on the devices in between."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.exchange import Machine
from ..methods.incremental import (
    EM_STEPS,
    FLOOR,
    MTTKRP,
    PHI,
    Incremental,
    IncrementalAls,
    IncrementalCounts,
    RowTotals,
)
from ..models.columns import arrangement, column_norms
from ..models.extension import NewElements
from ..models.kruskal import KruskalTensor
from ..models.slice_weights import SliceWeights
from ..operators.sparse.listed import ListedProducts
from ..options import Options
from ..parallel.mpi import share
from .compiling import SAMPLES, Work, chosen
from .model_rows import ModelRows, Places

Matrix = NDArray[np.float64]

LONG = 2  # rows of a mode per element of an update, from which on only the rows of elements are read and written


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

    The growing mode and other modes with many more rows than an update has elements are in host memory; an update reads
    and writes their current rows. Other modes stay on the device.

    Parameters
    ----------
    model : KruskalTensor, optional
        On rank 0.
    params : UpdateParams
    machine : Machine
    options : Options
    """

    differences = True  # changed elements come with the model's values that they replace

    def __init__(self, model: KruskalTensor | None, params: UpdateParams, machine: Machine, options: Options) -> None:
        self._machine, self._options, self.params, self.comm = machine, options, params, machine.comm
        self.facts: ModelFacts = self.comm.bcast(NO_FACTS if model is None else ModelFacts.of(model))
        self._last = len(self.facts.shape) - 1 if params.mode is None else params.mode
        self.restart(model)

    def restart(self, model: KruskalTensor | None) -> None:
        """Continue from another model, of rank 0."""
        comm = self.comm
        self.shape: tuple[int, ...] = comm.bcast(() if model is None else model.shape)
        factors = [share(comm, None if model is None else model.host_factors[m]) for m in range(len(self.facts.shape))]
        weights = share(comm, None if model is None else model.weights)
        slice_weights = share(comm, None if model is None else _slice_weights(model, self._last))
        self._start = factors, weights, slice_weights
        self._placed = False

    def prepare(self, nnz: int, expected: int) -> None:
        """Place the matrices, unless they are, for about as many updates of `nnz` elements as are expected."""
        if self._placed:
            return
        self._placed = True
        facts, params, others = self.facts, self.params, [m for m in range(len(self.shape)) if m != self._last]
        repeats = expected * ((1 + params.sweeps) * EM_STEPS if facts.counts else 1 + params.sweeps)
        work = Work(facts.rank, repeats, SAMPLES)
        self._machine = chosen(self._machine, _Size(self.shape, nnz), self._options, work)
        fixed = () if facts.counts else facts.nonnegative  # other rows of these modes would not be solved
        long = [m for m in others if m not in fixed and self.shape[m] > LONG * nnz]
        self._whole = [m for m in others if m not in long]
        self._modes = [*self._whole, *long, self._last]  # in the order of `ListedProducts`
        self._load(*self._start)

    def _load(self, factors: list[Floats], weights: Matrix, slice_weights: Matrix) -> None:
        """Place the matrices of all modes, and prepare the method."""
        facts, dtype = self.facts, self._options.dtype
        lengths = [len(factors[m]) if m in self._whole else 0 for m in self._modes]
        formula, lower = (PHI, FLOOR) if facts.counts else (MTTKRP, -np.inf)
        self._products = ListedProducts(
            self._machine, self._options, lengths, len(self._whole), facts.rank, formula, lower
        )
        scale = np.array(weights)
        for mode, m in enumerate(self._whole):
            norms = _not_zero(column_norms(factors[m], facts.norm))
            self._products.set_rows(mode, factors[m] / norms)
            scale *= norms
        self._stores = list[ModelRows]()
        for m in self._modes[len(self._whole) : -1]:
            store = ModelRows(factors[m], dtype, np.ones(len(factors[m])))
            norms = _not_zero(store.norms(facts.norm, m not in facts.nonnegative))
            store.scale(1 / norms)
            scale *= norms
            self._stores.append(store)
        exact = dtype if self.params.mode is None else np.dtype(np.float64)
        self._stores.append(ModelRows(factors[self._last], exact, slice_weights))
        self._stores[-1].scale(scale)
        nonnegative = [self._modes.index(mode) for mode in facts.nonnegative]
        self._method: Incremental = (
            IncrementalCounts(self._products) if facts.counts else IncrementalAls(self._products, nonnegative)
        )

    def add(self, new: NewElements | None) -> None:
        """Update the model with elements, of rank 0; see `prepare`."""
        comm = self.comm
        lengths, places = comm.bcast(((), []) if new is None else (new.lengths, self._current(new)))
        self._lengthen(lengths)
        products, stores, first = self._products, self._stores, len(self._whole)
        known = [each[each < len(store)] for each, store in zip(places, stores, strict=True)]
        self._stores[-1].forget(self.params.forgetting)
        taken = [store.take(each) for store, each in zip(stores, known, strict=True)]
        products.resize([len(each) for each in places])
        for mode, (rows, _) in enumerate(taken, first):
            products.set_rows(mode, rows)
        self._method.load(*(None, None, None) if new is None else (self._local(new, places), new.values, new.replaced))
        others = [RowTotals.none(self.facts.rank)] * first + [each for _, each in taken]
        changes = self._method.run(others, self.params.sweeps)
        for mode in range(first, products.order):
            own, rows = known[mode - first], products.host_rows(mode).astype(np.float64)
            stores[mode - first].replace(own, rows[: len(own)], rows[len(own) :], others[mode], changes[mode])
        self.shape = lengths

    def _current(self, new: NewElements) -> list[Places]:
        """Return the current rows of each mode that is not whole: those of the elements, and new ones. On rank 0."""
        result = []
        for store, m in zip(self._stores, self._modes[len(self._whole) :], strict=True):
            later, column = np.arange(len(store), new.lengths[m]), new.columns[m]
            whole = not column.size or column.min() >= len(store)  # without a search in all elements
            result.append(later if whole else np.union1d(column, later).astype(np.int64))
        return result

    def _local(self, new: NewElements, places: list[Places]) -> list[NDArray[np.int32]]:
        """Return the indices of elements among the current rows, in the order of `ListedProducts`. On rank 0."""
        columns, first = [new.columns[m] for m in self._modes], len(self._whole)
        for mode, each in enumerate(places, first):
            if each.size and each[-1] - each[0] == each.size - 1:
                columns[mode] = columns[mode] - int(each[0])
            else:
                columns[mode] = np.searchsorted(each.astype(np.int32), columns[mode]).astype(np.int32)
        return columns

    def _lengthen(self, lengths: tuple[int, ...]) -> None:
        """Add rows of zeros for new labels in modes that are whole."""
        if all(self.shape[m] == lengths[m] for m in self._whole):
            return
        factors, weights = self._factors(), self._stores[-1].weights
        for m in self._whole:
            more = np.zeros((lengths[m] - len(factors[m]), self.facts.rank), factors[m].dtype)
            factors[m] = np.concatenate([factors[m], more])
        self._load(factors, np.ones(self.facts.rank), weights)

    def _factors(self) -> list[Floats]:
        """Return the factor matrices so far, the last of which includes the weights."""
        return self._times([np.eye(self.facts.rank)] * len(self._modes))

    def _times(self, changes: list[Matrix]) -> list[Floats]:
        """Return each factor matrix times an (R, R) matrix; both are in the order of the model's modes."""
        factors, dtype = list[Floats]([np.empty(0)] * len(self._modes)), self._options.dtype
        for mode, m in enumerate(self._whole):
            factors[m] = (self._products.host_rows(mode).astype(np.float64) @ changes[m]).astype(dtype)
        for store, m in zip(self._stores, self._modes[len(self._whole) :], strict=True):
            factors[m] = store.matrix(changes[m])
        return factors

    def model(self) -> KruskalTensor:
        """Return the model so far, without labels and record; the same on every rank."""
        rank, norms = self.facts.rank, [np.empty(0)] * len(self._modes)
        for mode, m in enumerate(self._whole):
            norms[m] = column_norms(self._products.host_rows(mode), self.facts.norm)
        for store, m in zip(self._stores, self._modes[len(self._whole) :], strict=True):
            norms[m] = store.norms(self.facts.norm, m not in self.facts.nonnegative)
        lengths, order, divisors = arrangement(np.ones(rank), norms, 1.0)
        factors = self._times([np.diag(1 / each)[:, order] for each in divisors])
        factors = [share(self.comm, each).astype(self._options.dtype, copy=False) for each in factors]
        model = KruskalTensor(share(self.comm, lengths), factors)
        weights = self._stores[-1].weights
        if (weights < 1).any():
            model.slice_weights = SliceWeights(self._last, weights.copy())
        return model


def _slice_weights(model: KruskalTensor, mode: int) -> Matrix:
    """Return the weights of the slices of a mode."""
    own = model.slice_weights
    return np.ones(model.shape[mode]) if own is None or own.mode != mode else own.weights


def _not_zero(norms: Matrix) -> Matrix:
    """Return the norms of columns, 1 for columns of zeros."""
    return np.where(norms > 0, norms, 1.0)
