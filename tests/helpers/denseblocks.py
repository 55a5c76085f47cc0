"""Dense blocks on a device, and checks of sweeps over them against the definition of MTTKRP."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from oracle import ROUNDING, dense_mttkrp

from amped.backend.cpu.kernels.dimension_tree import tree_on_cpu
from amped.backend.cpu.ops import dense as cpu
from amped.backend.cuda.code.dimension_tree import tree_on_gpu
from amped.backend.device import Device
from amped.backend.ops.dense import BlockForm, RowLayout, Sweep
from amped.operators.dense.load import on_device

EVERY = pytest.mark.parametrize(
    "backend", [("cpu", 2), pytest.param(("cuda", None), marks=pytest.mark.gpu)], indirect=True, ids=["cpu", "cuda"]
)


class Case:
    """A block on the device, padded or C-contiguous, and factor matrices that may change."""

    def __init__(self, device: Device, form: BlockForm, rows: RowLayout | None = None) -> None:
        self._rng = np.random.default_rng([form.rank, *form.lengths])
        self.device, self.form, dtype = device, form, form.stored or form.dtype
        self.tensor = self._rng.random(form.lengths).astype(dtype)
        self.on_device = on_device(self.tensor.copy(), dtype, dtype, device, 1, rows)
        self.factors = [self._rng.random((n, form.rank)).astype(form.dtype) for n in form.lengths]
        self.stored = [self._stored(factor) for factor in self.factors]

    def _moved(self, array: np.ndarray) -> Any:
        result = self.device.empty(array.shape, array.dtype)
        self.device.fill([result.reshape(-1)], [array.reshape(-1)])
        return result

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
        """Compute an MTTKRP slab by slab, and compare it with its definition."""
        form = self.form
        out = self._moved(np.full((form.lengths[mode], form.stride), np.nan))
        if sweep.reads(mode):
            sweep.begin(mode, self.stored, out)
            for start in range(0, form.lengths[0], form.slab):
                sweep.add(mode, self.on_device[start : start + form.slab], start, self.stored, out)
        sweep.end(mode, self.stored, out)
        self.compare(mode, out)

    def compare(self, mode: int, out: Any) -> None:
        """Compare an MTTKRP with its definition."""
        form = self.form
        got = self.device.to_host(out)[:, : form.rank]
        exact: Sequence[np.ndarray] = [factor.astype(np.float64) for factor in self.factors]
        want = dense_mttkrp(self.tensor.astype(np.float64), exact, mode)  # type: ignore[arg-type]
        most = ROUNDING["fp32" if form.dtype == np.float32 else "fp64"][0]
        assert np.linalg.norm(got - want) <= most * np.linalg.norm(want)


def use_dimension_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use dimension trees for all blocks that support them, even where this is slower."""
    monkeypatch.setattr(cpu.CpuSplit, "tree", lambda _, form: tree_on_cpu(form))
    with suppress(ImportError):
        from amped.backend.cuda.ops import dense as cuda

        monkeypatch.setattr(cuda.CudaSplit, "tree", lambda _, form: tree_on_gpu(form))
