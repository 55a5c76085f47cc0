"""A small tensor on each of several ranks, which all compute the same: exchange would take longer than computing."""

from __future__ import annotations

from ...backend.exchange import Machine, connect
from ...parallel.mpi import SingleComm, together
from ..placement import Setting
from ..sources.blocks import BlockSource, whole_block
from ..sources.protocols import DeviceMemory, ModeCopies
from ..sparse.operator import SparseOperator
from ..sparse.tuning import Budget


def replica(source: ModeCopies, machine: Machine, setting: Setting, budget: Budget | None = None) -> SparseOperator:
    """Place the whole tensor on the device of each rank. Collective.

    Kernels are chosen by each rank, so results may differ in rounding. Methods follow rank 0's fits; see
    `Machine.everyone`.
    """
    comm, options = machine.comm, setting.options
    block = whole_block(source, comm, options.dtype)
    source.placed()
    single = connect(machine.device, SingleComm())._replace(others=comm)
    memory = 0 if options.placement == "stream" else setting.memory
    mine = together(comm, lambda: BlockSource(source, block, DeviceMemory(single, memory)))
    operator = together(comm, lambda: SparseOperator(mine, single, setting._replace(overlaps=False), budget))
    operator.distribution = "replicated"
    return operator
