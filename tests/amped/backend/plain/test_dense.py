"""MTTKRPs of dense blocks by NumPy, compared with their definition."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import dense_mttkrp

from amped.backend.ops.dense import BlockForm
from amped.backend.plain.ops.dense import PlainSplit
from amped.backend.plain.split import split_of

SHAPES = [(6, 5), (4, 3, 5), (3, 2, 4, 2), (2, 3, 1, 2, 3), (1, 1, 7)]
RANK = 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("slab", [1, 2, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_modes_in_any_order(shape: tuple[int, ...], slab: int, dtype: type) -> None:
    rng = np.random.default_rng(0)
    block = rng.standard_normal(shape).astype(dtype)
    factors = [rng.standard_normal((length, RANK)).astype(dtype) for length in shape]
    form = BlockForm(shape, min(slab, shape[0]), RANK, RANK, np.dtype(dtype), 1 << 20)
    sweep, read = PlainSplit().make(form, np.empty(0, np.uint8)), 0
    order = len(shape)
    for mode in [*range(order), *range(order), *reversed(range(order))]:
        out = np.full((shape[mode], RANK), np.nan)
        if sweep.reads(mode):
            read += 1
            sweep.begin(mode, factors, out)
            for start in range(0, shape[0], form.slab):
                sweep.add(mode, block[start : start + form.slab], start, factors, out)
        sweep.end(mode, factors, out)
        expected = dense_mttkrp(block.astype(np.float64), [f.astype(np.float64) for f in factors], mode)
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
        factors[mode] = rng.standard_normal(factors[mode].shape).astype(dtype)
        sweep.changed(mode)
    assert read <= 6


def test_what_is_kept_can_be_resumed() -> None:
    shape = (4, 3, 5)
    rng = np.random.default_rng(1)
    block, factors = rng.random(shape), [rng.random((length, RANK)) for length in shape]
    sweep = PlainSplit().make(BlockForm(shape, 4, RANK, RANK, np.dtype(np.float64), 1 << 20), np.empty(0, np.uint8))
    assert sweep.kept() is None
    out = np.empty((shape[0], RANK))
    sweep.begin(0, factors, out)
    sweep.add(0, block, 0, factors, out)
    sweep.end(0, factors, out)
    kept = sweep.kept()
    sweep.changed(split_of(shape))
    assert sweep.reads(0)
    sweep.resume(kept)
    assert not sweep.reads(0)
