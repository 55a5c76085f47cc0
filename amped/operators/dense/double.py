"""MTTKRPs in double precision of a dense block whose elements are in single precision."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ...backend.device import Array, Device
from .plan import DensePlan


class Doubled:
    """A sweep in double precision from factor matrices and elements in single precision. See `Sweep`.

    It shares scratch memory with the plain sweep, so only one of them has partial results. Its partial results can also
    serve plain MTTKRPs, which then need not read the elements: thus a fit in double precision costs little additional
    time. They do not if results must be bitwise reproducible after a resumption, which starts without partial results.
    """

    def __init__(self, plan: DensePlan, scratch: Array, inputs: Sequence[Array], device: Device) -> None:
        """Allocate double-precision copies of the factor matrices `inputs`."""
        form = plan.double
        assert form is not None
        sweep = plan.kernel.make(form, scratch)
        assert sweep is not None
        self._sweep, self._reuses, self._loaded = sweep, plan.form.dimension_tree, False
        self._factors = [device.empty(factor.shape, np.float64) for factor in inputs]
        self._cast = None if form.stored else device.empty((form.slab, *form.lengths[1:]), np.float64)

    def serves(self, mode: int) -> bool:
        """Return whether a partial result serves a plain MTTKRP."""
        return self._reuses and not self.reads(mode)

    def reads(self, mode: int) -> bool:
        return self._sweep.reads(mode)

    def begin(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        self._load(factors)
        self._sweep.begin(mode, self._factors, out)

    def add(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        """Add a slab directly, or converted in small parts."""
        if self._cast is None:
            self._sweep.add(mode, slab, start, self._factors, out)
            return
        step = len(self._cast)
        for begin in range(0, len(slab), step):
            piece = slab[begin : begin + step]
            self._cast[: len(piece)] = piece
            self._sweep.add(mode, self._cast[: len(piece)], start + begin, self._factors, out)

    def end(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        self._load(factors)
        self._sweep.end(mode, self._factors, out)

    def _load(self, factors: Sequence[Array]) -> None:
        """Copy the factor matrices if any has changed."""
        if not self._loaded:
            for factor, exact in zip(factors, self._factors, strict=True):
                exact[...] = factor
        self._loaded = True

    def changed(self, mode: int) -> None:
        self._loaded = False
        self._sweep.changed(mode)

    def kept(self) -> Hashable:
        return self._sweep.kept() if self._reuses else None

    def resume(self, kept: Hashable) -> None:
        self._sweep.resume(kept)
