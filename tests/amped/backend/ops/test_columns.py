"""Sums and arrangement of columns in device memory, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from amped.backend.device import Device
from amped.backend.ops.columns import COLUMNS


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "rank"), [(1, 1), (7, 3), (9000, 33), (20_000, 7), (300, 130)])
def test_columns(backend: Device, rows: int, rank: int, dtype: type) -> None:
    """The padding of rows is not read; sums are in double precision, and quotients are rounded once."""
    columns = COLUMNS.first(backend)
    if columns is None:
        pytest.skip("matrices in host memory are arranged by NumPy")
    rng = np.random.default_rng(rows)
    matrix = rng.standard_normal((rows, rank)).astype(dtype)
    matrix[:, 0] = 0
    padded = np.full((rows, backend.stride(rank, matrix.itemsize) + 4), np.nan, dtype)
    padded[:, :rank] = matrix
    stored = backend.to_device(padded)[:, :rank]
    sums, exact = columns.sums(stored), matrix.astype(np.float64)
    np.testing.assert_allclose(sums.squares, (exact**2).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(sums.magnitudes, np.abs(exact).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(sums.signed_squares, (exact * np.abs(exact)).sum(axis=0), rtol=1e-11, atol=1e-12)
    totals = columns.totals(stored)
    np.testing.assert_allclose(backend.to_host(totals), exact.sum(axis=0), rtol=1e-12, atol=1e-10)
    order, divisor = rng.permutation(rank), rng.uniform(-2, 2, rank).astype(dtype)
    np.testing.assert_array_equal(columns.on_host(stored, order, divisor, -np.inf), matrix[:, order] / divisor)
    flushed = columns.arranged(stored, order, np.ones(rank), 0.5)
    assert flushed.flags.c_contiguous
    np.testing.assert_array_equal(backend.to_host(flushed), np.where(matrix[:, order] <= 0.5, 0, matrix[:, order]))
