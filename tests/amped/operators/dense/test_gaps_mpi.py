"""Dense tensors with few missing elements, over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gaps import assert_equal, both, with_gaps

from amped.operators.dense import gaps
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"nonnegative": True, "ridge": 0.1},
        pytest.param({"device": "cuda", "ridge": 0.1}, marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("shape", [(9, 10, 11), (4, 12, 30)])
def test_as_a_sparse_tensor(
    comm: Comm, shape: tuple[int, ...], how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaps, "LEAST", 0)
    X = with_gaps(shape)
    X[1, 2:9] = np.nan
    X[0, 3, 1:], X[:, 4] = np.nan, np.nan
    one, other = both(X if comm.rank == 0 else None, 5, **how)
    assert_equal(one, other, 1e-10)
    mine = str(one.series), *(factor.tobytes() for factor in one.factors)
    assert all(theirs == mine for theirs in comm.allgather(mine))


def test_an_exact_fit(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "LEAST", 0)
    factors = [np.random.default_rng(m).random((n, 5)) for m, n in enumerate((9, 10, 11))]
    X = np.einsum("ir,jr,kr->ijk", *factors)
    X[np.random.default_rng(9).random(X.shape) < 0.2] = np.nan
    start = [factor + 1e-6 * np.random.default_rng(8).random(factor.shape) for factor in factors]
    one, other = both(X if comm.rank == 0 else None, 5, init=start, max_iters=2)
    np.testing.assert_allclose(one.series["objective"], other.series["objective"], rtol=1e-6)
