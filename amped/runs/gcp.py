"""Assembly of losses: from a tensor, or its observed elements, to its decomposition for any loss."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partitioner.wording import alternatives

from ..backend.losses import Loss
from ..errors import InputError
from ..methods.gcp import GENERAL, STOCHASTIC, Gcp, LossMethod
from ..methods.held_out import HeldOut, HeldOutGcp, HeldOutNewton
from ..methods.newton_rows import NewtonRows
from ..methods.observed_apr import ObservedApr
from ..operators.sources.compact import used_indices
from ..operators.sources.protocols import DescribedSource
from ..parallel.mpi import Comm, on_root
from .kinds import SPARSE
from .loss_elements import LISTS, LossElements, LossRun
from .stochastic import SampledElements, sampled_elements, stochastic_gcp

METHODS = {"gaussian": ("als", *GENERAL), "poisson": ("mu", "pdnr", "pqnr", *GENERAL)}
"""The methods of losses, the default first; those in `GENERAL` minimise any other loss."""
APR_METHODS = tuple(method for method in METHODS["poisson"] if method not in GENERAL)  # of CP-APR


def check_domain(source: DescribedSource, loss: Loss, sparse_zeros: bool, comm: Comm) -> None:
    """Raise `InputError` if a value is outside the domain of a loss. Collective.

    `sparse_zeros`: absent elements of a sparse tensor are zeros, which must be inside, too.
    """
    domain = loss.domain
    if sparse_zeros and domain.outside(np.zeros(1)) is not None:
        raise InputError(f"loss {loss.name!r} expects {domain}, but absent elements are 0", path=source.path)
    values = source.value_range
    if values.low >= domain.low and values.high <= domain.high and (values.grain >= 1 or not domain.whole):
        return
    tensor = source.tensor()

    def check() -> None:
        assert tensor is not None
        if (at := domain.outside(elements := tensor.elements)) is not None:
            line = source.line_where(lambda value: domain.outside(np.array([value])) is not None)
            cause = f"a value is {elements[at]:g}: loss {loss.name!r} expects {domain}"
            raise InputError(cause, path=source.path, line=line)

    on_root(comm, check)


def generalised(run: LossRun, held_out: HeldOut | None = None) -> LossMethod:
    """Place a tensor, or its observed elements, and return its decomposition for any loss. Collective.

    With `held_out`, the method measures these elements after each iteration.
    """
    counted, work = run.counted, run.work
    check_domain(counted, work.loss, run.observed is None and counted.kind == "sparse", run.machine.comm)
    zero = not counted.value_range.largest
    if zero and not work.loss.fits_zeros:
        raise InputError(f"every element is zero: loss {work.loss.name!r} has no minimum there", path=counted.path)
    method = _generalised(run, held_out)
    method.starts_at_zero = zero
    # Stochastic methods keep them: samples of absent elements would rarely meet rows that are not zero.
    if work.method not in STOCHASTIC and (run.observed is not None or work.loss.fits_zeros):
        method.used = used_indices(counted, run.compaction)
    return method


def _generalised(run: LossRun, held_out: HeldOut | None) -> LossMethod:
    """Place the elements and return the method. Collective."""
    work, constraints, facts = run.work, run.constraints, run.facts
    if (sampled := work.sampled) is not None:
        return stochastic_gcp(run.source, run.observed, run.machine, run.options, sampled, constraints, held_out)
    elements = run.elements()
    if work.lists:
        operator = SPARSE.place(elements.source, elements.machine, elements.setting, None)
        if work.poisson:
            return ObservedApr(operator, work.poisson, facts, elements.scales)
        newton = operator, work.loss, constraints, facts, elements.zeros, elements.scales
        return HeldOutNewton(held_out.by(work.loss), *newton) if held_out else NewtonRows(*newton)
    full = elements.gradient(), work.loss, constraints, facts
    return HeldOutGcp(held_out.by(work.loss), *full) if held_out else Gcp(*full)


def planned_loss(run: LossRun) -> LossElements | SampledElements:
    """Return the elements of a decomposition for any loss, to be planned. Collective."""
    if (sampled := run.work.sampled) is not None:
        return sampled_elements(run.source, run.observed, run.machine, run.options, sampled)
    return run.elements()


class LossTraits(NamedTuple):
    """What is requested in addition to a loss, by which methods are chosen."""

    masked: bool = False  # missing elements or weights
    special: bool = False  # held-out elements, a ridge or fixed modes


def default_method(loss: str, traits: LossTraits) -> str:
    """Return the method that minimises a loss by default."""
    methods = METHODS.get(loss, GENERAL)
    return "lbfgs" if loss == "poisson" and any(traits) else methods[0]


def check_method(loss: str, method: str, traits: LossTraits) -> None:
    """Raise `InputError` if a method does not minimise a loss."""
    methods = METHODS.get(loss, GENERAL)
    if method not in methods:
        raise InputError(f"method {method!r} does not apply to loss {loss!r}: use {alternatives(map(repr, methods))}")
    if method not in APR_METHODS:
        return
    if traits.special:
        raise InputError(f"method {method!r} supports no holdout, ridge or fixed modes: use 'lbfgs'")
    if traits.masked and method not in LISTS:
        raise InputError(f"method {method!r} supports no mask or weights: use 'mu' or 'pdnr'")
