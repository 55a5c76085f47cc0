"""ADMM of rows on a GPU against the reference, until both are at the optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from row_admm import HostRowAdmm

from amped.backend.device import Device
from amped.backend.ops.row_admm import ROW_ADMM, RowAdmmCase, RowTerms

pytestmark = pytest.mark.gpu

INF = np.inf
TERMS = {
    "nonnegative": RowTerms(0, INF, 0, 0, False, False),
    "lasso": RowTerms(-INF, INF, 0.3, 0.1, False, False),
    "sparse parts": RowTerms(0, INF, 0.3, 0, False, False),
    "bounds": RowTerms(-0.2, 0.3, 0, 0, False, False),
    "simplex": RowTerms(-INF, INF, 0, 0, True, False),
    "least squares": RowTerms(-INF, INF, 0, 0.2, False, True),
}


@pytest.mark.parametrize("backend", [pytest.param(("cuda", None))], indirect=True, ids=["cuda"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rank", [1, 5, 32, 33, 70, 128])
@pytest.mark.parametrize("name", TERMS)
def test_rows(backend: Device, rank: int, dtype: Any, name: str) -> None:
    rng, rows, terms = np.random.default_rng(rank), 300, TERMS[name]
    case = RowAdmmCase(rank, np.dtype(dtype), rows, [terms] * 3)
    grams = [(f := rng.random((40, rank))).T @ f for _ in range(3)]
    start = (
        np.full((rows, rank), 1 / rank) if terms.simplex else np.clip(rng.random((rows, rank)), terms.low, terms.high)
    )
    source = (rng.standard_normal((rows, rank)) * 0.5) @ (grams[1] * grams[2]) + 0.1 * rng.standard_normal((rows, rank))
    fixed = None if terms.least_squares or terms.simplex else rng.random((rows, rank)) < 0.1
    provider = ROW_ADMM.first(backend)
    assert provider is not None
    ends = []
    for solver, to in ((provider.make(case), backend.to_device), (HostRowAdmm(case), np.array)):
        target, held = to(start.astype(dtype)), None if fixed is None else to(fixed)
        dual, values = None if terms.least_squares else to(np.zeros((rows, rank))), []
        for _ in range(30):
            totals = np.zeros(solver.totals.shape)
            totals[:, :-2] = np.stack(grams).reshape(3, -1)
            solver.totals[...] = to(totals)
            solver.prepare(0)
            for part in (slice(0, 130), slice(130, rows)):
                both = (None if each is None else each[part] for each in (dual, held))
                solver.solve(0, to(source)[part], target[part], *both)
            values.append(np.array(backend.to_host(solver.totals[0])) if to == backend.to_device else solver.totals[0])
        stored = np.array(backend.to_host(target) if to == backend.to_device else target, np.float64)
        np.testing.assert_allclose(values[-1][:-2].reshape(rank, rank), stored.T @ stored, rtol=1e-9)
        gram = grams[1] * grams[2]
        data = np.vdot(stored @ gram, stored) / 2 - np.vdot(source, stored)
        penalty = terms.l1 * abs(stored).sum() + terms.l2 / 2 * np.vdot(stored, stored)
        np.testing.assert_allclose(values[-1][-2:], [data, penalty], rtol=1e-8, atol=1e-8 * abs(data))
        objectives = np.array([each[-2:].sum() for each in values])
        assert (np.diff(objectives) <= 1e-12 * abs(objectives[0])).all()
        if fixed is not None:
            np.testing.assert_array_equal(stored[fixed], start.astype(dtype)[fixed])
        ends.append(objectives[-1])
    assert ends[0] <= ends[1] + 1e-3 * abs(ends[1])
