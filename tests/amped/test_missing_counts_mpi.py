"""CP-APR over observed elements on several ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import small_pieces

import amped
from amped.parallel.mpi import Comm


@pytest.mark.parametrize(("method", "compiled"), [("mu", "never"), ("mu", "always"), ("pdnr", "always")])
@pytest.mark.parametrize("shape", [(9, 8, 7), (2, 9, 1, 3)])
def test_ranks_agree(
    comm: Comm, method: Any, compiled: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    rng, root = np.random.default_rng(0), comm.rank == 0
    counts, weights = rng.poisson(3.0, shape).astype(float), rng.choice([0.0, 1.0, 2.0], shape)
    init = [rng.random((length, 2)) for length in shape]
    how: dict[str, Any] = {"method": method, "init": init, "max_iters": 6, "device": "cpu", "precision": "fp64"}
    for observed, share in (({"weights": weights}, weights), ({"mask": weights}, weights > 0)):
        with small_pieces(10):
            model = amped.cp_apr(counts if root else None, 2, **(observed if root else {}), **how)
        full = model.full()
        expected = float((share * (counts * np.log(np.maximum(full, 1e-10)) - full)).sum())
        assert model.series["loglikelihood"][-1] == pytest.approx(expected, rel=1e-10)
        assert np.diff(model.series["loglikelihood"]).min() >= -1e-10 * abs(expected)
        assert len(set(comm.allgather(repr(model.series) + repr(model.weights)))) == 1
