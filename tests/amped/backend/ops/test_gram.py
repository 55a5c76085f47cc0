"""Gram matrices of factor matrices in a device's memory, against NumPy in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amped.backend.choose import choose
from amped.backend.ops.gram import gram
from amped.parallel.mpi import world


@pytest.fixture(scope="module")
def backend(device: str) -> Any:
    return choose(device, world())


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("rank", [1, 7, 16, 33, 64, 65])
def test_any_number_of_rows(backend: Any, rank: int, dtype: str) -> None:
    """Columns beyond the rank may hold anything, and the sum is the same each time."""
    rng = np.random.default_rng(rank)
    for padding, rows in enumerate((0, 1, 63, 20_011)):
        matrix = (rng.random((rows, rank)) - 0.3).astype(dtype)
        held = backend.to_device(np.pad(matrix, ((0, 0), (0, padding)), constant_values=np.nan))[:, :rank]
        found = [backend.to_host(gram(backend, held)) for _ in range(2)]
        wide = matrix.astype(np.float64)
        np.testing.assert_allclose(found[0], wide.T @ wide, rtol=1e-12, atol=1e-12)
        assert np.array_equal(found[0], found[1])
