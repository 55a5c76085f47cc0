"""The tensors that a scan decomposes: the whole tensor, its halves, and the tensor without held-out elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from partitioner.tensors.interop import AnyTensor
from partitioner.tensors.labels import Labels, mode_names, mode_number
from partitioner.wording import parameter

from ..backend.exchange import Machine
from ..errors import InputError
from ..methods.held_out import HeldOut
from ..models.deviance import deviance_range
from ..operators.sources.protocols import DescribedSource
from ..options import Options
from ..parallel.mpi import together
from .assembly import as_counts, device_memory, open_tensor
from .compiling import Work, chosen
from .gcp import check_domain
from .holding_out import HoldoutParams, hold_out
from .observing import ObservedSource
from .scan_parts import check_counts, deviance_of, halves_of
from .scan_result import ScanParams


class Part(NamedTuple):
    """The whole tensor or a part of it."""

    source: DescribedSource
    explained: Callable[[float], float]  # from the method's merit: the share that a model explains
    observed: ObservedSource | None = None
    held_out: HeldOut | None = None  # with it the merit, and `explained`, is the negative error on these elements


class ScanSources:
    """The whole tensor, its halves if requested, and draws of held-out elements. Collective.

    Attributes
    ----------
    machine : Machine
        The machine of all runs.
    mode : int
        The mode whose even and odd indices are the halves.
    whole : Part
    halves : list of Part
        Empty if halves are not requested or one of them is zero.
    """

    def __init__(
        self,
        source: DescribedSource,
        machine: Machine,
        options: Options,
        params: ScanParams,
        observed: ObservedSource | None,
    ) -> None:
        self.machine, self._options, self._params = machine, options, params
        self.mode = together(machine.comm, lambda: _mode_to_split(source.shape, source.labels, params.split))
        if params.poisson and observed is None:
            source = as_counts(source, machine, options)
            self.machine = chosen(machine, source, options, _work(params))
        is_needed = params.halves or not params.least_squares
        whole = source.tensor() if is_needed else None  # read only once
        self.whole = self._part(source, whole, observed)
        self.halves = self._parts_of(whole) if params.halves else []

    def _part(self, source: DescribedSource, tensor: AnyTensor | None, observed: ObservedSource | None = None) -> Part:
        """Return a part, whose tensor is on rank 0 if it is needed. Collective."""
        source.stay_on_device()
        if not self._params.least_squares:
            return Part(source, self._deviance(source, tensor, observed), observed)
        if observed is not None or self._params.method != "als":
            squares = source.norm**2 or 1.0
            return Part(source, lambda merit: 1 + merit / squares, observed)
        return Part(source, lambda fit: 1 - (1 - fit) ** 2)

    def _deviance(
        self, source: DescribedSource, tensor: AnyTensor | None, observed: ObservedSource | None
    ) -> Callable[[float], float]:
        """Return the function from a method's merit to the share of the deviance that it explains. Collective."""
        comm, loss, dtype = self.machine.comm, self._params.loss, self._options.dtype
        if self._params.poisson and observed is None:
            together(comm, lambda: check_counts(source))
            counts = comm.bcast(None if tensor is None else deviance_of(tensor, dtype))
            assert counts is not None
            return counts.explained
        absent = math.prod(map(float, source.shape)) - source.nnz if observed is None else 0.0
        check_domain(source, loss, absent > 0, comm)
        bounds = comm.bcast(None if tensor is None else deviance_range(loss, tensor, absent))
        assert bounds is not None
        return lambda merit: bounds.explained(-merit)

    def _parts_of(self, whole: AnyTensor | None) -> list[Part]:
        """Return the halves with the even and the odd indices of the mode; none if one is zero. Collective."""
        halves = None if whole is None else halves_of(whole, self.mode)
        if not self.machine.comm.bcast(halves is not None):
            return []
        parts = []
        for number in range(2):
            half = halves[number] if halves else None
            source = open_tensor(half, self.machine, self._options)
            observed = None
            if (whole_observed := self.whole.observed) is not None:
                elements = source.sparse(None)
                terms = whole_observed.terms._replace(total=float(elements.nnz))
                source, observed = elements, ObservedSource(elements, elements, terms)
            parts.append(self._part(source, half, observed))
        return parts

    def without_held_out(self, number: int) -> Part:
        """Return the tensor without one draw of held-out elements. Collective."""
        observed, holdout = self.whole.observed, self._params.holdout
        assert observed is not None
        params = HoldoutParams(holdout, self._params.seed + number)
        memory = device_memory(self.machine, self._options)
        split = hold_out(observed, params, self.machine.comm, memory)
        return Part(split.fitted.source, lambda merit: merit, split.fitted, split.held_out)


def _work(params: ScanParams) -> Work:
    """Return the work of all runs of CP-APR on the whole tensor, at most, as repetitions of the largest one."""
    assert params.poisson is not None
    most, inner = max(params.ranks), params.poisson.inner_iters
    return Work(most, params.rule[0] * inner * params.starts * sum(params.ranks) // most, "phi")


def _mode_to_split(shape: Sequence[int], labels: Labels | None, mode: int | str | None) -> int:
    """Return the mode whose even and odd indices are the halves."""
    if mode is None:
        return int(np.argmax(shape))
    if isinstance(mode, str):
        mode = mode_number(mode_names(labels, len(shape)), mode, parameter("split"))
    if mode >= len(shape):
        raise InputError(f"{parameter('split')}: mode {mode} is outside 0..{len(shape) - 1}")
    if shape[mode] < 2:
        raise InputError(f"{parameter('split')}: mode {mode} has only one index")
    return mode
