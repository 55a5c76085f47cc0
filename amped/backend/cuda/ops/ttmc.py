"""TTMc on the GPU from nonzeros in coordinate form: launching ``ttmc_products.cu`` or ``ttmc.cu``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache

import numpy as np

from partitioner.cuda.code import load, prepare
from partitioner.cuda.cubins import CudaFunction

from ...device import NOTHING, Array
from ...ops.mttkrp import Kernel, Offers, Share
from ...ops.ttmc import TTMC, TtmcProvider
from ..code.ttmc import THREADS, TtmcCode, WalkedCode, products_code, walked_code
from ..coordinates import CoordinateShard, column_places
from ..device import CudaDevice
from ..source import by_value, unit

COMBINING = 256  # threads of a block that adds up carries
TENSOR_CORES = 80, 90, 100  # compute capabilities with tensor cores that are fast in double precision
FASTER = 2, 3  # numbers of input modes; with more, summing runs shares products of many numbers


class _OfRows(ABC):
    """Groups of threads compute rows of the result. See `TtmcProvider`."""

    summed: int

    def __init__(self, device: CudaDevice) -> None:
        self._number, self._processors = device.number, device.limits.processors

    @abstractmethod
    def _code(self, share: Share, ranks: Sequence[int], double: bool = False) -> TtmcCode:
        """Return the code for input factor matrices of `ranks` columns; see `TtmcProvider.run` for `double`."""

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """See `TtmcProvider`: the nonzeros of a row must be sorted by input indices."""
        return Offers.SORTED in kernel.offers and share.gather == "full"

    def prepare(self, share: Share, ranks: Sequence[int]) -> None:
        code = self._code(share, ranks)
        prepare([unit(code.source, code.macros)])

    def bytes(self, share: Share, ranks: Sequence[int], nnz: int) -> int:
        each = (self._code(share, ranks, double) for double in (False, True))
        return max(code.carry_bytes(nnz, self._processors) for code in each) if nnz else 0

    def run(
        self,
        shard: CoordinateShard,
        factors: Sequence[Array],
        ranks: Sequence[int],
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        double: bool = False,
    ) -> None:
        """See `TtmcProvider`; queued on the current stream."""
        if new.start < new.stop:
            out[new] = 0
        if not shard.nnz:
            return
        share, code = shard.share, self._code(shard.share, ranks, double)
        walk, add = _functions(code, self._number)
        chunk, chunks = code.chunk(shard.nnz, self._processors), code.chunks(shard.nnz, self._processors)
        columns = column_places(shard)
        words = np.array([*columns, *(f.data.ptr for f in factors)], np.uint64)
        numbers = np.array([shard.nnz, share.rows.start, new.start, new.stop], np.int64)
        args = by_value(words, numbers, np.array([chunk, 0], np.int32))
        walk((-(-chunks * code.lanes // THREADS), code.panels), (THREADS,), (args, out, scratch))
        grid, first = (chunks, -(-code.width // COMBINING)), np.int64(share.rows.start)
        for last in (0, 1):
            facts = np.uint64(columns[0]), np.int64(chunks), np.int32(chunk), first, np.int32(last)
            add(grid, (COMBINING,), (*facts, scratch, out))


class Multiplied(_OfRows):
    """Multiplies matrices on tensor cores, always in double precision."""

    summed = 1

    def __init__(self, device: CudaDevice) -> None:
        super().__init__(device)
        self._supported = device.capability in TENSOR_CORES

    def suits(self, kernel: Kernel, share: Share) -> bool:
        return self._supported and len(share.lengths) in FASTER and super().suits(kernel, share)

    def _code(self, share: Share, ranks: Sequence[int], double: bool = False) -> TtmcCode:
        return products_code(ranks, share.dtype)


class Walked(_OfRows):
    """Sums runs of equal indices in registers."""

    summed = WalkedCode.most

    def _code(self, share: Share, ranks: Sequence[int], double: bool = False) -> TtmcCode:
        return walked_code(ranks, share.dtype, double)


@cache
def _functions(code: TtmcCode, device: int) -> tuple[CudaFunction, CudaFunction]:
    module = load(unit(code.source, code.macros))
    return module.get_function("ttmc"), module.get_function("carry_up")


@TTMC.provider("cuda")
def providers(device: CudaDevice) -> Sequence[TtmcProvider]:
    """Return the providers of the operation."""
    return [Multiplied(device), Walked(device)]
