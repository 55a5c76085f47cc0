"""The rows of modes over shards: the rows of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import small_pieces

import amped
from amped.backend.cpu.ops.rowproblems import HostRows

LENGTH = 100


def test_each_row_is_noted_by_one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also rows without nonzeros: of a mode in many shards they would take memory many times."""
    made, asked = list[slice](), list[slice]()
    make, run = HostRows.make, HostRows.run

    def noting(self: HostRows, shard: Any, share: Any, whole: slice | None = None) -> Any:
        assert whole is not None
        if share.rows.stop == LENGTH:
            made.append(whole)
        return make(self, shard, share, whole)

    def running(self: HostRows, *given: Any) -> None:
        asked.append(given[7])
        run(self, *given)

    monkeypatch.setattr(HostRows, "make", noting)
    monkeypatch.setattr(HostRows, "run", running)
    rng = np.random.default_rng(0)
    columns = rng.integers(3, 90, 200) // 7 * 7, rng.integers(0, 9, 200), rng.integers(0, 2, 200)
    indices = np.unique(np.column_stack(columns), axis=0)
    tensor = amped.SparseTensor(indices, np.ones(len(indices)), (LENGTH, 9, 2))
    how: dict[str, Any] = {"placement": "stream", "method": "pdnr", "mu_iters": 0, "device": "cpu", "precision": "fp64"}
    with small_pieces(20):
        model = amped.cp_apr(tensor, 2, max_iters=1, **how)
    assert len(made) > 4
    rows = [row for whole in made for row in range(whole.start, whole.stop)]
    assert len(rows) == len(set(rows))
    assert all(whole in asked for whole in made if whole.stop > whole.start)
    assert not model.factors[0][np.setdiff1d(np.arange(LENGTH), indices[:, 0])].any()
