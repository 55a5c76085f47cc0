"""Arithmetic on eight doubles, against NumPy."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from amped.backend.cpu.simd.doubles import (
    choose,
    each,
    fold,
    larger,
    load,
    log_of_ratio,
    minus,
    over,
    plus,
    smaller,
    store,
    times,
    total,
    transpose,
)


@numba.njit
def logs(x, out):  # type: ignore[no-untyped-def]
    for k in range(0, x.size, 8):
        store(out, k, log_of_ratio(load(x, k)))


@numba.njit
def folded(x, out):  # type: ignore[no-untyped-def]
    vectors = load(x, 0), load(x, 8), load(x, 16), load(x, 24), load(x, 32), load(x, 40), load(x, 48), load(x, 56)
    store(out, 0, fold(*vectors))
    out[8] = total(vectors[1])


@numba.njit
def turned(x, width, out, step):  # type: ignore[no-untyped-def]
    transpose(x, 1, width, out, 2, step)


@numba.njit
def combined(x, out):  # type: ignore[no-untyped-def]
    a, b = load(x, 0), load(x, 8)
    store(out, 0, plus(larger(a, b), each(2.0)))
    store(out, 8, over(smaller(a, b), each(3.0)))
    store(out, 16, times(choose(a, a, b), minus(a, b)))


@pytest.mark.parametrize("scale", [1e-300, 1e-16, 1e-8, 1e-3, 0.3, 1.0, 1e8, 1e300])
def test_log_of_ratio(scale: float) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.random(8000) * scale, -rng.random(8000) * min(scale, 1 - 1e-12), np.zeros(8)])
    out = np.full(x.size, np.nan)
    logs(x, out)
    np.testing.assert_allclose(out, np.log1p(x), rtol=5e-16, atol=0)


def test_sums() -> None:
    x, out = np.random.default_rng(1).random(64), np.full(9, np.nan)
    folded(x, out)
    np.testing.assert_allclose(out[:8], x.reshape(8, 8).sum(axis=1), rtol=1e-15)
    assert out[8] == pytest.approx(x[8:16].sum(), rel=1e-15)


@pytest.mark.parametrize(("width", "step"), [(4, 8), (7, 11)])
def test_turn(width: int, step: int) -> None:
    x, out = np.random.default_rng(2).random(1 + 8 * width), np.full(2 + 4 * step, np.nan)
    turned(x, width, out, step)
    rows = x[1:].reshape(8, width)[:, :4]
    assert np.array_equal(out[2:].reshape(4, step)[:, :8], rows.T)
    assert np.all(np.isnan(out[2:].reshape(4, step)[:, 8:]))


def test_elementwise() -> None:
    x, out = np.random.default_rng(3).random(16) - 0.5, np.full(24, np.nan)
    combined(x, out)
    a, b = x[:8], x[8:]
    want = np.maximum(a, b) + 2, np.minimum(a, b) / 3, np.where(a < 0, a, b) * (a - b)
    assert np.array_equal(out, np.concatenate(want))
