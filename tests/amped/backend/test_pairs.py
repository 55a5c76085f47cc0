"""Products that serve pairs of modes of order-3 blocks, on each device, against their definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from denseblocks import EVERY, Case, paired

from amped.backend import pairs
from amped.backend.base import Device
from amped.backend.cpu import pairs as cpu_pairs
from amped.backend.cuda.pairs_code import parts_bytes
from amped.backend.dense import Form
from amped.backend.pairs import PairsSweep
from amped.backend.providers import dense_kernels

SHAPES = [(13, 8, 21), (1, 5, 6), (40, 1, 30), (6, 70, 1), (70, 66, 5), (9, 40, 90)]
ORDERS = [(0, 1, 2), (2, 1, 0)]
PLENTY = 1 << 28


class Blocks(Case):
    """A block whose rows are solved as they are done."""

    def pass_over(self, mode: int, sweep: PairsSweep) -> None:
        """Compute an MTTKRP in blocks of rows, with new rows of the factor matrix after each."""
        form, rng = self.form, self._rng
        out = self._moved(np.full((form.lengths[mode], form.stride), np.nan))
        now = rng.random(self.factors[mode].shape).astype(form.dtype)
        for rows in sweep.blocks(mode):
            sweep.compute(mode, rows, self.on_device, self.stored, out)
            self.stored[mode][rows, : form.rank] = self._moved(now[rows])
            sweep.pass_on(mode, rows, self.stored, out)
        self.factors[mode] = now
        self.hold(mode, out)


@EVERY
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("precision", [np.float32, np.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_pairs_of_modes(
    backend: Device, shape: tuple[int, ...], precision: Any, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CP-ALS goes, several sweeps: 3 passes serve 2; then in any order, and with the same mode again."""
    dtype, rng = np.dtype(precision), np.random.default_rng(1)
    if not backend.on_host and dtype == np.float32:
        pytest.skip("a GPU serves pairs in double precision alone")
    paired(monkeypatch)
    monkeypatch.setattr(pairs, "TILES", (4, 2))
    for name, value in {"DEPTH": 4, "HEIGHT": 8, "SMALL": 1}.items():
        monkeypatch.setattr(cpu_pairs, name, value)
    parts = 0 if backend.on_host else parts_bytes(8)
    for rank, blocks, slab in ((5, 0, shape[0]), (33, 0, -(-shape[0] // 4)), (16, 1, shape[0]), (7, 3, shape[0])):
        stride = backend.stride(rank, dtype.itemsize)
        columns = rank if backend.on_host else stride
        # Rows of an MTTKRP to come, and of so many blocks of a partial result.
        room = (blocks + 1) * max(shape) * columns * 8
        workspace = (room * 4 // 3 + 4 if backend.on_host else room + parts) if blocks else PLENTY
        form = Form(shape, slab, rank, stride, dtype, workspace, whole=True, pairs=True)
        kernel = dense_kernels(backend)[0]
        case, scratch = Blocks(backend, form), backend.empty((kernel.bytes(form),), np.uint8)
        scratch.fill(255)
        sweep = kernel.make(form, scratch)
        assert isinstance(sweep, PairsSweep)
        assert sweep.in_blocks == (math.prod(shape) // min(shape) * columns * 8 > room) or not blocks
        reads = 0
        for turn in range(12):
            mode, following = order[turn % 3], order[(turn + 1) % 3]
            sweep.expect(mode, following)
            reads += sweep.reads(mode)
            if sweep.in_blocks and sweep.reads(mode):
                case.pass_over(mode, sweep)
            else:
                case.check(mode, sweep)
                case.change(mode, sweep)
        assert reads == 6
        for mode in rng.integers(0, 3, 8).tolist():
            following = int(rng.integers(0, 3))
            sweep.expect(mode, following)
            if sweep.in_blocks and sweep.reads(mode):
                case.pass_over(mode, sweep)
                if following == mode:
                    assert not sweep.reads(mode)
            else:
                case.check(mode, sweep)
            if rng.integers(0, 2):
                case.change(mode, sweep)
