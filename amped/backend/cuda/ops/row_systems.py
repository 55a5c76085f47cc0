"""Row systems of any loss on the GPU: ``rowproblems.cu`` with the loss's formulas, batch by batch of rows."""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import numpy as np

from partitioner.cuda.code import prepare

from ...device import NOTHING
from ...losses import Maps
from ...ops.mttkrp import Kernel, Operands, Share
from ...ops.row_systems import ROW_SYSTEMS, RowSystemsProvider
from ...ops.rowproblems import RowBytes
from ..code.rows import RowCode, batch_tasks, systems
from ..device import CudaDevice
from ..launches.system_passes import SystemPasses
from ..layout import make_layout
from ..shard import CudaShard
from .mttkrp import inputs_of
from .rowproblems import CudaRowProblems, CudaRows, batches, most_of_row, split


class CudaSystems:
    """Computes the sums of PDNR and PQNR for any loss. See `RowSystemsProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._limits, self._number = device.limits, device.number
        self._rows = {True: CudaRowProblems(device, "pdnr"), False: CudaRowProblems(device, "pqnr")}

    def suits(self, kernel: Kernel, share: Share, maps: Maps) -> bool:
        return not maps.weighted and self._rows[maps.curve is not None].suits(kernel, share)

    def prepare(self, kernel: Kernel, share: Share, rank: int, maps: Maps) -> None:
        code = RowCode(rank, share.dtype, maps.curve is not None)
        prepare([systems(make_layout(kernel.name, share, self._limits), code, maps)])

    def bytes(self, kernel: Kernel, share: Share, rank: int, curved: bool, nnz: int) -> RowBytes:
        return self._rows[curved].bytes(kernel, share, nnz)

    def make(self, shard: CudaShard, share: Share) -> CudaRows:
        """See `RowSystemsProvider`: without the rows that have no nonzeros."""
        return self._rows[False].make(shard, share, NOTHING)

    def run(
        self, rows: CudaRows, shard: CudaShard, operands: Operands, rank: int, maps: Maps, new: slice = NOTHING
    ) -> None:
        """See `RowSystemsProvider`; queued on the current stream."""
        factors, own, out, scratch = operands
        if new.stop > new.start:
            out[new].fill(0)
        if not shard.nnz:
            return
        code = RowCode(rank, own.dtype, maps.curve is not None)
        most = batch_tasks(code, own.shape[1], int(rows.first[-1]), most_of_row(shard.nnz, self._limits))
        if scratch is None:
            scratch = cupy.empty(most * code.bytes, np.uint8)
        passes = SystemPasses(code, shard, inputs_of(shard.layout, factors), maps, self._number)
        for part in batches(rows.first, 0, rows.rows.size, most):
            batch = rows.tasks.part(part, slice(int(rows.first[part.start]), int(rows.first[part.stop])))
            names, count = rows.names[part], part.stop - part.start
            parts, matrix, rest = split(scratch, batch.row.size * code.sums, count * rank)
            status = rest[: 4 * count].view(np.int32)
            passes.take_rows(names, own, matrix, status)
            passes.add_sums(batch, status, matrix, parts)
            passes.add_systems(batch, parts, names, out)


@ROW_SYSTEMS.provider("cuda")
def providers(device: CudaDevice) -> Sequence[RowSystemsProvider]:
    """Return the providers of the operation."""
    return [CudaSystems(device)]
