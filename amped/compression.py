"""How a Tucker decomposition is put together: spectra, where they are wanted, then a tensor placed for its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from partitioner.stages import STAGES

from .assembly import AnySource, placed_sparse, setting_for
from .backend.exchange import Machine
from .decomp.hosvd import Compression, allowed, dense_factors, sparse_factors
from .decomp.tucker import Tucker, check_ranks, solving_bytes
from .operators.base import CoreOperator
from .operators.dense_core import DenseCore
from .operators.dense_source import DenseSource
from .operators.lengths import check_lengths
from .operators.placement import Setting
from .options import Options
from .parallel.mpi import together


def core_setting(source: AnySource, ranks: Sequence[int], machine: Machine, options: Options) -> Setting:
    """Return what plans of Tucker decompositions have in common."""
    setting = setting_for(source, ranks, machine, options)
    return setting._replace(solving=solving_bytes(machine, ranks), ttmc=True)


def compressed(source: AnySource, machine: Machine, options: Options, asked: Compression, seed: int = 0) -> Tucker:
    """Place a tensor and return its Tucker decomposition, without factor matrices yet. Collective.

    Raises
    ------
    InputError
        If the tensor has no decomposition of such ranks, or is zero.
    """
    ranks, found = asked.ranks, None
    together(machine.comm, lambda: (allowed(source.norm, asked), ranks and check_ranks(source.shape, ranks)))
    if asked.from_spectra:
        with STAGES.of("spectra"):
            found = _spectra(source, machine, options, asked, seed)
        ranks = tuple(factor.shape[1] for factor in found)
    assert ranks is not None
    return Tucker(_placed(source, ranks, machine, options), asked.method, found)


def _spectra(
    source: AnySource, machine: Machine, options: Options, asked: Compression, seed: int
) -> list[NDArray[Any]]:
    if isinstance(source, DenseSource):
        memory = setting_for(source, asked.ranks or 1, machine, options).memory
        return list(dense_factors(source, machine, options, asked, memory))
    return list(sparse_factors(source, machine.comm, asked, asked.sequential, seed))


def _placed(source: AnySource, ranks: Sequence[int], machine: Machine, options: Options) -> CoreOperator:
    setting = core_setting(source, ranks, machine, options)
    if isinstance(source, DenseSource):
        check_lengths(source, setting, machine.comm)
        return DenseCore(source, machine, setting)
    return placed_sparse(source, machine, setting, None)
