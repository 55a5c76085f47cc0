"""Assembly of stochastic gradients: from a tensor, or its observed elements, to samples, and their decomposition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from partitioner.wording import alternatives, parameter

from ..backend.exchange import Machine
from ..backend.losses import Loss
from ..backend.ops.sampled import SAMPLED, StepMethod
from ..errors import InputError
from ..methods.constraints import Constraints
from ..methods.gcp import STOCHASTIC
from ..methods.held_out import HeldOut, HeldOutStochastic
from ..methods.initial import Init, start_bytes
from ..methods.stochastic import Stochastic, StochasticGcp
from ..operators.placement import Setting
from ..operators.sources.lengths import check_lengths
from ..operators.sources.protocols import DescribedSource, SparseSource
from ..operators.sparse.sampled import SampledOperator, SampledUse
from ..options import Options
from .assembly import on_host, setting_for
from .compiling import SAMPLES, Work, chosen, uncompiled
from .holding_out import all_observed
from .observing import ObservedSource, observed_source
from .planning import PlannedSampledRun

MOST_ELEMENTS = 1 << 27  # up to which the loss of any tensor has a full gradient


class SampledWork(NamedTuple):
    """A decomposition by stochastic gradients: its loss, number of components, start and parameters."""

    loss: Loss
    rank: int
    init: Init | None
    params: Stochastic


class _Size(NamedTuple):
    """The size of the work of a step: the shape of the tensor, and the samples. See `TensorSize`."""

    shape: tuple[int, ...]
    nnz: int


class SampledElements(NamedTuple):
    """The elements that are sampled, ready to be placed or planned."""

    source: SparseSource
    machine: Machine
    setting: Setting
    use: SampledUse

    def place(self) -> SampledOperator:
        """Place the elements. Collective."""
        check_lengths(self.source, self.setting, self.machine.comm)
        return SampledOperator(self.source, self.machine, self.setting, self.use)

    def with_memory(self, memory: int | None) -> SampledElements:
        """Return the same elements for devices with `memory` bytes; None: those free."""
        return self if memory is None else self._replace(setting=self.setting._replace(memory=memory))

    def plan(self, ranks: int) -> PlannedSampledRun:
        """Plan the run on `ranks` ranks. Collective."""
        return PlannedSampledRun(self.source, self.machine, self.setting, self.use, ranks)


def sampled_elements(
    source: DescribedSource, observed: ObservedSource | None, machine: Machine, options: Options, work: SampledWork
) -> SampledElements:
    """Return the elements that are sampled: those observed, or all. Collective.

    Raises
    ------
    InputError
        If there are weights.
    """
    method, comm = work.params.method, machine.comm
    if observed is not None and observed.terms.scales is not None:
        raise InputError(f"method {method!r} supports no weights: use 'lbfgs' or 'newton'")
    if observed is None and source.kind == "dense":
        observed = observed_source(source, all_observed(source, comm), comm, None)
    zeros = observed is None
    elements: Any = source if observed is None else observed.source
    use = SampledUse(work.loss, zeros, work.params.moments)
    if not machine.device.on_host and SAMPLED.first(machine.device, lambda each: each.suits(use.formulas)) is None:
        elements.leave_device()
        machine = on_host(machine, options, f"method {method!r}")
    machine = _chosen(machine, elements, options, work)
    setting = setting_for(elements, work.rank, machine, options)
    setting = setting._replace(root_bytes=start_bytes(elements, work.rank, comm, work.init))
    return SampledElements(elements, machine, setting, use)


def _chosen(machine: Machine, source: SparseSource, options: Options, work: SampledWork) -> Machine:
    """Return the machine, without compiled code if that takes less time. Collective."""
    if not work.loss.compiled:
        return uncompiled(machine)
    params = work.params
    samples = source.nnz if params.sampling == "nonzeros" else params.of_nonzeros(source.nnz)
    size = _Size(source.shape, 2 * samples)
    return chosen(machine, size, options, Work(work.rank, params.epochs * params.steps, SAMPLES))


def stochastic_gcp(
    source: DescribedSource,
    observed: ObservedSource | None,
    machine: Machine,
    options: Options,
    work: SampledWork,
    constraints: Constraints,
    held_out: HeldOut | None = None,
) -> StochasticGcp:
    """Place a tensor, or its observed elements, and return its decomposition by stochastic gradients. Collective."""
    facts: dict[str, object] = {} if observed is None else dict(observed.terms.facts)
    operator = sampled_elements(source, observed, machine, options, work).place()
    args = operator, work.loss, constraints, facts, work.params
    return HeldOutStochastic(held_out.by(work.loss), *args) if held_out else StochasticGcp(*args)


def check_stochastic(method: str, given: Mapping[str, Any]) -> None:
    """Raise `InputError` if parameters of stochastic gradients, None if not given, do not apply to a method."""
    for name, value in given.items():
        if value is not None and method not in STOCHASTIC:
            raise InputError(f"{parameter(name)} requires method {alternatives(map(repr, STOCHASTIC))}, not {method!r}")


def stochastic_of(method: str, given: Mapping[str, Any], seed: int, epochs: int) -> Stochastic | None:
    """Return the parameters of a stochastic method, with defaults for those that are None; None for other methods."""
    if method not in STOCHASTIC:
        return None
    chosen = {name: value for name, value in given.items() if value is not None}
    return Stochastic(cast(StepMethod, method), **chosen, seed=seed, epochs=epochs)


def full_gradient_note(source: DescribedSource, loss: Loss, method: str) -> str | None:
    """Return a note that a loss has a full gradient, with which other methods need no samples; None if it has not."""
    closed = source.kind == "dense" or loss.at_zero is not None
    if not closed and math.prod(map(float, source.shape)) > MOST_ELEMENTS:
        return None
    return f"note: method {method!r} estimates gradients from samples; 'lbfgs' computes those of this tensor exactly"
