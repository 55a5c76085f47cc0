"""Isotonic and unimodal regression on a GPU against the host's."""

from __future__ import annotations

import numpy as np
import pytest

from amped.backend.device import Device
from amped.backend.ops.isotonic import ISOTONIC
from amped.methods.proximal.projections import monotone, unimodal_columns

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("backend", [pytest.param(("cuda", None))], indirect=True, ids=["cuda"])
@pytest.mark.parametrize("kind", ["noise", "ties", "trend"])
@pytest.mark.parametrize("rows", [1, 2, 5, 255, 256, 257, 3000])
def test_columns(backend: Device, rows: int, kind: str) -> None:
    matrix = np.random.default_rng(rows).standard_normal((rows, 35))
    matrix = matrix.round() if kind == "ties" else matrix
    if kind == "trend":
        matrix[:, ::2] += np.linspace(-5, 5, rows)[:, None]
    solver = ISOTONIC.first(backend)
    assert solver is not None
    given = backend.to_device(matrix)
    for decreasing in (False, True):
        found = backend.to_host(solver.monotone(given, decreasing))
        np.testing.assert_allclose(found, monotone(matrix, decreasing), atol=1e-12)
    for low, high in ((-np.inf, np.inf), (0, np.inf), (-0.5, 0.4)):
        found, wanted = backend.to_host(solver.unimodal(given, low, high)), unimodal_columns(matrix, low, high)
        errors, least = (np.square(each - matrix).sum(axis=0) for each in (found, wanted))
        np.testing.assert_allclose(errors, least, rtol=1e-11)
        for column in found.T:
            signs = np.sign(np.diff(column))
            assert (np.diff(signs[signs != 0]) <= 0).all()
    np.testing.assert_array_equal(backend.to_host(given), matrix)
