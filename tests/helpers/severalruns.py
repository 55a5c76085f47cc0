"""Runs side by side, and the same ones each by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import amped
from amped.assembly import decompositions, opened
from amped.decomp.constraints import Wanted
from amped.decomp.driver import Rule
from amped.models.kruskal import KruskalTensor
from amped.operators.tuning import Budget
from amped.options import Options
from amped.parallel.mpi import Comm

RANKS = {(rank, start): rank for rank in (1, 7, 3, 16, 2) for start in range(2)}


def side_by_side(
    tensor: Any, columns: int, comm: Comm, rule: Rule, nonnegative: bool = False, ranks: Any = None, **options: Any
) -> dict[tuple[int, int], KruskalTensor]:
    """Return the models of runs side by side, by rank and start."""
    ranks, chosen = ranks or RANKS, Options(**options)
    with opened(tensor, comm, chosen, None) as (machine, source):
        constraints = Wanted(nonnegative).of(len(source.shape))
        several = decompositions(source, ranks, columns, machine, chosen, Budget(), constraints, _start)
        found = {key: method.model() for key, method in several.run(ranks, rule)}
        assert set(several.seconds) == set(ranks)
    return found  # type: ignore[return-value]


def _start(key: tuple[int, int]) -> int:
    return key[1]


def assert_as_alone(
    found: Mapping[tuple[int, int], KruskalTensor],
    tensor: Any,
    rule: Rule,
    atol: float,
    nonnegative: bool,
    **options: Any,
) -> None:
    """Fits, iterations and factor matrices are those of separate runs, up to rounding."""
    for (rank, start), model in found.items():
        alone = amped.cp_als(
            tensor, rank, seed=start, max_iters=rule.max_iters, tol=rule.tol, nonnegative=nonnegative, **options
        )
        assert model.rank == rank
        if atol == 0:
            assert model.fits == alone.fits, (rank, start)
        else:
            assert abs(model.fits[-1] - alone.fits[-1]) < atol, (rank, start)
        assert model.converged == alone.converged or atol > 0
        if atol < 1e-6 and len(model.fits) == len(alone.fits) < 10:  # else rounding may have grown
            for one, other in zip(model.factors, alone.factors, strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=max(atol, 1e-12) * 100)
