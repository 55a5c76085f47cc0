"""Operators of one rank, beside those of other ranks: of its block, or of the whole tensor.

If all ranks have the whole tensor, they compute the same, without exchange: for small tensors it would take longer.
"""

from __future__ import annotations

from ...backend.exchange import Machine, connect
from ...parallel.mpi import SingleComm, together
from ..placement import Setting
from ..sources.blocks import Block, BlockSource, whole_block
from ..sources.protocols import DeviceMemory, ModeCopies
from ..sparse.operator import SparseOperator
from ..sparse.tuning import Budget


def on_one_rank(
    source: ModeCopies, block: Block, machine: Machine, setting: Setting, budget: Budget | None
) -> SparseOperator:
    """Place a block of `source` as a tensor on the device of this rank. Collective.

    Memory that `source` needs for loading is freed before.
    """
    source.placed()
    comm, single = machine.comm, connect(machine.device, SingleComm())._replace(others=machine.comm)
    memory = 0 if setting.options.placement == "stream" else setting.memory
    mine = together(comm, lambda: BlockSource(source, block, DeviceMemory(single, memory)))
    setting = setting._replace(overlaps=False, compaction=None, grid=None)
    return together(comm, lambda: SparseOperator(mine, single, setting, budget))


def replica(source: ModeCopies, machine: Machine, setting: Setting, budget: Budget | None = None) -> SparseOperator:
    """Place the whole tensor on the device of each rank. Collective.

    Kernels are chosen by each rank, so results may differ in rounding. Methods follow rank 0's fits, and return its
    model; see `Machine.everyone`.
    """
    block = whole_block(source, machine.comm, setting.options.dtype)
    operator = on_one_rank(source, block, machine, setting, budget)
    operator.distribution = "replicated"
    return operator
