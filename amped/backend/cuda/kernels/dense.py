"""How a GPU computes MTTKRPs of dense blocks: by matrix products, or element by element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partitioner.cuda_code import prepare

from ...base import Array
from ...dense import DenseKernel, Form, Rows, Sweep
from ...pairs import ORDER, PASSES, Pairs, PairsSweep, pairs_bytes
from .. import pairs_code
from ..dense_code import (
    LEAST_CAPABILITY,
    Division,
    divide,
    divide_for,
    division_at,
    macros,
    scratch_bytes,
    seconds,
    spaced,
)
from ..dense_pairs import PairProducts
from ..dense_sweeps import MatrixFreeSweep, ModeByMode, SplitSweep
from ..device import CudaDevice
from ..source import unit

TILE = 256  # elements of a tile of ``tile``


class Split:
    """Two passes over the elements; see `DenseKernel`.

    By default Khatri-Rao products are stored, piece by piece, for cuBLAS, in double precision; in single precision
    they are made on the way, as tensor cores then outdo what cuBLAS does without them. Three passes over an order-3
    block serve two sweeps, where that takes less time.
    """

    repeatable = True

    def __init__(self, name: str, device: CudaDevice, fused: bool | None) -> None:
        self.name, self._device, self._fused = name, device, fused

    def suits(self, form: Form) -> bool:
        return not self._fused or self._device.capability >= LEAST_CAPABILITY

    def mixes(self, form: Form) -> bool:
        return self._fuses(form)

    def _fuses(self, form: Form) -> bool:
        single = (form.held or form.dtype) == np.float32 and self._device.capability >= LEAST_CAPABILITY
        return single if self._fused is None else self._fused

    def prepare(self, form: Form) -> None:
        units = [unit("dense", macros(form))]
        if self.paired(form):
            units.append(unit("dense_pairs", pairs_code.pair_macros(form)))
        prepare(units)

    def bytes(self, form: Form) -> int:
        pairs = self.paired(form)
        return pairs_code.scratch_bytes(form, pairs) if pairs else scratch_bytes(form, self.divided(form))

    def rows(self, form: Form) -> Rows | None:
        if not self.paired(form):
            return spaced(form, self.divided(form).split)
        wide = pairs_code.widened(form).lengths[-1]
        return Rows(ORDER - 1, wide) if wide > form.lengths[-1] else None

    def passes(self, form: Form) -> float:
        return PASSES if self.paired(form) else self._divided_passes(form)

    def _divided_passes(self, form: Form) -> int:
        divided = self.divided(form)
        groups = ((0, divided.split), (1, len(form.lengths) - divided.split))
        return sum(1 if divided.whole(group, form) else modes for group, modes in groups)

    def divided(self, form: Form) -> Division:
        """Return the groups of modes: those by which elements lie in rows."""
        processors = self._device.limits.processors if self._fuses(form) else 0
        if form.held is None:
            return divide(form, processors)
        return division_at(form, self.divided(form._replace(dtype=form.held, held=None)).split, processors)

    def paired(self, form: Form) -> Pairs | None:
        """Return how pairs of modes are served, if that takes less time."""
        pairs = pairs_code.pairs_on_gpu(form) if self._fused is None else None
        if pairs is None:
            return None
        link = pairs_code.link_seconds(form)
        others = seconds(form, self.divided(form)) + self._divided_passes(form) * link
        return pairs if pairs_code.seconds(form, pairs) + PASSES * link < others else None

    def make(self, form: Form, scratch: Array) -> Sweep:
        if pairs := self.paired(form):
            wide = pairs_code.widened(form)
            rest = scratch[pairs_bytes(wide, pairs) :].view(np.float64)
            return PairsSweep(wide, pairs, scratch, PairProducts(wide, rest, self._device.number), form.lengths)
        return SplitSweep(form, self.divided(form), scratch, self._device, self._fuses(form))


class Gemm:
    """Matrix products mode by mode; see `DenseKernel`."""

    name, repeatable = "gemm", True

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, form: Form) -> bool:
        return True

    def mixes(self, form: Form) -> bool:
        return False

    def prepare(self, form: Form) -> None:
        prepare([unit("dense", macros(form))])

    def bytes(self, form: Form) -> int:
        return max(scratch_bytes(form, division) for division in self._divisions(form))

    def rows(self, form: Form) -> None:
        """See `DenseKernel`: a mode's rows are not another's."""

    def passes(self, form: Form) -> int:
        return len(form.lengths)

    def _divisions(self, form: Form) -> list[Division]:
        return [divide_for(form, mode) for mode in range(len(form.lengths))]

    def make(self, form: Form, scratch: Array) -> Sweep:
        return ModeByMode(form, self._divisions(form), scratch, self._device)


class MatrixFree:
    """The kernels of the GenTen paper that take elements one by one; see `DenseKernel`."""

    def __init__(self, name: str, tile: int, device: CudaDevice) -> None:
        self.name, self._tile, self._device = name, tile, device
        self.repeatable = name == "slice"

    def suits(self, form: Form) -> bool:
        return True

    def mixes(self, form: Form) -> bool:
        return False

    def prepare(self, form: Form) -> None:
        prepare([unit("dense", macros(form))])

    def bytes(self, form: Form) -> int:
        return 0

    def rows(self, form: Form) -> None:
        """See `DenseKernel`: elements are read one by one."""

    def passes(self, form: Form) -> int:
        return len(form.lengths)

    def make(self, form: Form, scratch: Array) -> Sweep:
        return MatrixFreeSweep(form, self._tile, self._device)


def providers(device: CudaDevice) -> Sequence[DenseKernel]:
    """Return the kernels of the family."""
    free = {"elem": 1, "slice": 1 << 62, "tile": TILE}
    return [
        Split("split", device, None),
        Split("split-stored", device, False),
        Split("split-fused", device, True),
        Gemm(device),
        *(MatrixFree(name, tile, device) for name, tile in free.items()),
    ]
