"""How a Tucker decomposition is put together: spectra, where they are wanted, then a tensor placed for its ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from partitioner.host.stages import STAGES

from ..backend.blas import SCIPY_BYTES
from ..backend.exchange import Machine
from ..methods.driver import StopRule, iterate
from ..methods.hosvd import (
    FIRST,
    Compression,
    allowed,
    loads_scipy,
)
from ..methods.small_cp import of_core
from ..methods.tucker import TuckerMethod, attainable, check_ranks, consistency, core_of, solving_bytes
from ..operators.base import CoreOperator
from ..operators.limits import check_range
from ..operators.placement import Setting
from ..operators.products import Ttmc
from ..operators.sources.lengths import check_lengths
from ..operators.sources.protocols import DescribedSource
from ..options import Options
from ..parallel.mpi import together
from .assembly import begin, setting_for
from .kinds import CoreSource, kind_of

MOST_OF_A_CORE = 1 << 18  # numbers: a CP decomposition of it takes seconds
START_ITERATIONS, START_TOLERANCE = 10, 1e-4


def core_setting(
    source: DescribedSource, ranks: Sequence[int], machine: Machine, options: Options, asked: Compression | None = None
) -> Setting:
    """Return what plans of Tucker decompositions have in common; `asked` may have spectra found before."""
    setting = setting_for(source, ranks, machine, options)
    setting = setting._replace(solving=solving_bytes(machine, ranks, source.shape), product=Ttmc(), overlaps=False)
    if asked is None:
        return setting
    scipy = SCIPY_BYTES * loads_scipy(source.shape, ranks, asked, machine.device)
    if not asked.from_spectra:
        return setting._replace(root_bytes=scipy)
    return kind_of(source).with_spectra(source, machine, setting, asked, scipy)


def compressed(
    source: DescribedSource, machine: Machine, options: Options, asked: Compression, seed: int = 0
) -> TuckerMethod:
    """Place a tensor and return its Tucker decomposition, without factor matrices yet. Collective.

    Raises
    ------
    InputError
        If the tensor has no decomposition of such ranks, or is zero.
    """
    ranks, error, found = asked.ranks, asked.error, None
    together(machine.comm, lambda: ranks and check_ranks(source.shape, ranks))
    if error is not None:
        asked = replace(asked, error=together(machine.comm, lambda: attainable(error, options.precision)))
    begun = _begun(source, machine, options)
    norm, values = source.norm, source.value_range
    if norm:
        together(machine.comm, lambda: check_range(values, options.dtype, source.path))
    together(machine.comm, lambda: allowed(norm, asked))
    if asked.from_spectra:
        columns = [min(FIRST, length) for length in source.shape] if ranks is None else ranks
        check_lengths(source, core_setting(source, columns, machine, options), machine.comm)
        with STAGES.of("spectra"):
            found = begun.factors(asked, seed)
        ranks = tuple(factor.shape[1] for factor in found)
    assert ranks is not None
    setting = core_setting(source, ranks, machine, options, asked)
    return TuckerMethod(begun.place(setting), asked.method, found, error)


def consistent(
    source: DescribedSource, machine: Machine, options: Options, factors: Sequence[NDArray[np.floating]]
) -> float:
    """Return the core consistency of a CP decomposition whose weights are in its factor matrices. Collective."""
    operator = core_operator(source, [factor.shape[1] for factor in factors], machine, options)
    for mode, factor in enumerate(factors):
        operator.set_factor(mode, np.linalg.pinv(factor.astype(np.float64)).T)
    last = operator.order - 1
    found = operator.compute(Ttmc(), last)
    return consistency(core_of(operator, found, machine.device.empty(operator.owned(last).shape, np.float64)))


def core_operator(source: DescribedSource, ranks: Sequence[int], machine: Machine, options: Options) -> CoreOperator:
    """Place a tensor to be multiplied with factor matrices of so many columns. Collective."""
    setting = core_setting(source, ranks, machine, options)
    return _begun(source, machine, options).place(setting)


def _begun(source: DescribedSource, machine: Machine, options: Options) -> CoreSource:
    """Begin to place a tensor, with the device memory that there is now. Collective."""
    return kind_of(source).for_core(source, machine, options, setting_for(source, 1, machine, options).memory)


def cp_start(
    source: DescribedSource, machine: Machine, options: Options, rank: int, seed: int = 0
) -> list[NDArray[np.floating]]:
    """Return factor matrices of a CP decomposition of the tensor as HOOI compresses it. Collective.

    The core is small: components of it, brought back by HOOI's factor matrices, are near those of the tensor.
    """
    most = max(1, int(MOST_OF_A_CORE ** (1 / len(source.shape))))
    ranks = _possible([min(rank, length, most) for length in source.shape])
    method = compressed(source, machine, options, Compression(ranks=ranks), seed)
    begin(method, source, seed)
    for _ in iterate(method, StopRule(START_ITERATIONS, START_TOLERANCE)):
        pass
    model, comm = method.model(), machine.comm
    small = comm.bcast(of_core(model.core, rank, seed) if comm.rank == 0 else None)
    assert small is not None
    return [factor @ part.astype(factor.dtype) for factor, part in zip(model.factors, small, strict=True)]


def _possible(ranks: list[int]) -> tuple[int, ...]:
    """Return ranks none of which is above the product of the others."""
    for mode in range(len(ranks)):
        others = math.prod(rank for m, rank in enumerate(ranks) if m != mode)
        ranks[mode] = min(ranks[mode], others)
    return tuple(ranks)
