"""Updates of models with other losses, or of observed elements: a fit to new elements and to the model's own values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.known_losses import loss_of
from ..backend.losses import Domain
from ..errors import InputError
from ..models.extension import NewElements
from ..models.kruskal import KruskalTensor
from ..models.pseudo_data import FEWEST, MOST, PER_ELEMENT, WeightedElements, earlier_elements, zeros_of_slices
from ..models.slice_weights import SliceWeights
from ..parallel.mpi import Comm, on_root
from ..runs.updating import UpdateParams
from .cp import cp_als
from .gcp import cp

STEPS = 10  # iterations of L-BFGS per sweep


class RefitUpdates:
    """A model to which elements are added; see `ModelUpdates`, whose methods it has.

    The earlier data are represented by elements with weights: their values are those at which the model has the lowest
    loss, so that their loss is a penalty of changes of the model, a Bregman divergence for exponential families.

    Parameters
    ----------
    model : KruskalTensor, optional
        On rank 0.
    params : UpdateParams
    comm : Comm
    options : dict
        Fields of `amped.Options`.
    """

    differences = False

    def __init__(self, model: KruskalTensor | None, params: UpdateParams, comm: Comm, options: dict[str, Any]) -> None:
        self.params, self.comm, self._options = params, comm, options
        self.restart(model)
        known = None if model is None else (model.known_loss or loss_of(model.loss), model.nonnegative_modes)
        self._loss, self._nonnegative = known or (loss_of("gaussian"), ())
        self._loss, self._nonnegative = comm.bcast((self._loss, self._nonnegative))
        self._observed = comm.bcast(model is not None and model.run.get("mask") is not None)
        self._share = 1.0  # of the earlier elements that are observed
        if model is not None and self._observed:
            observed, shape = model.run.get("nonzeros"), model.run.get("tensor_shape") or model.shape
            self._share = min(1.0, observed / np.prod(shape, dtype=float)) if isinstance(observed, int) else 1.0

    def restart(self, model: KruskalTensor | None) -> None:
        """Continue from another model, of rank 0."""
        self._model = model
        self._count: int = 0 if model is None else model.run.get("updates", 0)

    def prepare(self, nnz: int, expected: int) -> None:
        """See `ModelUpdates`: nothing is prepared."""

    def add(self, new: NewElements | None) -> None:
        """Update the model with elements, of rank 0."""
        comm, mode = self.comm, self.params.mode
        self._rng = np.random.default_rng(self._count)  # draws the same elements if updates are resumed
        self._count += 1
        start, data, weights = on_root(comm, lambda: self._data(new)) or (None, None, None)
        order = comm.bcast(0 if start is None else len(start))
        how: dict[str, Any] = {"nonnegative": self._nonnegative or False, "mask": "stored", "weights": weights}
        rank = comm.bcast(0 if start is None else start[0].shape[1])
        if mode is not None:  # the rows of the new slices first
            others = tuple(m for m in range(order) if m != mode)
            rows = self._fitted(data, rank, start, fixed_modes=others, **how)
            start = _spread(rows)
        fitted = self._fitted(data, rank, start, **how)
        self._keep(fitted, new)

    def model(self) -> KruskalTensor:
        """Return the model so far, without labels and record; the same on every rank."""
        found: KruskalTensor | None = self.comm.bcast(self._model)
        assert found is not None
        copy = KruskalTensor(found.weights.copy(), [factor.copy() for factor in found.host_factors])
        copy.slice_weights = found.slice_weights
        return copy

    def _fitted(self, data: Any, rank: int, start: list[Floats] | None, **how: Any) -> KruskalTensor:
        steps = {"max_iters": self.params.sweeps, "tol": 0.0, "init": start, **self._options, **how}
        if self._loss.name == "gaussian":
            return cp_als(data, rank, **steps)
        # A mean is not an integer: the loss gets another domain, and therefore another name.
        domain = Domain(self._loss.domain.low, self._loss.domain.high)
        loss = dataclasses.replace(self._loss, name=f"means of {self._loss.name}", domain=domain)
        return cp(data, rank, loss=loss, method="lbfgs", **steps | {"max_iters": STEPS * self.params.sweeps})

    def _data(self, new: NewElements | None) -> tuple[list[Floats], Any, Any]:
        """Return the start, the elements and their weights. Called on rank 0."""
        model = self._model
        assert model is not None
        assert new is not None
        current, rng, mode = self._elements(new, model), self._rng, self.params.mode
        count = min(MOST, max(FEWEST, PER_ELEMENT * len(current.values)))
        earlier = earlier_elements(model.weights, model.host_factors, self._loss, count, rng)
        weights = earlier.weights * self._share
        if mode is not None:
            weights = weights * (self.params.forgetting * _slice_weights(model, mode))[earlier.places[mode]]
        joined = earlier._replace(weights=weights).joined(current)
        return (_lengthened(_spread(model), new.lengths), *joined.tensors(new.lengths))

    def _elements(self, new: NewElements, model: KruskalTensor) -> WeightedElements:
        """Return new elements with their weights; unless only some are observed, with the zeros of new slices."""
        places, values = np.stack(new.columns).astype(np.int64), new.values.astype(np.float64)
        if (at := self._loss.domain.outside(values)) is not None:
            raise InputError(f"X: a value is {values[at]:g}: loss {self._loss.name!r} expects {self._loss.domain}")
        given = WeightedElements(places, values, np.ones(len(values)))
        if self._observed or self.params.mode is None or not new.new.size:
            return given
        count = min(MOST, max(FEWEST, PER_ELEMENT * len(values)))
        return zeros_of_slices(new.lengths, self.params.mode, new.new, count, self._rng).joined(given)

    def _keep(self, fitted: KruskalTensor, new: NewElements | None) -> None:
        """Take a fit as the model, on rank 0, with the weights of its slices."""
        if self.comm.rank or new is None:
            return
        before, mode = self._model, self.params.mode
        assert before is not None
        self._model = fitted
        if mode is not None and (self.params.forgetting < 1 or before.slice_weights is not None):
            weights = self.params.forgetting * _slice_weights(before, mode)
            weights = np.append(weights, np.ones(new.lengths[mode] - len(weights)))
            weights[np.unique(new.columns[mode])] = 1.0
            fitted.slice_weights = SliceWeights(mode, weights)


def _slice_weights(model: KruskalTensor, mode: int) -> NDArray[np.float64]:
    own = model.slice_weights
    return np.ones(model.shape[mode]) if own is None else own.weights


def _spread(model: KruskalTensor) -> list[Floats]:
    """Return the factor matrices of a model, multiplied by equal parts of its weights."""
    scale = np.abs(model.weights) ** (1 / len(model.factors))
    factors: list[Floats] = [factor * scale for factor in model.host_factors]
    factors[0] = factors[0] * np.sign(model.weights)
    return factors


def _lengthened(factors: list[Floats], lengths: tuple[int, ...]) -> list[Floats]:
    """Return matrices with more rows, which are the mean of the others."""
    return [
        np.vstack([factor, np.repeat(factor.mean(axis=0, keepdims=True), length - len(factor), axis=0)])
        for factor, length in zip(factors, lengths, strict=True)
    ]
