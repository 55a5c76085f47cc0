"""MTTKRPs of dense blocks on each device, against their definition in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from oracle import ROUNDING, dense_mttkrp

from amped.backend.base import Device
from amped.backend.dense import Form, Sweep
from amped.backend.providers import dense_kernels

SHAPES = [
    (7, 9),
    (40, 1, 30),
    (13, 8, 21),
    (1, 5, 6),
    (300, 40, 5),
    (150, 7, 37),
    (5, 6, 7, 8),
    (33, 4, 5, 3, 6),
    (3, 4, 5, 2, 3, 4),
]
PLENTY = 1 << 28
RANKS = (
    (1, 0, PLENTY),
    (7, 1, PLENTY),
    (16, 3, 1),
    (32, 0, PLENTY),
    (33, 0, 1 << 14),
    (64, 2, PLENTY),
    (100, 0, PLENTY),
)  # with the indices of a slab, and bytes of scratch memory
EVERY = pytest.mark.parametrize(
    "backend", [("cpu", 2), pytest.param(("cuda", None), marks=pytest.mark.gpu)], indirect=True, ids=["cpu", "cuda"]
)


class Case:
    """A block, and factor matrices that may change."""

    def __init__(self, device: Device, form: Form) -> None:
        self._rng = np.random.default_rng([form.rank, *form.lengths])
        self.device, self.form = device, form
        self.tensor = self._rng.random(form.lengths).astype(form.dtype)
        self.on_device = self._moved(self.tensor)
        self.factors = [self._rng.random((n, form.rank)).astype(form.dtype) for n in form.lengths]
        self.stored = [self._stored(factor) for factor in self.factors]

    def _moved(self, array: np.ndarray) -> Any:
        there = self.device.empty(array.shape, array.dtype)
        self.device.fill([there.reshape(-1)], [array.reshape(-1)])
        return there

    def _stored(self, factor: np.ndarray) -> Any:
        wide = np.zeros((len(factor), self.form.stride), self.form.dtype)
        wide[:, : self.form.rank] = factor
        return self._moved(wide)

    def change(self, mode: int, sweep: Sweep) -> None:
        """Replace a factor matrix."""
        self.factors[mode] = self._rng.random(self.factors[mode].shape).astype(self.form.dtype)
        self.stored[mode] = self._stored(self.factors[mode])
        sweep.changed(mode)

    def check(self, mode: int, sweep: Sweep) -> None:
        """Compute an MTTKRP slab by slab; hold it to its definition."""
        form = self.form
        out = self._moved(np.full((form.lengths[mode], form.stride), np.nan))
        if sweep.reads(mode):
            sweep.begin(mode, self.stored, out)
            for start in range(0, form.lengths[0], form.slab):
                sweep.add(mode, self.on_device[start : start + form.slab], start, self.stored, out)
        sweep.end(mode, self.stored, out)
        got = self.device.to_host(out)[:, : form.rank]
        exact: Sequence[np.ndarray] = [factor.astype(np.float64) for factor in self.factors]
        want = dense_mttkrp(self.tensor.astype(np.float64), exact, mode)  # type: ignore[arg-type]
        most = ROUNDING["fp32" if form.dtype == np.float32 else "fp64"][0]
        assert np.linalg.norm(got - want) <= most * np.linalg.norm(want)


@EVERY
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("precision", [np.float32, np.float64], ids=["fp32", "fp64"])
def test_every_kernel_whatever_changes(backend: Device, shape: tuple[int, ...], precision: Any) -> None:
    """In turn as CP-ALS goes, then in any order; whole, in slabs, and with next to no scratch memory."""
    rng, dtype = np.random.default_rng(len(shape)), np.dtype(precision)
    for rank, slab, workspace in RANKS:
        stride = backend.stride(rank, dtype.itemsize)
        form = Form(shape, min(slab or shape[0], shape[0]), rank, stride, dtype, workspace)
        for kernel in dense_kernels(backend):
            assert kernel.suits(form)
            case, scratch = Case(backend, form), backend.empty((kernel.bytes(form),), np.uint8)
            scratch.fill(255)
            sweep = kernel.make(form, scratch)
            for mode in [*range(len(shape)), *rng.integers(0, len(shape), 4).tolist()]:
                case.check(mode, sweep)
                case.change(mode, sweep)


@EVERY
def test_results_repeat(backend: Device) -> None:
    form = Form((60, 50, 40), 60, 20, backend.stride(20, 4), np.dtype(np.float32), PLENTY)
    for kernel in (kernel for kernel in dense_kernels(backend) if kernel.repeatable):
        case, found = Case(backend, form), []
        for _ in range(3):
            sweep = kernel.make(form, backend.empty((kernel.bytes(form),), np.uint8))
            out = backend.zeros((50, form.stride), np.float64)
            sweep.begin(1, case.stored, out)
            sweep.add(1, case.on_device, 0, case.stored, out)
            sweep.end(1, case.stored, out)
            found.append(np.array(backend.to_host(out)).tobytes())
        assert len(set(found)) == 1
