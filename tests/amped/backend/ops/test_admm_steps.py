"""What a GPU computes beside the proximal operators of ADMM, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from admm_steps import PlainAdmmSteps

from amped.backend.choose import choose
from amped.backend.ops.admm_steps import ADMM_STEPS, AdmmStart, EntryTerms
from amped.parallel.mpi import world

pytestmark = pytest.mark.gpu

TERMS = {
    "none": None,
    "ball": EntryTerms(-math.inf, math.inf, 0.0, True),
    "bounds": EntryTerms(-0.5, 0.4, 0.0, False),
    "all": EntryTerms(0.0, 0.9, 0.1, True),
    "l1": EntryTerms(-math.inf, math.inf, 0.2, False),
}


@pytest.fixture(scope="module")
def backend() -> Any:
    pytest.importorskip("cupy")
    return choose("cuda", world())


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("operators", [1, 2])
@pytest.mark.parametrize("rank", [1, 7, 16, 33, 64])
def test_iterations(backend: Any, rank: int, operators: int, terms: str) -> None:
    rng, first = np.random.default_rng(rank), TERMS[terms]
    for rows in (0, 1, 63, 20_011):
        whole, shape = (rows, rank), (operators, rows, rank)
        given = [rng.random(size) - 0.4 for size in (whole, shape, whole, (rank, rank))]
        wanted = PlainAdmmSteps(AdmmStart(*(each.copy() for each in given), first))
        provider = ADMM_STEPS.first(backend, lambda each: each.suits(rank, operators))
        assert provider is not None
        steps = provider.begin(AdmmStart(*map(backend.to_device, given), first))
        for tested in (False, True, True):
            moved, want = backend.to_host(steps.advance()), wanted.advance()
            scale = abs(want).max(initial=1)
            np.testing.assert_allclose(moved, want, rtol=0, atol=1e-12 * scale)
            results = [None if first and not k else np.minimum(want[k], 0.3) for k in range(operators)]
            on_device = [None if each is None else backend.to_device(each) for each in results]
            found, sums = steps.settle(on_device, tested), wanted.settle(results, tested)
            if tested:
                np.testing.assert_allclose(backend.to_host(found), sums, rtol=1e-10, atol=1e-10)
            for name in ("copies", "scaled"):
                one, other = backend.to_host(getattr(steps, name)), getattr(wanted, name)
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-11 * scale)


def test_no_other_cases(backend: Any) -> None:
    assert ADMM_STEPS.first(backend, lambda each: each.suits(65, 1)) is None
    assert ADMM_STEPS.first(backend, lambda each: each.suits(8, 3)) is None
