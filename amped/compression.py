"""How a Tucker decomposition is put together: spectra, where they are wanted, then a tensor placed for its ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partitioner.stages import STAGES

from .assembly import AnySource, placed_sparse, setting_for
from .backend.exchange import Machine
from .decomp.hosvd import Compression, allowed, dense_factors, sparse_factors
from .decomp.tucker import Tucker, check_ranks, solving_bytes
from .operators.dense_block import DenseBlock
from .operators.dense_core import DenseCore, block_of, slices
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
    ranks, found, block = asked.ranks, None, None
    together(machine.comm, lambda: ranks and check_ranks(source.shape, ranks))
    if isinstance(source, DenseSource):
        block = _block(source, machine, options)
    norm = source.norm
    together(machine.comm, lambda: allowed(norm, asked))
    if asked.from_spectra:
        with STAGES.of("spectra"):
            if isinstance(source, DenseSource) and block is not None:
                found = dense_factors(source, machine, block, asked)
            elif not isinstance(source, DenseSource):
                found = sparse_factors(source, machine.comm, asked, asked.sequential, seed)
        ranks = tuple(factor.shape[1] for factor in found or ())
    assert ranks is not None
    setting = core_setting(source, ranks, machine, options)
    if isinstance(source, DenseSource):
        assert block is not None
        check_lengths(source, setting, machine.comm)
        return Tucker(DenseCore(source, machine, setting, block), asked.method, found)
    return Tucker(placed_sparse(source, machine, setting, None), asked.method, found)


def _block(source: DenseSource, machine: Machine, options: Options) -> DenseBlock:
    """Return a rank's block: on the device, where it takes at most half of its memory. Collective."""
    grid = slices(source, machine.comm.size)
    room = setting_for(source, 1, machine, options).memory // 2
    resident = options.placement != "stream" and math.prod(grid.shape(0)) * options.dtype.itemsize <= room
    with STAGES.of("copy"):
        block = block_of(source, grid, machine, options.dtype, resident)
    if all(machine.comm.allgather(resident)):
        source.found(block.facts())
    return block
