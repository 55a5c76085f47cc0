"""CP-APR's elementwise work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amped.backend.choose import choose
from amped.backend.cpu.ops.mu_update import CompiledMuUpdate, HostMuUpdate
from amped.backend.ops.mu_update import MU_UPDATE
from amped.parallel.mpi import Comm

LEAST, KAPPA = 1e-10, 1e-2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "rank"), [(0, 3), (1, 1), (5, 7), (20000, 16), (200, 33), (70, 300)])
def test_an_update_of_a_mode(comm: Comm, device: str, rows: int, rank: int, dtype: Any) -> None:
    """Columns beyond the rank, which pad rows, stay as they are."""
    here, rng, kind = choose(device, comm), np.random.default_rng(rank), np.dtype(dtype)
    work = MU_UPDATE.require(here).make(here, rank, kind)
    whole = rng.random((rows, rank + 3)).astype(kind)
    whole[rng.random(whole.shape) < 0.3] = 1e-30
    whole[:, rank:] = 7
    phi, weights = rng.random((rows, rank + 1)) * 2, rng.random(rank) + 0.5
    held, of_phi = here.to_device(whole), here.to_device(phi)
    matrix, of_phi = held[:, :rank], of_phi[:, :rank]
    b = whole[:, :rank].astype(float)

    # What is small is marked by Phi, and shifted then.
    sums = here.zeros((rank,), np.float64)
    work.add_columns(matrix, sums)
    np.testing.assert_allclose(here.to_host(sums), b.sum(axis=0), rtol=1e-12)
    work.end(of_phi, matrix, sums, LEAST)
    a = b / np.where(b.sum(axis=0) > 0, b.sum(axis=0), 1)
    np.testing.assert_allclose(here.to_host(matrix), a, rtol=3 * np.finfo(kind).eps + 1e-14)
    work.begin(matrix, here.to_device(weights), KAPPA, LEAST)
    b = (a + KAPPA * ((a < LEAST) & (phi[:, :rank] > 1))) * weights
    np.testing.assert_allclose(here.to_host(matrix), b, rtol=3 * np.finfo(kind).eps + 1e-14)

    # The violation decides.
    violation, fact, done = here.zeros((1,), np.float64), here.zeros((2,), np.float64), here.zeros((1,), np.int32)
    work.measure(of_phi, matrix, violation, done)
    b = here.to_host(matrix).astype(float)
    want = float(np.abs(np.minimum(b, 1 - phi[:, :rank])).max(initial=0))
    assert float(here.to_host(violation)[0]) == want
    work.apply(of_phi, matrix, violation, fact, want, done)
    assert (here.to_host(fact).tolist(), int(here.to_host(done)[0])) == ([want, 1.0], 0)
    np.testing.assert_allclose(
        here.to_host(matrix), (b * phi[:, :rank]).astype(kind), rtol=0, atol=2e-38
    )  # no subnormals
    before = np.array(here.to_host(matrix))
    work.apply(of_phi, matrix, violation, fact, want + 1, done)
    assert (here.to_host(fact).tolist(), int(here.to_host(done)[0])) == ([want, 1.0], 1)
    violation.fill(0)
    work.measure(of_phi, matrix, violation, done)
    work.apply(of_phi, matrix, violation, fact, 0.0, done)
    assert float(here.to_host(violation)[0]) == 0, "it is done"
    np.testing.assert_array_equal(here.to_host(matrix), before)
    np.testing.assert_array_equal(here.to_host(held)[:, rank:], whole[:, rank:])


def test_a_number_that_is_none_is_the_largest(comm: Comm, device: str) -> None:
    here = choose(device, comm)
    work = MU_UPDATE.require(here).make(here, 2, np.dtype(np.float64))
    matrix, phi = here.to_device(np.full((3, 2), 0.5)), np.full((3, 2), 9.0)
    phi[1, 1] = np.nan
    violation = here.zeros((1,), np.float64)
    work.measure(here.to_device(phi), matrix, violation, here.zeros((1,), np.int32))
    assert np.isnan(here.to_host(violation)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("least", [LEAST, 0.0])
def test_compiled_updates_have_the_same_bits(dtype: Any, least: float) -> None:
    """Of marked and unmarked numbers of all sizes, and where Phi is NaN."""
    rng, rank = np.random.default_rng(3), 5
    start = (10.0 ** rng.uniform(-14, 0, (400, rank))).astype(dtype)
    start[rng.random(start.shape) < 0.2] = 0
    phi, weights, kappa = rng.random(start.shape) * 2, rng.random(rank) + 0.1, rng.random(rank)
    phi[7, 3] = np.nan
    found = []
    for work in (HostMuUpdate(1), CompiledMuUpdate(2)):
        matrix = start.copy()
        for _ in range(2):  # the second time with the marks of the first
            work.begin(matrix, weights, kappa, least)
            found.append(matrix.copy())
            work.end(phi, matrix, np.append(matrix[:, 1:].sum(axis=0, dtype=np.float64), 0.0), least)
            found.append(matrix.copy())
    for one, other in zip(found[:4], found[4:], strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
