"""Equations of updates in a GPU's memory, against those of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nonzeros import DTYPES
from oracle import PRECISIONS

from amped.backend.choose import choose
from amped.backend.ops.gram import gram
from amped.backend.ops.update_equations import UPDATE_EQUATIONS, UpdateEquations
from amped.methods.incremental import HostUpdateEquations
from amped.parallel.mpi import world

pytestmark = pytest.mark.gpu

LENGTHS = 1, 300, 5000


@pytest.fixture(scope="module")
def backend() -> Any:
    return choose("cuda", world())


def updated(device: Any, equations: UpdateEquations, given: list[Any], others: Any, sums: list[Any]) -> list[Any]:
    """Return the rows of all modes after two updates, and the changes of other rows; `given` are padded rows."""
    rows, result = [each.copy()[:, : len(others[0])] for each in given], list[Any]()
    for mode, each in enumerate(rows):
        equations.set_gram(mode, gram(device, each))
    for _ in range(2):
        equations.begin(others)
        earlier = [each.base.copy()[:, : len(others[0])] for each in rows]
        for step, mode in enumerate([2, 0, 1, 2, 0, 1, 2]):
            equations.solve(mode, sums[mode].copy(), earlier[mode], rows[mode], keeps=not step)
        result += [*(device.to_host(each).copy() for each in rows), equations.changes()]
    return result


@pytest.mark.parametrize("rank", [1, 7, 16, 33, 64])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_are_those_of_the_host(backend: Any, rank: int, precision: str) -> None:
    """With padded rows, other rows of some modes, and more rows than all thread blocks hold at a time."""
    rng, dtype = np.random.default_rng(rank), np.dtype(DTYPES[precision])
    stride = backend.stride(rank, dtype.itemsize)
    given = [rng.normal(size=(length, stride)).astype(dtype) for length in LENGTHS]
    sums = [2e3 * rng.normal(size=(length, rank)) for length in LENGTHS]
    rest = rng.normal(size=(3, 2 * rank + 10, rank)) * np.array([1, 0, 1])[:, None, None]
    others = rest.transpose(0, 2, 1) @ rest
    solved = UPDATE_EQUATIONS.require(backend, lambda each: each.suits(rank)).make(3, rank, dtype)
    host = HostUpdateEquations(backend, 3, rank, dtype, ())
    before = [backend.to_device(each) for each in given]
    found, want = (
        updated(backend, each, before, others, [backend.to_device(rows) for rows in sums]) for each in (solved, host)
    )
    again = updated(backend, solved, before, others, [backend.to_device(rows) for rows in sums])
    assert found[3] is not None
    for one, other, repeated in zip(found, want, again, strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one, other, atol=scale * {"fp32": 1e-3, "fp64": 1e-8}[precision], rtol=0)
        np.testing.assert_array_equal(one, repeated)


@pytest.mark.parametrize("number", [0.0, np.inf, np.nan])
def test_singular_equations_are_refused(backend: Any, number: float) -> None:
    before = [backend.to_device(np.ones((length, 3))) for length in LENGTHS]
    before[1][:, 1] = number
    sums = [backend.to_device(np.ones((length, 3))) for length in LENGTHS]
    equations = UPDATE_EQUATIONS.require(backend).make(3, 3, np.dtype(np.float64))
    assert updated(backend, equations, before, np.zeros((3, 3, 3)), sums)[3] is None
